"""Classes from groups of rows that share labels, a level per column, in the order of what their labels cost.

`by_groups` is the lattice without its nodes: a group of k waiting rows becomes a class once no group of waiting rows
has labels that cost less. The lattice lets all groups of a node go at once, those too whose own labels cost more than
the node's do on the mean. Which of the two is better depends on the table.

Guarantee: every class has at least k rows. Same table, same classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.cell_shape import cell_shape
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import Integers, Partition, Problem

__all__ = ["by_groups", "groups_of", "joined_alike", "too_large"]

# Rows times columns beyond which groups are not looked for.
MOST_CELLS = 1_000_000
# Rows, counted once per split, that may be looked at in all.
WORK = 60_000_000
# Groups are found in this many rounds, each up to a higher cost, among the rows that still wait.
ROUNDS = 16


def too_large(problem: Problem) -> bool:
    """Whether a table has too many cells for groups to be looked for.

    Args:
        problem: The coded table.

    Returns:
        True above `MOST_CELLS` cells; `by_groups` then returns None.
    """
    return problem.table.rows * len(problem.table.columns) > MOST_CELLS


def by_groups(problem: Problem, steps: Sequence[HierarchyLevels]) -> Integers | None:
    """A class for each row, -1 for fewer than k rows that are left at the end.

    Args:
        problem: The coded table, and a rule about k rows alone.
        steps: The hierarchy levels of each quasi-identifier.

    Returns:
        The classes; None where the table is too large, or there would be none.
    """
    if too_large(problem):
        return None
    from kohort.anonymity.compiled import first_call
    from kohort.anonymity.relational.algorithms.label_groups_kernel import claim_groups, label_groups

    shape, rows, k = cell_shape(problem, steps), problem.table.rows, problem.rule.k
    labels, classes, most = np.full(rows, -1, np.int64), 0, sum(float(levels.cost[-1].max()) for levels in steps)
    work = WORK
    for number in range(1, ROUNDS + 1):
        waiting = np.flatnonzero(labels < 0)
        if len(waiting) < k:
            break
        bound = np.full(rows, np.inf if number == ROUNDS else most * number / ROUNDS)
        with first_call(label_groups):
            members, starts, costs, work = groups_of(problem, shape, steps, bound, waiting, work=work)
        if work <= 0:
            return None
        with first_call(claim_groups):
            order = np.argsort(costs, kind="stable")
            classes = claim_groups(labels, classes, members, starts, order, k)
    return labels if classes else None


def groups_of(
    problem: Problem,
    shape: Any,
    steps: Sequence[HierarchyLevels],
    cost: NDArray[np.float64],
    rows: Integers,
    spare: NDArray[np.bool_] | None = None,
    *,
    least: float = -1.0,
    work: int = WORK,
) -> tuple[Integers, Integers, NDArray[np.float64], int]:
    """Groups of at least k rows whose labels cost less than their rows lose now.

    Args:
        problem: The coded table and the rule.
        shape: What its cells cost.
        steps: The hierarchy levels of each quasi-identifier.
        cost: What each row loses now.
        rows: The rows to look at.
        spare: Rows that may come along where they lose more than now; none when None.
        least: What the rows of a group must save together.
        work: How many rows may be looked at, counted once per split.

    Returns:
        The rows of all groups, where each group starts, what a row of each loses, and the work that is left: 0 or less
        where not all groups were found.
    """
    from kohort.anonymity.relational.algorithms.label_groups_kernel import label_groups

    table = problem.table
    levels = np.array([one.count for one in steps], dtype=np.int64)
    order = np.argsort(-table.distinct, kind="stable")
    extra = np.zeros(table.rows, np.bool_) if spare is None else spare
    found: tuple[Integers, Integers, NDArray[np.float64], int] = label_groups(
        table.codes, shape, levels, order, cost, extra, rows, problem.rule.k, least, work
    )
    return found


def joined_alike(table_codes: Any, steps: Sequence[HierarchyLevels], labels: Integers) -> Integers:
    """The class of each row once classes with the same released labels are one; -1 stays.

    Args:
        table_codes: The codes of the table, by column and row.
        steps: The hierarchy levels of each column.
        labels: The class of each row, without gaps; -1 for rows that are left out.

    Returns:
        The classes, without gaps.
    """
    inside = np.flatnonzero(labels >= 0)
    partition = Partition.of_labels(labels[inside])
    first = partition.starts[:-1]
    keys = []
    for levels, codes in zip(steps, table_codes, strict=True):
        ordered = codes[inside][partition.order]
        key, used, apart = np.zeros(partition.count, np.int64), 0, np.ones(partition.count, np.bool_)
        for held in (names[ordered] for names in levels.labels):
            low = np.minimum.reduceat(held, first)
            key[apart] = used + low[apart]
            apart &= low != np.maximum.reduceat(held, first)
            used += int(held.max()) + 1
        keys.append(key)
    _, joined = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    found = labels.copy()
    found[inside] = joined.ravel()[partition.labels]
    return found
