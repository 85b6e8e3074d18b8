"""What opened cells tell: of few persons their targets, of many nothing that is not true of everybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.evaluate.attacks.cells import OpenedCells, SmallestCells, cells_finding
from kohort.runs.auditing import on_cells
from kohort.runs.auditing.audit import attack_replay
from kohort.runs.auditing.on_cells import cells_findings, later_findings
from kohort.runs.auditing.replay import Replay, repeat
from kohort.runs.config import load_plan

WARDS, JOBS = ["north", "south", "west", "east"], list("abcde")


def people(rows: int, *, seed: int = 0, classes: int = 2) -> pl.DataFrame:
    """Rows in which nothing tells the outcome."""
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.integers(20, 80, rows),
            "ward": random.choice(WARDS, rows),
            "job": random.choice(JOBS, rows),
            "outcome": [f"o{number % classes}" for number in range(rows)] if classes else random.random(rows).round(3),
        }
    )


def replayed(method: dict[str, Any], table: pl.DataFrame, *, test: float = 0.5) -> Replay:
    classes = sorted(table["outcome"].unique().to_list()) if table.schema["outcome"] == pl.String else None
    plan = load_plan(
        {
            "data": {
                "table": "memory", "target": "outcome", "features": "rest", "test": test,
                "bounds": {"age": [0, 100], **({} if classes else {"outcome": [0, 1]})},
                "categories": {"ward": WARDS, "job": JOBS, **({"outcome": classes} if classes else {})},
            },
            "sites": {"count": 3},
            "method": {"secure": {"sum": "none"}, **method},
            "policy": {"min_cell": 1, "min_rows": 1},
        }
    )  # fmt: skip
    return repeat(plan, seed=0, tasks=frozenset(), tables={"": table})


FINE = {"name": "trees", "steps": 1, "depth": 8, "min_leaf": 1, "holdout": 0.0, "l2": 1.0, "trees": 8}


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_cells_of_few_persons_tell_their_targets(classes: int) -> None:
    (one,) = cells_findings(replayed(FINE, people(600, classes=classes)))
    assert one.exposed
    assert one.success is not None
    assert one.guess is not None
    assert one.success > one.guess + 0.2
    assert one.success >= one.details["alone"] > 0.2  # a person alone in a cell is told for certain
    assert one.details["smallest"] == 1.0


def test_nobody_is_alone_in_joined_cells_and_they_tell_less() -> None:
    joined = {**FINE, "min_cell": 20, "min_leaf": 20, "secure": {"sum": "masks"}}
    (fine,), (many,), (few,) = (
        cells_findings(replayed(one, people(600))) for one in (FINE, joined, {"name": "additive"})
    )
    for one in (many, few):
        assert one.details["smallest"] >= 20
        assert one.details["alone"] == 0.0
    assert few.success is not None
    assert many.success is not None
    assert fine.success is not None
    assert fine.success > many.success
    assert few.success < fine.success  # what stays: a row's own label counts in the sums of its cells


@pytest.mark.parametrize(("scheme", "by"), [("none", "hub"), ("masks", "hub and a site")])
def test_sums_of_an_additive_model_are_read_by_sites_and_by_the_hub_where_they_are_not_secure(
    scheme: str, by: str
) -> None:
    (one,) = cells_findings(replayed({"name": "additive", "secure": {"sum": scheme}}, people(300)))
    assert one.by == by
    assert one.success is not None


def test_bins_of_few_persons_of_an_additive_model_tell_their_targets() -> None:
    (one,) = cells_findings(replayed({"name": "additive", "min_bin": 1}, people(150)))
    assert one.details["smallest"] < 20
    assert one.exposed


@pytest.mark.parametrize("method", [FINE, {**FINE, "min_cell": 20, "secure": {"sum": "masks"}}, {"name": "additive"}])
def test_counts_of_classes_are_read_exactly_from_what_was_opened(
    method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[OpenedCells] = []

    def listened(opened: list[OpenedCells], truth: Any, **names: Any) -> object:
        seen.extend(opened)
        labels.append(truth[0])
        return cells_finding(opened, truth, **names)

    labels: list[Any] = []
    monkeypatch.setattr(on_cells, "cells_finding", listened)
    cells_findings(replayed(method, people(600)))
    for one in seen:  # every training row is a member here, so members alone fill the cells
        ill, held = np.zeros(len(one.rows)), np.zeros(len(one.rows))
        for own in one.members.T:
            inside = own >= 0
            np.add.at(held, own[inside], 1)
            np.add.at(ill, own[inside], labels[0][inside])
        assert np.array_equal(held, one.rows)
        assert np.array_equal(ill, one.sums)
    assert seen


def test_an_audit_has_it_and_says_where_it_does_not_apply() -> None:
    found = attack_replay(replayed(FINE, people(300)), shadows=0)
    assert any(one.attack.startswith("attribute: targets inferred") and one.success is not None for one in found)
    (one,) = cells_findings(replayed(FINE, people(300), test=0.0))
    assert "no test rows" in one.note
    private = {"name": "additive", "dp": {"epsilon": 1.0, "delta": 1e-5, "unit": "row"}, "secure": {"sum": "masks"}}
    (one,) = cells_findings(replayed(private, people(1_200)))
    assert "noise" in one.note
    assert cells_findings(replayed({"name": "fedavg"}, people(300))) == []


MANY = {**FINE, "steps": 4, "depth": 5, "trees": 4}


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_cells_of_later_totals_tell_the_targets_of_persons_alone_in_them(classes: int) -> None:
    (one,) = later_findings(replayed(MANY, people(600, classes=classes)))
    assert one.exposed
    assert one.success is not None
    assert one.success >= one.details["alone"] > 0.2
    assert one.details["smallest"] == 1.0


def test_the_first_step_is_no_part_of_later_totals_and_that_is_said() -> None:
    (one,) = later_findings(replayed(FINE, people(300)))
    assert one.success is None
    assert "no total was opened after the first step" in one.note


def test_bins_of_many_persons_tell_nothing_more_in_later_totals() -> None:
    (few,) = later_findings(replayed({"name": "additive", "rounds": 6}, people(900)))
    assert few.details["smallest"] >= 20
    assert few.details["alone"] == 0.0
    (fine,) = later_findings(replayed({"name": "additive", "rounds": 6, "min_bin": 1}, people(150)))
    assert fine.details["smallest"] < 20


@pytest.mark.parametrize("method", [MANY, {"name": "additive", "rounds": 5, "min_bin": 1}])
@pytest.mark.parametrize("classes", [2, 0])
def test_residuals_of_later_cells_are_those_of_the_persons_in_them(
    method: dict[str, Any], classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[OpenedCells, Any]] = []
    take = SmallestCells.take

    def listened(self: SmallestCells, cells: OpenedCells, expected: Any) -> None:
        seen.append((cells, self.truth[0] - expected[0][:, 0]))
        take(self, cells, expected)

    monkeypatch.setattr(SmallestCells, "take", listened)
    later_findings(replayed(method, people(200, classes=classes)))
    assert len(seen) >= 3
    for cells, apart in seen:  # every training row is a member here
        sums, held = np.zeros(len(cells.rows)), np.zeros(len(cells.rows))
        for own in cells.members.T:
            inside = own >= 0
            np.add.at(held, own[inside], 1)
            np.add.at(sums, own[inside], apart[inside])
        assert np.array_equal(held, cells.rows)
        assert np.allclose(sums, cells.sums, atol=1e-3)
