"""What the cells of classes cost, and the bits that tell classes apart, as the local search takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import Problem

if TYPE_CHECKING:
    from kohort.anonymity.relational.algorithms.class_state import CellShape

__all__ = ["Steps", "cell_shape"]

BITS = 64
# A little less than the least: a sum of rounded steps must not be more than what it is a bound of.
ROUNDED = 1 - 1e-9

Floats = NDArray[np.float64]
Marks = NDArray[np.uint64]
Steps = Sequence[HierarchyLevels | None]


def cell_shape(problem: Problem, steps: Steps | None) -> CellShape:
    """The cost of cells of a problem.

    Args:
        problem: The coded table.
        steps: Hierarchy levels of each column, None for one that is released as intervals or sets; None for all.

    Returns:
        The arrays that the loops of `refine_kernel` take.
    """
    from kohort.anonymity.relational.algorithms.class_state import CATEGORY, HIERARCHY, NUMBER, WORD, CellShape

    table = problem.table
    given = [None] * len(table.columns) if steps is None else list(steps)
    kinds = [HIERARCHY if levels is not None else NUMBER if column.is_number else CATEGORY
             for column, levels in zip(table.columns, given, strict=True)]  # fmt: skip
    words = [(column.distinct - 1) // WORD + 1 if kind == CATEGORY else 0
             for column, kind in zip(table.columns, kinds, strict=True)]  # fmt: skip
    sets = np.split(problem.prices, table.offsets[1:-1] + 2 * np.arange(1, len(kinds)))
    prices = [own if levels is None else levels.code_costs for own, levels in zip(sets, given, strict=True)]
    labels = [np.zeros(len(own), np.int64) if levels is None else np.concatenate(levels.labels)
              for own, levels in zip(sets, given, strict=True)]  # fmt: skip
    begins = np.concatenate(([0], np.cumsum([len(part) for part in prices]))).astype(np.int64)
    begins[:-1] += np.array(kinds) == NUMBER  # the weight of a number is its entry 1
    all_given = [levels for levels in given if levels is not None]
    by_value = len(all_given) < len(given)
    return CellShape(
        np.array(kinds, dtype=np.int64),
        table.offsets,
        table.points,
        np.concatenate(([0], np.cumsum(words))).astype(np.int64),
        begins,
        np.concatenate(labels),
        np.concatenate(prices),
        np.argsort(table.distinct, kind="stable"),
        *(_value_marks(problem, int(begins[-1])) if by_value else _label_marks(problem, all_given)),
    )


def _value_marks(problem: Problem, places: int) -> tuple[Marks, Marks, float, Floats]:
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
    return marks, np.zeros(places, np.uint64), least if used else 0.0, np.empty(0)


def _label_marks(problem: Problem, steps: Sequence[HierarchyLevels]) -> tuple[Marks, Marks, float, Floats]:
    """One bit per row and column, for its label at the lowest level whose labels fit; the bits that each label covers;
    and the least that a label with more bits costs more, of any bits and of each."""
    table = problem.table
    marks, covers, used, by_bit = np.zeros(table.rows, np.uint64), {}, 0, np.full(BITS, np.inf)
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
        end = used + int(marked.max()) + 1
        by_bit[used:end] = max(_least_step(levels, covers[c]), 0.0)
        used = end
    joined = np.concatenate([held for c in range(len(steps)) for held in covers[c]])
    return marks, joined, float(by_bit.min()), by_bit * ROUNDED


def _least_step(levels: HierarchyLevels, covers: Sequence[Marks]) -> float:
    """The least that a code's label costs more at a level where it covers more bits."""
    costs = [cost[labels] for labels, cost in zip(levels.labels, levels.cost, strict=True)]
    found = [
        (costs[upper] - costs[lower])[covers[upper] != covers[lower]]
        for upper in range(levels.count)
        for lower in range(upper)
    ]
    return float(min((steps.min() for steps in found if len(steps)), default=np.inf))
