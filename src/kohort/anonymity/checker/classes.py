"""Equivalence classes: rows that share their values in some columns.

Guarantees: null is one value of its own, so rows that lack the same values share a class; every row is in exactly one
class; a table without rows and a column that is not there are DataErrors that name columns and counts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.frames import from_native

__all__ = ["Classes", "as_frame", "group_rows", "require_columns", "require_values", "sorted_distinct"]


@dataclass(frozen=True)
class Classes:
    """A partition of the rows into equivalence classes.

    Attributes:
        of_row: Class of each row.
        sizes: Rows of each class.
    """

    of_row: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.of_row)

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.sizes)


def as_frame(frame: Any, *, categories: bool = False) -> pl.DataFrame:
    """The polars form of any table kohort can read.

    Args:
        frame: A pandas, polars or pyarrow table.
        categories: Leave categories of a polars table as they are: whoever counts them need not hash their texts.

    Returns:
        The table in plain column types, with null for NaN.

    Raises:
        DataError: The table has no rows, columns repeat or have an unsupported type, or a number is infinite.
        ConfigError: The object is no table kohort can read.
    """
    if categories and isinstance(frame, pl.DataFrame):
        found = from_native(frame.with_columns(pl.col(pl.Categorical).to_physical()))[0]
        found = found.with_columns(frame.select(pl.col(pl.Categorical)))
    else:
        found, _ = from_native(frame)
    if found.height == 0:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    return found


def require_columns(frame: pl.DataFrame | pl.LazyFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """Check that columns are there, and drop repeated names.

    Args:
        frame: The table.
        columns: Names to look up.

    Returns:
        The names in the order given, each once.

    Raises:
        ConfigError: The names are given as one string.
        DataError: The table lacks a column.
    """
    if isinstance(columns, str):
        raise ConfigError("columns are given as one string", hint="Give a list of names")
    known = frame.collect_schema().names()
    for name in columns:
        if name not in known:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, known))
    return tuple(dict.fromkeys(columns))


def require_values(frame: pl.DataFrame | pl.LazyFrame, columns: Sequence[str]) -> None:
    """Refuse columns of lists, which form no classes.

    Args:
        frame: The table.
        columns: Names of its columns; each must be there.

    Raises:
        DataError: A column holds lists.
    """
    schema = frame.collect_schema()
    lists = [name for name in columns if isinstance(schema[name], pl.List)]
    if lists:
        hint = "Columns that hold sets of items are checked with items, not as quasi-identifiers"
        raise DataError(f"columns hold lists: {', '.join(lists)}", hint=hint)


def group_rows(frame: pl.DataFrame, columns: Sequence[str]) -> Classes:
    """Group rows by their values in `columns`; null is a value.

    Args:
        frame: The table.
        columns: Names of the columns; without any, all rows are one class.

    Returns:
        The classes, numbered in the order of their first rows.

    Raises:
        ConfigError: The names are given as one string.
        DataError: The table lacks a column, or a column holds lists.
    """
    keys = _keys(frame, columns)
    if not keys.width:
        return Classes(np.zeros(frame.height, np.int64), np.array([frame.height], np.int64))
    members = keys.with_row_index("row").group_by(keys.columns, maintain_order=True).agg(pl.col("row"))["row"]
    sizes = members.list.len().to_numpy().astype(np.int64)
    of_row = np.empty(frame.height, np.int64)
    of_row[members.explode().to_numpy()] = np.repeat(np.arange(len(sizes)), sizes)
    return Classes(of_row, sizes)


def _keys(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The columns that classes are formed by, under names that no other column has."""
    names = require_columns(frame, columns)
    require_values(frame, names)
    return frame.select(pl.col(name).alias(f"key{position}") for position, name in enumerate(names))


def sorted_distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct keys, rising. Sorts: the hash table of numpy.unique is many times slower on long arrays.

    Args:
        keys: Numbers in any order, which may repeat.

    Returns:
        Each number once, in rising order.
    """
    ordered = np.sort(keys)
    distinct: NDArray[np.int64] = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return distinct
