"""The price of private selection, by the theorem's formula anew, by dp-accounting and from Opacus' divergences."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from kohort.errors import ConfigError
from kohort.privacy.dp.accounting import Event, PrivateEvent, epsilon_of
from kohort.privacy.dp.selection import draw_tries, selection_epsilon, stopping

SIGMA, STEPS, DELTA = 40.0, 30, 1e-5
ONE = [Event(sigma=SIGMA, steps=STEPS)]


def by_opacus(mean: float) -> float:
    """Theorem 2 of Papernot and Steinke with shape 0, written out; the conversion is Opacus' own."""
    rdp = pytest.importorskip("opacus.accountants.analysis.rdp", reason="the extra kohort[torch] is not installed")
    orders = np.array([1 + step / 50 for step in range(1, 500)] + list(range(11, 400)), dtype=float)
    one = np.asarray(rdp.compute_rdp(q=1.0, noise_multiplier=SIGMA, steps=STEPS, orders=orders))
    gammas = np.exp(-np.linspace(1e-3, 30, 300_000))
    gamma = gammas[np.argmin(np.abs((1 / gammas - 1) / np.log(1 / gammas) - mean))]
    whole = [
        value + min((1 - 1 / orders) * one + log(1 / gamma) / orders) + log(mean) / (order - 1)
        for order, value in zip(orders, one, strict=True)
    ]
    return float(rdp.get_privacy_spent(orders=orders, rdp=np.asarray(whole), delta=DELTA)[0])


@pytest.mark.parametrize("mean", [2.0, 10.0, 50.0])
def test_the_price_is_that_of_dp_accounting(mean: float) -> None:
    import dp_accounting
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    account = RdpAccountant()
    one = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(SIGMA), STEPS)
    account.compose(RepeatAndSelectDpEvent(one, mean, 0.0))
    assert selection_epsilon([ONE], mean=mean, delta=DELTA) == pytest.approx(account.get_epsilon(DELTA), rel=0.01)


@pytest.mark.parametrize("mean", [2.0, 10.0, 50.0])
def test_the_price_follows_from_the_divergences_of_opacus(mean: float) -> None:
    expected = by_opacus(mean)
    assert selection_epsilon([ONE], mean=mean, delta=DELTA) == pytest.approx(expected, rel=0.01)


def test_ten_tries_cost_less_than_ten_runs_and_more_than_one() -> None:
    assert epsilon_of(ONE, DELTA) < selection_epsilon([ONE], mean=10, delta=DELTA) < epsilon_of(ONE * 10, DELTA)


def test_the_dearest_setting_sets_the_price() -> None:
    dear = [Event(sigma=SIGMA / 2, steps=STEPS)]
    assert selection_epsilon([ONE, dear], mean=5, delta=DELTA) == selection_epsilon([dear], mean=5, delta=DELTA)


@pytest.mark.parametrize("mean", [1.5, 4.0, 20.0])
def test_tries_have_the_logarithmic_distribution(mean: float) -> None:
    from scipy.stats import chisquare

    generator = np.random.default_rng(3)
    drawn = np.array([draw_tries(mean, generator) for _ in range(20_000)])
    gamma = stopping(mean)
    assert (1 / gamma - 1) / log(1 / gamma) == pytest.approx(mean)
    wanted = [(1 - gamma) ** k / (k * log(1 / gamma)) for k in range(1, 7)]
    counts = [int((drawn == k).sum()) for k in range(1, 7)]
    found = chisquare([*counts, len(drawn) - sum(counts)], np.array([*wanted, 1 - sum(wanted)]) * len(drawn))
    assert found.pvalue > 1e-4


def test_what_is_not_proved_is_refused() -> None:
    with pytest.raises(ConfigError, match="delta of their own"):
        selection_epsilon([[PrivateEvent(epsilon=0.1, delta=1e-6)]], mean=5, delta=DELTA)
    for mean in (1.0, 0.0, float("nan"), 1e9):
        with pytest.raises(ConfigError, match="tries"):
            stopping(mean)
