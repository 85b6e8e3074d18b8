"""Fault injection: despite drop-outs, stragglers and Byzantine sites the run continues and names excluded sites."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import SiteError
from kohort.protocol.faults import Byzantine, ByzantineSite
from kohort.protocol.plan.approved import TrainSection
from kohort.rng import Streams
from kohort.rounds.selection import select_sites
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run


def table(rows: int = 2000) -> pl.DataFrame:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(rows, 4))
    label = np.where(x @ np.array([2.0, -1.0, 0.5, 0.0]) > 0, "yes", "no")
    return pl.DataFrame({**{f"x{i}": x[:, i] for i in range(4)}, "y": label})


def outcome(
    *, out: Path | None = None, seed: int = 1, sites: dict[str, Any] | None = None, data: Any = (), **train: Any
) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest", **dict(data)},
            "sites": {"count": 20, **(sites or {})},
            "model": {"kind": "logistic"},
            "train": {"rounds": 40, "optimizer": "sgd", "lr": 2.0, "batch": 16, **train},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=seed, out=out, tables={"": table()})


def test_dropped_and_late_sites_are_named_in_the_ledger_and_the_run_goes_on(tmp_path: Path) -> None:
    clean = outcome()
    troubled = outcome(out=tmp_path / "run", sites={"faults": {"drop": 0.1, "slow": 0.1}})
    assert abs(troubled.accuracy - clean.accuracy) < 0.02
    assert troubled.dropped
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_text().splitlines()]
    notes = {line["site"]: line["reason"] for line in lines if line["event"] == "note"}
    assert set(notes) == set(troubled.dropped)
    assert {reason.split("(")[1] for reason in notes.values()} <= {"dropped)", "late)"}


def test_below_the_quorum_the_run_stops_with_the_sites_exit_code() -> None:
    with pytest.raises(SiteError, match="fewer than the quorum"):
        outcome(sites={"faults": {"drop": 0.6}, "quorum": 0.9})


def test_a_site_slower_than_the_deadline_is_late() -> None:
    with pytest.raises(SiteError, match="after the deadline"):
        outcome(sites={"deadline": 1e-9})


HOSTILE = {"faults": {"byzantine": {"kind": "sign-flip", "share": 0.2, "scale": 10.0}}}


def test_liars_ruin_the_mean_and_not_the_robust_ones() -> None:
    clean = outcome().accuracy
    assert outcome(sites=HOSTILE).accuracy < clean - 0.2
    for robust in ("median", "trimmed:0.25", "multi-krum"):
        assert outcome(sites=HOSTILE, aggregate=robust).accuracy > clean - 0.05


def test_outlying_updates_are_rejected_by_the_hubs_own_rows() -> None:
    clean = outcome().accuracy
    saved = outcome(sites=HOSTILE, data={"validation": 0.1}, reject=5.0)
    assert saved.accuracy > clean - 0.05


def test_a_site_that_sends_nan_is_left_out_and_named() -> None:
    found = outcome(sites={"faults": {"byzantine": {"kind": "nan", "share": 0.1}}})
    assert len(found.dropped) == 2
    assert set(found.dropped.values()) == {"weights is not finite"}


def test_trouble_is_the_same_one_by_one() -> None:
    plan = outcome(sites={**HOSTILE, "faults": {**HOSTILE["faults"], "drop": 0.1}}).plan
    together = run(plan, seed=4, tables={"": table()})
    alone = run(plan, seed=4, tables={"": table()}, many=False)
    assert np.array_equal(together.model.weights, alone.model.weights)
    assert together.ledger_head == alone.ledger_head


def chosen(select: Any, fraction: float, **counts: Any) -> tuple[str, ...]:
    sites = tuple(f"s{i}" for i in range(100))
    asked = counts.get("asked", np.zeros(100, dtype=np.int64))
    answered = counts.get("answered", np.zeros(100, dtype=np.int64))
    train = TrainSection(select=select, fraction=fraction)
    return select_sites(sites, train, np.random.default_rng(0), asked=asked, answered=answered)


def test_selection_takes_the_share_it_was_told() -> None:
    assert len(chosen("random", 1.0)) == 100
    assert len(chosen("random", 0.25)) == 25
    assert len(set(chosen("random", 0.25))) == 25
    assert 10 < len(chosen("poisson", 0.25)) < 45
    reliable = np.where(np.arange(100) < 50, 1000, 0)
    picked = chosen("reliable", 0.3, asked=np.full(100, 1000), answered=reliable)
    assert sum(int(site[1:]) < 50 for site in picked) >= 28


def test_a_poisson_round_without_sites_passes() -> None:
    found = outcome(select="poisson", fraction=0.02)
    assert found.rounds == 40


def test_a_lie_beyond_the_largest_number_is_told_without_a_warning() -> None:
    liar = ByzantineSite(Byzantine(scale=1e308), Streams.seeded(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lied = liar.distort(np.ones(3, np.float32), np.zeros(3, np.float32), 1)
    assert lied.dtype == np.float32
