"""Classes that sites published are attacked by downcoding, judged by the rows that are really in them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.evaluate.attacks.downcoding import Recoded, downcode
from kohort.evaluate.attacks.released import holds, texts_of
from kohort.runs.auditing import on_classes
from kohort.runs.auditing.audit import attack_replay
from kohort.runs.auditing.replay import repeat
from kohort.runs.config import Plan, load_plan

WARDS = ["north", "south", "west", "east"]


def people(rows: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "age": 20 + random.exponential(10, rows).astype(int).clip(0, 59),
            "ward": random.choice(WARDS, rows, p=[0.8, 0.12, 0.05, 0.03]),
            "outcome": np.where(np.arange(rows) % 2, "ill", "well"),
        }
    )


def plan_of(test: float) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory", "target": "outcome", "quasi": ["age", "ward"], "test": test,
                "bounds": {"age": [0, 100]}, "categories": {"ward": WARDS, "outcome": ["ill", "well"]},
            },
            "sites": {"count": 2},
            "model": {"kind": "mlp", "hidden": [4]},
            "train": {"rounds": 1},
            "method": {"name": "syntactic", "anonymise": {"k": 5}},
        }
    )  # fmt: skip


def test_published_classes_are_attacked_and_judged_by_the_rows_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Recoded] = []

    def listened(table: Recoded, others: pl.DataFrame, *, on: str, by: str, seed: int) -> object:
        seen.append(table)
        return downcode(table, others, on=on, by=by, seed=seed)

    monkeypatch.setattr(on_classes, "downcode", listened)
    replay = repeat(plan_of(0.5), seed=0, tasks=frozenset({"mappings.publish"}), tables={"": people(1_200)})
    one = next(one for one in attack_replay(replay, shadows=0) if one.attack.startswith("attribute: finer"))
    assert one.success is not None
    assert "classes lie around finer ones" in one.note
    (table,) = seen
    assert set(table.release) == {0, 1}
    assert table.rows.height == replay.population.frame.height
    for name in table.cells.columns:
        cells, values = table.cells[name].to_list(), np.array(texts_of(table.rows[name]))
        fits = np.array([holds(cell, values, table.taxonomies.get(name)) for cell in cells])
        assert fits[table.class_of, np.arange(table.rows.height)].all(), name


def test_without_test_rows_nobody_knows_how_common_values_are() -> None:
    replay = repeat(plan_of(0.0), seed=0, tasks=frozenset({"mappings.publish"}), tables={"": people(400)})
    (one,) = on_classes.classes_findings(replay)
    assert one.success is None
    assert "no test rows" in one.note


def test_other_methods_publish_no_classes() -> None:
    replay = repeat(plan_of(0.5), seed=0, tasks=frozenset(), tables={"": people(400)})
    assert on_classes.classes_findings(replay) == []
