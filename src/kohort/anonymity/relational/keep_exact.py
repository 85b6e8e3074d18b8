"""Rows of a class that already agree keep their exact values (the optimisation step of Saleh, 2022).

Within a class, rows with equal quasi-identifiers form exact groups. Guarded, a group leaves the class only if the group
itself and what remains both meet the rule; groups go largest first, and where the remainder then falls short, the
smallest ones come back. The step as printed looks at the groups alone: what remains of a class can be fewer than k
rows. It is kept for studies as `thesis`, and the checker shows what it breaks.

Guarantee (guarded): if every class met the rule, every class still does, and no cell is wider than before.
"""

from __future__ import annotations

import numpy as np

from kohort.anonymity.relational.problem import Integers, Partition, Problem

__all__ = ["split_exact"]


def split_exact(problem: Problem, partition: Partition, *, guarded: bool = True) -> Partition:
    """The partition with exact groups as classes of their own."""
    if guarded and partition.sizes.max() < 2 * problem.rule.k:
        # Two parts of at least k rows need twice as many.
        return partition
    groups = _exact_groups(problem, partition, least=2 * problem.rule.k if guarded else 0)
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

    Classes of fewer than `least` rows are not looked into: each is one group.
    """
    labels = partition.labels
    inside = np.flatnonzero(partition.sizes[labels] >= least)
    group = labels[inside]
    for codes, column in zip(problem.table.codes, problem.table.columns, strict=True):
        _, group = np.unique(group * column.distinct + codes[inside], return_inverse=True)
    groups = labels.copy()
    groups[inside] = partition.count + group
    _, dense = np.unique(groups, return_inverse=True)
    return dense.astype(np.int64)


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
