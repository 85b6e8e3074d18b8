"""From classes to released cells: intervals, value sets, taxonomy labels, suppression marks.

`set_cells` needs no taxonomy: a class gets the tightest interval or set of values that holds its rows. `label_cells`
climbs a hierarchy: a class gets the lowest label that stands above all its values. A label whose leaves are
neighbouring numbers is released as the interval of those numbers, which says the same and can be read without the
hierarchy.

Guarantees: all rows of a class get the same cell; the cell covers every value of the class; a column in which nothing
was generalised comes out as it went in, type included; every text reads back with `kohort.data.cells`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.coding import CodedColumn, CodedTable
from kohort.anonymity.partition import Integers, Partition
from kohort.data.cells import SUPPRESSED, Cell, Interval, ValueSet, canonical_text, format_cell
from kohort.data.hierarchy import Hierarchy

__all__ = ["ColumnCells", "label_cells", "release", "set_cells", "taxonomy_cell"]

BITS = 64
PlainValue = str | float | bool | None


@dataclass(frozen=True)
class ColumnCells:
    """The cells of one column: the distinct ones, and which of them each class got. `exact` ones are values."""

    name: str
    cells: tuple[Cell | Any, ...]
    of_class: Integers
    generalised: bool

    def texts(self) -> pl.Series:
        """The distinct cells as text."""
        return pl.Series(self.name, [_text(cell) for cell in self.cells], dtype=pl.String)

    @property
    def suppressed(self) -> NDArray[np.bool_]:
        """Whether each class's cell says nothing at all."""
        marks = np.array([cell is SUPPRESSED for cell in self.cells], dtype=np.bool_)
        found: NDArray[np.bool_] = marks[self.of_class]
        return found


def release(frame: pl.DataFrame, partition: Partition, columns: Sequence[ColumnCells]) -> pl.DataFrame:
    """The table with generalised quasi-identifiers; other columns and the order of rows untouched."""
    labels = partition.labels
    changed = [cells.texts().gather(cells.of_class[labels]) for cells in columns if cells.generalised]
    return frame.with_columns(changed) if changed else frame


def set_cells(table: CodedTable, partition: Partition) -> tuple[ColumnCells, ...]:
    """Tightest intervals for numbers, sets of values for everything else."""
    made = []
    for column, codes in zip(table.columns, table.codes, strict=True):
        ordered = codes[partition.order].astype(np.int64)
        make = _interval_cells if column.is_number else _value_set_cells
        made.append(make(column, ordered, partition))
    return tuple(made)


def _interval_cells(column: CodedColumn, ordered: Integers, partition: Partition) -> ColumnCells:
    first = partition.starts[:-1]
    high = np.maximum.reduceat(ordered, first)
    if column.has_null:
        missing = np.minimum.reduceat(ordered, first) == 0
        low = np.minimum.reduceat(np.where(ordered == 0, column.distinct, ordered), first)
        low = np.where(high == 0, 0, low)
    else:
        missing = np.zeros(len(first), dtype=np.bool_)
        low = np.minimum.reduceat(ordered, first)
    keys, of_class = np.unique((low * column.distinct + high) * 2 + missing, return_inverse=True)
    pairs, with_null = np.divmod(keys, 2)
    lows, highs = np.divmod(pairs, column.distinct)
    values = column.values.to_list()
    cells = []
    for a, b, null in zip(lows.tolist(), highs.tolist(), with_null.tolist(), strict=True):
        alone = a == b and (not null or values[a] is None)
        cells.append(values[a] if alone else Interval(float(values[a]), float(values[b]), bool(null)))
    generalised = any(isinstance(cell, Interval) for cell in cells)
    return ColumnCells(column.name, tuple(cells), of_class, generalised)


def _value_set_cells(column: CodedColumn, ordered: Integers, partition: Partition) -> ColumnCells:
    if column.distinct <= BITS:
        masks = np.bitwise_or.reduceat(np.left_shift(np.uint64(1), ordered.astype(np.uint64)), partition.starts[:-1])
        kinds, of_class = np.unique(masks, return_inverse=True)
        groups = [[code for code in range(column.distinct) if kind >> code & 1] for kind in kinds.tolist()]
    else:
        groups, of_class = _distinct_groups(column, ordered, partition)
    values = column.values.to_list()
    texts = [None if value is None else canonical_text(value) for value in values]
    cells = tuple(
        values[group[0]] if len(group) == 1 else ValueSet(tuple(texts[code] for code in group)) for group in groups
    )
    return ColumnCells(column.name, cells, of_class, any(len(group) > 1 for group in groups))


