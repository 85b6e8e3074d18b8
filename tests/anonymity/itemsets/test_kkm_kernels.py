"""The compiled loops of (k, k^m)-anonymity beside what they must agree with."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

import kohort.anonymity.itemsets.generalise as kkm_generalise
from kohort.anonymity.itemsets.clusters import columns_shape, form_clusters
from kohort.anonymity.itemsets.hierarchy import item_tree
from kohort.anonymity.itemsets.items import item_weights, read_items
from kohort.anonymity.itemsets.loss import smallest_cover
from kohort.anonymity.relational.problem import code_table


@pytest.mark.parametrize("m", [1, 2])
def test_counting_pairs_in_a_square_changes_nothing(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    """Two item columns that share items, weights of items, classes of many sizes."""
    random = np.random.default_rng(m)
    names = [f"c{number:02d}" for number in range(40)]
    popular = 1.0 / np.arange(1, 41)
    lists = [
        [random.choice(names, random.integers(0, 5), p=popular / popular.sum()).tolist() for _ in range(900)]
        for _ in range(2)
    ]
    rows = read_items(pl.DataFrame({"a": lists[0], "b": lists[1]}), ["a", "b"])
    tree = item_tree(rows.items, None)
    weights = item_weights(tree, {name: float(random.integers(1, 5)) / 4 for name in names})
    classes = np.unique(np.sort(random.integers(0, 12, 900) ** 2), return_inverse=True)[1]
    made = []
    for square in (0, 4_000):
        monkeypatch.setattr(kkm_generalise, "LARGEST_SQUARE", square)
        everyone = np.arange(900)
        made.append(
            kkm_generalise.generalise(
                rows, tree, order=everyone, classes=classes, persons=everyone, k=5, m=m, weights=weights
            )
        )
    assert np.array_equal(made[0].node, made[1].node)
    assert np.array_equal(made[0].lost, made[1].lost)
    assert (made[0].node != rows.leaf).any()


groups = st.lists(st.frozensets(st.integers(0, 6), max_size=5), min_size=1, max_size=5)


@examples(25, 100)
@given(cells=groups, rows=st.lists(st.tuples(st.sets(st.integers(0, 6)), st.sets(st.integers(0, 4))), min_size=1))
def test_the_smallest_cell_that_stands_for_an_item(
    cells: list[frozenset[int]], rows: list[tuple[set[int], set[int]]]
) -> None:
    shown = [sorted(place for place in places if place < len(cells)) for _, places in rows]
    row_of = [row for row, (items, _) in enumerate(rows) for _ in items]
    items = [item for held, _ in rows for item in sorted(held)]
    best, used = smallest_cover(
        np.array(row_of, np.int64),
        np.array(items, np.int64),
        np.cumsum([0, *map(len, shown)]),
        np.array([place for places in shown for place in places], np.int64),
        np.cumsum([0, *map(len, cells)]),
        np.array([item for cell in cells for item in sorted(cell)], np.int64),
    )
    wanted = [
        min((len(cells[place]) for place in shown[row] if item in cells[place]), default=0)
        for row, item in zip(row_of, items, strict=True)
    ]
    assert best.tolist() == wanted
    assert used == sum(
        bool(cells[place] & held) for (held, _), places in zip(rows, shown, strict=True) for place in places
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_groups_join_first(seed: int) -> None:
    """Against a loop that measures every pair anew at every step; random numbers, so no two pairs are equally near."""
    random = np.random.default_rng(seed)
    values = random.random((30, 2))
    town = random.integers(0, 5, 30)
    frame = pl.DataFrame({"x": values[:, 0], "y": values[:, 1], "town": [f"t{number}" for number in town]})
    table = code_table(frame, ["x", "y", "town"])
    k = 2 + seed % 4
    found = form_clusters(table, columns_shape(table, np.array([1.0, 0.7, 0.9]), None), k=k, persons=None)
    spans = values.max(axis=0) - values.min(axis=0)

    def loss(rows: list[int]) -> float:
        x, y = (values[rows].max(axis=0) - values[rows].min(axis=0)) / spans
        towns = len(set(town[rows].tolist()))
        return float(x + 0.7 * y + (0.9 * towns / 5 if towns > 1 else 0.0))

    clusters = [[row] for row in range(30)]
    while True:
        pairs = []
        for one in clusters:
            for other in clusters:
                if len(one) >= k or one is other:
                    continue
                together, apart = [*one, *other], len(one) * loss(one) + len(other) * loss(other)
                lacking = len(one) + (len(other) if len(other) < k else 0)
                pairs.append(((len(together) * loss(together) - apart) / lacking, one, other))
        if not pairs:
            break
        _, one, other = min(pairs, key=lambda pair: pair[0])
        clusters = [rest for rest in clusters if rest is not one and rest is not other] + [[*one, *other]]
    wanted = {frozenset(rows) for rows in clusters}
    assert {frozenset(np.flatnonzero(found == label).tolist()) for label in np.unique(found)} == wanted
