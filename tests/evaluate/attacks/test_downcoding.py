"""Downcoding tells finer values where a minimal local recoding shows them, and says where it cannot."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.evaluate.attacks.downcoding import Recoded, downcode
from kohort.evaluate.attacks.finding import Finding
from kohort.tables.hierarchy import Hierarchy

WARDS = ["a"] * 70 + ["b"] * 20 + ["c"] * 10
REGION = Hierarchy.of("ward", {name: ["region", "*"] for name in "abc"})


def people(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame({"ward": random.choice(WARDS, rows), "age": random.integers(20, 60, rows)})


OTHERS = people(600, 9)


def recoded(rows: pl.DataFrame, cells: dict[str, list[str]], class_of: np.ndarray, **more: object) -> Recoded:
    frame = pl.DataFrame(cells)
    return Recoded(frame, np.zeros(frame.height, dtype=np.int64), rows, class_of.astype(np.int64), **more)  # type: ignore[arg-type]


def attacked(table: Recoded) -> Finding:
    return downcode(table, OTHERS, on="classes", by="anyone")


@pytest.mark.parametrize(
    ("cell", "more"), [("{a, b, c}", {}), ("<region>", {"taxonomies": {"ward": REGION}}), ("*", {})]
)
def test_rows_of_the_common_ward_are_in_a_class_of_their_own_so_the_others_are_not_of_it(
    cell: str, more: dict[str, object]
) -> None:
    rows = people(300, 1).drop("age")
    wide = (rows["ward"] != "a").to_numpy()
    one = attacked(recoded(rows, {"ward": ["a", cell]}, wide, **more))
    assert one.guess == 0.0  # the commonest value that the wide cell allows is a
    assert one.success is not None
    assert one.success > 0.5
    assert one.exposed
    assert one.details == {"cells": float(wide.sum()), "classes": 1.0}


def test_numbers_are_told_by_the_half_of_the_cell_that_a_finer_class_leaves() -> None:
    rows = people(400, 2).drop("ward")
    wide = (rows["age"] > 40).to_numpy()
    one = attacked(recoded(rows, {"age": ["[20, 40]", "[20, 59]"]}, wide))
    assert one.success is not None
    assert one.success > 0.9
    assert one.guess is not None
    assert one.guess < 0.6
    assert one.exposed


def test_a_release_that_deals_rows_out_at_random_is_not_exposed() -> None:
    rows = people(300, 3).drop("age")
    random = np.random.default_rng(0).random(300) < 0.5
    one = attacked(recoded(rows, {"ward": ["a", "{a, b, c}"]}, (rows["ward"] != "a").to_numpy() | random))
    assert not one.exposed


def test_a_finer_class_of_another_site_tells_nothing() -> None:
    rows = people(300, 1).drop("age")
    table = recoded(rows, {"ward": ["a", "{a, b, c}"]}, (rows["ward"] != "a").to_numpy())
    apart = Recoded(table.cells, np.array([0, 1]), table.rows, table.class_of)
    assert "no class lies around a finer one" in attacked(apart).note


def test_cuts_along_boundaries_and_rows_as_they_are_leave_nothing_to_bet_on() -> None:
    rows = people(300, 4)
    assert attacked(recoded(rows, {"ward": ["a", "b"], "age": ["20", "30"]}, np.zeros(300))).success is None
    cut = recoded(rows.drop("ward"), {"age": ["[20, 39]", "[40, 59]"]}, (rows["age"] > 39).to_numpy())
    one = attacked(cut)
    assert one.success is None
    assert one.verdict == "not attacked"
