"""The quality path without a taxonomy: look-ahead Mondrian down to blocks, greedy k-member clusters in each block.

Clustering looks at all pairs of rows of a block, so the size of a block sets both quality and time: `block_rows` picks
it so that the work stays about the same for any table. In each block the better of two partitions is kept: the
clusters, or Mondrian carried on to its end; on tables of many blocks the latter only if it is the better one in some of
those that are tried first. Blocks are independent and share the cores.

Where the rule is about sensitive values, tight clusters use up the rare values too soon; clusters of several sizes
from k on are tried and the best partition is kept.

Guarantee: every class meets the rule. Same table and same seed row, same classes, on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from kohort.anonymity.relational.algorithms.compile_beside import compile_search_beside
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.equal_rows import exact_classes
from kohort.anonymity.relational.problem import CodedTable, Codes, Integers, Partition, Problem

__all__ = ["block_rows", "cluster", "cluster_rest"]

PAIRS = 1_000_000_000
# Columns that PAIRS are meant for: of a wider table fewer pairs are looked at.
COLUMNS = 8
LARGEST_BLOCK = 4_096
CLUSTERS_A_BLOCK = 20
# Blocks, spread over the table, in which Mondrian is carried on to see whether it is worth it in the others.
PROBED = 8
# Times k: what the rule about sensitive values may ask for on top of the size.
GROWTH = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def block_rows(rows: int, k: int, columns: int = COLUMNS) -> int:
    """Rows of a block that is clustered by itself.

    Args:
        rows: Rows of the table.
        k: Rows of a class.
        columns: Number of quasi-identifiers; more of them make smaller blocks.

    Returns:
        As many rows as the work allows, and enough for some clusters.
    """
    pairs = PAIRS * COLUMNS // max(columns, COLUMNS)
    return max(CLUSTERS_A_BLOCK * k, min(LARGEST_BLOCK, pairs // max(rows, 1)))


def cluster(problem: Problem, *, block: int | None = None, jobs: int | None = None) -> Partition:
    """The classes of a table by k-member clustering.

    Args:
        problem: The coded table and the rule.
        block: Rows of a block; chosen by `block_rows` when None.
        jobs: Threads that work on blocks in parallel; all cores when None.

    Returns:
        Classes that meet the rule; the same for any number of threads.
    """
    from kohort.anonymity.compiled import first_call
    from kohort.anonymity.relational.algorithms.cluster_kernel import assign_leftovers, grow_clusters

    compile_search_beside(problem, grow_clusters)
    table = problem.table
    size = block_rows(table.rows, problem.rule.k, len(table.columns)) if block is None else block
    blocks = mondrian(problem, split="look-ahead", stop_rows=size)
    columns = problem.columns()
    bounds = list(zip(blocks.starts[:-1].tolist(), blocks.starts[1:].tolist(), strict=True))

    def solve(ends: tuple[int, int], *, also_cut: bool = True) -> tuple[Integers, Integers, bool]:
        rows = blocks.order[ends[0] : ends[1]]
        block_columns: Codes = np.ascontiguousarray(columns[:, rows])  # type: ignore[assignment] # of the same type
        order, starts, by_cuts = _best_of_block(problem, block_columns, also_cut=also_cut)
        return rows[order], starts, by_cuts

    workers = min(jobs or os.cpu_count() or 1, len(bounds))
    with first_call(grow_clusters, assign_leftovers):
        probed = sorted({place * len(bounds) // PROBED for place in range(PROBED)})
        known = {place: solve(bounds[place]) for place in probed}
        # A rule about sensitive values may let clusters fail where cuts do not.
        also_cut = problem.requirements is not None or any(by_cuts for _, _, by_cuts in known.values())

        def rest(place: int) -> tuple[Integers, Integers, bool]:
            return known.get(place) or solve(bounds[place], also_cut=also_cut)

        if workers <= 1:
            return _joined(map(rest, range(len(bounds))))
        with ThreadPoolExecutor(workers) as pool:
            return _joined(pool.map(rest, range(len(bounds))))


def cluster_rest(problem: Problem, *, jobs: int | None = None) -> Partition:
    """Rows whose quasi-identifiers k rows share already are classes as they are; the others are clustered.

    Where a rule is about sensitive values, classes that are left as they are would use up rare values: all rows are
    clustered then, and also where the others would be too few for a class.

    Args:
        problem: The coded table and the rule.
        jobs: Threads that work on blocks in parallel; all cores when None.

    Returns:
        Classes that meet the rule.
    """
    if problem.requirements is not None:
        return cluster(problem, jobs=jobs)
    alike = exact_classes(problem.table)
    small = np.repeat(alike.sizes < problem.rule.k, alike.sizes)
    rest = np.sort(alike.order[small])
    if len(rest) == len(small) or 0 < len(rest) < problem.rule.k:
        return cluster(problem, jobs=jobs)
    if not len(rest):
        return alike
    codes: Any = np.ascontiguousarray(problem.table.codes[:, rest])
    others = cluster(replace(problem, table=CodedTable(problem.table.columns, codes)), jobs=jobs)
    kept = np.flatnonzero(alike.sizes >= problem.rule.k)
    sizes = np.concatenate((alike.sizes[kept], others.sizes))
    order = np.concatenate((alike.order[~small], rest[others.order]))
    return Partition(order, np.concatenate(([0], np.cumsum(sizes))))


def _joined(parts: Iterable[tuple[Integers, Integers, bool]]) -> Partition:
    orders, ends, done = [], [np.zeros(1, np.int64)], 0
    for order, starts, _ in parts:
        orders.append(order)
        ends.append(starts[1:] + done)
        done += len(order)
    return Partition(np.concatenate(orders), np.concatenate(ends))


def _best_of_block(problem: Problem, columns: Codes, *, also_cut: bool) -> tuple[Integers, Integers, bool]:
    """Order and starts of the best partition of one block, which itself meets the rule; and whether cuts gave it."""
    if not np.ptp(columns[: len(problem.table.columns)], axis=1).any():
        # Rows that are all alike lose nothing as one class, and a large block of them would take long to cluster.
        return np.arange(columns.shape[1], dtype=np.int64), np.array([0, columns.shape[1]], np.int64), True
    whole, (columns, shape) = columns, _local(problem, columns)
    found: list[tuple[Integers, Integers]] = []
    losses: list[float] = []
    if also_cut or columns.shape[1] < problem.rule.k:
        # Cuts know a category by how far its codes spread, so they see the table's own codes; unless those are so many
        # that clearing arrays for them would take longer than the cuts.
        many = problem.table.distinct.max() > columns.shape[1]
        found.append(_cut_on(problem, shape, columns) if many else _cut_on(problem, problem.cut_shape, whole))
        losses.append(_loss_of_block(columns, found[0], shape))
    by_cuts = len(found)
    for growth in GROWTH if problem.requirements is not None else GROWTH[:1]:
        grown = _clusters(problem, shape, columns, least=int(np.ceil(problem.rule.k * growth)))
        if grown is None:
            continue
        found.append(grown)
        losses.append(_loss_of_block(columns, grown, shape) if by_cuts else 0.0)
        if len(losses) > 2 and losses[-1] > losses[-2]:
            break
    best = int(np.argmin(losses))
    return *found[best], best < by_cuts


def _loss_of_block(columns: Codes, classes: tuple[Integers, Integers], shape: tuple[Any, ...]) -> float:
    from kohort.anonymity.relational.class_kernel import classes_loss

    order, starts = classes
    return float(classes_loss(np.ascontiguousarray(columns[:, order]), starts, *shape).sum())


def _local(problem: Problem, columns: Codes) -> tuple[Codes, tuple[Any, ...]]:
    """The block in codes that count only its own values, in the same order: no array is longer than need be."""
    quasi, is_number, distinct, offsets, points, price = problem.shape
    local = columns.copy()
    if distinct.max() > columns.shape[1]:
        each = [np.unique(codes, return_inverse=True) for codes in columns[:quasi]]
        held = np.concatenate([offset + values for offset, (values, _) in zip(offsets[:-1], each, strict=True)])
        for c, (_, places) in enumerate(each):
            local[c] = places
    else:  # all columns at once, by an entry for each code
        keys = columns[:quasi] + offsets[:-1, None]
        occurs = np.zeros(offsets[-1], np.bool_)
        occurs[keys] = True
        held = np.flatnonzero(occurs)
        place = np.cumsum(occurs) - 1
        local[:quasi] = place[keys] - np.searchsorted(held, offsets[:-1])[:, None]
    begin = np.searchsorted(held, offsets)
    counts = np.diff(begin).tolist()
    prices = [price[offsets[c] + 2 * c :][: count + 2] for c, count in enumerate(counts)]
    return local, (quasi, is_number, distinct, begin, points[held], np.concatenate(prices))


def _cut_on(problem: Problem, shape: tuple[Any, ...], columns: Codes) -> tuple[Integers, Integers]:
    from kohort.anonymity.relational.algorithms.mondrian_kernel import partition

    order = np.arange(columns.shape[1], dtype=np.int64)
    starts = partition(columns.copy(), order, *shape, problem.rule.k, problem.requirements, False, True, 0)
    return order, np.append(starts, len(order))


def _clusters(
    problem: Problem, shape: tuple[Any, ...], columns: Codes, *, least: int
) -> tuple[Integers, Integers] | None:
    """Clusters of at least `least` rows; None where some row finds no cluster that stays within the rule."""
    from kohort.anonymity.relational.algorithms.cluster_kernel import assign_leftovers, grow_clusters

    if columns.shape[1] < least:
        return None
    labels, count = grow_clusters(columns, *shape, least, problem.requirements)
    judged = None if problem.rule.is_monotone else problem.requirements
    if not assign_leftovers(columns, *shape, least, judged, labels, count):
        return None
    found = Partition.of_labels(labels)
    return found.order, found.starts
