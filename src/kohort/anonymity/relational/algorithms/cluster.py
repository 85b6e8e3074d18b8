"""The quality path without a taxonomy: look-ahead Mondrian down to blocks, greedy k-member clusters in each block.

Clustering looks at all pairs of rows of a block, so the size of a block sets both quality and time: `block_rows` picks
it so that the work stays about the same for any table. In each block the better of two partitions is kept: the
clusters, or Mondrian carried on to its end. Blocks are independent and share the cores.

Where the rule is about sensitive values, tight clusters use up the rare values too soon; clusters of several sizes
from k on are tried and the best partition is kept.

Guarantee: every class meets the rule. Same table and same seed row, same classes, on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.problem import Codes, Integers, Partition, Problem

__all__ = ["block_rows", "cluster"]

PAIRS = 1_000_000_000
LARGEST_BLOCK = 4_096
CLUSTERS_A_BLOCK = 20
# Times k: what the rule about sensitive values may ask for on top of the size.
GROWTH = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def block_rows(rows: int, k: int) -> int:
    """Rows of a block: as many as the work allows, and enough for some clusters."""
    return max(CLUSTERS_A_BLOCK * k, min(LARGEST_BLOCK, PAIRS // max(rows, 1)))


def cluster(problem: Problem, *, block: int | None = None, jobs: int | None = None) -> Partition:
    """The classes of a table by k-member clustering.

    Args:
        problem: The coded table and the rule.
        block: Rows of a block; chosen by `block_rows` when None.
        jobs: Threads that work on blocks in parallel; all cores when None.
    """
    from kohort.anonymity.compiled import first_call
    from kohort.anonymity.relational.algorithms.cluster_kernel import assign_leftovers, grow_clusters

    size = block_rows(problem.table.rows, problem.rule.k) if block is None else block
    blocks = mondrian(problem, split="look-ahead", stop_rows=size)
    columns = problem.columns()
    bounds = list(zip(blocks.starts[:-1].tolist(), blocks.starts[1:].tolist(), strict=True))

    def solve(ends: tuple[int, int]) -> tuple[Integers, Integers]:
        rows = blocks.order[ends[0] : ends[1]]
        block_columns: Codes = np.ascontiguousarray(columns[:, rows])  # type: ignore[assignment] # of the same type
        order, starts = _best_of_block(problem, block_columns)
        return rows[order], starts

    workers = min(jobs or os.cpu_count() or 1, len(bounds))
    with first_call(grow_clusters, assign_leftovers):
        if workers <= 1:
            return _joined(map(solve, bounds))
        with ThreadPoolExecutor(workers) as pool:
            return _joined(pool.map(solve, bounds))


def _joined(parts: Iterable[tuple[Integers, Integers]]) -> Partition:
    orders, ends, done = [], [np.zeros(1, np.int64)], 0
    for order, starts in parts:
        orders.append(order)
        ends.append(starts[1:] + done)
        done += len(order)
    return Partition(np.concatenate(orders), np.concatenate(ends))


def _best_of_block(problem: Problem, columns: Codes) -> tuple[Integers, Integers]:
    """Order and starts of the best partition of one block, which itself meets the rule."""
    from kohort.anonymity.relational.class_kernel import classes_loss

    whole, (columns, shape) = columns, _local(problem, columns)
    # Cuts know a category by how far its codes spread, so they see the table's own codes; unless those are so many that
    # clearing arrays for them would take longer than the cuts.
    many = problem.table.distinct.max() > columns.shape[1]
    found = [_cut_on(problem, shape, columns) if many else _cut_on(problem, problem.cut_shape, whole)]
    losses = [float(classes_loss(np.ascontiguousarray(columns[:, found[0][0]]), found[0][1], *shape).sum())]
    for growth in GROWTH if problem.requirements is not None else GROWTH[:1]:
        grown = _clusters(problem, shape, columns, least=int(np.ceil(problem.rule.k * growth)))
        if grown is None:
            continue
        loss = float(classes_loss(np.ascontiguousarray(columns[:, grown[0]]), grown[1], *shape).sum())
        worse = loss > losses[-1] and len(losses) > 1
        found.append(grown)
        losses.append(loss)
        if worse:
            break
    return found[int(np.argmin(losses))]


def _local(problem: Problem, columns: Codes) -> tuple[Codes, tuple[Any, ...]]:
    """The block in codes that count only its own values, in the same order: no array is longer than need be."""
    quasi, is_number, distinct, offsets, points, price = problem.shape
    local = columns.copy()
    held, prices = [], []
    for c in range(quasi):
        values, local[c] = np.unique(columns[c], return_inverse=True)
        held.append(offsets[c] + values)
        prices.append(price[offsets[c] + 2 * c :][: len(values) + 2])
    begin = np.concatenate(([0], np.cumsum([len(values) for values in held]))).astype(np.int64)
    return local, (quasi, is_number, distinct, begin, points[np.concatenate(held)], np.concatenate(prices))


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
