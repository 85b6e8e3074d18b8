"""Clusters of at least k rows by relational loss, and the joining of clusters that spares items (Poulis et al., 2013).

`form_clusters`: rows with equal quasi-identifiers are one group from the start. Groups with too few join, the nearest
pair first, until all have k; what is left over goes to the nearest cluster by the same rule. Tables with many
different rows are cut into blocks first (Mondrian), so that the work stays about the same.

`merge_clusters`: the cluster with the least relational loss is the seed; its partner is the cluster that comes first
in the sum of two orderings, by relational loss and by item loss of the union. "paying" merges if the items gain more
than the quasi-identifiers lose; "all" merges whenever the bound allows it, as printed in Choudhury et al. (2020);
"none" not at all. In every case relational loss stays within delta, unless forming the clusters already passed it.

Guarantees: every cluster has k persons; clusters never split rows with equal quasi-identifiers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.itemsets.covers import Covers
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

__all__ = ["Merge", "Merged", "columns_shape", "form_clusters", "merge_clusters"]

Merge = Literal["paying", "all", "none"]

# Pairs of groups that one table may ask for: sets the size of a block.
PAIRS = 8_000_000
LARGEST_BLOCK = 2_048
SMALLEST_BLOCK = 32
# Merging: how many clusters a seed looks at, how many it tries, how many seeds in a row may fail before merging ends,
# and how many rows may be tried in unions altogether. A try takes as long as so many rows before it has begun.
NEIGHBOURS = 256
SHORTLIST = 32
TRIES = 2
PATIENCE = 32
TRIED_ROWS = 400_000
ROWS_A_TRY = 150


@dataclass(frozen=True)
class Merged:
    """Cluster of each row, and how many merges were made."""

    labels: Integers
    merges: int


def columns_shape(
    table: CodedTable, weights: NDArray[np.float64], levels_by_column: Sequence[HierarchyLevels] | None
) -> Any:
    """The quasi-identifiers as the loops take them."""
    from kohort.anonymity.itemsets.cluster_kernel import CATEGORY, HIERARCHY, NUMBER, WORD, Shape

    kinds = [NUMBER if column.is_number else CATEGORY for column in table.columns]
    kinds = [HIERARCHY] * len(kinds) if levels_by_column is not None else kinds
    words = [(column.distinct - 1) // WORD + 1 if kind == CATEGORY else 0
             for column, kind in zip(table.columns, kinds, strict=True)]  # fmt: skip
    steps = levels_by_column or ()
    labels = [np.concatenate(levels.labels) for levels in steps]
    costs = [
        np.concatenate([cost[numbers] for numbers, cost in zip(levels.labels, levels.cost, strict=True)])
        for levels in steps
    ]
    begins = np.concatenate(([0], np.cumsum([len(found) for found in labels])))
    return Shape(
        np.array(kinds, dtype=np.int64),
        table.distinct,
        weights,
        table.offsets,
        table.points,
        np.concatenate(([0], np.cumsum(words))).astype(np.int64),
        begins.astype(np.int64) if steps else np.zeros(len(kinds) + 1, np.int64),
        np.array([levels.count for levels in steps] or [1] * len(kinds), dtype=np.int64),
        np.concatenate(labels) if steps else np.zeros(1, np.int64),
        np.concatenate(costs) if steps else np.zeros(1),
    )


def form_clusters(table: CodedTable, shape: Any, *, k: int, persons: Integers | None) -> Integers:
    """Cluster of each row. `persons` numbers who a row is about; None: everyone has one row."""
    of_row, codes = _distinct_rows(table)
    owner = np.arange(codes.shape[1])
    for block in _blocks(table, of_row, codes.shape[1], k):
        owner[block] = _joined(codes, block, _holders(of_row, None, len(owner)), owner, k, shape)
    labels = owner[of_row]
    if persons is None:
        return labels
    everyone = np.arange(len(owner))
    while True:
        # Persons of joined groups do not add up, so they are counted anew until all clusters have enough.
        sizes = _holders(labels, persons, len(owner))
        alive = owner == everyone
        if (sizes[alive] >= k).all():
            return labels
        owner = _joined(codes, everyone, sizes, owner, k, shape)
        labels = owner[of_row]


def _joined(codes: Any, block: Integers, sizes: Integers, owner: Integers, k: int, shape: Any) -> Integers:
    from kohort.anonymity.itemsets.cluster_kernel import agglomerate

    own = sizes[block]
    if (own >= k).all():
        return owner[block]
    local = np.searchsorted(block, owner[block])
    found: Integers = block[agglomerate(np.ascontiguousarray(codes[:, block]), own, local, k, shape)]
    return found


def _holders(labels: Integers, persons: Integers | None, count: int) -> Integers:
    if persons is None:
        return np.bincount(labels, minlength=count)
    width = int(persons.max()) + 1
    pairs = np.unique(labels * width + persons)
    return np.bincount(pairs // width, minlength=count)


def _distinct_rows(table: CodedTable) -> tuple[Integers, Any]:
    """Which combination of values each row has, and the combinations."""
    key = np.zeros(table.rows, np.int64)
    span = 1
    for column, codes in zip(table.columns, table.codes, strict=True):
        if span * column.distinct >= 1 << 62:
            _, key = np.unique(key, return_inverse=True)
            span = table.rows
        key = key * column.distinct + codes
        span *= column.distinct
    _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
    return of_row.astype(np.int64), table.codes[:, first].astype(np.int64)


def _blocks(table: CodedTable, of_row: Integers, combinations: int, k: int) -> list[Integers]:
    """Combinations in blocks that are clustered apart, each with k rows; one block where the work allows it."""
    size = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, PAIRS // combinations))
    if combinations <= size:
        return [np.arange(combinations)]
    nothing = SensitiveColumns.of(pl.DataFrame({"rows": []}), [])
    rows_a_block = max(2 * k, size * table.rows // combinations)
    found = mondrian(Problem(table, nothing, Rule(k=k)), stop_rows=rows_a_block)
    ends = zip(found.starts[:-1].tolist(), found.starts[1:].tolist(), strict=True)
    return [np.unique(of_row[found.order[start:end]]) for start, end in ends]


def merge_clusters(
    table: CodedTable,
    shape: Any,
    labels: Integers,
    *,
    delta: float,
    merge: Merge,
    supports: NDArray[np.uint16],
    k: int,
    item_loss: Callable[[Sequence[Integers]], NDArray[np.float64]],
    occurrences: float,
) -> Merged:
    """Join clusters while it is allowed and, with "paying", worth it.

    `labels` are dense; `supports[cluster, item]` counts rows up to k; `item_loss` gives, for each of several sets of
    rows taken as a class, the summed loss of its items, of which the table has `occurrences` in all.
    """
    partition = Partition.of_labels(labels)
    count = partition.count
    if merge == "none" or count < 2:
        return Merged(labels, 0)
    covers = Covers(table, shape, partition)
    members = [partition.order[a:b] for a, b in zip(partition.starts[:-1], partition.starts[1:], strict=True)]
    lost = item_loss(members) if merge == "paying" else np.zeros(count)
    relational = float((covers.size * covers.loss).sum()) / covers.total
    alive = np.ones(count, dtype=np.bool_)
    queue = [(covers.loss[c], covers.size[c], c) for c in range(count)]
    heapq.heapify(queue)
    position = np.argsort(_along(table, partition), kind="stable")
    rank = np.argsort(position)
    budget = TRIED_ROWS
    failed = 0
    while queue and budget > 0 and failed < PATIENCE:
        loss, size, seed = heapq.heappop(queue)
        if not alive[seed] or (covers.loss[seed], covers.size[seed]) != (loss, size):
            continue
        others = _neighbours(seed, alive, position, rank)
        if not len(others):
            break
        added = covers.added(seed, others)
        near = np.argsort(added, kind="stable")[:SHORTLIST]
        failed += merge == "paying"
        ranking = near[_by_both_orders(seed, others[near], supports, k, covers.size)]
        for choice in ranking[: TRIES if merge == "paying" else None]:
            partner, cost = int(others[choice]), float(added[choice])
            gain = (lost[seed] + lost[partner]) / occurrences
            # The items can gain at most what they lose now.
            if relational + cost > delta or (merge == "paying" and gain <= cost):
                continue
            union = np.concatenate([members[seed], members[partner]])
            if merge == "paying":
                budget -= len(union) + ROWS_A_TRY
                after = float(item_loss([union])[0])
                if gain - after / occurrences <= cost:
                    continue
                lost[seed] = after
            members[seed] = union
            covers.join(seed, partner)
            supports[seed] = np.minimum(supports[seed] + supports[partner], k)
            alive[partner] = False
            relational += cost
            failed = 0
            heapq.heappush(queue, (covers.loss[seed], covers.size[seed], seed))
            break
    found = np.empty(table.rows, np.int64)
    for number, cluster in enumerate(np.flatnonzero(alive).tolist()):
        found[members[cluster]] = number
    return Merged(found, count - int(alive.sum()))


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
