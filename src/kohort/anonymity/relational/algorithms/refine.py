"""Better classes from good ones: rows move to classes where they cost less, and a budget of rows is left out.

`refine` is a local search: a row leaves its class if both classes still meet the rule and the summed loss falls. It is
what makes rules about sensitive values cheap: a class that was made too wide to meet them gives its rows away.

`leave_out` spends a budget of rows where it buys most, one row or one whole class at a time, by what is saved per row.
ARX's balance says what a suppressed row costs: 0 nothing (the budget is spent as long as it lowers the loss of the
rows that are left), 0.5 as much as a row of suppressed cells, 1 everything (only rows that no class can take are
suppressed). Between them both weights change as in ARX: up to 0.5 the price of a suppressed row rises from 0 to 1,
above it what generalising costs falls from 1 to 0.

Guarantee: classes that meet the rule still do; no step raises the loss. Same table, same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.mondrian import cut_classes
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import Integers, Partition, Problem

if TYPE_CHECKING:
    from kohort.anonymity.relational.algorithms.refine_kernel import CellShape

__all__ = ["leave_out", "refine", "too_many_pairs"]

PASSES = 2
# Rows times classes that may be compared; a larger table is refined in fewer passes, or not at all.
PAIRS = 1_000_000_000
# Of the budget that is left, the share spent before gains are computed again.
STEP = 4
BITS = 64

Marks = NDArray[np.uint64]


def too_many_pairs(problem: Problem, partition: Partition) -> tuple[str, ...]:
    """A note that `refine` leaves the classes as they are, for a table on which it would take too long."""
    rows, classes = problem.table.rows, partition.count
    if rows * classes <= PAIRS:
        return ()
    return (f"rows were not moved between classes to lower the loss: {rows:,} rows x {classes:,} classes is too many",)


def refine(
    problem: Problem,
    partition: Partition,
    steps: Sequence[HierarchyLevels] | None = None,
    *,
    cuts: Problem | None = None,
) -> Partition:
    """Move rows between classes while the loss falls, and cut classes that have become large enough.

    Args:
        problem: The coded table and the rule.
        partition: Classes that meet the rule.
        steps: Hierarchy levels, where labels are released; None for intervals and sets.
        cuts: The problem with codes in the order in which classes are cut; the same one when None.

    Returns:
        Classes that meet the rule and lose no more; the same ones where `too_many_pairs` has a note.
    """
    shape = _cell_shape(problem, steps)
    moved = _moved(problem, partition, shape)
    return _moved(problem, cut_classes(cuts or problem, moved), shape)


def _moved(problem: Problem, partition: Partition, shape: CellShape) -> Partition:
    from kohort.anonymity.compiled import first_call
    from kohort.anonymity.relational.algorithms.refine_kernel import move_rows

    passes = min(PASSES, PAIRS // max(problem.table.rows * partition.count, 1))
    if passes < 1 or partition.count < 2:
        return partition
    labels = partition.labels.copy()
    with first_call(move_rows):
        move_rows(problem.table.codes, problem.sensitive.codes, labels, partition.count, shape, problem.rule.k,
                  problem.requirements, passes)  # fmt: skip
    return Partition.of_labels(labels)


def leave_out(
    problem: Problem,
    partition: Partition,
    steps: Sequence[HierarchyLevels] | None = None,
    *,
    rows: int,
    balance: float,
    already: Integers,
) -> Integers:
    """The rows whose suppression saves most.

    Args:
        problem: The coded table and the rule.
        partition: Classes that meet the rule.
        steps: Hierarchy levels, where labels are released; None for intervals and sets.
        rows: How many rows may be left out in all.
        balance: What a suppressed row costs, from 0 (nothing) to 1 (everything).
        already: Rows that are left out already; they are in no class that is released.

    Returns:
        All rows to leave out, rising. The rows that are left still meet the rule about class sizes and l.
    """
    from kohort.anonymity.relational.algorithms.refine_kernel import best_drops

    generalising, suppressing = min(1.0, 2.0 - 2.0 * balance), min(1.0, 2.0 * balance)
    whole = sum(problem.weight(position) for position in range(len(problem.table.columns)))
    labels = partition.labels.copy()
    labels[already] = -1
    shape = _cell_shape(problem, steps)
    dirty = np.ones(partition.count, np.bool_)
    unit, gain, row = np.zeros(partition.count), np.zeros(partition.count), np.full(partition.count, -1, np.int64)
    budget, floor = rows - len(already), -1.0
    while budget > 0:
        best_drops(problem.table.codes, problem.sensitive.codes, labels, partition.count, shape, problem.rule.k,
                   problem.requirements, dirty, unit, gain, row)  # fmt: skip
        dirty[:] = False
        if floor < 0.0:  # below the mean loss, what is left would lose more than before
            floor = max(suppressing * whole, float(unit[labels[labels >= 0]].mean()))
        spent, enough = 0, max(budget // STEP, 1)
        for j in np.argsort(-gain, kind="stable").tolist():
            if spent >= enough or generalising * gain[j] <= floor:
                break
            going = np.flatnonzero(labels == j) if row[j] < 0 else row[j : j + 1]
            gain[j] = 0.0
            if len(going) <= budget - spent:
                labels[going] = -1
                spent += len(going)
                dirty[j] = True
        if not spent:
            break
        budget -= spent
    return np.flatnonzero(labels < 0) if (labels >= 0).any() else already


def _cell_shape(problem: Problem, steps: Sequence[HierarchyLevels] | None) -> CellShape:
    from kohort.anonymity.relational.algorithms.refine_kernel import CATEGORY, HIERARCHY, NUMBER, WORD, CellShape

    table = problem.table
    kinds = [NUMBER if column.is_number else CATEGORY for column in table.columns]
    kinds = kinds if steps is None else [HIERARCHY] * len(kinds)
    words = [(column.distinct - 1) // WORD + 1 if kind == CATEGORY else 0
             for column, kind in zip(table.columns, kinds, strict=True)]  # fmt: skip
    if steps is None:
        begins: NDArray[np.int64] = table.offsets + 2 * np.arange(len(kinds) + 1)
        begins[:-1] += table.is_number  # the weight of a number is its entry 1
        labels, prices = np.zeros(1, np.int64), problem.prices
    else:
        parts = [np.concatenate(levels.labels) for levels in steps]
        begins = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
        labels, prices = np.concatenate(parts), np.concatenate([levels.code_costs for levels in steps])
    return CellShape(
        np.array(kinds, dtype=np.int64),
        table.offsets,
        table.points,
        np.concatenate(([0], np.cumsum(words))).astype(np.int64),
        begins,
        labels,
        prices,
        np.argsort(table.distinct, kind="stable"),
        *(_value_marks(problem) if steps is None else _label_marks(problem, steps)),
    )


def _value_marks(problem: Problem) -> tuple[Marks, Marks, float]:
    """One bit per row and small category, as many columns as fit into a word; and the least that one more costs."""
    table = problem.table
    marks, used, least = np.zeros(table.rows, np.uint64), 0, np.inf
    for c in np.argsort(table.distinct, kind="stable").tolist():
        column = table.columns[c]
        if column.is_number or used + column.distinct > BITS:
            continue
        marks |= np.left_shift(np.uint64(1), (table.codes[c].astype(np.uint64) + np.uint64(used)))
        used += column.distinct
        least = min(least, problem.weight(c) / column.distinct)
    return marks, np.zeros(1, np.uint64), least if used else 0.0


def _label_marks(problem: Problem, steps: Sequence[HierarchyLevels]) -> tuple[Marks, Marks, float]:
    """One bit per row and column, for its label at the lowest level whose labels fit; the bits that each label covers;
    and the least that a label with more bits costs more."""
    table = problem.table
    marks, covers, used, least = np.zeros(table.rows, np.uint64), {}, 0, np.inf
    for left, c in enumerate(np.argsort(-table.distinct, kind="stable").tolist()[::-1]):
        levels = steps[c]
        most = (BITS - used) // (len(steps) - left)
        marked = next((labels for labels in levels.labels if labels.max() < most), None)
        covers[c] = [np.zeros(len(labels), np.uint64) for labels in levels.labels]
        if marked is None:
            continue
        bits = np.left_shift(np.uint64(1), (marked + used).astype(np.uint64))
        for labels, held in zip(levels.labels, covers[c], strict=True):
            below = np.zeros(labels.max() + 1, np.uint64)
            np.bitwise_or.at(below, labels, bits)
            held[:] = below[labels]
        marks |= bits[table.codes[c]]
        used += int(marked.max()) + 1
        least = min(least, _least_step(levels, covers[c]))
    return marks, np.concatenate([held for c in range(len(steps)) for held in covers[c]]), max(least, 0.0)


def _least_step(levels: HierarchyLevels, covers: Sequence[Marks]) -> float:
    """The least that a code's label costs more at a level where it covers more bits."""
    costs = [cost[labels] for labels, cost in zip(levels.labels, levels.cost, strict=True)]
    found = [
        (costs[upper] - costs[lower])[covers[upper] != covers[lower]]
        for upper in range(levels.count)
        for lower in range(upper)
    ]
    return float(min((steps.min() for steps in found if len(steps)), default=np.inf))
