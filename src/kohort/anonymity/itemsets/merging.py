"""Joining clusters where that spares items (Poulis et al., 2013).

The cluster with the least relational loss is the seed. With "paying" and "all" its partner is the cluster that comes
first in the sum of two orderings, by relational loss and by item loss of the union (Poulis et al.). "paying" merges if
the items gain more than the quasi-identifiers lose; "all" whenever the bound allows it. "printed" is the form of
Choudhury et al. (2020): all clusters stand in two orderings, by their own relational and by their own item loss, and
the partner is the cluster nearest to the seed in both, by the sum of the places between them; this goes on as long as
the seed has a partner within the bound. "none" merges nothing. In every case relational loss stays within delta, unless
forming the clusters already passed it.

A cluster covers a range of codes (numbers), a set of values (categories), or a label of a hierarchy, which is given by
a level and any one code below it.

Guarantees: clusters are only ever joined whole; the loss of `ClusterExtents` is what one row of a cluster loses: the
weighted sum over the quasi-identifiers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import CodedTable, Integers, Partition

if TYPE_CHECKING:
    from kohort.anonymity.itemsets.cluster_kernel import Shape

__all__ = ["TRIED_ROWS", "ClusterExtents", "Merge", "MergeResult", "merge_clusters"]

Merge = Literal["paying", "all", "printed", "none"]
ItemLoss = Callable[[Sequence[Integers]], NDArray[np.float64]]
"""For each of several sets of rows, taken as a class, the summed loss of its items."""

# Merging: how many clusters a seed looks at, how many it tries, how many seeds in a row may fail before merging ends,
# and how many rows may be tried in unions altogether. A try takes as long as so many rows before it has begun.
NEIGHBOURS = 256
SHORTLIST = 32
TRIES = 2
PATIENCE = 32
TRIED_ROWS = 400_000
ROWS_A_TRY = 150
WORD = 64


@dataclass(frozen=True)
class MergeResult:
    """Cluster of each row, and how many merges were made."""

    labels: Integers
    merges: int


class ClusterExtents:
    """What the clusters of a partition cover in each quasi-identifier; changes as clusters join."""

    def __init__(self, table: CodedTable, shape: Shape, partition: Partition) -> None:
        self.shape = shape
        self.size: NDArray[np.float64] = partition.sizes.astype(np.float64)
        self.total = float(shape.weight.sum()) * table.rows
        self._columns = [
            _column(codes[partition.order].astype(np.int64), number, shape, partition)
            for number, codes in enumerate(table.codes)
        ]
        everyone = np.arange(partition.count)
        self.loss: NDArray[np.float64] = self._joint(everyone, everyone)

    def added(self, seed: int, others: Integers) -> NDArray[np.float64]:
        """What joining the seed with each of the others adds to the table's mean relational loss."""
        together = (self.size[seed] + self.size[others]) * self._joint(np.full(len(others), seed), others)
        apart = self.size[seed] * self.loss[seed] + self.size[others] * self.loss[others]
        found: NDArray[np.float64] = (together - apart) / self.total
        return found

    def join(self, seed: int, partner: int) -> None:
        """Let the seed cover both."""
        pair = np.array([seed]), np.array([partner])
        self.loss[seed] = self._joint(*pair)[0]
        for column in self._columns:
            column.join(*pair)
        self.size[seed] += self.size[partner]

    def _joint(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        total = np.zeros(len(ones))
        for weight, column in zip(self.shape.weight, self._columns, strict=True):
            total += weight * column.lost(ones, others)
        return total


class _Range:
    """A number: lowest and highest code, and where the codes lie."""

    def __init__(self, ordered: Integers, points: NDArray[np.float64], partition: Partition) -> None:
        self.points = points
        self.low = np.minimum.reduceat(ordered, partition.starts[:-1])
        self.high = np.maximum.reduceat(ordered, partition.starts[:-1])

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        low = np.minimum(self.low[ones], self.low[others])
        high = np.maximum(self.high[ones], self.high[others])
        return np.minimum(self.points[high] - self.points[low], 1.0)

    def join(self, one: Integers, other: Integers) -> None:
        self.low[one] = np.minimum(self.low[one], self.low[other])
        self.high[one] = np.maximum(self.high[one], self.high[other])


class _Set:
    """A category: which of its values occur, as bits."""

    def __init__(self, ordered: Integers, distinct: int, partition: Partition) -> None:
        self.distinct = distinct
        self.bits = np.zeros((partition.count, (distinct - 1) // WORD + 1), np.uint64)
        cluster = np.repeat(np.arange(partition.count), partition.sizes)
        bit = np.left_shift(np.uint64(1), (ordered % WORD).astype(np.uint64))
        np.bitwise_or.at(self.bits, (cluster, ordered // WORD), bit)

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        held = np.bitwise_count(self.bits[ones] | self.bits[others]).sum(axis=1, dtype=np.int64)
        return np.where(held > 1, held / self.distinct, 0.0)

    def join(self, one: Integers, other: Integers) -> None:
        self.bits[one] |= self.bits[other]


class _Label:
    """A column with a hierarchy: level and one code; `labels[level, code]` and `costs[level, code]` belong to it."""

    def __init__(self, ordered: Integers, labels: Integers, costs: NDArray[np.float64], partition: Partition) -> None:
        self.labels, self.costs = labels, costs
        self.code = ordered[partition.starts[:-1]].copy()
        self.level = np.zeros(partition.count, np.int64)
        apart = np.ones(partition.count, dtype=np.bool_)
        for level, line in enumerate(labels):
            self.level[apart] = level
            held = line[ordered]
            lowest = np.minimum.reduceat(held, partition.starts[:-1])
            apart &= lowest != np.maximum.reduceat(held, partition.starts[:-1])

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.costs[self._above(ones, others), self.code[ones]]
        return found

    def join(self, one: Integers, other: Integers) -> None:
        self.level[one] = self._above(one, other)

    def _above(self, ones: Integers, others: Integers) -> Integers:
        level = np.maximum(self.level[ones], self.level[others])
        for _ in range(len(self.labels) - 1):
            apart = self.labels[level, self.code[ones]] != self.labels[level, self.code[others]]
            if not apart.any():
                break
            level = np.minimum(level + apart, len(self.labels) - 1)
        return level


def _column(ordered: Integers, number: int, shape: Shape, partition: Partition) -> _Range | _Set | _Label:
    distinct = int(shape.distinct[number])
    if shape.levels[number] > 1:
        part = slice(shape.level_starts[number], shape.level_starts[number + 1])
        lines = shape.labels[part].reshape(-1, distinct), shape.costs[part].reshape(-1, distinct)
        return _Label(ordered, *lines, partition)
    if shape.words[number + 1] > shape.words[number]:
        return _Set(ordered, distinct, partition)
    return _Range(ordered, shape.points[shape.offsets[number] : shape.offsets[number + 1]], partition)


def merge_clusters(
    table: CodedTable,
    shape: Shape,
    labels: Integers,
    *,
    delta: float,
    merge: Merge,
    supports: NDArray[np.uint16],
    k: int,
    item_loss: ItemLoss,
    occurrences: float,
    tried_rows: int = TRIED_ROWS,
) -> MergeResult:
    """Join clusters while it is allowed and, with "paying", worth it.

    Args:
        table: The coded quasi-identifiers.
        shape: The same as the compiled loops take them.
        labels: Cluster of each row, numbered without gaps.
        delta: Bound on the relational loss.
        merge: When to join.
        supports: `supports[cluster, item]` counts the rows that hold an item, up to k. Changed in place.
        k: Largest count in `supports`.
        item_loss: Summed loss of the items of each of several sets of rows, taken as classes.
        occurrences: Weighted item occurrences of the whole table.
        tried_rows: Rows that may be tried in unions altogether.

    Returns:
        The cluster of each row, numbered without gaps, and how many merges were made.
    """
    partition = Partition.of_labels(labels)
    if merge == "none" or partition.count < 2:
        return MergeResult(labels, 0)
    members = [partition.order[a:b] for a, b in zip(partition.starts[:-1], partition.starts[1:], strict=True)]
    state = _Merging(
        extents=ClusterExtents(table, shape, partition),
        members=members,
        lost=item_loss(members) if merge != "all" else np.zeros(partition.count),
        supports=supports,
        alive=np.ones(partition.count, dtype=np.bool_),
        paying=merge == "paying",
        delta=delta,
        k=k,
        item_loss=item_loss,
        occurrences=occurrences,
        budget=tried_rows,
    )
    if merge == "printed":
        state.run_as_printed()
    else:
        state.run(np.argsort(_along(table, partition), kind="stable"))
    found = np.empty(table.rows, np.int64)
    for number, cluster in enumerate(np.flatnonzero(state.alive).tolist()):
        found[members[cluster]] = number
    return MergeResult(found, partition.count - int(state.alive.sum()))


@dataclass
class _Merging:
    """The clusters while they are merged, and what is left of the budget."""

    extents: ClusterExtents
    members: list[Integers]
    lost: NDArray[np.float64]
    supports: NDArray[np.uint16]
    alive: NDArray[np.bool_]
    paying: bool
    delta: float
    k: int
    item_loss: ItemLoss
    occurrences: float
    budget: int = TRIED_ROWS
    relational: float = 0.0

    def run(self, position: Integers) -> None:
        """Merge seeds, the one with the least relational loss first, until the budget or the patience ends.

        `position` lists the clusters so that near ones stand near each other.
        """
        extents = self.extents
        self.relational = float((extents.size * extents.loss).sum()) / extents.total
        queue = [(extents.loss[c], extents.size[c], c) for c in range(len(self.alive))]
        heapq.heapify(queue)
        rank = np.argsort(position)
        failed = 0
        while queue and self.budget > 0 and failed < PATIENCE:
            loss, size, seed = heapq.heappop(queue)
            if not self.alive[seed] or (extents.loss[seed], extents.size[seed]) != (loss, size):
                continue
            others = _neighbours(seed, self.alive, position, rank)
            if not len(others):
                break
            failed += self.paying
            if self._merge_seed(seed, others):
                failed = 0
                heapq.heappush(queue, (extents.loss[seed], extents.size[seed], seed))

    def run_as_printed(self) -> None:
        """Merge the cluster of least relational loss with the one nearest to it in both orderings, again and again."""
        extents = self.extents
        self.relational = float((extents.size * extents.loss).sum()) / extents.total
        while True:
            alive = np.flatnonzero(self.alive)
            by_items = self.lost[alive] / extents.size[alive]
            away = _places_between(extents.loss[alive], by_items)
            seed = int(alive[np.argmin(extents.loss[alive])])
            others = alive[alive != seed]
            added = extents.added(seed, others) if len(others) else np.zeros(0)
            within = self.relational + added <= self.delta
            if not within.any():
                return
            nearest = int(np.argmin(np.where(within, away[alive != seed], np.inf)))
            partner = int(others[nearest])
            union = np.concatenate([self.members[seed], self.members[partner]])
            self._join(seed, partner, union, float(added[nearest]), float(self.item_loss([union])[0]))

    def _merge_seed(self, seed: int, others: Integers) -> bool:
        """Try the best partners of a seed in turn; whether one was merged."""
        added = self.extents.added(seed, others)
        near = np.argsort(added, kind="stable")[:SHORTLIST]
        ranking = near[_by_both_orders(seed, others[near], self.supports, self.k, self.extents.size)]
        for choice in ranking[: TRIES if self.paying else None]:
            if self._merge(seed, int(others[choice]), float(added[choice])):
                return True
        return False

    def _merge(self, seed: int, partner: int, cost: float) -> bool:
        """Join two clusters if the bound allows it and, where merges must pay, the items gain more than it costs."""
        gain = (self.lost[seed] + self.lost[partner]) / self.occurrences
        # The items can gain at most what they lose now.
        if self.relational + cost > self.delta or (self.paying and gain <= cost):
            return False
        union = np.concatenate([self.members[seed], self.members[partner]])
        after = 0.0
        if self.paying:
            self.budget -= len(union) + ROWS_A_TRY
            after = float(self.item_loss([union])[0])
            if gain - after / self.occurrences <= cost:
                return False
        self._join(seed, partner, union, cost, after)
        return True

    def _join(self, seed: int, partner: int, union: Integers, cost: float, after: float) -> None:
        """Make one cluster of two, which has these rows and item loss and adds `cost` to the relational loss."""
        self.lost[seed] = after
        self.members[seed] = union
        self.extents.join(seed, partner)
        self.supports[seed] = np.minimum(self.supports[seed] + self.supports[partner], self.k)
        self.alive[partner] = False
        self.relational += cost


def _places_between(relational: NDArray[np.float64], items: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many places each cluster is away from the first by relational loss, in both orderings together."""
    places = [np.argsort(np.argsort(loss, kind="stable"), kind="stable") for loss in (relational, items)]
    seed = int(np.argmin(relational))
    found: NDArray[np.float64] = sum(np.abs(place - place[seed]) for place in places).astype(np.float64)
    return found


def _by_both_orders(
    seed: int, others: Integers, supports: NDArray[np.uint16], k: int, sizes: NDArray[np.float64]
) -> Integers:
    """Places of `others`, which come in order of relational loss, by the sum of that order and the one of item loss.

    Item loss of a union is estimated: the share of occurrences of items that fewer than k of its rows hold.
    """
    together = supports[others] + supports[seed]
    rare = np.where(together < k, together, 0).sum(axis=1, dtype=np.int64) / (sizes[others] + sizes[seed])
    places = np.arange(len(others)) + np.argsort(np.argsort(rare, kind="stable"), kind="stable")
    found: Integers = np.argsort(places, kind="stable")
    return found


def _along(table: CodedTable, partition: Partition) -> NDArray[np.float64]:
    """A place on a line for each cluster, so that near clusters stand near: by the mean codes of its widest columns."""
    line: NDArray[np.float64] = np.zeros(partition.count)
    for column, codes in sorted(zip(table.columns, table.codes, strict=True), key=lambda pair: pair[0].distinct):
        sums = np.add.reduceat(codes[partition.order].astype(np.float64), partition.starts[:-1])
        line = line * column.distinct + sums / partition.sizes
    return line


def _neighbours(seed: int, alive: NDArray[np.bool_], position: Integers, rank: Integers) -> Integers:
    """The living clusters around a seed, at most NEIGHBOURS of them."""
    if len(alive) <= NEIGHBOURS:
        found = np.flatnonzero(alive)
    else:
        reach = NEIGHBOURS // 2
        while True:
            around = position[max(rank[seed] - reach, 0) : rank[seed] + reach + 1]
            found = around[alive[around]]
            if len(found) > SHORTLIST or reach > len(alive):
                break
            reach *= 4
    others: Integers = found[found != seed]
    return others
