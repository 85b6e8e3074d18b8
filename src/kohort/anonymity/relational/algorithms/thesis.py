"""The partition of Saleh (2022), kept as the thesis has it so that its figures can be set beside ours.

Guarantee: every class meets the rule. Every other anonymiser here loses less; use this one for the study.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.coding import CodedColumn
from kohort.anonymity.relational.partition import Partition, Problem

__all__ = ["thesis_mondrian"]


def thesis_mondrian(problem: Problem) -> Partition:
    """Widest relative span first; numbers at the median, categories by halves of the value set, coded by value."""
    from kohort.anonymity.relational.algorithms.thesis_kernel import thesis_partition

    quasi, is_number, distinct, offsets, _ = problem.shape
    spans = [_values_and_span(column) for column in problem.table.columns]
    values = np.concatenate([found for found, _ in spans])
    scale = np.array([span for _, span in spans])
    order = np.arange(problem.table.rows, dtype=np.int64)
    starts = thesis_partition(
        problem.columns(), order, quasi, is_number, distinct, offsets, values, scale, problem.rule.k, problem.demands
    )
    return Partition(order, np.append(starts, len(order)))


def _values_and_span(column: CodedColumn) -> tuple[NDArray[np.float64], float]:
    """The values of a number as they are, a null one range below the smallest; and the span over the whole table."""
    if not column.is_number:
        return np.zeros(column.distinct), float(column.distinct)
    known = column.values.drop_nulls().cast(pl.Float64).to_numpy()
    span = float(known[-1] - known[0]) if len(known) > 1 else 1.0
    if not column.has_null:
        return known, span
    return np.concatenate((known[:1] - span if len(known) else [0.0], known)), span
