"""From a table with item sets to (k, k^m)-anonymous classes: clusters, merging, generalisation of the items.

`generalise` generalises the items of each class until every combination of up to m released items is held by enough
persons. `suppress_rare` works row by row instead: every row that holds a rare combination loses an item, and the other
rows keep all of theirs. Counts never rise when items go, so every rare combination has to vanish; what is left to
choose is the item that goes: the one in most rare combinations of its row, and among these the one that most persons
of the class hold, which is missed least and draws no other combination below k with it. `local.recode` lets items of
such rows go up a hierarchy first.

Guarantees: afterwards every combination of up to m nodes that a row shows is shown by k persons of its class, or by
none; `suppress_rare` changes nodes in no other way; a class depends on its own rows alone, and there is no randomness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.itemsets.clusters import columns_shape
from kohort.anonymity.itemsets.hierarchy import ItemTree
from kohort.anonymity.itemsets.items import ItemRows, item_weights
from kohort.anonymity.itemsets.local import mean_weights, node_losses, recode
from kohort.anonymity.itemsets.merging import TRIED_ROWS, Merge, merge_clusters
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition
from kohort.anonymity.relational.recode import ColumnCells, label_cells, set_cells
from kohort.errors import ConfigError

if TYPE_CHECKING:
    from kohort.anonymity.itemsets.cluster_kernel import Shape

__all__ = ["Generalised", "ItemAnonymiser", "Rare", "generalise", "suppress_rare"]

Rare = Literal["generalise", "suppress", "recode"]
LARGEST_KEY = 2.0**62
# Combinations of two items at most, of so many items in a class, are counted in a square.
PAIRS = 2
LARGEST_SQUARE = 4_000
# Supports are counts of two bytes for at most this many (cluster, item) pairs; more items share a column.
SUPPORT_CELLS = 500_000_000
LARGEST_SUPPORT = 30_000
# How many times longer a row takes to be recoded than to be generalised, so that fewer are tried in merging.
RECODING = 10

Members = NDArray[np.int64]
"""Places of the shown nodes that make up a combination, [combinations, size]."""


@dataclass(frozen=True)
class Generalised:
    """The node of each occurrence, -1 where it is suppressed, and what it loses, times its weight."""

    node: Integers
    lost: NDArray[np.float64]


@dataclass(frozen=True)
class ItemAnonymiser:
    """A table with item sets on its way to classes: its coded columns, its items, and what was asked for."""

    table: CodedTable
    steps: tuple[HierarchyLevels | None, ...] | None
    rows: ItemRows
    tree: ItemTree
    persons: Integers | None
    k: int
    m: int
    weights: NDArray[np.float64]
    item_weights: Mapping[str, float] | None
    rare: Rare

    @cached_property
    def shape(self) -> Shape:
        """The quasi-identifiers as the compiled loops take them."""
        return columns_shape(self.table, self.weights, self.steps)

    @cached_property
    def node_weights(self) -> NDArray[np.float64]:
        """The weight of each node of the item tree."""
        return item_weights(self.tree, self.item_weights)

    def cells(self, partition: Partition) -> tuple[ColumnCells, ...]:
        """The cells that classes are released with: labels of the hierarchies, or intervals and value sets."""
        if self.steps is None:
            return set_cells(self.table, partition)
        return label_cells(self.table, partition, self.steps)

    def united(self, labels: Integers) -> Integers:
        """Dense labels in which clusters that would be released with equal cells are one: that costs nothing."""
        partition = Partition.of_labels(labels)
        key = np.zeros(partition.count, np.int64)
        for cells in self.cells(partition):
            _, key = np.unique(key * (len(cells.cells) + 1) + cells.of_class, return_inverse=True)
        return key[partition.labels]

    def merged(self, labels: Integers, *, delta: float, merge: Merge) -> tuple[Integers, int, Integers | None]:
        """Clusters after merging, how many merges there were, and the nodes of the clusters as they came, if known."""
        known: list[Integers] = []

        def item_loss(sets: Sequence[Integers]) -> NDArray[np.float64]:
            losses, node = self._item_losses(sets)
            if not known:
                known.append(node)
            return losses

        supports = self._supports(labels) if merge != "none" else np.zeros((1, 1), np.uint16)
        found = merge_clusters(
            self.table,
            self.shape,
            labels,
            delta=delta,
            merge=merge,
            supports=supports,
            k=min(self.k, LARGEST_SUPPORT),
            item_loss=item_loss,
            occurrences=max(float(self.node_weights[self.rows.leaf].sum()), 1e-12),
            tried_rows=TRIED_ROWS // RECODING if self.rare == "recode" else TRIED_ROWS,
        )
        return found.labels, found.merges, known[0] if known else None

    def generalised(
        self, partition: Partition, *, table_wide: bool, before: Integers, known: Integers | None
    ) -> Integers:
        """The node of each occurrence, in the order of the table.

        `known` are those of the clusters `before` merging: a class that is one of these need not be done again.
        """
        todo = np.ones(partition.count, dtype=np.bool_)
        node = np.empty(len(self.rows.leaf), np.int64)
        if known is not None and not table_wide:
            node[:] = known
            came = before[partition.order[partition.starts[:-1]]]
            todo = np.bincount(before)[came] != partition.sizes
        chosen = np.repeat(todo, partition.sizes)
        if chosen.any():
            of_place = np.repeat(np.cumsum(todo) - 1, partition.sizes)[chosen]
            order, classes, persons = self._arranged(partition.order[chosen], of_place)
            places, _ = self.rows.places(order)
            node[places] = self._generalise(order, classes, persons, table_wide=table_wide).node
        return node

    def _item_losses(self, sets: Sequence[Integers]) -> tuple[NDArray[np.float64], Integers]:
        """Summed loss of the items of each set of rows, taken as a class; and the nodes, in the order of the table
        where the sets are the whole of it."""
        sizes = [len(one) for one in sets]
        order, classes, persons = self._arranged(np.concatenate(sets), np.repeat(np.arange(len(sets)), sizes))
        found = self._generalise(order, classes, persons, table_wide=False)
        of_occurrence = np.repeat(classes, self.rows.lengths[order])
        node = found.node
        if len(order) == self.rows.rows:
            places, _ = self.rows.places(order)
            node = np.empty(len(places), np.int64)
            node[places] = found.node
        losses: NDArray[np.float64] = np.bincount(of_occurrence, found.lost, minlength=len(sets)).astype(np.float64)
        return losses, node

    def _arranged(self, rows: Integers, classes: Integers) -> tuple[Integers, Integers, Integers]:
        """Rows with their classes and persons, a person's rows of a class side by side."""
        if self.persons is None:
            return rows, classes, np.arange(len(rows))
        order = np.lexsort((self.persons[rows], classes))
        return rows[order], classes[order], self.persons[rows][order]

    @cached_property
    def _recoding(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What local recoding weighs each node by, and what an item loses there."""
        return mean_weights(self.tree, self.node_weights), node_losses(self.tree)

    def _recoded(self, order: Integers, classes: Integers, persons: Integers) -> Generalised:
        weights, losses = self._recoding
        node = recode(
            self.rows, self.tree, order=order, classes=classes, persons=persons, k=self.k, m=self.m, weights=weights,
        )  # fmt: skip
        leaf = self.rows.leaf[self.rows.places(order)[0]]
        return Generalised(node, losses[node] * self.node_weights[leaf])

    def _generalise(self, order: Integers, classes: Integers, persons: Integers, *, table_wide: bool) -> Generalised:
        if self.rare == "recode":
            return self._recoded(order, classes, persons)
        found = generalise(
            self.rows,
            self.tree,
            order=order,
            classes=classes,
            persons=persons,
            k=self.k,
            m=self.m if self.rare == "generalise" else 1,
            weights=self.node_weights,
            table_wide=table_wide,
        )
        if self.rare == "generalise" or self.m == 1:
            return found
        places, _ = self.rows.places(order)
        row = np.repeat(np.arange(len(order)), self.rows.lengths[order])
        node = suppress_rare(found.node, row, classes, persons, k=self.k, m=self.m)
        lost = np.where(node < 0, self.node_weights[self.rows.leaf[places]], found.lost)
        return Generalised(node, lost)

    def _supports(self, labels: Integers) -> NDArray[np.uint16]:
        """Rows of each cluster that hold each item, up to k; many items share columns, which only blurs the choice."""
        clusters = int(labels.max()) + 1
        width = max(min(len(self.rows.items), SUPPORT_CELLS // clusters), 1)
        keys = np.sort(labels[self.rows.row_of] * width + self.rows.leaf % width)
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        found = np.zeros(clusters * width, np.uint16)
        found[keys[first]] = np.minimum(np.diff(first, append=len(keys)), min(self.k, LARGEST_SUPPORT))
        return found.reshape(clusters, width)


def generalise(
    rows: ItemRows,
    tree: ItemTree,
    *,
    order: Integers,
    classes: Integers,
    persons: Integers,
    k: int,
    m: int,
    weights: NDArray[np.float64],
    table_wide: bool = False,
) -> Generalised:
    """Generalise items until at least k persons show every combination of up to m of them, or none does.

    Rows of a class stand together, and in it those of a person; classes are numbered 0, 1, ... in that order.

    Args:
        rows: The items of the table.
        tree: The hierarchy over the items; without labels, items form groups as needed.
        order: The rows to generalise.
        classes: Class of each of these rows.
        persons: Person of each of these rows.
        k: Persons that must show every combination.
        m: Largest size of a combination.
        weights: Weight of each node of the tree.
        table_wide: Whether a group of items is the same in all classes; False forms groups in each class by itself.

    Returns:
        The node and the loss of each occurrence of these rows, in the order given.

    Raises:
        ConfigError: There are too many items.
    """
    if (len(tree.size) + 1.0) ** 3 * (int(classes[-1]) + 1 if table_wide else 1) > LARGEST_KEY:
        raise ConfigError(f"{len(tree.items):,} items are too many", hint="Generalise the items, or drop rare ones")
    places, row_starts = rows.places(order)
    leaf = rows.leaf[places]
    new_unit = (np.diff(classes, prepend=-1) != 0) | (np.diff(persons, prepend=persons[0] - 1) != 0)
    first_rows = np.flatnonzero(new_unit)
    unit_classes = classes[first_rows]
    class_starts = np.searchsorted(unit_classes, np.arange(int(classes[-1]) + 2))
    one_row_each = len(first_rows) == len(order)
    if one_row_each and m <= PAIRS and not (tree.is_tree or table_wide):
        from kohort.anonymity.itemsets.pair_kernel import generalise_pairs

        width = min(len(tree.items), int(np.diff(row_starts[class_starts]).max(initial=0)))
        if width <= LARGEST_SQUARE:
            return Generalised(*generalise_pairs(class_starts, row_starts, leaf, weights, len(tree.items), width, k, m))
    from kohort.anonymity.itemsets.item_kernel import generalise_items

    node, lost = generalise_items(
        np.array([0, len(first_rows)]) if table_wide else class_starts,
        unit_classes,
        np.append(first_rows, len(order)),
        row_starts,
        leaf,
        weights,
        tree.parent,
        tree.size,
        len(tree.items),
        k,
        m,
        tree.is_tree,
    )
    return Generalised(node, lost)


def suppress_rare(node: Integers, row: Integers, classes: Integers, persons: Integers, *, k: int, m: int) -> Integers:
    """Suppress items, row by row, until at least k persons of a class show every combination that a row shows.

    Args:
        node: Node of each occurrence, -1 where it is suppressed already.
        row: Row of each occurrence.
        classes: Class of each row.
        persons: Person of each row.
        k: Persons that must show a combination.
        m: Largest size of a combination.

    Returns:
        The node of each occurrence, -1 where it is suppressed; other nodes do not change.
    """
    held = np.flatnonzero(node >= 0)
    width = int(node.max(initial=-1)) + 1
    _, cell = np.unique(classes[row[held]] * width + node[held], return_inverse=True)
    cells = int(cell.max(initial=-1)) + 1
    # A node that two occurrences of a row are on is shown once.
    shown, place = np.unique(row[held] * cells + cell, return_inverse=True)
    of_row, of_cell = np.divmod(shown, max(cells, 1))
    stays = np.ones(len(shown), dtype=np.bool_)
    todo = stays.copy()
    while todo.any():
        here = np.flatnonzero(todo)
        rare, support = _rare(of_row[here], of_cell[here], persons[of_row[here]], k, m)
        gone = here[_dropped(of_row[here], support, rare)]
        stays[gone] = False
        # Only classes that lost something are counted again.
        changed = np.zeros(int(classes.max(initial=-1)) + 1, dtype=np.bool_)
        changed[classes[of_row[gone]]] = True
        todo = stays & changed[classes[of_row]]
    left = node.copy()
    left[held[~stays[place]]] = -1
    return left


def _rare(row: Integers, cell: Integers, person: Integers, k: int, m: int) -> tuple[list[Members], Integers]:
    """Combinations that fewer than k persons hold, and how many hold each cell by itself."""
    cells = int(cell.max(initial=-1)) + 1
    alone = np.arange(len(row))[:, None]
    found: list[Members] = []
    support: Integers = np.zeros(0, dtype=np.int64)
    for size in range(1, m + 1):
        members = alone if size == 1 else _combinations(row, size)
        key = cell[members[:, 0]]
        for place in range(1, size):
            # Numbered anew after each, so that the next product stays small.
            _, key = np.unique(key * cells + cell[members[:, place]], return_inverse=True)
        holders = _persons(key, person[members[:, 0]])
        if size == 1:
            support = holders
        found.append(members[holders < k])
    return found, support


def _combinations(row: Integers, size: int) -> Members:
    """Places of all combinations of `size` within a row; rows stand together."""
    longest = int(np.bincount(row).max(initial=0))
    places = np.arange(len(row))
    found = [np.empty((0, size), dtype=np.int64)]
    if size > longest:
        return found[0]
    for steps in combinations(range(1, longest), size - 1):
        start = places[: len(places) - steps[-1]]
        start = start[row[start] == row[start + steps[-1]]]
        found.append(np.stack([start, *(start + step for step in steps)], axis=1))
    return np.concatenate(found)


def _persons(key: Integers, person: Integers) -> Integers:
    """How many persons hold the combination of each place."""
    people = int(person.max(initial=-1)) + 1
    pairs = np.unique(key * people + person)
    counts = np.bincount(pairs // max(people, 1))
    return counts[key]


def _dropped(row: Integers, support: Integers, rare: list[Members]) -> Integers:
    """What rows lose so that no rare combination is left whole, one item of each row at a time."""
    alive = np.ones(len(row), dtype=np.bool_)
    while True:
        rare = [members[alive[members].all(axis=1)] for members in rare]
        blamed = np.bincount(np.concatenate([members.ravel() for members in rare]), minlength=len(row))
        places = np.flatnonzero(blamed)
        if not len(places):
            return np.flatnonzero(~alive)
        order = places[np.lexsort((places, support[places], blamed[places], row[places]))]
        alive[order[np.flatnonzero(np.diff(row[order], append=-1))]] = False
