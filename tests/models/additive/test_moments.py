"""Which pairs act together, from sums over all rows: what they find, and that no cell of a pair follows from them."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from kohort.models.additive.bins import Bins
from kohort.models.additive.cells import Column
from kohort.models.additive.choice import PairChoice
from kohort.models.additive.design import Design
from kohort.models.additive.moments import (
    CELLS_PER_SUM,
    CURVE_STEPS,
    LARGEST,
    PairMoments,
    acyclic,
    rank_curves,
    times_counted,
)
from kohort.models.additive.pairs import withheld_cells


def made(sizes: list[int], rows: int, seed: int = 0) -> tuple[PairMoments, Design, np.ndarray]:
    """Columns of so many categories each, and rows that fall into them at random, which are [columns, rows]."""
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, size, rows) for size in sizes]).astype(np.int32)
    columns = tuple(
        Column(name=f"c{place}", first=place, features=1, kind="label", cells=size, missing=False, ordered=False)
        for place, size in enumerate(sizes)
    )
    bins = Bins(columns, tuple(np.arange(size, dtype=np.int32) for size in sizes))
    counts = np.concatenate([np.bincount(own, minlength=size) for own, size in zip(codes, sizes, strict=True)])
    values = random.normal(0, 1, (bins.total, 1))
    choice = PairChoice(bins, counts.astype(float), values, 20.0)
    return PairMoments(choice), Design(bins.of_rows(codes), bins.total), codes


def test_curves_are_orthogonal_and_no_row_stands_out() -> None:
    counts = np.random.default_rng(2).integers(20, 400, 15).astype(float)
    curves = rank_curves(counts, list(range(15))) / CURVE_STEPS
    assert curves.shape == (4, 15)
    assert np.allclose((curves * counts) @ curves.T / counts.sum(), np.eye(4), atol=0.02)
    assert np.allclose(curves @ counts / counts.sum(), 0, atol=0.02)
    assert np.abs(curves).max() <= LARGEST


def test_a_curve_that_few_rows_decide_is_left_out() -> None:
    assert not len(rank_curves(np.asarray([9970.0, 30.0]), [0, 1]))
    assert len(rank_curves(np.asarray([5000.0, 5000.0]), [0, 1])) == 1
    assert not len(rank_curves(np.asarray([500.0]), [0]))


def test_pairs_that_form_no_cycle_gain_most_in_all() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        gains = {pair: float(random.normal(1, 2)) for pair in combinations(range(5), 2)}
        best = max(
            sum(gains[pair] for pair in chosen)
            for size in range(5)
            for chosen in combinations(gains, size)
            if not has_cycle(chosen)
        )
        found = acyclic(gains)
        assert not has_cycle(found)
        assert sum(gains[pair] for pair in found) == pytest.approx(best)
    assert acyclic({(0, 1): -1.0, (1, 2): 0.0}) == ()


def has_cycle(pairs: Any) -> bool:
    """Whether the graph has more edges than a forest over its vertices can have."""
    groups = [{column} for column in {column for pair in pairs for column in pair}]
    for left, right in pairs:
        one, two = (next(group for group in groups if column in group) for column in (left, right))
        if one is two:
            return True
        groups.remove(two)
        one |= two
    return False


def test_columns_that_act_together_are_found_and_others_are_not() -> None:
    moments, design, codes = made([6, 6, 6, 6, 2, 2], 4000)
    random = np.random.default_rng(5)
    noise = random.normal(0, 0.4, (4000, 1))
    quiet = moments.gains(moments.counted(design, noise), curvature=0.15)
    assert set(moments.choice.candidates) == set(quiet)
    assert np.mean([gain > 0 for gain in quiet.values()]) <= 0.2
    order = [np.argsort(moments.choice.order(place)) for place in (0, 1)]
    ranks = [order[place][codes[place]] >= 3 for place in (0, 1)]
    together = np.where(ranks[0] == ranks[1], 0.15, -0.15)[:, None] + np.where(codes[4] == codes[5], 0.1, -0.1)[:, None]
    gains = moments.gains(moments.counted(design, noise + together), curvature=0.15)
    assert sorted(gains, key=lambda pair: -gains[pair])[:2] in ([(0, 1), (4, 5)], [(4, 5), (0, 1)])
    assert gains[4, 5] > 0


def test_the_sums_do_not_depend_on_who_holds_which_row() -> None:
    moments, design, _ = made([5, 7, 3, 9], 900)
    residuals = np.random.default_rng(6).normal(0, 1, (900, 1))
    whole = moments.counted(design, residuals)
    parts = [slice(0, 1), slice(1, 400), slice(400, 900)]
    split = sum(moments.counted(Design(design.places[:, part], design.bins), residuals[part]) for part in parts)
    assert len(whole) == moments.length
    assert (whole == split).all()


@pytest.mark.parametrize("largest", [1.0, 2.0**22])
def test_the_sums_are_those_of_whole_numbers_row_by_row(largest: float) -> None:
    """Floating point adds them exactly: with large residuals, fewer rows at once."""
    moments, design, codes = made([5, 7, 3, 9], 900)
    residuals = np.random.default_rng(7).uniform(-largest, largest, (900, 1))
    times = times_counted(design.places)
    found = iter(moments.counted(design, residuals).tolist())
    for (left, right), (one, two) in moments.curves.items():
        for high, wide in product(range(len(one)), range(len(two))):
            rows = zip(residuals[:, 0], times, codes[left], codes[right], strict=True)
            wanted = sum(
                int(residual * 2**16) * int(often) * int(one[high, a]) * int(two[wide, b])
                for residual, often, a, b in rows
            )
            assert next(found) == wanted
    next(found)  # the squares
    assert next(found, None) is None


def test_a_pair_has_fewer_sums_than_cells() -> None:
    moments, *_ = made([2, 2, 3, 4, 12, 12], 3000)
    sizes = moments.choice.bins.sizes
    for (left, right), (one, two) in moments.curves.items():
        assert 1 <= len(one) * len(two) <= sizes[left] * sizes[right] // CELLS_PER_SUM
    assert len(moments.curves[0, 1][0]) == 1
    assert len(moments.curves[4, 5][0]) == 4


def test_rows_that_hardly_differ_have_no_sums() -> None:
    """With two other columns of two values each, the hash of a row would tell little more than its cell."""
    assert made([2, 2, 2, 2], 3000)[0].length == 1
    assert made([2, 2, 6, 6], 3000)[0].length > 1


def test_a_row_counts_once_or_twice_by_its_bins_alone() -> None:
    _, design, codes = made([5, 7, 3, 9], 20_000)
    times = times_counted(design.places)
    assert set(times.tolist()) == {1, 2}
    assert abs(times.mean() - 1.5) < 0.05
    assert (times_counted(design.places[:, ::-1]) == times[::-1]).all()
    for column in codes:
        shares = [times[column == value].mean() for value in np.unique(column)]
        assert max(shares) < 1.7
        assert min(shares) > 1.3


@pytest.mark.parametrize("hashed", [True, False])
def test_the_sum_of_a_cell_does_not_follow(hashed: bool) -> None:
    """The hub knows the sums of residuals per bin, and those of the pair; without the hash, a cell of 2 x 2 follows."""
    moments, design, codes = made([2, 2, 6, 6], 4000)
    left, right = moments.curves[0, 1]
    times = times_counted(design.places) if hashed else np.ones(4000, dtype=np.int64)
    # The unknowns are the sums of residuals of rows that have the same bins in both columns, and count alike.
    kinds = [(a, b, often) for a, b in product((0, 1), (0, 1)) for often in ((1, 2) if hashed else (1,))]
    assert {(a, b, t) for a, b, t in zip(codes[0], codes[1], times, strict=True)} == set(kinds)
    known = [[float(kind[side] == value) for kind in kinds] for side in (0, 1) for value in (0, 1)]
    known.append([float(left[0, a] * right[0, b] * often) for a, b, often in kinds])
    basis = np.linalg.svd(np.asarray(known), full_matrices=False)
    rows = basis.Vh[basis.S > 1e-9]
    cell = np.asarray([float((a, b) == (1, 1)) for a, b, _ in kinds])
    follows = np.abs(cell - (cell @ rows.T) @ rows).max() < 1e-9
    assert follows != hashed


def small_sets(counts: np.ndarray, tables: list[tuple[int, int]], least: float) -> int:
    """How many sets of combinations of three columns follow from these tables and hold few persons, but somebody.

    Known are the sums of all columns' values, and of each table the cells that are shown and the sum of the others.
    """
    axes = np.indices(counts.shape).reshape(3, -1)
    known = [axes[side] == value for side in range(3) for value in range(counts.shape[side])]
    for left, right in tables:
        (other,) = {0, 1, 2} - {left, right}
        table = counts.sum(axis=other)
        hidden = withheld_cells(table, least)
        places = [(axes[left] == a) & (axes[right] == b) for a, b in product(*map(range, table.shape))]
        known += [place for place, out in zip(places, hidden.ravel(), strict=True) if not out]
        known.append(hidden[axes[left], axes[right]])
    basis = np.linalg.svd(np.asarray(known, dtype=float), full_matrices=False)
    rows = basis.Vh[basis.S > 1e-9]
    sets = ((np.arange(1, 2**counts.size)[:, None] >> np.arange(counts.size)) & 1).astype(float)
    held = sets @ counts.ravel()
    few = sets[(held > 0) & (held < least)]
    return int((np.abs(few - (few @ rows.T) @ rows).max(axis=1) < 1e-9).sum()) if len(few) else 0


def test_two_pairs_with_a_column_in_common_tell_no_more_than_each_alone() -> None:
    random, cycles = np.random.default_rng(7), 0
    for shape in ((2, 2, 2), (2, 3, 2), (3, 2, 2)):
        for _ in range(12):
            counts = random.choice([0, 1, 3, 15, 30, 45, 60], size=shape).astype(float)
            counts[0, 0, 0], counts[1, 1, 1] = 1.0, 3.0
            for axis in range(3):  # bins of columns hold enough
                lines = counts.sum(axis=tuple({0, 1, 2} - {axis}))
                for value in np.flatnonzero(lines < 20):
                    place: list[Any] = [0, 0, 0]
                    place[axis] = int(value)
                    counts[tuple(place)] += 30
            assert small_sets(counts, [(0, 1), (1, 2)], 20) == 0
            cycles += bool(small_sets(counts, [(0, 1), (1, 2), (0, 2)], 20))
    assert cycles > 0  # three pairs that form a cycle tell more


def test_a_cycle_tells_how_many_persons_agree_in_all_three() -> None:
    """1[all equal] is a sum of functions of two columns each, so its count follows from three tables of large cells."""
    counts = np.asarray([[[1, 40], [45, 50]], [[55, 60], [65, 2]]], dtype=float)
    assert small_sets(counts, [(0, 1), (1, 2)], 20) == 0
    assert small_sets(counts, [(0, 1), (1, 2), (0, 2)], 20) > 0
