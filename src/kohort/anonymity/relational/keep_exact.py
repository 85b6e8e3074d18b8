"""Rows of a class that already agree keep their exact values (the optimisation step of Saleh, 2022).

Within a class, rows with equal quasi-identifiers form exact groups. Guarded, a group leaves the class only if the group
itself and what remains both meet the rule; groups go largest first, and where the remainder then falls short, the
smallest ones come back. The step as printed looks at the groups alone: what remains of a class can be fewer than k
rows. It is kept for studies as `thesis`, and the checker shows what it breaks.

Guarantee (guarded): if every class met the rule, every class still does, and no cell is wider than before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.equal_rows import equal_rows
from kohort.anonymity.relational.problem import Integers, Partition, Problem

__all__ = ["split_exact"]


def split_exact(problem: Problem, partition: Partition, *, guarded: bool = True) -> Partition:
    """The partition with exact groups as classes of their own.

    Args:
        problem: The coded table and the rule.
        partition: Its classes.
        guarded: Split a group off only if the group and the remainder both meet the rule; False is the step as printed.

    Returns:
        The new classes; the partition itself where no group is split off.
    """
    if guarded and partition.sizes.max() < 2 * problem.rule.k:
        # Two parts of at least k rows need twice as many.
        return partition
    groups = _exact_groups(problem, partition, least=2 * problem.rule.k if guarded else 0)
    if groups.max() + 1 == partition.count:
        return partition
    sizes = np.bincount(groups)
    of_class = np.empty(len(sizes), np.int64)
    of_class[groups] = partition.labels
    large = sizes >= problem.rule.k
    # A class that is one exact group is exact already.
    alone = np.bincount(of_class, minlength=partition.count)[of_class] == 1
    leaves = large & ~alone
    if not leaves.any():
        return partition
    if guarded:
        leaves = _guarded(problem, partition, groups, sizes, of_class, leaves)
    labels = np.where(leaves[groups], partition.count + groups, partition.labels)
    return Partition.of_labels(labels)


def _exact_groups(problem: Problem, partition: Partition, *, least: int) -> Integers:
    """A number for each row: rows of one class with equal quasi-identifiers share it.

    Classes of fewer than `least` rows, and those that agree already, are not looked into: each is one group.
    """
    labels = partition.labels
    open_class = (partition.sizes >= least) & _varying(problem, partition)
    inside = np.flatnonzero(open_class[labels])
    groups = labels.copy()
    groups[inside] = partition.count + equal_rows(problem.table, labels[inside], inside)
    used = np.zeros(partition.count + len(inside), np.bool_)
    used[groups] = True
    dense: Integers = (np.cumsum(used) - 1)[groups]
    return dense


def _varying(problem: Problem, partition: Partition) -> NDArray[np.bool_]:
    """Whether the rows of each class differ in some quasi-identifier."""
    varies = np.zeros(partition.count, np.bool_)
    first = partition.starts[:-1]
    for codes in problem.table.codes:
        ordered = codes[partition.order]
        varies |= np.minimum.reduceat(ordered, first) != np.maximum.reduceat(ordered, first)
    return varies


def _guarded(
    problem: Problem, partition: Partition, groups: Integers, sizes: Integers, of_class: Integers, leaves: np.ndarray
) -> np.ndarray:
    met = problem.rule_test()
    allowed = np.zeros(len(sizes), dtype=np.bool_)
    rows_by_group = np.argsort(groups, kind="stable")
    begin = np.concatenate(([0], np.cumsum(sizes)))
    candidates = np.flatnonzero(leaves)
    order = np.lexsort((-sizes[candidates], of_class[candidates]))
    class_sizes = partition.sizes
    for of, members in _runs(candidates[order], of_class):
        going = [group for group in members if met(rows_by_group[begin[group] : begin[group + 1]])]
        while going:
            left = class_sizes[of] - int(sizes[going].sum())
            if left == 0 or (left >= problem.rule.k and met(_remainder(partition, of, groups, going))):
                break
            going.pop()
        allowed[going] = True
    return allowed


def _runs(groups: Integers, of_class: Integers) -> list[tuple[int, list[int]]]:
    """Groups that follow one another in the same class."""
    found: list[tuple[int, list[int]]] = []
    for group in groups.tolist():
        of = int(of_class[group])
        if not found or found[-1][0] != of:
            found.append((of, []))
        found[-1][1].append(group)
    return found


def _remainder(partition: Partition, of: int, groups: Integers, going: list[int]) -> Integers:
    rows = partition.order[partition.starts[of] : partition.starts[of + 1]]
    return rows[~np.isin(groups[rows], going)]
