"""Bets by opened cells: certain of persons alone in one, worth nothing of persons who are in none of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kohort.evaluate.attacks.cells import OpenedCells, SmallestCells, cells_finding
from kohort.evaluate.attacks.finding import Finding

CELLS = 40


def drawn(seed: int, persons: int = 400) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cells and classes that have nothing to do with each other."""
    random = np.random.default_rng(seed)
    return random.integers(0, CELLS, (persons, 3)), random.integers(0, 2, persons).astype(float)


def opened(table: NDArray[np.int64], classes: NDArray[np.float64], asked: list[NDArray[np.int64]]) -> list[OpenedCells]:
    """One total per column of cells."""
    found = []
    for column in range(3):
        rows = np.bincount(table[:, column], minlength=CELLS).astype(float)
        sums = np.bincount(table[:, column], weights=classes, minlength=CELLS)
        places = [one[:, column : column + 1] for one in asked]
        found.append(OpenedCells(rows, sums, np.ones(CELLS, dtype=np.int64), places[0], places[1]))
    return found


def attacked(table: int, members: int, *, persons: int = 400) -> Finding:
    (cells, classes), (own, truth), (others, control) = drawn(table, persons), drawn(members, persons), drawn(7)
    return cells_finding(opened(cells, classes, [own, others]), (truth, control), classes=2, on="", by="")


@pytest.mark.parametrize("persons", [60, 400])
def test_those_who_are_in_the_cells_are_told_and_others_are_not(persons: int) -> None:
    assert attacked(1, 1, persons=persons).exposed
    assert not attacked(1, 2, persons=persons).exposed


def test_a_person_alone_in_a_cell_is_told_for_certain() -> None:
    rows, sums = np.array([1.0, 9.0, 1.0]), np.array([1.0, 4.0, 0.0])
    own = np.array([[0, 1], [1, 2]])
    made = OpenedCells(rows, sums, np.ones(3, dtype=np.int64), own, own[:, ::-1])
    truth = np.array([1.0, 0.0])
    one = cells_finding([made], (truth, 1 - truth), classes=2, on="", by="")
    assert one.success == 1.0
    assert one.details["alone"] == 1.0
    assert one.details["control"] == 0.0


def test_cells_that_hold_nobody_or_that_a_person_is_not_in_say_nothing() -> None:
    made = OpenedCells(np.zeros(2), np.zeros(2), np.ones(2, dtype=np.int64), np.array([[-1], [0]]), np.array([[1]]))
    one = cells_finding([made], (np.array([1.0, 1.0]), np.array([1.0])), classes=2, on="", by="")
    assert one.success == 0.0
    assert one.details["alone"] == 0.0


def test_the_smallest_cell_of_all_later_totals_is_bet_on() -> None:
    truth = np.array([1.0, 0.0, 1.0])
    expected = np.array([[0.4], [0.3], [0.2]])
    own, nobody = np.array([[0], [0], [1]]), np.array([[0], [0], [0]])
    found = SmallestCells.of((truth, truth), classes=2)
    first = OpenedCells(np.array([2.0, 9.0]), np.array([0.3, -5.0]), np.zeros(2, dtype=np.int64), own, nobody)
    found.take(first, (expected, expected))
    assert np.allclose(found.estimates[0][:, 0], [0.55, 0.45, 0.2 - 5 / 9])
    alone = OpenedCells(
        np.array([1.0]), np.array([0.8]), np.zeros(1, dtype=np.int64), np.array([[-1], [-1], [0]]), nobody
    )
    found.take(alone, (expected, expected))
    assert np.allclose(found.estimates[0][:, 0], [0.55, 0.45, 1.0])
    one = found.finding(on="", by="")
    assert one.success == 1.0
    assert one.details["alone"] == pytest.approx(1 / 3)
    assert one.details["control"] == pytest.approx(2 / 3)


def test_a_class_of_several_is_the_one_its_cells_say_most_of() -> None:
    truth = np.array([2.0])
    found = SmallestCells.of((truth, truth), classes=3)
    cells = OpenedCells(
        np.array([1.0, 1.0, 1.0]),
        np.array([-0.5, -0.3, 0.8]),
        np.arange(3),
        np.array([[0, 1, 2]]),
        np.array([[0, 1, 2]]),
    )
    found.take(cells, (np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.9, 0.2]])))
    assert found.finding(on="", by="").success == 1.0
