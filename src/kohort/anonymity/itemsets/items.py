"""Item sets as arrays, and back to lists of released cells.

Items come as a list column, or as texts with `;` (or `|`) between items. Missing and empty items are no items; an item
twice in a row is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.itemsets.hierarchy import ItemTree
from kohort.anonymity.relational.problem import Integers
from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.cells import Label, ValueSet, format_cell
from kohort.tables.frames import ITEM_SEPARATOR, OTHER_ITEM_SEPARATOR

__all__ = ["ItemRows", "distinct", "item_weights", "read_items", "release_items"]

COUNTED_KEYS = 50_000_000


@dataclass(frozen=True)
class ItemRows:
    """The item occurrences of a table: row r has `leaf[row_starts[r]:row_starts[r + 1]]`, rising codes into `items`.

    Where several columns hold items, `column` says which one an occurrence is in.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    row_starts: Integers
    leaf: Integers
    column: Integers

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1

    @cached_property
    def lengths(self) -> Integers:
        """How many occurrences each row has."""
        return np.diff(self.row_starts)

    @cached_property
    def row_of(self) -> Integers:
        """Row of each occurrence."""
        return np.repeat(np.arange(self.rows), self.lengths)

    def places(self, rows: Integers) -> tuple[Integers, Integers]:
        """Where the occurrences of some rows are, row after row, and where each of these rows begins among them."""
        lengths = self.lengths[rows]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        return np.arange(starts[-1]) + np.repeat(self.row_starts[rows] - starts[:-1], lengths), starts


def read_items(frame: pl.DataFrame, names: Sequence[str]) -> ItemRows:
    """The items of each row; those of several columns together are one set.

    Args:
        frame: The table.
        names: Names of the columns that hold items.

    Returns:
        The item occurrences. Items are numbered in the order of their texts.

    Raises:
        DataError: A column is absent or holds no item sets.
    """
    for name in names:
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, frame.columns))
    parts = [_occurrences(frame[name], number) for number, name in enumerate(names)]
    found = pl.concat(parts).drop_nulls("item").filter(pl.col("item") != "")
    known = found["item"].unique().sort()
    codes = found["item"].cast(pl.Enum(known)).to_physical().cast(pl.Int64).to_numpy()
    width = max(len(known), 1)
    keys = (found["row"].cast(pl.Int64).to_numpy() * width + codes) * len(names) + found["column"].to_numpy()
    keys = np.sort(keys)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    rest, column = np.divmod(keys, len(names))
    row, leaf = np.divmod(rest, width)
    starts = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=frame.height)))).astype(np.int64)
    return ItemRows(tuple(names), tuple(known.to_list()), starts, leaf, column)


