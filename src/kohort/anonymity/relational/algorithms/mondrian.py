"""Mondrian: cut the table in two, again and again, while both parts meet the rule (LeFevre et al., 2006).

- strict: rows with the same value stay together; the cut is the one nearest to half the rows.
- relaxed: the cut is exactly in the middle; rows with the middle value go to either side.
- `split="median"` cuts the column of the widest relative range; `split="look-ahead"` tries the widest columns and cuts
  where the two parts lose least.
- `dimensions` names the quasi-identifiers that may be cut on.

`thesis_mondrian` is the partition of Saleh (2022), kept as the thesis has it so that its figures can be compared with
ours. Every other algorithm here loses less; use it for the study.

Guarantee: every class meets the rule (k, l and t, judged inside each cut). Same table, same classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import CodedColumn, CodedTable, Partition, Problem
from kohort.errors import ConfigError, nearest

__all__ = ["Split", "cut_classes", "mondrian", "thesis_mondrian"]

Split = Literal["median", "look-ahead"]


def mondrian(
    problem: Problem,
    *,
    split: Split = "median",
    relaxed: bool = False,
    dimensions: Sequence[str] | None = None,
    stop_rows: int = 0,
) -> Partition:
    """The classes of a table by Mondrian.

    Args:
        problem: The coded table and the rule.
        split: Which column to cut: the widest ("median"), or the one whose parts lose least ("look-ahead").
        relaxed: Cut exactly in the middle; rows with the middle value go to either side.
        dimensions: Quasi-identifiers that may be cut on; all when None.
        stop_rows: A part of at most this many rows is not cut any further.

    Returns:
        Classes that meet the rule, if the table as a whole does.

    Raises:
        ConfigError: The split is unknown, or a dimension is no quasi-identifier.
    """
    from kohort.anonymity.compiled import first_call
    from kohort.anonymity.relational.algorithms.mondrian_kernel import partition

    if split not in ("median", "look-ahead"):
        raise ConfigError(f"unknown split {split!r}", hint=nearest(split, ("median", "look-ahead")))
    problem = problem if dimensions is None else _with_dimensions(problem, dimensions)
    order = np.arange(problem.table.rows, dtype=np.int64)
    with first_call(partition):
        starts = partition(
            problem.columns(), order, *problem.cut_shape, problem.rule.k, problem.requirements, relaxed,
            split == "look-ahead", stop_rows,
        )  # fmt: skip
    return Partition(order, np.append(starts, len(order)))


def cut_classes(problem: Problem, partition: Partition, *, least: int = 0, only: int | None = None) -> Partition:
    """The classes that can be cut again, cut as by look-ahead Mondrian; the others as they are.

    Args:
        problem: The coded table and the rule.
        partition: Classes that meet the rule.
        least: The first class to cut.
        only: How many classes to cut; those after them stay. All when None.

    Returns:
        Classes that meet the rule, each within one of the given ones.
    """
    from kohort.anonymity.relational.algorithms.mondrian_kernel import partition as cut

    columns, labels, count = problem.columns(), partition.labels.copy(), partition.count
    for j in (least + np.flatnonzero(partition.sizes[least:only] >= 2 * problem.rule.k)).tolist():
        rows = partition.order[partition.starts[j] : partition.starts[j + 1]]
        order = np.arange(len(rows), dtype=np.int64)
        starts = cut(np.ascontiguousarray(columns[:, rows]), order, *problem.cut_shape, problem.rule.k,
                     problem.requirements, False, True, 0)  # fmt: skip
        for begin, end in pairwise([*starts[1:].tolist(), len(rows)]):
            labels[rows[order[begin:end]]] = count
            count += 1
    return Partition.of_labels(labels)


def thesis_mondrian(problem: Problem) -> Partition:
    """Mondrian of Saleh (2022).

    The column of the widest relative span is cut first: numbers at the median, categories by halves of the value set.

    Args:
        problem: The table, whose categories must be coded by value (`code_table(..., by_value=True)`), and the rule.

    Returns:
        Classes that meet the rule, if the table as a whole does.
    """
    from kohort.anonymity.relational.algorithms.mondrian_kernel import thesis_partition

    quasi, is_number, distinct, offsets, _, _ = problem.shape
    spans = [_values_and_span(column) for column in problem.table.columns]
    values = np.concatenate([found for found, _ in spans])
    scale = np.array([span for _, span in spans])
    order = np.arange(problem.table.rows, dtype=np.int64)
    starts = thesis_partition(
        problem.columns(),
        order,
        quasi,
        is_number,
        distinct,
        offsets,
        values,
        scale,
        problem.rule.k,
        problem.requirements,
    )
    return Partition(order, np.append(starts, len(order)))


def _with_dimensions(problem: Problem, dimensions: Sequence[str]) -> Problem:
    names = [column.name for column in problem.table.columns]
    unknown = [name for name in dimensions if name not in names]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a quasi-identifier", hint=nearest(unknown[0], names))
    if not dimensions:
        raise ConfigError("no dimension to cut on", hint="Name at least one quasi-identifier")
    chosen = [position for position, name in enumerate(names) if name in set(dimensions)]
    codes: Any = problem.table.codes
    table = CodedTable(tuple(problem.table.columns[position] for position in chosen), codes[chosen])
    weights = tuple(problem.weights[position] for position in chosen) if problem.weights else ()
    return replace(problem, table=table, weights=weights)


def _values_and_span(column: CodedColumn) -> tuple[NDArray[np.float64], float]:
    """The values of a number as they are, a null one range below the smallest; and the span over the whole table."""
    if not column.is_number:
        return np.zeros(column.distinct), float(column.distinct)
    known = column.values.drop_nulls().cast(pl.Float64).to_numpy()
    span = float(known[-1] - known[0]) if len(known) > 1 else 1.0
    if not column.has_null:
        return known, span
    return np.concatenate((known[:1] - span if len(known) else [0.0], known)), span
