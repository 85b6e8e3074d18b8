"""Kept rows in a secure sum: the model of plain averaging, small sites that take part, a budget, and a lying hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.methods.partial.test_partial import outcome, table

from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.models.dense.network import Network
from kohort.protocol.plan.approved import TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.rounds.totals import summed, summed_tasks
from kohort.rounds.totals.summed_model import LARGEST, HubPart
from kohort.rounds.totals.summed_tasks import _hub_part
from kohort.runs.config import load_plan
from kohort.runs.results.observer import Progress
from kohort.runs.run import run

SUM: dict[str, Any] = {"kept": "sum"}
LOCAL: dict[str, Any] = {"count": "local", "release_l": 1}
BUDGET = {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
FULL_BATCH = {"batch": 0, "optimizer": "sgd", "lr": 0.3}


def weights_of(found: Any) -> Any:
    return found.model.weights


@pytest.mark.parametrize("scheme", ["masks", "none"])
@pytest.mark.parametrize("train", [{}, {"optimizer": "adam", "lr": 0.01, "state": "keep"}])
def test_the_sum_gives_the_model_of_plain_averaging(scheme: str, train: dict[str, Any]) -> None:
    plain = outcome(gate={"k": 150}, train=train)
    summed = outcome(gate={"k": 150}, train=train, own={**SUM, "secure": {"sum": scheme}})
    assert plain.received is not None
    assert 0 < plain.received.height < sum(plain.site_rows.values())
    np.testing.assert_allclose(weights_of(summed), weights_of(plain), rtol=1e-4, atol=2e-6)
    assert not any(item.what == "train" for item in summed.disclosed)


def test_sites_with_few_kept_rows_take_part_under_a_budget_alone() -> None:
    """A sum of one site's rows is that site's update: without noise it needs `min_rows` rows, as plain weights do."""
    few: dict[str, Any] = {"gate": {"k": 20, **LOCAL}, "policy": {"min_rows": 250}, "train": FULL_BATCH}
    plain, noisy = outcome(**few), outcome(**few, own={**SUM, "dp": BUDGET})
    assert any("4 sites kept too few rows" in note for note in plain.notes)
    assert plain.received is not None
    (unlearned,) = [entry for entry in plain.left_out if "too few of them to train on" in entry.why]
    assert unlearned.count == sum(plain.site_rows.values()) - plain.received.height
    assert not any("too few of them" in entry.why for entry in noisy.left_out)
    everyone = outcome(gate={"k": 150}, train=FULL_BATCH)
    assert not any("too few of them" in entry.why for entry in everyone.left_out)
    assert not any("too few rows" in note for note in noisy.notes)
    assert not np.allclose(weights_of(noisy), weights_of(plain), atol=1e-3)
    with pytest.raises(RefusedError, match="no site added rows to the sum"):
        outcome(**few, own=SUM)


def test_a_budget_for_kept_rows_is_charged_and_noise_is_added() -> None:
    noisy = outcome(gate={"k": 150, **LOCAL}, train=FULL_BATCH, own={**SUM, "dp": BUDGET})
    assert noisy.epsilon == pytest.approx(4.0, rel=1e-3)
    loose = outcome(
        gate={"k": 150, **LOCAL}, train=FULL_BATCH, own={**SUM, "dp": {**BUDGET, "clip": 50.0, "epsilon": 9.9}}
    )
    assert not np.allclose(weights_of(noisy), weights_of(loose), atol=1e-4)
    claims = {item.guarantee.partition(" ")[0] for item in noisy.disclosed}
    assert any("dp" in claim.lower() for claim in claims)
    assert noisy.dp is not None
    assert noisy.dp["scope"] == "rows that sites kept; rows sent to the hub: no guarantee"


@pytest.mark.parametrize(
    ("own", "more", "says"),
    [
        ({"dp": BUDGET}, {}, 'method.kept = "sum"'),
        ({**SUM, "dp": {**BUDGET, "mechanism": "after"}}, {}, "sum of clipped gradients"),
        *[
            ({**SUM, "dp": BUDGET}, {"gate": {**LOCAL, **gate}}, "one kept row would decide whether others are kept")
            for gate in (
                {"rule": "t-closeness", "t": 0.3},
                {"rule": "l-diversity", "l": 2},
                {"count": "secure"},
                {"release_l": 2},
            )
        ],
        (SUM, {"train": {"aggregate": "median"}}, "aggregate"),
        (SUM, {"sites": {"arrive": "25%/2 rounds"}}, "arrive"),
    ],
)
def test_what_cannot_hold_is_refused(own: dict[str, Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        outcome(own=own, **more)


def test_a_budget_counts_rows_so_persons_are_refused() -> None:
    frame = table().with_row_index("id").cast({"id": str})
    with pytest.raises(RefusedError, match="counts rows"):
        outcome(frame=frame, data={"identifiers": ["id"]}, gate=LOCAL, own={**SUM, "dp": BUDGET}, train=FULL_BATCH)


def test_learners_are_summed_anyway() -> None:
    with pytest.raises(ConfigError, match="learned over sums anyway"):
        load_plan(
            {
                "data": {"table": "memory", "target": "y", "quasi": ["age"]},
                "model": {"kind": "additive"},
                "method": {"name": "partial", **SUM},
            }
        )


def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.round == 1:
            raise KeyboardInterrupt

    train = {"optimizer": "adam", "lr": 0.01, "state": "keep"}
    whole = outcome(gate={"k": 150}, train=train, own=SUM)
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(whole.plan, seed=5, out=place, tables={"": table()}, watch=stop)
    resumed = run(whole.plan, seed=5, out=place, tables={"": table()}, resume=True)
    assert np.array_equal(weights_of(resumed), weights_of(whole))


def test_sites_that_missed_rounds_are_told_what_the_hub_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_fit, plain = [], summed_tasks._advance

    def advance(site: Any, announced: bytes, places: bytes, hub: bytes = b"") -> None:
        sizes_fit.append(len(hub) == 8 * (1 + site.network.parameter_count))
        plain(site, announced, places, hub)

    caught: list[int] = []
    missed = summed.SummedPhases._missed
    monkeypatch.setattr(summed_tasks, "_advance", advance)
    monkeypatch.setattr(summed.SummedPhases, "_missed", lambda *given: caught.append(1) or missed(*given))
    faults = {"count": 8, "faults": {"drop": 0.05}, "quorum": 0.3}
    found = outcome(gate={"k": 150}, sites=faults, own={**SUM, "secure": {"sum": "none"}}, train={"rounds": 10})
    assert found.dropped
    assert caught
    assert all(sizes_fit)


def test_what_the_hub_trained_is_read_only_where_the_plan_lets_it_train() -> None:
    network = Network(inputs=2, outputs=1, loss="logistic")
    site: Any = SimpleNamespace(network=network)
    part = HubPart(np.arange(3, dtype=np.float64), 7)
    allowed = TrainingPhase(train=TrainSection(), hub_rows=True)
    read = _hub_part(site, allowed, part.to_bytes())
    assert read is not None
    assert read.rows == 7
    assert read.weights.tolist() == [0.0, 1.0, 2.0]
    assert _hub_part(site, allowed, b"") is None
    with pytest.raises(IntegrityError, match="no hub that trains"):
        _hub_part(site, TrainingPhase(train=TrainSection()), part.to_bytes())
    for lie in (part.to_bytes()[:-8], HubPart(np.array([0.0, np.nan, 0.0]), 1).to_bytes(),
                HubPart(np.array([0.0, 2 * LARGEST, 0.0]), 1).to_bytes()):  # fmt: skip
        with pytest.raises(IntegrityError, match="what the hub trained"):
            _hub_part(site, allowed, lie)