def _distinct_groups(
    column: CodedColumn, ordered: Integers, partition: Partition
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
    table: CodedTable, partition: Partition, hierarchies: Mapping[str, Hierarchy]
) -> tuple[ColumnCells, ...]:
    """The lowest label above all values of a class, column by column; each column needs a hierarchy that covers it."""
    made = []
    for column, codes in zip(table.columns, table.codes, strict=True):
        hierarchy = hierarchies[column.name]
        ordered = codes[partition.order].astype(np.int64)
        ladders = ladder(column, hierarchy)
        level = np.zeros(partition.count, np.int64)
        open_ = np.ones(partition.count, dtype=np.bool_)
        for step, names in enumerate(ladders):
            held = names[ordered]
            level[open_] = step
            open_ &= np.maximum.reduceat(held, partition.starts[:-1]) != np.minimum.reduceat(
                held, partition.starts[:-1]
            )
        if open_.any():
            # A hierarchy without one root: what has no common label is not told at all.
            level[open_] = len(ladders)
        first = ordered[partition.starts[:-1]]
        made.append(_cells_at(column, hierarchy, level, first))
    return tuple(made)


def ladder(column: CodedColumn, hierarchy: Hierarchy) -> list[Integers]:
    """For each level the number of the label of each code; null has a label of its own below the root."""
    texts = [None if value is None else canonical_text(value) for value in column.values.to_list()]
    hierarchy.check_covers(text for text in texts if text is not None)
    steps = []
    for level in range(hierarchy.levels):
        known: dict[str | None, int] = {}
        root_of_null = hierarchy.chains[0][-1] if level == hierarchy.levels - 1 else None
        names = [root_of_null if text is None else hierarchy.ancestor(text, level) for text in texts]
        steps.append(np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64))
    return steps


def _cells_at(column: CodedColumn, hierarchy: Hierarchy, level: Integers, first: Integers) -> ColumnCells:
    keys, of_class = np.unique(level * column.distinct + first, return_inverse=True)
    values = column.values.to_list()
    cells: list[Any] = []
    for key in keys.tolist():
        step, code = divmod(key, column.distinct)
        if step == 0:
            cells.append(values[code])
        elif step == hierarchy.levels or values[code] is None:
            cells.append(None if step < hierarchy.levels - 1 else SUPPRESSED)
        else:
            cells.append(taxonomy_cell(column, hierarchy, canonical_text(values[code]), step))
    return ColumnCells(column.name, tuple(cells), of_class, bool((level > 0).any()))


def taxonomy_cell(column: CodedColumn, hierarchy: Hierarchy, value: str, level: int) -> Cell | str:
    """The label as a cell; as an interval where it stands for neighbouring numbers of a number column."""
    cell = hierarchy.cell(value, level)
    if not column.is_number or (cell is SUPPRESSED and column.has_null):
        return cell
    neighbours = _number_order(hierarchy)
    below = [neighbours.get(leaf, -1) for leaf in hierarchy.leaves_at(level, hierarchy.ancestor(value, level))]
    if min(below) < 0 or max(below) - min(below) != len(below) - 1:
        return cell
    ends = [float(leaf) for leaf in hierarchy.leaves_at(level, hierarchy.ancestor(value, level))]
    return Interval(min(ends), max(ends))


def _number_order(hierarchy: Hierarchy) -> dict[str, int]:
    """Place of each leaf among the leaves that are numbers, by size."""
    numbers = []
    for leaf in hierarchy.values:
        try:
            numbers.append((float(leaf), leaf))
        except ValueError:
            continue
    return {leaf: place for place, (_, leaf) in enumerate(sorted(numbers))}


def _text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, (str, float, bool)) or not isinstance(cell, (int,)):
        return format_cell(cell)
    return str(cell)
