"""From classes to released cells: intervals, value sets, taxonomy labels, suppression marks.

`set_cells` needs no taxonomy: a class gets the tightest interval or set of values that holds its rows. `label_cells`
climbs a hierarchy: a class gets the lowest label that stands above all its values.

Guarantees: all rows of a class get the same cell; the cell covers every value of the class; the ends of an interval are
round numbers of a public grid, about a hundredth of the column's range apart, and no person's own value; a set names
at most `max_set` values, beyond that the cell is suppressed; a column in which nothing was generalised comes out as it
went in, type included; every text reads back with `kohort.tables.cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.codes import categories
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedColumn, CodedTable, Integers, Partition
from kohort.anonymity.relational.public_grid import grid_step, on_grid
from kohort.tables.cells import (
    SUPPRESSED,
    Cell,
    Interval,
    Label,
    Suppressed,
    ValueSet,
    canonical_text,
    format_cell,
)

__all__ = ["ColumnCells", "as_texts", "cells_at", "label_cells", "release", "release_categories", "set_cells"]

BITS = 64
LISTED, TEXT_SET = 50, 10
"""A column of more values than the first is text; a set of more values than the second would list what persons have."""


@dataclass(frozen=True)
class ColumnCells:
    """The released cells of one column.

    Attributes:
        name: Name of the column.
        cells: The distinct cells; a value that is released as it is stands for itself.
        of_class: Which of the cells each class got.
        generalised: Whether any cell is not a plain value.
        spans: What each cell stands for, where its text does not say so: the interval of a mean. None: the cells do.
    """

    name: str
    cells: tuple[Cell | Any, ...]
    of_class: Integers
    generalised: bool
    spans: tuple[Cell | Any, ...] | None = None

    @cached_property
    def texts(self) -> pl.Series:
        """The distinct cells as text, or as numbers where all of them are means."""
        if self.spans is not None and all(isinstance(cell, float) for cell in self.cells):
            return pl.Series(self.name, self.cells, dtype=pl.Float64)
        return pl.Series(self.name, [_text(cell) for cell in self.cells], dtype=pl.String)

    @property
    def suppressed(self) -> NDArray[np.bool_]:
        """Whether each class's cell says nothing at all."""
        marks = np.array([cell is SUPPRESSED for cell in self.cells], dtype=np.bool_)
        found: NDArray[np.bool_] = marks[self.of_class]
        return found


def release(frame: pl.DataFrame, partition: Partition, columns: Sequence[ColumnCells]) -> pl.DataFrame:
    """The table with generalised quasi-identifiers; other columns and the order of rows stay the same.

    Args:
        frame: The table.
        partition: Its classes.
        columns: The cells of the quasi-identifiers.

    Returns:
        The released table; a generalised column holds texts.
    """
    return as_texts(release_categories(frame, partition, columns))


def release_categories(frame: pl.DataFrame, partition: Partition, columns: Sequence[ColumnCells]) -> pl.DataFrame:
    """As `release`, with generalised texts as categories: whoever codes them later need not hash the text of every row.

    Args:
        frame: The table.
        partition: Its classes.
        columns: The cells of the quasi-identifiers.

    Returns:
        The released table; `as_texts` turns it into what `release` returns.
    """
    labels = partition.labels
    shown = (cells for cells in columns if cells.generalised)
    changed = [categories(cells.texts).gather(cells.of_class[labels]) for cells in shown]
    return frame.with_columns(changed) if changed else frame


