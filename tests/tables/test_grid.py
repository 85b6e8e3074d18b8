"""The public grid of numbers: every number lies in its cells, and bounds are edges that enough numbers reach."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.tables.grid import LEVELS, Cell, _all_parts, cell_edges, grid_bounds, grid_cells, passed_over

numbers = st.one_of(
    st.floats(-1e18, 1e18, allow_nan=False).filter(lambda x: x == 0 or abs(x) >= 1e-12), st.integers(-1000, 1000)
)


def cells_of(values: list[float]) -> list[list[Cell]]:
    """The cells of every number, from the coarsest level on."""
    levels = [
        [Cell(level, *pair) for pair in zip(sign.tolist(), at.tolist(), strict=True)]
        for level, sign, at in grid_cells(np.asarray(values, dtype=np.float64))
    ]
    return [list(found) for found in zip(*levels, strict=True)]


@given(numbers)
def test_a_number_lies_in_one_cell_per_level_each_a_part_of_the_one_before(value: float) -> None:
    (found,) = cells_of([value])
    assert [cell.level for cell in found] == list(range(LEVELS))
    for cell in found:
        low, high = cell_edges(cell)
        assert low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high)
    if value:
        assert all([fine] == [part for part in _all_parts(coarse) if part in found] for coarse, fine in pairwise(found))


def frequent(values: list[float], least: int) -> list[Cell]:
    counts = Counter(cell for found in cells_of(values) for cell in found)
    return [cell for cell, count in counts.items() if count >= least]


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 12))
def test_bounds_are_edges_of_frequent_cells_and_hold_enough_numbers(values: list[float], least: int) -> None:
    cells = frequent(values, least)
    low, high = grid_bounds(cells)
    if not cells:
        assert (low, high) == (0.0, 0.0)
        return
    edges = {edge for cell in cells for edge in cell_edges(cell)}
    assert {low, high} <= edges
    assert low <= high
    inside = sum(low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high) for value in values)
    assert inside >= least


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 6), st.data())
def test_whoever_leaves_a_cell_out_passes_over_a_frequent_one_or_changes_no_bound(
    values: list[float], least: int, data: st.DataObject
) -> None:
    cells = frequent(values, least)
    assert not {*passed_over(cells)} & {*cells}
    kept = [cell for cell in cells if data.draw(st.booleans())]
    if not {*passed_over(kept)} & {*cells}:
        assert grid_bounds(kept) == grid_bounds(cells)


def test_whoever_leaves_a_cell_out_that_decides_a_bound_passes_over_it() -> None:
    cells = frequent([float(value) for value in range(-20, 80)] * 10, 10)
    deciding = 0
    for cell in cells:
        kept = [other for other in cells if other != cell]
        if grid_bounds(kept) != grid_bounds(cells):
            assert cell in passed_over(kept)
            deciding += 1
    assert deciding > 4


def test_one_extreme_does_not_move_the_bounds_and_its_position_shows_nowhere() -> None:
    values = [float(value) for value in range(20, 80)] * 20
    usual = grid_bounds(frequent(values, 10))
    assert usual == pytest.approx((20, 80), rel=0.04)
    for extreme in (9_876_543.0, -123.456, 1e-9, 1e300):
        assert grid_bounds(frequent([*values, extreme], 10)) == usual


def test_negative_numbers_and_zero_are_bounded_from_both_sides() -> None:
    assert grid_bounds(frequent([-3.0] * 10 + [0.0] * 10, 10)) == pytest.approx((-3, 0), rel=0.04)
    assert grid_bounds(frequent([0.0] * 10, 10)) == (0.0, 0.0)
    assert grid_bounds(frequent([-300.0] * 10 + [-0.02] * 10, 10)) == pytest.approx((-300, -0.02), rel=0.04)
    assert grid_bounds(frequent([5.0] * 9 + [-5.0] * 9, 10)) == (0.0, 0.0)
