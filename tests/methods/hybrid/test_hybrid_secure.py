"""Server phases of the hybrid over secure sums: what opens, what is claimed, and that every way to run them agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.methods.hybrid.test_hybrid import PEERS, SERVER, carry_out, hybrid

from kohort.crypto.sums.checked import from_residues
from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.methods.hybrid import progress
from kohort.models.cluster_names import NoCommonModel
from kohort.models.dp_sgd import fit
from kohort.privacy.dp.accounting import Event, epsilon_of
from kohort.rounds import peers
from kohort.rounds.totals import summed, summed_tasks
from kohort.rounds.totals.summed import SummedPhases
from kohort.rounds.totals.summed_tasks import SUM_MODELS, SUM_UPDATES

MASKS: dict[str, Any] = {"secure": {"sum": "masks"}}
PLAIN: dict[str, Any] = {"secure": {"sum": "none"}}
STEP: dict[str, Any] = {**SERVER, "optimizer": "momentum", "lr": 2.0}
MIXED = ({**STEP, "rounds": 2}, PEERS, {**STEP, "dp": {**SERVER["dp"], "sample": 0.5}}, {**STEP, "rows": "low"})
"""With the server, among peers, with the server twice: once on a sample, once on other rows."""


def test_the_mean_of_the_models_is_opened_first_and_the_hub_sees_totals_alone() -> None:
    outcome = carry_out(hybrid(PEERS, STEP, **MASKS))
    assert outcome.metrics["accuracy"] > 0.7
    what = {item.what: item for item in outcome.disclosed}
    assert {"sum.models", "sum.updates", "peers.exchange"} <= what.keys()
    assert not {"train.phase", "peers.reveal"} & what.keys()
    assert "the mean of the clusters' models was opened: rows of low risk, no guarantee" in outcome.notes
    assert outcome.epsilon is not None
    assert 0.9 < outcome.epsilon <= 1.0
    assert "rows of low risk: no guarantee" in next(
        item.guarantee for item in outcome.disclosed if item.what == "dp.reserve"
    )


def test_masks_give_what_sums_in_clear_give() -> None:
    """Masks cancel in integers, so every phase sees the same totals; noise would differ with the plan's hash."""
    bare = [{name: value for name, value in phase.items() if name != "dp"} for phase in MIXED]
    masked, clear = (carry_out(hybrid(*bare, **secure)) for secure in (MASKS, PLAIN))
    assert np.array_equal(masked.model.weights, clear.model.weights)


def test_the_mean_is_the_mean_of_the_models_weighted_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opens before the server phase is the mean of what the sites have with their peers, by rows of low risk."""
    opened: list[Any] = []
    rows: dict[str, int] = {}
    original, counted = progress.mean_model, summed_tasks.rows_of

    def mean(*args: Any) -> Any:
        found = yield from original(*args)
        opened.append(found[0])
        return found

    def count(site: Any, phase: Any) -> Any:
        found = counted(site, phase)
        if phase.topology:
            rows[site.name] = found.count
        return found

    monkeypatch.setattr(progress, "mean_model", mean)
    monkeypatch.setattr(summed_tasks, "rows_of", count)
    outcome = carry_out(hybrid(PEERS, STEP, **PLAIN), sites={"alpha": [5.0, 2.0, 5.0], "split": "dirichlet"})
    own = [outcome.site_models[name].weights for name in rows]
    assert len(set(rows.values())) > 1
    assert opened[0] == pytest.approx(np.average(own, axis=0, weights=list(rows.values())), abs=1e-5)


@pytest.mark.parametrize("secure", [{}, MASKS])
def test_ending_among_peers_shows_the_hub_no_model(secure: dict[str, Any]) -> None:
    """After the last server phase the peers train on, and neither a model nor a mean of models is opened."""
    outcome = carry_out(hybrid(STEP, PEERS, **secure))
    assert not {"peers.reveal", "sum.models"} & {item.what for item in outcome.disclosed}
    assert isinstance(outcome.model, NoCommonModel)


def test_each_phase_has_noise_of_its_own_and_the_account_has_them_all() -> None:
    outcome = carry_out(hybrid(*MIXED, **MASKS))
    sigma = [summed.shared_sigma(_approved(hybrid(*MIXED, **MASKS)), number) for number in (0, 2, 3)]
    rates = (1.0, 0.5, 1.0)
    events = [
        Event(sigma=value, rate=rate, steps=rounds) for value, rate, rounds in zip(sigma, rates, (2, 3, 3), strict=True)
    ]
    assert outcome.epsilon == pytest.approx(epsilon_of(events, 3e-4), rel=1e-3)


def _approved(method: dict[str, Any]) -> Any:
    """What a site approves of a small plan."""
    found: list[Any] = []
    original = summed.summed_rounds

    def watch(hub: Any, **options: Any) -> Any:
        found.append(hub.approved)
        return original(hub, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kohort.methods.hybrid.progress.summed_rounds", watch)
        carry_out(method)
    return found[0]


@pytest.mark.parametrize("rounds", [2, 3, 4, 6, 8, 9])
def test_a_run_that_was_interrupted_ends_with_the_same_model(tmp_path: Path, rounds: int) -> None:
    whole, out = carry_out(hybrid(*MIXED, **MASKS)), tmp_path / "run"

    def stop(progress: Any) -> None:
        if progress.round + 1 == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(hybrid(*MIXED, **MASKS), out=out, watch=stop)
    resumed = carry_out(hybrid(*MIXED, **MASKS), out=out, resume=True)
    assert np.array_equal(resumed.model.weights, whole.model.weights)
    assert resumed.epsilon == whole.epsilon


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"judge": {"rows": "low"}}, "method.judge"),
        ({"phases": [PEERS]}, "the plan has none"),
        ({"phases": [PEERS, {**SERVER, "batch": 16}]}, "full step"),
        ({"phases": [PEERS, {**STEP, "dp": {**SERVER["dp"], "mechanism": "after"}}]}, "each site's own"),
        ({"phases": [{**PEERS, "dp": {**SERVER["dp"], "sample": 0.5}}, STEP]}, "dp.sample"),
    ],
)
def test_what_a_sum_cannot_carry_is_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        carry_out({**hybrid(PEERS, STEP, **MASKS), **change})


def test_a_sample_needs_a_sum() -> None:
    with pytest.raises(ConfigError, match=r"dp\.sample is for rounds over secure sums"):
        carry_out(hybrid(PEERS, {**SERVER, "dp": {**SERVER["dp"], "sample": 0.5}}))


def _raised(said: dict[str, bytes], name: str) -> dict[str, bytes]:
    numbers = np.frombuffer(said[name], dtype="<u8").copy()
    numbers[0] = (numbers[0] + 2**40) % (2**61 - 1)
    return {**said, name: numbers.tobytes()}


@pytest.mark.parametrize("name", ["start", "total"])
def test_sites_start_from_no_mean_and_take_no_step_that_is_not_theirs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the peers, a hub announces another mean, or another total."""
    honest = SummedPhases.inputs

    def lie(self: SummedPhases, number: int) -> dict[str, bytes]:
        said = honest(self, number)
        return _raised(said, name) if name in said and number >= PEERS["rounds"] else said

    monkeypatch.setattr(SummedPhases, "inputs", lie)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        carry_out(hybrid(PEERS, STEP, **MASKS))


