"""New rows as conditions on classes, a block of rows at a time: for each value and item the classes that cover it.

A block bounds the memory: a column of numbers has at most one set of classes for each row of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.methods.syntactic.mapping.mapping import JointMapping, QuasiColumn
from kohort.methods.syntactic.mapping.tables import CategoryCells, ClassTable, Floats, Integers, LabelTable, NumberCells
from kohort.tables.domain import category_text, item_lists, number

__all__ = ["Block", "ItemIndex", "blocks", "item_codes", "item_index", "new_rows"]

BLOCK = 1 << 13
WORD = 64


@dataclass(frozen=True)
class Block:
    """Some rows, what the compiled loops have to know about them and the classes, and the most conditions of a row."""

    rows: slice
    arguments: tuple[Any, ...]
    conditions: int


@dataclass(frozen=True)
class NewRows:
    """A number column's values or a category column's codes; items as codes, -1 for one that no class knows."""

    columns: tuple[Floats | Integers, ...]
    items: Integers
    item_starts: Integers


@dataclass(frozen=True)
class ItemIndex:
    """The classes of every item as bits, a last row without any, and counts that find an item's label by its bit."""

    bits: NDArray[np.uint64]
    before: NDArray[np.int32]


@dataclass(frozen=True)
class ColumnArrays:
    """The cells of all columns, one line a column."""

    is_number: NDArray[np.bool_]
    low: Floats
    high: Floats
    missing: NDArray[np.bool_]
    held: Floats
    domain: Floats
    cost: Floats


def new_rows(frame: pl.DataFrame, joint: JointMapping, table: ClassTable) -> NewRows:
    """What the mapping has to know about the rows of a table."""
    absent = [column.name for column in joint.columns if column.name not in frame.columns]
    absent += [joint.items] if joint.items is not None and joint.items not in frame.columns else []
    if absent:
        raise DataError(f"the rows lack columns: {', '.join(absent)}", hint="Give the columns of the mapping")
    columns = tuple(_row_values(frame[column.name], column) for column in joint.columns)
    if joint.items is None:
        return NewRows(columns, np.zeros(0, np.int64), np.zeros(frame.height + 1, np.int64))
    return NewRows(columns, *item_codes(frame, joint.items, table.labels.items))


def _row_values(values: pl.Series, column: QuasiColumn) -> Floats | Integers:
    if column.kind == "number":
        return number(values).fill_null(float("nan")).to_numpy().astype(np.float64)
    texts = category_text(values)
    known = len(column.values)
    codes = texts.cast(pl.Enum(list(column.values)), strict=False).to_physical().cast(pl.Int64).fill_null(known + 1)
    return np.where(texts.is_null().to_numpy(), known, codes.to_numpy()).astype(np.int64)


def item_codes(frame: pl.DataFrame, name: str, items: tuple[str, ...]) -> tuple[Integers, Integers]:
    """The items of each row as codes, -1 for one that is not in `items`; row r has those at starts[r]:starts[r + 1]."""
    lists = item_lists(frame[name])
    texts = lists.explode(empty_as_null=False, keep_nulls=False)
    codes = texts.cast(pl.Enum(list(items)), strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    lengths = lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    return codes, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def item_index(labels: LabelTable, classes: int) -> ItemIndex:
    """The index of the items of all classes."""
    from kohort.methods.syntactic.mapping.kernel import bits_of_entries, prefix_counts

    words = -(-classes // WORD)
    bits = np.zeros((len(labels.items) + 1, words), np.uint64)
    bits_of_entries(labels.starts, labels.class_at, bits)
    before = np.zeros(bits.shape, np.int32)
    prefix_counts(bits, before)
    return ItemIndex(bits, before)


def column_arrays(table: ClassTable) -> ColumnArrays:
    """The cells of all classes as the compiled loops take them."""
    shape = (len(table.columns), table.count)
    arrays = ColumnArrays(
        is_number=np.array([isinstance(cells, NumberCells) for cells in table.columns]),
        low=np.zeros(shape),
        high=np.zeros(shape),
        missing=np.zeros(shape, np.bool_),
        held=np.zeros(shape),
        domain=np.zeros(len(table.columns)),
        cost=np.array([cells.cost for cells in table.columns]),
    )
    for at, cells in enumerate(table.columns):
        if isinstance(cells, NumberCells):
            arrays.low[at], arrays.high[at], arrays.missing[at] = cells.low, cells.high, cells.missing
            arrays.domain[at] = cells.extent
        else:
            arrays.held[at], arrays.domain[at] = cells.held, cells.domain
    return arrays


def _column_bits(
    cells: NumberCells | CategoryCells, values: NDArray[Any], words: int
) -> tuple[NDArray[np.uint64], Integers]:
    """The classes that cover each distinct value of some rows, and which of these values a row has."""
    from kohort.methods.syntactic.mapping.kernel import bits_of_numbers

    distinct, codes = np.unique(values, return_inverse=True)
    if isinstance(cells, NumberCells):
        bits = np.zeros((len(distinct), words), np.uint64)
        bits_of_numbers(distinct, cells.low, cells.high, cells.missing, bits)
        return bits, codes.astype(np.int64)
    covered = np.zeros((len(distinct), words * WORD), np.bool_)
    covered[:, : len(cells.cell_of)] = cells.covers[cells.cell_of][:, distinct].T
    packed = np.packbits(covered, axis=1, bitorder="little")
    return packed.view("<u8").astype(np.uint64), codes.astype(np.int64)


def blocks(frame: pl.DataFrame, joint: JointMapping, table: ClassTable) -> Iterator[Block]:
    """The rows of a table, a block at a time."""
    rows = new_rows(frame, joint, table)
    items, shapes = item_index(table.labels, table.count), column_arrays(table)
    for start in range(0, frame.height, BLOCK):
        yield _block(slice(start, min(start + BLOCK, frame.height)), rows, table, items, shapes)


def _block(part: slice, rows: NewRows, table: ClassTable, index: ItemIndex, shapes: ColumnArrays) -> Block:
    words = index.bits.shape[1]
    tables, codes, first = [], [], 0
    for cells, column in zip(table.columns, rows.columns, strict=True):
        bits, own = _column_bits(cells, column[part], words)
        tables.append(bits)
        codes.append(own + first)
        first += len(bits)
    item_starts = rows.item_starts[part.start : part.stop + 1]
    items = rows.items[item_starts[0] : item_starts[-1]]
    per_row = np.diff(item_starts) + len(codes)
    starts = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64)
    conditions = np.empty(starts[-1], np.int64)
    is_item = np.ones(len(conditions), np.bool_)
    for at, own in enumerate(codes):
        conditions[starts[:-1] + at] = own
        is_item[starts[:-1] + at] = False
    # An item that no class knows is a condition that no class meets: the last row of the items' bits.
    conditions[is_item] = first + np.where(items < 0, len(table.labels.items), items)
    values = np.zeros((len(codes), part.stop - part.start))
    for at in map(int, np.flatnonzero(shapes.is_number)):
        values[at] = rows.columns[at][part]
    labels = table.labels
    arguments = (
        np.concatenate([*tables, index.bits]), conditions, starts, items, item_starts - item_starts[0],
        first, index.before, labels.starts, labels.label_at, labels.size, labels.weight, values,
        shapes.is_number, shapes.low, shapes.high, shapes.missing, shapes.held, shapes.domain, shapes.cost,
        table.weights, table.items_weight, table.loss,
    )  # fmt: skip
    return Block(part, arguments, int(per_row.max()))