def item_weights(tree: ItemTree, weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    """The weight of each node of the tree.

    Args:
        tree: The tree over the items.
        weights: Weight of an item by its text, from 0 to 1; 1 for an item that is not named.

    Returns:
        The weights of the items, 1e-6 or more so that no item is suppressed for free, then 1 for each label.

    Raises:
        ConfigError: A weight is not between 0 and 1.
    """
    given = weights or {}
    found = np.array([given.get(item, 1.0) for item in tree.items], dtype=np.float64)
    if not np.isfinite(found).all() or (found < 0).any() or (found > 1).any():
        raise ConfigError("an item weight is not between 0 and 1", hint="Use weights from 0 to 1")
    smallest_weight = 1e-6
    return np.concatenate((np.maximum(found, smallest_weight), np.ones(len(tree.size) - len(found))))


def release_items(
    rows: ItemRows, tree: ItemTree, node: Integers, classes: Integers, *, table_wide: bool
) -> tuple[list[pl.Series], list[tuple[str, tuple[str, ...]]], Integers]:
    """The item columns of a release as lists of cells.

    Without a tree a node stands for the items that are on it: in its class, or in the whole table where groups are
    table-wide.

    Args:
        rows: The items of the table.
        tree: The tree over the items.
        node: Node of each occurrence, -1 where it is suppressed.
        classes: Class of each row.
        table_wide: Whether a group of items is the same in all classes.

    Returns:
        The item columns; the distinct cells in the order of their texts, each with the items it stands for; and the
        place of each occurrence's cell among these, -1 where it is suppressed.
    """
    kept = np.flatnonzero(node >= 0)
    row = rows.row_of[kept]
    scope = np.zeros(len(kept), np.int64) if table_wide or tree.is_tree else classes[row]
    width = len(tree.size)
    scopes = int(scope.max(initial=0)) + 1
    group, number = numbered(scope * width + node[kept], scopes * width)
    cells = _tree_cells(tree, group % width) if tree.is_tree else _group_cells(tree, number, rows.leaf[kept])
    meanings = dict(cells)
    places = {text: place for place, text in enumerate(sorted(meanings))}
    of_group = np.array([places[text] for text, _ in cells], dtype=np.int64)
    cell = np.full(len(node), -1)
    cell[kept] = of_group[number]
    listed = [(text, meanings[text]) for text in places]
    texts = pl.Series("cell", list(places), dtype=pl.String)
    columns = []
    for place, name in enumerate(rows.names):
        chosen = rows.column[kept] == place
        columns.append(_list_column(name, row[chosen], cell[kept][chosen], texts, rows.rows))
    return columns, listed, cell


def numbered(keys: Integers, span: int) -> tuple[Integers, Integers]:
    """The distinct keys, rising, and which of them each one is; all are below `span`, which may be huge."""
    if span > COUNTED_KEYS:
        found, number = np.unique(keys, return_inverse=True)
        return found, number.astype(np.int64)
    found = distinct(keys, span)
    place = np.empty(span, np.int64)
    place[found] = np.arange(len(found))
    return found, place[keys]


def distinct(keys: Integers, span: int) -> Integers:
    """The distinct keys, rising.

    Args:
        keys: Numbers from 0 on, which may repeat.
        span: All keys are below this, which may be huge.

    Returns:
        Each key once, in rising order.
    """
    if span > COUNTED_KEYS:
        ordered = np.sort(keys)
        found: Integers = ordered[np.diff(ordered, prepend=-1) != 0]
        return found
    there = np.zeros(span, dtype=np.bool_)
    there[keys] = True
    return np.flatnonzero(there)


def _occurrences(column: pl.Series, number: int) -> pl.DataFrame:
    if isinstance(column.dtype, pl.List):
        lists = column.cast(pl.List(pl.String))
    elif column.dtype == pl.String:
        usual = column.str.contains(ITEM_SEPARATOR, literal=True).any()
        lists = column.str.split(ITEM_SEPARATOR if usual else OTHER_ITEM_SEPARATOR)
    else:
        hint = f"An items column holds lists, or texts with {ITEM_SEPARATOR} or {OTHER_ITEM_SEPARATOR} between items"
        raise DataError(f"column {column.name!r} of type {column.dtype} holds no item sets", hint=hint)
    found = pl.DataFrame({"item": lists}).with_row_index("row").explode("item")
    texts = pl.col("item").str.strip_chars() if column.dtype == pl.String else pl.col("item")
    return found.with_columns(texts, column=pl.lit(number, dtype=pl.Int64))


def _tree_cells(tree: ItemTree, nodes: Integers) -> list[tuple[str, tuple[str, ...]]]:
    members: dict[int, list[str]] = {}
    for item, place in zip(tree.items, range(len(tree.items)), strict=True):
        node = place
        while node >= 0:
            members.setdefault(node, []).append(item)
            node = int(tree.parent[node])
    made = []
    for node in nodes.tolist():
        inner = node - len(tree.items)
        text = format_cell(Label(tree.labels[inner]) if inner >= 0 else tree.items[node])
        made.append((str(text), tuple(members[node])))
    return made


def _group_cells(tree: ItemTree, number: Integers, leaf: Integers) -> list[tuple[str, tuple[str, ...]]]:
    width = max(len(tree.items), 1)
    keys = distinct(number * width + leaf, (int(number.max(initial=-1)) + 1) * width)
    of_group, codes = np.divmod(keys, width)
    ends = np.flatnonzero(np.diff(of_group, append=-1)) + 1
    # Items are sorted, as the members of a set are, so its text is that of its members side by side.
    escaped = [str(format_cell(ValueSet((item,))))[1:-1] for item in tree.items]
    made, begin = [], 0
    listed = codes.tolist()
    for end in ends.tolist():
        inside = listed[begin:end]
        members = tuple(map(tree.items.__getitem__, inside))
        alone = len(members) == 1
        text = str(format_cell(members[0])) if alone else "{" + ", ".join(map(escaped.__getitem__, inside)) + "}"
        made.append((text, members))
        begin = end
    return made


def _list_column(name: str, row: Integers, cell: Integers, texts: pl.Series, rows: int) -> pl.Series:
    """Lists of the distinct cells of each row; a row without any has an empty list."""
    width = max(len(texts), 1)
    keys = np.sort(row * width + cell)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    found, code = np.divmod(keys, width)
    lists = (
        pl.DataFrame({"row": found, "cell": texts.gather(code)})
        .set_sorted("row")
        .group_by("row", maintain_order=True)
        .agg("cell")
    )
    present = lists["row"].to_numpy()
    place = np.full(rows, len(present))
    place[present] = np.arange(len(present))
    with_empty = pl.concat([lists["cell"], pl.Series("cell", [[]], dtype=pl.List(pl.String))])
    return with_empty.gather(place).alias(name)
