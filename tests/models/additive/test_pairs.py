"""Pairs of columns: no small count is shown or follows from what is shown, and what gains most is chosen."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kohort.errors import IntegrityError
from kohort.models.additive.pairs import GROUPS, Pair, candidates, column_groups, gain_of, groups_for, withheld_cells


def small_sets_that_follow(counts: np.ndarray, hidden: np.ndarray, least: float) -> list[np.ndarray]:
    """All sets of cells with fewer than `least` persons whose count is a combination of what is known.

    Known are the sums of rows and columns, the shown cells, and the sum of the withheld ones. A set follows if its
    indicator lies in the span of theirs: the projection leaves nothing over.
    """
    high, wide = counts.shape
    known = [np.add.outer(np.arange(high) == row, np.zeros(wide)).ravel() for row in range(high)]
    known += [np.add.outer(np.zeros(high), np.arange(wide) == column).ravel() for column in range(wide)]
    known += [np.eye(high * wide)[place] for place in np.flatnonzero(~hidden.ravel())]
    known.append(hidden.ravel().astype(float))
    span = np.linalg.svd(np.asarray(known), full_matrices=False)
    basis = span.Vh[span.S > 1e-9]
    places = np.flatnonzero(hidden.ravel())
    found = []
    for inside in product((0.0, 1.0), repeat=len(places)):
        marked = np.zeros(high * wide)
        marked[places] = inside
        held = float(marked @ counts.ravel())
        if 0 < held < least and np.abs(marked - (marked @ basis.T) @ basis).max() < 1e-9:
            found.append(marked.reshape(high, wide))
    return found


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (4, 3), (3, 4)])
def test_no_small_count_follows_from_what_is_shown(shape: tuple[int, int]) -> None:
    random, withheld_more = np.random.default_rng(sum(shape)), 0
    for _ in range(25):
        counts = random.choice([0, 1, 3, 7, 12, 19, 25, 40], size=shape).astype(float)
        counts[0] += 30 * (counts.sum(axis=0) < 20)  # columns, like rows, are groups of bins that hold enough
        counts[:, 0] += 30 * (counts.sum(axis=1) < 20)
        hidden = withheld_cells(counts, 20)
        assert hidden[counts < 20].all()
        assert not small_sets_that_follow(counts, hidden, 20)
        withheld_more += bool(small_sets_that_follow(counts, counts < 20, 20))
    assert withheld_more > 3  # withholding small cells alone would not have been enough


def test_cells_that_all_hold_enough_are_all_shown() -> None:
    assert not withheld_cells(np.full((5, 7), 20.0), 20).any()


def test_groups_are_of_about_equal_weight_and_missing_values_stay_alone() -> None:
    counts = np.full(33, 30.0)
    groups = column_groups(counts, range(33), most=GROUPS, missing=32)
    assert groups[32] == groups.max() == GROUPS
    assert (np.diff(groups[:32]) >= 0).all()
    assert set(groups) == set(range(GROUPS + 1))
    weights = np.bincount(groups[:32], weights=counts[:32])
    assert weights.max() <= 2 * weights.min()


def test_a_heavy_bin_is_alone_and_light_ones_are_joined() -> None:
    counts = np.asarray([9200.0, *[40.0] * 20])
    groups = column_groups(counts, range(21), most=GROUPS, missing=None)
    weights = np.bincount(groups, weights=counts)
    assert weights[0] == 9200
    assert len(weights) > 2
    assert weights.min() >= 10000 / (4 * GROUPS) - 40


def test_few_bins_stay_as_they_are() -> None:
    assert column_groups(np.asarray([900.0, 50.0, 50.0]), [2, 0, 1], most=12, missing=None).tolist() == [1, 2, 0]


def test_a_small_table_has_a_coarse_grid() -> None:
    assert [groups_for(rows, 20) for rows in (50, 800, 1e6)] == [2, 3, GROUPS]


def test_a_column_with_one_bin_is_in_no_pair() -> None:
    assert candidates([0.5, 3.0, 0.1], [4, 1, 2]) == [(0, 2)]


def test_an_interaction_gains_and_noise_does_not() -> None:
    random, cells = np.random.default_rng(1), np.arange(16, dtype=np.int32).reshape(4, 4)
    counts = np.full((4, 4), 400.0)
    signs = np.where((np.arange(4)[:, None] < 2) == (np.arange(4)[None, :] < 2), 1.0, -1.0)
    noise = [random.normal(0, np.sqrt(0.2 * 400), (4, 4, 1)) for _ in range(200)]
    gains = [gain_of(counts, own, cells, spread=0.2, curvature=0.2, ridge=0.0) for own in noise]
    assert abs(np.mean(gains)) < 4 * np.std(gains) / np.sqrt(200)
    apart = gain_of(counts, noise[0] + 60 * signs[..., None], cells, spread=0.2, curvature=0.2, ridge=0.0)
    assert apart > max(gains)


def pair() -> Pair:
    left, right = np.asarray([0, 0, 1], dtype=np.int32), np.asarray([1, 0], dtype=np.int32)
    return Pair(1, 4, left, right, np.asarray([[0, 2], [1, 2]], dtype=np.int32))


def test_rows_fall_into_the_bins_of_their_cells() -> None:
    left, right = np.asarray([0, 1, 2, 2]), np.asarray([1, 0, 1, 0])
    assert pair().of_rows(left, right).tolist() == [0, 2, 1, 2]


def test_pairs_are_read_again_as_they_were_written() -> None:
    flat = np.concatenate([pair().flat(), pair().flat()])
    again = Pair.of_flat(flat)
    assert len(again) == 2
    assert (again[1].flat() == pair().flat()).all()


@pytest.mark.parametrize(("place", "value"), [(0, 9), (2, 50), (4, 3), (6, -1), (11, 7)])
def test_numbers_that_are_no_pair_are_refused(place: int, value: int) -> None:
    flat = pair().flat()
    flat[place] = value
    with pytest.raises(IntegrityError):
        Pair.of_flat(flat)


def test_a_torn_array_is_refused() -> None:
    with pytest.raises(IntegrityError):
        Pair.of_flat(pair().flat()[:-1])
