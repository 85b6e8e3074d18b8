"""The compiled loops of forests against slow, obvious versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import trees as slow

from kohort.models.trees.bins import ABSENT, Bins, joined_codes
from kohort.models.trees.forest import Forest, Trees
from kohort.models.trees.growth import Growth
from kohort.models.trees.kernel import losses, slopes
from kohort.models.trees.options import SCALE, TreeOptions
from kohort.models.trees.precision import rounded_gains, rounded_values


def _bins(generator: np.random.Generator, columns: int, outputs: int) -> Bins:
    sizes = generator.integers(1, 7, columns)
    missing, ordered = generator.random(columns) < 0.5, generator.random(columns) < 0.5
    missing &= ordered
    rank = np.tile(np.arange(256, dtype=np.uint8), (outputs, columns, 1))
    for output, column in np.ndindex(outputs, columns):
        if not ordered[column]:
            rank[output, column, : sizes[column]] = generator.permutation(sizes[column])
    other = np.full(columns, ABSENT, dtype=np.uint8)
    return Bins(tuple(np.zeros(1, np.uint8) for _ in sizes), sizes.astype(np.int64), missing, ordered, rank, other)


def _rows(generator: np.random.Generator, bins: Bins, rows: int) -> Any:
    codes = np.stack([generator.integers(0, size, rows) for size in bins.sizes], axis=1).astype(np.uint8)
    codes[(generator.random(codes.shape) < 0.2) & bins.missing] = ABSENT
    return codes


def _grown(seed: int, *, rows: int, depth: int, l2: float, least: int) -> tuple[Growth, Any, Any, Any, Any]:
    """Two trees grown level by level from all rows, checked against the slow search at every open node."""
    generator = np.random.default_rng(seed)
    bins = _bins(generator, 3, 2)
    codes = _rows(generator, bins, rows)
    gradient = generator.integers(-SCALE, SCALE, (2, rows))
    curvature = generator.integers(1, SCALE // 4, (2, rows))
    options = TreeOptions(depth=depth, l2=l2, min_leaf=least, bins=64)
    chosen = np.asarray([[0, 1, 2], [0, 1, 2]], dtype=np.int64)
    growth = Growth(bins, options, chosen, np.zeros((2, 3)), Trees.empty(np.arange(2), depth))
    return growth, codes, gradient, curvature, bins


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    depth=st.integers(1, 3),
    l2=st.sampled_from([0.5, 1.0, 5.0]),
    least=st.integers(1, 6),
)
def test_every_split_is_the_best_that_a_search_of_all_cuts_finds(
    seed: int, rows: int, depth: int, l2: float, least: int
) -> None:
    growth, codes, gradient, curvature, bins = _grown(seed, rows=rows, depth=depth, l2=l2, least=least)
    nodes = np.zeros((2, rows), dtype=np.int16)
    while not growth.finished:
        opened = list(zip(growth.open.tree.tolist(), growth.open.node.tolist(), strict=True))
        growth.take(growth.counted(codes[None], nodes, gradient, curvature))
        for tree, node in opened:
            best = 0.0
            for column in range(3):
                cells = slow.histogram(codes, nodes, gradient[tree], curvature[tree], tree, node, column)
                places = {code: int(bins.rank[tree, column, code]) for code in range(bins.sizes[column])}
                best = max(best, float(slow.best_gain(cells, places, ABSENT, l2, least)))
            told = [float(rounded_gains(np.asarray([best * (1 + part)]))[0]) for part in (-1e-9, 0, 1e-9)]
            assert best < 1e-9 or growth.trees.gain[tree, node] in told
            assert (growth.trees.split[tree, node] >= 0) == (best > 1e-12) or best < 1e-9
        _move(growth, codes, nodes, bins)
    _check_leaves(growth, codes, gradient, curvature, bins)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(10, 80), depth=st.integers(1, 3), cell=st.integers(2, 6))
def test_withheld_cells_are_joined_alike_for_siblings_and_by_whole_cells_of_the_parent(
    seed: int, rows: int, depth: int, cell: int
) -> None:
    growth, codes, gradient, curvature, bins = _grown(seed, rows=rows, depth=depth, l2=1.0, least=cell)
    growth.options = replace(growth.options, min_cell=cell)
    nodes, parents = np.zeros((2, rows), dtype=np.int16), {}
    while not growth.finished:
        assert growth.counting
        growth.take(growth.counted(codes[None], nodes, gradient, curvature))
        assert growth.layout is not None
        total = growth.counted(codes[None], nodes, gradient, curvature)
        held = total.reshape(-1, 3)[:, 2]
        assert not ((held > 0) & (held < cell)).any()
        here = {}
        for tree, node, begin in zip(growth.open.tree, growth.open.node, growth.open.begin, strict=True):
            own = growth.layout[begin : begin + growth.widths[tree]]
            here[int(tree), int(node)] = np.unique(own, return_inverse=True)[1]
            assert held[np.unique(own)].sum() == 3 * (nodes[tree] == node).sum(), "every column has all rows"
        for (tree, node), own in here.items():
            sibling = (tree, node + 1 if node % 2 else node - 1)
            assert not node or (here[sibling] == own).all()
            above = parents.get((tree, (node - 1) // 2), np.arange(len(own)))
            assert all(len(set(own[above == group])) == 1 for group in np.unique(above))
        parents = here
        growth.take(total)
        _move(growth, codes, nodes, bins)
    _check_leaves(growth, codes, gradient, curvature, bins)


def _move(growth: Growth, codes: Any, nodes: Any, bins: Bins) -> None:
    trees = growth.trees
    for tree, row in np.ndindex(*nodes.shape):
        found = slow.leaf(codes[row], bins.rank[tree], trees.split[tree], trees.cut[tree], trees.left[tree])
        nodes[tree, row] = found


def _check_leaves(growth: Growth, codes: Any, gradient: Any, curvature: Any, bins: Bins) -> None:
    """Leaves hold the Newton steps of the rows that end there, and prediction adds them up."""
    trees, ends = growth.trees, np.zeros((2, len(codes)), dtype=np.int64)
    _move(growth, codes, ends, bins)
    for tree in range(2):
        for node in np.unique(ends[tree]):
            here = ends[tree] == node
            assert here.sum() >= growth.options.min_leaf or node == 0
            bend = curvature[tree, here].sum() / SCALE + growth.options.l2
            step = np.asarray([-gradient[tree, here].sum() / SCALE / bend])
            assert trees.value[tree, node] == rounded_values(step, np.asarray([bend]), classes=2)[0]
    forest = Forest(bins, np.asarray([0.5, -0.25]), 0.5, trees)
    expected = [[base + 0.5 * trees.value[tree, node] for node in ends[tree]] for tree, base in ((0, 0.5), (1, -0.25))]
    assert forest.scores(codes).tolist() == expected


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_gradients_are_the_slopes_of_the_loss(classes: int) -> None:
    generator = np.random.default_rng(classes)
    scores = generator.uniform(-1.5, 1.5, size=(3 if classes == 3 else 1, 40))  # no loss reaches its bound
    y = generator.random(40) if classes == 0 else generator.integers(0, classes, 40).astype(float)
    weight, one = generator.uniform(0.5, 3, 40), np.ones(1, dtype=bool)
    gradient, curvature = np.empty(scores.shape, np.int64), np.empty(scores.shape, np.int64)
    slopes(classes, scores, y, weight, gradient, curvature)
    half = 2.0 if classes == 0 else 1.0  # the loss of numbers is the whole square

    def loss(row: int, output: int, by: float) -> float:
        moved = scores[:, row : row + 1].copy()
        moved[output] += by
        return losses(classes, moved, y[row : row + 1], weight[row : row + 1], one)[0] / SCALE / half

    for output, row in np.ndindex(*scores.shape):
        low, middle, high = (loss(row, output, by) for by in (-0.05, 0.0, 0.05))
        assert gradient[output, row] / SCALE == pytest.approx((high - low) / 0.1, abs=2e-3)
        assert curvature[output, row] / SCALE == pytest.approx((high - 2 * middle + low) / 0.0025, abs=3e-2)


@settings(max_examples=50, deadline=None)
@given(size=st.integers(1, 254), most=st.integers(2, 254), shift=st.floats(0, 1, exclude_max=True))
def test_joined_codes_keep_the_order_and_the_number_of_bins(size: int, most: int, shift: float) -> None:
    found = joined_codes(size, most, shift).astype(int)
    assert found[0] == 0
    assert set(np.diff(found)) <= {0, 1}
    assert found[-1] < most
