"""New rows under the classes a model learned from (Choudhury et al., 2020, section 3.6).

A class is legitimate for a row when each of its cells covers the row's value (a number inside the interval, a category
in the set or below the label) and each of the row's items stands under one of its labels. Of the legitimate classes a
row gets the one that costs least: the weighted NCP of its cells (eq. 2) plus the weighted UL of the labels the row's
items get there (eqs 4 and 5, an item released as it is costing nothing). Under labels of a tree, which are nested, each
item costs the share of all items that its label stands for instead: by UL a second large label makes the first one
cost nothing. Of classes that cost the same, the preferred
one comes first, then the one whose labels stand for the fewest items, then the one with the lowest number.

When no class is legitimate the row is flagged, and gets a class that breaks the fewest conditions (columns that do not
cover its value plus items under no label); among these the least cost after the cells are widened to hold the row.

New rows become conditions on classes, a block of rows at a time: for each value and item the classes that cover it. A
block bounds the memory: a column of numbers has at most one set of classes for each row of the block.

Guarantees: the class chosen for a row is, by (conditions broken, cost), never worse than any other class, so a row that
was trained on never costs more than the class it was trained in; the same rows and classes give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.methods.syntactic.mapping.build import union
from kohort.methods.syntactic.mapping.mapping import JointMapping, QuasiColumn, SiteMapping
from kohort.methods.syntactic.mapping.tables import (
    CategoryCells,
    ClassTable,
    Floats,
    Integers,
    LabelTable,
    NumberCells,
    class_table,
    label_table,
    unseen_item,
)
from kohort.tables.codes import CodeTree
from kohort.tables.domain import category_text, item_lists, number

__all__ = ["MappedRows", "costs", "generalised", "map_rows"]

BLOCK = 1 << 13
WORD = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedRows:
    """The class of each new row.

    Attributes:
        class_of: Class of the row, counted into the mapping's classes.
        site_of: Site of that class, counted into the mapping's sites.
        loss: What the row loses in that class.
        legitimate: Number of classes that are legitimate for the row.
        violated: Number of conditions that the chosen class breaks, 0 if it is legitimate.
    """

    class_of: Integers
    site_of: Integers
    loss: Floats
    legitimate: Integers
    violated: Integers

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Rows for which no class is legitimate."""
        found: NDArray[np.bool_] = self.legitimate == 0
        return found

    @property
    def flagged_count(self) -> int:
        """How many rows are flagged."""
        return int(self.flagged.sum())


@dataclass(frozen=True)
class _Block:
    """Some rows, what the compiled loops have to know about them and the classes, and the most conditions of a row."""

    rows: slice
    arguments: tuple[Any, ...]
    conditions: int


@dataclass(frozen=True)
class _NewRows:
    """A number column's values or a category column's codes; items as codes, -1 for one that no class knows."""

    columns: tuple[Floats | Integers, ...]
    items: Integers
    item_starts: Integers


@dataclass(frozen=True)
class _ItemIndex:
    """The classes of every item as bits, a last row without any, and counts that find an item's label by its bit."""

    bits: NDArray[np.uint64]
    before: NDArray[np.int32]


@dataclass(frozen=True)
class _ColumnArrays:
    """The cells of all columns, one line per column."""

    is_number: NDArray[np.bool_]
    low: Floats
    high: Floats
    missing: NDArray[np.bool_]
    held: Floats
    domain: Floats
    cost: Floats


