"""The accountant: published figures, closed forms, numerical integration, and noise that errs to the private side."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.dp import accounting
from kohort.privacy.dp import cache as accounting_cache
from kohort.privacy.dp.accounting import (
    Event,
    PrivateEvent,
    calibrate,
    check_budget,
    compose_parallel,
    describe,
    epsilon_of,
    grid_rate,
    parse_events,
)
from kohort.privacy.dp.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

DELTA = 1e-5
LOW_RISK = Event(sigma=6, rate=0.2, steps=100)
HIGH_RISK = Event(sigma=8, rate=0.1, steps=600)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def forget() -> None:
    """As in a new process."""
    accounting._cached_epsilon.cache_clear()
    accounting._cached_sigma.cache_clear()
    accounting._epsilon.cache_clear()
    accounting_cache._loaded.clear()
    accounting_cache._unwritten.clear()


# --- epsilon and delta ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "accountant", "expected"),
    [
        # dp-accounting 0.6.0, PLDAccountant and RdpAccountant as they are; "basic" adds two RDP figures at 5e-6.
        ([HIGH_RISK], "pld", 1.172),
        ([HIGH_RISK], "rdp", 1.281),
        ([LOW_RISK, HIGH_RISK], "pld", 1.817),
        ([HIGH_RISK, LOW_RISK], "pld", 1.817),
        ([LOW_RISK, HIGH_RISK], "rdp", 1.980),
        ([LOW_RISK, HIGH_RISK], "basic", 2.826),
    ],
)
def test_known_figures(events: list[Event], accountant: accounting.Accountant, expected: float) -> None:
    assert epsilon_of(events, DELTA, accountant=accountant) == pytest.approx(expected, abs=0.01)


def test_full_batches_compose_to_one_gaussian() -> None:
    """Against the formula of Balle and Wang 2018 in other words: two normal tails, and no logarithms."""
    events = [Event(sigma=5.0, steps=9), Event(sigma=10.0, steps=64)]
    mu = math.sqrt(9 / 25 + 64 / 100)
    assert mu == 1

    def delta_at(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    for epsilon in (0.0, 0.5, 2.0, 5.0):
        assert epsilon_of(events, delta_at(epsilon)) == pytest.approx(epsilon, abs=1e-6)
    epsilon = epsilon_of(events, DELTA)
    assert delta_at(epsilon) <= DELTA * (1 + 1e-9)
    assert delta_at(epsilon * 0.9999) > DELTA


def test_the_closed_form_agrees_with_the_convolution() -> None:
    """A rate just below 1 takes the other path through the code, with nearly the same answer."""
    for sigma, steps in ((20.0, 10), (3.0, 5), (100.0, 400)):
        exact = epsilon_of([Event(sigma=sigma, steps=steps)], DELTA)
        convolved = epsilon_of([Event(sigma=sigma, rate=1 - 1e-9, steps=steps)], DELTA)
        assert exact * 0.9999 <= convolved <= exact * 1.005


def average(sigma: float, rate: float, epsilon: float) -> float:
    """Delta of one sampled step, by integrating both directions of the hockey stick."""

    def mixed(x: float) -> float:
        return float((1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, 1, sigma))

    def plain(x: float) -> float:
        return float(norm.pdf(x, 0, sigma))

    ends = (-12 * sigma, 1 + 12 * sigma)
    remove = quad(lambda x: max(0.0, mixed(x) - math.exp(epsilon) * plain(x)), *ends, limit=400)[0]
    add = quad(lambda x: max(0.0, plain(x) - math.exp(epsilon) * mixed(x)), *ends, limit=400)[0]
    return max(remove, add)


@pytest.mark.parametrize(("sigma", "rate", "epsilon"), [(1.0, 0.1, 0.3), (0.7, 0.5, 1.0), (2.0, 0.9, 0.2)])
def test_one_sampled_step_equals_its_integral(sigma: float, rate: float, epsilon: float) -> None:
    delta = average(sigma, rate, epsilon)
    found = epsilon_of([Event(sigma=sigma, rate=rate)], delta)
    assert delta <= average(sigma, rate, found) * 1.01
    assert average(sigma, rate, found) <= delta * (1 + 1e-6)
    assert not average(sigma * 0.95, rate, found) <= delta * 1.01  # the check would see 5 % less noise


def test_two_different_steps_equal_their_integral() -> None:
    (s1, q1), (s2, q2), epsilon = (1.5, 0.3), (1.0, 0.2), 0.5
    x, y = np.linspace(-14, 15, 2401), np.linspace(-10, 11, 2401)
    plain = np.outer(norm.pdf(x, 0, s1), norm.pdf(y, 0, s2))
    mixed = np.outer(
        (1 - q1) * norm.pdf(x, 0, s1) + q1 * norm.pdf(x, 1, s1), (1 - q2) * norm.pdf(y, 0, s2) + q2 * norm.pdf(y, 1, s2)
    )
    cell = (x[1] - x[0]) * (y[1] - y[0])

    def delta_at(epsilon: float) -> float:
        remove = np.maximum(0, mixed - math.exp(epsilon) * plain).sum() * cell
        add = np.maximum(0, plain - math.exp(epsilon) * mixed).sum() * cell
        return float(max(remove, add))

    found = epsilon_of([Event(sigma=s1, rate=q1), Event(sigma=s2, rate=q2)], delta_at(epsilon))
    assert delta_at(found) == pytest.approx(delta_at(epsilon), rel=0.01)


def test_pure_events() -> None:
    three = [PrivateEvent(epsilon=0.1), PrivateEvent(epsilon=0.2), PrivateEvent(epsilon=0.3)]
    assert epsilon_of(three, 0.0) == pytest.approx(0.6)
    assert epsilon_of(three, DELTA) <= 0.61
    assert epsilon_of([PrivateEvent(epsilon=0.05)] * 200, DELTA) < 4  # far below 10
    assert epsilon_of([*three, Event(sigma=8.0)], 0.0) == math.inf
    both = epsilon_of([PrivateEvent(epsilon=0.5), Event(sigma=8.0)], DELTA)
    assert epsilon_of([Event(sigma=8.0)], DELTA) < both <= 0.51 + epsilon_of([Event(sigma=8.0)], DELTA)
    assert epsilon_of([PrivateEvent(epsilon=0.5), HIGH_RISK], DELTA, accountant="rdp") > both
    assert epsilon_of([], DELTA) == 0


def test_replacing_a_unit_costs_more() -> None:
    once = epsilon_of([Event(sigma=8.0, steps=4)], DELTA, relation="replace-one")
    assert once == pytest.approx(epsilon_of([Event(sigma=4.0, steps=4)], DELTA), rel=1e-9)
    with pytest.raises(ConfigError, match="add-or-remove-one"):
        epsilon_of([HIGH_RISK], DELTA, relation="replace-one")
    with pytest.raises(ConfigError, match="unknown neighbouring relation"):
        epsilon_of([HIGH_RISK], DELTA, relation="swap")  # type: ignore[arg-type]


sigmas = st.floats(1.0, 60.0)
rates = st.floats(0.01, 0.9) | st.just(1.0)
steps_drawn = st.integers(1, 300)


@settings(max_examples=15)
@given(sigmas, rates, steps_drawn, st.floats(1.05, 2.0))
def test_more_exposure_never_costs_less(sigma: float, rate: float, steps: int, factor: float) -> None:
    one = epsilon_of([Event(sigma=sigma, rate=rate, steps=steps)], DELTA)
    more = [
        Event(sigma=sigma, rate=rate, steps=math.ceil(steps * factor)),
        Event(sigma=sigma, rate=min(1.0, rate * factor), steps=steps),
        Event(sigma=sigma / factor, rate=rate, steps=steps),
    ]
    for worse in more:
        assert epsilon_of([worse], DELTA) >= one * 0.996  # each figure is rounded up a little


@settings(max_examples=10)
@given(sigmas, rates, steps_drawn)
def test_the_default_account_is_the_tighter_one(sigma: float, rate: float, steps: int) -> None:
    event = Event(sigma=sigma, rate=rate, steps=steps)
    assert epsilon_of([event], DELTA) <= epsilon_of([event], DELTA, accountant="rdp") * 1.005 + 1e-6


@given(st.floats(0.01, 10), st.floats(1e-9, 1e-2))
def test_the_closed_form_and_its_inverse(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * 1.0001, epsilon) > delta
    assert gaussian_epsilon(mu, delta) <= epsilon * (1 + 1e-9)


# --- calibration ----------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(st.floats(0.1, 8), st.sampled_from([1e-3, 1e-5, 1e-8]), rates, steps_drawn, st.booleans())
def test_calibrated_noise_errs_to_the_private_side(
    epsilon: float, delta: float, rate: float, steps: int, has_before: bool
) -> None:
    before = (Event(sigma=300.0, rate=0.3, steps=10),) if has_before else ()
    sigma = calibrate(epsilon=epsilon, delta=delta, rate=rate, steps=steps, before=before)
    assert epsilon_of([*before, Event(sigma=sigma, rate=grid_rate(rate), steps=steps)], delta) <= epsilon
    assert epsilon_of([*before, Event(sigma=sigma, rate=rate, steps=steps)], delta) <= epsilon * 1.001
    assume(sigma > 0.5)  # where a sample of few changes hardly anything, any noise will do
    too_little = Event(sigma=sigma * 0.97, rate=grid_rate(rate), steps=steps)
    assert epsilon_of([*before, too_little], delta) > epsilon


def test_full_batches_are_calibrated_without_waste() -> None:
    sigma = calibrate(epsilon=0.2, delta=DELTA, rate=1.0, steps=100)
    assert 0.19999 < epsilon_of([Event(sigma=sigma, steps=100)], DELTA) <= 0.2


@pytest.mark.parametrize("accountant", ["rdp", "basic"])
def test_other_accounts_ask_for_more_noise(accountant: accounting.Accountant) -> None:
    asked = {"epsilon": 2.0, "delta": DELTA, "rate": 0.1, "steps": 60, "before": [LOW_RISK]}
    theirs = calibrate(**asked, accountant=accountant)  # type: ignore[arg-type]
    events = [LOW_RISK, Event(sigma=theirs, rate=0.1, steps=60)]
    assert epsilon_of(events, DELTA, accountant=accountant) <= 2.0
    assert theirs > calibrate(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [(1.0, 1e-5, 1e-6, 1), (1e3, 1e-5, 1.0, 1), (300.0, 1e-5, 0.5, 3), (1e-3, 1e-10, 0.5, 1000), (0.01, 1e-3, 0.01, 2)],
)
def test_calibration_at_the_ends(epsilon: float, delta: float, rate: float, steps: int) -> None:
    sigma = calibrate(epsilon=epsilon, delta=delta, rate=rate, steps=steps)
    assert 0.05 <= sigma < 1e7
    assert epsilon_of([Event(sigma=sigma, rate=grid_rate(rate), steps=steps)], delta) <= epsilon


def test_no_noise_is_enough_for_a_delta_nobody_can_count() -> None:
    with pytest.raises(RefusedError, match="no amount of noise"):
        calibrate(epsilon=1e-9, delta=1e-14, rate=0.5, steps=1000)


def test_a_budget_that_is_gone_buys_nothing() -> None:
    with pytest.raises(RefusedError, match="whole privacy budget"):
        calibrate(epsilon=1.0, delta=DELTA, rate=0.1, steps=10, before=[HIGH_RISK])


@given(st.floats(1e-6, 1.0))
def test_rates_are_rounded_up_by_two_percent_at_most(rate: float) -> None:
    assert rate <= grid_rate(rate) <= min(1.0, rate * 1.0201)
    assert grid_rate(grid_rate(rate)) == grid_rate(rate)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_a_calibration_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    made = calibrate(epsilon=1.5, delta=DELTA, rate=0.1, steps=7)
    path = tmp_path / "kohort" / "accounting.json"
    assert path.is_file()
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(accounting, "_search", lambda *_: pytest.fail("searched again"))
        assert calibrate(epsilon=1.5, delta=DELTA, rate=0.1, steps=7) == made
        assert calibrate(epsilon=1.5, delta=DELTA, rate=0.0995, steps=7) == made  # of the same grid
    whole = path.read_text()
    other_sigma = json.loads(whole)
    [key] = other_sigma["body"]["entries"]
    other_sigma["body"]["entries"][key] = 0.001
    other_version = json.loads(whole)
    other_version["body"]["versions"] = "0"
    for broken in (whole[:-20], "", "[]", "null", json.dumps(other_sigma), json.dumps(other_version), '{"body":7}'):
        path.write_text(broken)
        forget()
        assert calibrate(epsilon=1.5, delta=DELTA, rate=0.1, steps=7) == made
        assert path.read_text() == whole
    forget()


def test_many_results_are_written_together_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    written: list[int] = []
    whole = accounting_cache.write_atomic
    monkeypatch.setattr(
        accounting_cache, "write_atomic", lambda path, content: (written.append(len(content)), whole(path, content))
    )
    for number in range(400):
        accounting_cache.remember(f"key {number}", float(number))
        assert accounting_cache.recall(f"key {number}") == number
    assert 10 < len(written) < 150
    accounting_cache._write_all()  # as at the end of the process
    forget()
    assert [accounting_cache.recall(f"key {number}") for number in range(400)] == [float(n) for n in range(400)]
    forget()


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    accounting_cache.remember("mine", 1.0)
    here = dict(accounting_cache._loaded)
    accounting_cache._loaded.clear()
    accounting_cache.remember("theirs", 2.0)
    accounting_cache._loaded.update(here)
    accounting_cache.remember("mine too", 3.0)
    forget()
    assert [accounting_cache.recall(key) for key in ("mine", "theirs", "mine too")] == [1.0, 2.0, 3.0]
    forget()


def test_without_a_place_for_the_cache_it_works_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    forget()
    assert calibrate(epsilon=1.5, delta=DELTA, rate=0.1, steps=7) > 0
    forget()


def test_full_batches_need_no_library() -> None:
    code = (
        "import sys; from kohort.privacy.dp.accounting import calibrate; "
        "calibrate(epsilon=1.0, delta=1e-5, rate=1.0, steps=10); sys.exit('dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"epsilon": 0.0}, ConfigError),
        ({"epsilon": -1.0}, ConfigError),
        ({"epsilon": math.nan}, ConfigError),
        ({"epsilon": math.inf}, ConfigError),
        ({"delta": 0.0}, ConfigError),
        ({"delta": -1e-9}, ConfigError),
        ({"delta": 1.0}, ConfigError),
        ({"delta": math.nan}, ConfigError),
        ({"delta": 1.01e-4}, RefusedError),
        ({"units": 1}, RefusedError),
        ({"units": 1, "allow_large_delta": True}, RefusedError),
        ({"units": 99, "floor": 100}, RefusedError),
    ],
)
def test_budgets_that_are_none(change: dict[str, float], error: type[Exception]) -> None:
    fine: dict[str, float] = {"epsilon": 1.0, "delta": 1e-4, "units": 1000}
    assert check_budget(**fine) is False  # type: ignore[arg-type]
    with pytest.raises(error):
        check_budget(**{**fine, **change})  # type: ignore[arg-type]


def test_a_large_delta_voids_the_claim() -> None:
    assert check_budget(epsilon=1.0, delta=9e-3, units=1000, allow_large_delta=True) is True
    assert check_budget(epsilon=1.0, delta=1e-5, units=1000, allow_large_delta=True) is False
    assert check_budget(epsilon=1.0, delta=0.0, units=1000, pure=True) is False


@pytest.mark.parametrize(
    "fields",
    [
        {"sigma": 0.0},
        {"sigma": -1.0},
        {"sigma": math.nan},
        {"sigma": math.inf},
        {"sigma": 1.0, "rate": 0.0},
        {"sigma": 1.0, "rate": 1.1},
        {"sigma": 1.0, "steps": 0},
        {"sigma": 1.0, "steps": 1.5},
    ],
)
def test_events_that_are_none(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Event(**fields)  # type: ignore[arg-type]


def test_questions_without_an_answer() -> None:
    with pytest.raises(ConfigError):
        PrivateEvent(epsilon=-0.1)
    with pytest.raises(ConfigError):
        epsilon_of([HIGH_RISK], 1.0)
    with pytest.raises(ConfigError):
        epsilon_of([HIGH_RISK], DELTA, accountant="guess")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        calibrate(epsilon=1.0, delta=0.0, rate=0.1, steps=1)
    with pytest.raises(ConfigError):
        calibrate(epsilon=1.0, delta=DELTA, rate=0.0, steps=1)


# --- parallel parts and words ---------------------------------------------------------------------------------------


def test_parallel_parts() -> None:
    parts = [(0.5, 1e-5), (0.3, 2e-5)]
    assert compose_parallel(parts, disjoint=True, unit="row") == (0.5, 2e-5)
    assert compose_parallel(parts, disjoint=True, unit="person") == pytest.approx((0.8, 3e-5))
    assert compose_parallel(parts, disjoint=False, unit="row") == pytest.approx((0.8, 3e-5))
    assert compose_parallel([], disjoint=True, unit="row") == (0.0, 0.0)


some_events = st.lists(
    st.builds(Event, sigma=st.floats(1e-3, 1e6), rate=st.floats(1e-9, 1.0), steps=st.integers(1, 10**9))
    | st.builds(PrivateEvent, epsilon=st.floats(0, 1e3)),
    max_size=4,
)


@given(some_events)
def test_events_read_back_as_written(events: list[Event | PrivateEvent]) -> None:
    assert parse_events(describe(events)) == tuple(events)


def test_the_words_of_events() -> None:
    assert describe([HIGH_RISK, PrivateEvent(epsilon=0.5)]) == "600 x gaussian(sigma=8, rate=0.1); pure(epsilon=0.5)"
    for wrong in ("noise", "600 x gaussian(sigma=8)", "pure(epsilon=x)", "pure(epsilon=0.5);", "pure(epsilon=-1)"):
        with pytest.raises(ConfigError):
            parse_events(wrong)