def as_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with categories as texts, as it is released.

    Args:
        frame: A table from `release_categories`.

    Returns:
        The same table without categories.
    """
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def set_cells(
    table: CodedTable, partition: Partition, *, max_set: int | None = None, counts: Integers | None = None
) -> tuple[ColumnCells, ...]:
    """Tightest intervals on the public grid for numbers, sets of values for everything else.

    Args:
        table: The coded table.
        partition: Its classes.
        max_set: Most values that a set may name; a larger one is suppressed. None is any number for columns of at most
            50 values, which are a list that everybody knows, and 10 for others, which are text. Up to 10, every
            value of a text that a set names must be as frequent as the smallest class.
        counts: How many rows each row stands for, where equal ones are given once; 1 each when None.

    Returns:
        The cells of each quasi-identifier.
    """
    made = []
    for column, codes in zip(table.columns, table.codes, strict=True):
        ordered = codes[partition.order]
        if column.is_number and column.values.dtype.is_numeric():
            made.append(_interval_cells(column, ordered, partition))
        else:
            made.append(_value_set_cells(column, ordered, partition, max_set, counts))
    return tuple(made)


def _interval_cells(column: CodedColumn, ordered: NDArray[Any], partition: Partition) -> ColumnCells:
    first = partition.starts[:-1]
    high = np.maximum.reduceat(ordered, first).astype(np.int64)
    low = np.minimum.reduceat(ordered, first).astype(np.int64)
    missing = np.zeros(len(first), dtype=np.bool_)
    if column.has_null:
        missing = low == 0
        low = np.minimum.reduceat(np.where(ordered == 0, column.distinct, ordered.astype(np.int64)), first)
        low = np.where(high == 0, 0, low)
    keys, of_class = np.unique((low * column.distinct + high) * 2 + missing, return_inverse=True)
    pairs, with_null = np.divmod(keys, 2)
    lows, highs = np.divmod(pairs, column.distinct)
    values = column.values.to_list()
    step = grid_step([float(value) for value in values if value is not None], whole=column.values.dtype.is_integer())
    # Each end depends on its own value alone, and values are fewer than intervals.
    ends = [(0.0, 0.0) if value is None else on_grid(float(value), float(value), step) for value in values]
    cells = []
    for a, b, null in zip(lows.tolist(), highs.tolist(), with_null.tolist(), strict=True):
        alone = a == b and (not null or values[a] is None)
        cells.append(values[a] if alone else Interval(ends[a][0], ends[b][1], bool(null)))
    generalised = any(isinstance(cell, Interval) for cell in cells)
    return ColumnCells(column.name, tuple(cells), of_class, generalised)


def _value_set_cells(
    column: CodedColumn, ordered: NDArray[Any], partition: Partition, max_set: int | None, counts: Integers | None
) -> ColumnCells:
    if column.distinct <= BITS:
        masks = np.bitwise_or.reduceat(np.left_shift(np.uint64(1), ordered.astype(np.uint64)), partition.starts[:-1])
        kinds, of_class = np.unique(masks, return_inverse=True)
        groups = [tuple(code for code in range(column.distinct) if kind >> code & 1) for kind in kinds.tolist()]
    else:
        groups, of_class = _distinct_groups(column, ordered, partition)
    values = column.values.to_list()
    texts = [None if value is None else canonical_text(value) for value in values]
    is_text = len(values) > LISTED and (max_set is None or max_set <= TEXT_SET)
    most = max_set or (TEXT_SET if is_text else len(values))
    # Of a text, a value that fewer rows have than the smallest class would name somebody.
    rare = np.zeros(len(values), np.bool_)
    if is_text:
        each = None if counts is None else counts[partition.order]
        sizes = partition.sizes if each is None else np.add.reduceat(each, partition.starts[:-1])
        rare = np.bincount(ordered, each, minlength=len(values)) < sizes.min()
    cells = tuple(
        values[group[0]]
        if len(group) == 1
        else SUPPRESSED
        if len(group) > most or rare[list(group)].any()
        else ValueSet(tuple(texts[code] for code in group))
        for group in groups
    )
    return ColumnCells(column.name, cells, of_class, any(len(group) > 1 for group in groups))


def _distinct_groups(
    column: CodedColumn, ordered: NDArray[Any], partition: Partition
) -> tuple[list[tuple[int, ...]], Integers]:
    keys = np.sort(np.repeat(np.arange(partition.count), partition.sizes) * column.distinct + ordered)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    of_key, codes = np.divmod(keys, column.distinct)
    ends = np.searchsorted(of_key, np.arange(1, partition.count + 1)).tolist()
    known: dict[tuple[int, ...], int] = {}
    of_class = np.empty(partition.count, np.int64)
    listed, begin = codes.tolist(), 0
    for number, end in enumerate(ends):
        of_class[number] = known.setdefault(tuple(listed[begin:end]), len(known))
        begin = end
    return list(known), of_class


def label_cells(
    table: CodedTable, partition: Partition, steps: Sequence[HierarchyLevels | None]
) -> tuple[ColumnCells, ...]:
    """The lowest label above all values of each class.

    Args:
        table: The coded table.
        partition: Its classes.
        steps: The hierarchy levels of each column; None for a column that is released as `set_cells` does.

    Returns:
        The cells of each quasi-identifier.
    """
    first = partition.starts[:-1]
    made: list[ColumnCells] = []
    for place, (levels, codes) in enumerate(zip(steps, table.codes, strict=True)):
        if levels is None:
            alone = CodedTable(table.columns[place : place + 1], table.codes[place : place + 1])
            made += set_cells(alone, partition)
            continue
        ordered = codes[partition.order]
        level = np.zeros(partition.count, np.int64)
        apart = np.ones(partition.count, dtype=np.bool_)
        for step, labels in enumerate(levels.labels):
            held = labels[ordered]
            level[apart] = step
            apart &= np.maximum.reduceat(held, first) != np.minimum.reduceat(held, first)
        made.append(cells_at(levels, level, ordered[first].astype(np.int64)))
    return tuple(made)


def cells_at(levels: HierarchyLevels, level: Integers, code: Integers) -> ColumnCells:
    """The cells of classes that are released at given levels.

    Args:
        levels: The hierarchy levels of the column.
        level: The level of each class.
        code: The code of one row of each class; the label at that level must be the same for all its rows.

    Returns:
        The cells of the column.
    """
    keys, of_class = np.unique(level * levels.column.distinct + code, return_inverse=True)
    found: dict[tuple[int, int], int] = {}
    places = np.empty(len(keys), np.int64)
    for position, key in enumerate(keys.tolist()):
        step, held = divmod(key, levels.column.distinct)
        places[position] = found.setdefault((step, int(levels.labels[step][held])), len(found))
    cells = tuple(levels.cells[step][label] for step, label in found)
    return ColumnCells(levels.column.name, cells, places[of_class], bool((level > 0).any()))


def _text(cell: Any) -> str | None:
    """Dates and other values without a form of their own are written as they print."""
    if isinstance(cell, Interval):  # by far the most
        return format_cell(cell)
    known = cell is None or isinstance(cell, (str, int, float, Interval, ValueSet, Label, Suppressed))
    return format_cell(cell if known else str(cell))