def map_rows(
    frame: pl.DataFrame,
    mapping: SiteMapping | JointMapping,
    *,
    weights: Mapping[str, float] | None = None,
    item_weights: Mapping[str, float] | None = None,
    tree: CodeTree | None = None,
    prefer: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> MappedRows:
    """The class of every row of a table that holds values as they are.

    Args:
        frame: The rows.
        mapping: The classes.
        weights: One weight between 0 and 1 for each quasi-identifier and for the items column; by default
            1 / number of quasi-identifiers each, and 1 for the items.
        item_weights: One weight per item; 1 by default.
        tree: What stands above the items: a code that no class names goes by the lowest published label above it.
        prefer: The class of each row that wins a tie, -1 for none.

    Returns:
        For each row the class that costs it least, its site, the loss, how many classes were legitimate, and how many
        conditions are broken if none was.

    Raises:
        DataError: The rows lack a column, or `prefer` has another length.
        ConfigError: Weights are incomplete or out of range.
    """
    from kohort.methods.syntactic.mapping.kernel import map_block

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    table = class_table(joint, weights=weights, item_weights=item_weights, tree=tree)
    preferred = _preferred(prefer, frame.height)
    found = MappedRows(
        class_of=np.empty(frame.height, np.int64),
        site_of=np.empty(frame.height, np.int64),
        loss=np.empty(frame.height),
        legitimate=np.empty(frame.height, np.int64),
        violated=np.empty(frame.height, np.int64),
    )
    for block in _blocks(frame, joint, table, tree):
        part = block.rows
        map_block(
            *block.arguments, table.labels.listed, table.order, preferred[part], block.conditions.bit_length(),
            found.class_of[part], found.loss[part], found.legitimate[part], found.violated[part],
        )  # fmt: skip
    found.site_of[:] = joint.site_of[found.class_of]
    return found


def costs(
    frame: pl.DataFrame,
    mapping: SiteMapping | JointMapping,
    class_of: Sequence[int] | NDArray[np.integer[Any]],
    *,
    weights: Mapping[str, float] | None = None,
    item_weights: Mapping[str, float] | None = None,
    tree: CodeTree | None = None,
) -> tuple[Integers, Floats]:
    """What each row would get in a class that is given, to compare with `map_rows`.

    Args:
        frame: Rows with values as they are.
        mapping: The classes.
        class_of: The class of each row, numbered as in `mapping`.
        weights: As for `map_rows`.
        item_weights: As for `map_rows`.
        tree: As for `map_rows`.

    Returns:
        How many conditions of its class each row breaks, [rows], and its loss there, [rows].

    Raises:
        DataError: `class_of` has another length or names no class, or the rows lack a column.
        ConfigError: Weights are incomplete or out of range.
    """
    from kohort.methods.syntactic.mapping.kernel import class_costs

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    table = class_table(joint, weights=weights, item_weights=item_weights, tree=tree)
    given = np.asarray(class_of, np.int64)
    if given.shape != (frame.height,) or (frame.height and not 0 <= given.min() <= given.max() < joint.count):
        raise DataError("the classes do not match the rows", hint=f"Give one number below {joint.count:,} a row")
    places = np.argsort(table.order)[given]
    violated, loss = np.empty(frame.height, np.int64), np.empty(frame.height)
    for block in _blocks(frame, joint, table, tree):
        class_costs(*block.arguments, places[block.rows], loss[block.rows], violated[block.rows])
    return violated, loss


def generalised(
    frame: pl.DataFrame, mapping: SiteMapping | JointMapping, mapped: MappedRows, *, tree: CodeTree | None = None
) -> pl.DataFrame:
    """The rows as the model is fed them: the cells of their class, and for the items the labels that hold them.

    Args:
        frame: Rows with values as they are.
        mapping: The classes.
        mapped: The class of each row, as `map_rows` found it.
        tree: As for `map_rows`.

    Returns:
        The table with cells as text and lists of labels. Items under no label of the class are left out, as items are
        that a site suppressed. Other columns stay as they are.
    """
    from kohort.methods.syntactic.mapping.kernel import labels_of_rows

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    cells = [
        pl.Series(column.name, line, dtype=pl.String).gather(mapped.class_of)
        for column, line in zip(joint.columns, joint.cells, strict=True)
    ]
    if joint.items is None:
        return frame.with_columns(cells)
    held = label_table(joint.groups, np.arange(joint.count), {}, tree)
    index = _item_index(held, joint.count)
    codes, starts = _item_codes(frame, joint.items, held.items, tree)
    labels = np.empty(len(codes), np.int64)
    labels_of_rows(
        index.bits, codes, starts, 0, index.before, held.starts, held.label_at, mapped.class_of, labels
    )  # fmt: skip
    row_of = np.repeat(np.arange(frame.height), np.diff(starts))
    known = labels >= 0
    pairs = np.unique(row_of[known] * max(len(held.size), 1) + labels[known])
    rows, own = np.divmod(pairs, max(len(held.size), 1))
    texts = pl.Series(joint.groups.labels, dtype=pl.String).gather(own)
    listed = pl.DataFrame({"row": rows, "labels": texts}).group_by("row", maintain_order=True).agg("labels")
    every = pl.DataFrame({"row": np.arange(frame.height)}).join(listed, on="row", how="left", maintain_order="left")
    return frame.with_columns(*cells, every["labels"].fill_null([]).alias(joint.items))


def _preferred(prefer: Sequence[int] | NDArray[np.integer[Any]] | None, rows: int) -> Integers:
    found = np.full(rows, -1, np.int64) if prefer is None else np.asarray(prefer, np.int64)
    if found.shape != (rows,):
        raise DataError(f"prefer has {len(found):,} entries for {rows:,} rows", hint="Give one class, or -1, a row")
    return found


def _new_rows(frame: pl.DataFrame, joint: JointMapping, table: ClassTable, tree: CodeTree | None) -> _NewRows:
    """What the mapping has to know about the rows of a table."""
    absent = [column.name for column in joint.columns if column.name not in frame.columns]
    absent += [joint.items] if joint.items is not None and joint.items not in frame.columns else []
    if absent:
        raise DataError(f"the rows lack columns: {', '.join(absent)}", hint="Give the columns of the mapping")
    columns = tuple(_row_values(frame[column.name], column) for column in joint.columns)
    if joint.items is None:
        return _NewRows(columns, np.zeros(0, np.int64), np.zeros(frame.height + 1, np.int64))
    return _NewRows(columns, *_item_codes(frame, joint.items, table.labels.items, tree))


def _row_values(values: pl.Series, column: QuasiColumn) -> Floats | Integers:
    if column.kind == "number":
        return number(values).fill_null(float("nan")).to_numpy().astype(np.float64)
    texts = category_text(values)
    known = len(column.values)
    codes = texts.cast(pl.Enum(list(column.values)), strict=False).to_physical().cast(pl.Int64).fill_null(known + 1)
    return np.where(texts.is_null().to_numpy(), known, codes.to_numpy()).astype(np.int64)


def _item_codes(
    frame: pl.DataFrame, name: str, items: tuple[str, ...], tree: CodeTree | None
) -> tuple[Integers, Integers]:
    """The items of each row as codes, -1 for one that is not in `items`; row r has those at starts[r]:starts[r + 1]."""
    lists = item_lists(frame[name])
    texts = lists.explode(empty_as_null=False, keep_nulls=False)
    if tree is not None:
        texts = _with_unseen(texts, set(items), tree)
    codes = texts.cast(pl.Enum(list(items)), strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    lengths = lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    return codes, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _with_unseen(texts: pl.Series, items: set[str], tree: CodeTree) -> pl.Series:
    """The items, where one that no class names is what stands for it below its lowest published label."""
    unseen = texts.filter(~texts.is_in(list(items))).unique().to_list()
    found = {}
    for code in unseen:
        for label in tree.chain(code):
            if unseen_item(label) in items:
                found[code] = unseen_item(label)
                break
    return texts.replace(found) if found else texts


def _item_index(labels: LabelTable, classes: int) -> _ItemIndex:
    """The index of the items of all classes."""
    from kohort.methods.syntactic.mapping.kernel import bits_of_entries, prefix_counts

    words = -(-classes // WORD)
    bits = np.zeros((len(labels.items) + 1, words), np.uint64)
    bits_of_entries(labels.starts, labels.class_at, bits)
    before = np.zeros(bits.shape, np.int32)
    prefix_counts(bits, before)
    return _ItemIndex(bits, before)


def _column_arrays(table: ClassTable) -> _ColumnArrays:
    """The cells of all classes as the compiled loops take them."""
    shape = (len(table.columns), table.count)
    arrays = _ColumnArrays(
        is_number=np.array([isinstance(cells, NumberCells) for cells in table.columns], np.bool_),
        low=np.zeros(shape),
        high=np.zeros(shape),
        missing=np.zeros(shape, np.bool_),
        held=np.zeros(shape),
        domain=np.zeros(len(table.columns)),
        cost=np.array([cells.cost for cells in table.columns]).reshape(shape),
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


def _blocks(frame: pl.DataFrame, joint: JointMapping, table: ClassTable, tree: CodeTree | None) -> Iterator[_Block]:
    """The rows of a table, a block at a time."""
    rows = _new_rows(frame, joint, table, tree)
    items, shapes = _item_index(table.labels, table.count), _column_arrays(table)
    for start in range(0, frame.height, BLOCK):
        yield _block(slice(start, min(start + BLOCK, frame.height)), rows, table, items, shapes)


def _block(part: slice, rows: _NewRows, table: ClassTable, index: _ItemIndex, shapes: _ColumnArrays) -> _Block:
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
        first, index.before, labels.starts, labels.label_at, labels.size, labels.weight, labels.by_share, values,
        shapes.is_number, shapes.low, shapes.high, shapes.missing, shapes.held, shapes.domain, shapes.cost,
        table.weights, table.items_weight, table.loss,
    )  # fmt: skip
    return _Block(part, arguments, int(per_row.max()))