def test_peers_begin_from_a_seed_and_not_from_weights_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    honest = peers._Relay.ask

    def ask(self: Any, *arguments: Any) -> Any:
        made = honest(self, *arguments)
        asked.extend(made.each.values())
        return made

    monkeypatch.setattr(peers._Relay, "ask", ask)
    carry_out(hybrid(PEERS, STEP, **MASKS))
    assert asked
    assert not any("weights" in payload.arrays for payload in asked)
    assert {len(payload.blobs["start"]) for payload in asked if "start" in payload.blobs} == {16}


def test_totals_without_noise_are_booked_and_noisy_ones_are_not() -> None:
    approved = _approved(hybrid(PEERS, STEP, **MASKS))
    assert approved.keeps_book
    assert (SUM_MODELS.family_in(approved), SUM_UPDATES.family_in(approved)) == ("models", "")
    bare = {name: value for name, value in STEP.items() if name != "dp"}
    approved = _approved(hybrid(PEERS, {**bare, "optimizer": "sgd"}, STEP, **MASKS))
    assert SUM_UPDATES.family_in(approved) == "training"
    assert SUM_UPDATES.grouped(approved)


def test_sums_over_two_sites_are_refused() -> None:
    with pytest.raises(KohortError, match="three sites"):
        carry_out(hybrid(PEERS, STEP, **MASKS), sites={"count": 1, "clusters": 2})


QUIET = ({**STEP, "rounds": 1, "lr": 1e-12}, {**STEP, "rounds": 2, "lr": 1e-12, "dp": {**SERVER["dp"], "clip": 0.3}})
"""Weights stay where they are, so that totals differ by their noise alone."""


def _totals(monkeypatch: pytest.MonkeyPatch, normal: float) -> dict[int, np.ndarray[Any, Any]]:
    """The total of every round, with every normal of the noise replaced by one number."""
    found: dict[int, np.ndarray[Any, Any]] = {}
    grids: list[Any] = []
    take, grid_of = SummedPhases.take, summed.grid_of

    def grid(*arguments: Any) -> Any:
        grids.append(grid_of(*arguments))
        return grids[-1]

    def listen(self: SummedPhases, number: int, total: Any) -> None:
        take(self, number, total)
        found[number] = from_residues(total.values[:-1]).view(np.int64) / grids[-1].scale

    with monkeypatch.context() as patch:
        patch.setattr(fit, "gaussian", lambda key, count, **_: np.full(count, normal))
        patch.setattr(summed, "grid_of", grid)
        patch.setattr(SummedPhases, "take", listen)
        carry_out(hybrid(*QUIET, **PLAIN))
    return found


def test_every_phase_adds_the_noise_of_its_own_budget_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every normal set to one, totals differ by six shares, of which five are enough for the budget."""
    approved = _approved(hybrid(*QUIET, **PLAIN))
    without, with_ones = _totals(monkeypatch, 0.0), _totals(monkeypatch, 1.0)
    assert sorted(without) == [0, 1, 2]
    for number, phase, clip in ((0, 0, 1.0), (1, 1, 0.3), (2, 1, 0.3)):
        share = summed.shared_sigma(approved, phase) * clip / np.sqrt(6 - 1)
        assert with_ones[number] - without[number] == pytest.approx(np.full(3, 6 * share), rel=1e-2)


def test_a_sample_is_drawn_by_a_coin_per_site_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    honest = fit.clipped_sums

    def count(network: Any, weights: Any, rows: Any, *, clip: float) -> Any:
        drawn.append(int(rows.counts.sum()))
        return honest(network, weights, rows, clip=clip)

    monkeypatch.setattr(fit, "clipped_sums", count)
    carry_out(hybrid({**STEP, "dp": {**SERVER["dp"], "sample": 0.25}}, **PLAIN))
    high = 0.6 * 0.7 * 6000 / 6
    assert len(drawn) == 6 * 3
    assert len(set(drawn)) > 6
    assert np.mean(drawn) == pytest.approx(0.25 * high, abs=4 * np.sqrt(0.25 * 0.75 * high / 18))
