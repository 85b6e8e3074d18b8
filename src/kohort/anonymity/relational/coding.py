"""Quasi-identifiers as small whole numbers, the only form the anonymisers work on.

A number becomes its rank among the sorted distinct values, null first. A category becomes its place in order of
falling frequency (ties by value), so that a cut between codes parts common values from rare ones; a date keeps its
order, and with `by_value` every category does. Null is a value.

Guarantees: `values[code]` is the value a code stands for; the loss of a class is the one information loss is defined
by: for numbers the covered range, 1 where null and numbers mix; for categories the share of the values, 0 for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest

__all__ = ["CodedColumn", "CodedTable", "Codes", "code_table"]

Codes = NDArray[np.uint16] | NDArray[np.uint32]

# A null lies one whole range below the smallest number, so that mixing the two costs everything.
NULL_POINT = -1.0


@dataclass(frozen=True)
class CodedColumn:
    """One quasi-identifier. `points` places the values of a number in [0, 1]; empty for a category."""

    name: str
    is_number: bool
    values: pl.Series
    points: NDArray[np.float64]

    @property
    def distinct(self) -> int:
        """Number of values, null included."""
        return len(self.values)

    @property
    def has_null(self) -> bool:
        """Whether null is one of the values."""
        return self.values.null_count() > 0


@dataclass(frozen=True)
class CodedTable:
    """All quasi-identifiers; `codes[c, r]` belongs to column c and row r."""

    columns: tuple[CodedColumn, ...]
    codes: Codes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[1])

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """Kind of each column."""
        return np.array([column.is_number for column in self.columns], dtype=np.bool_)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """Number of values of each column."""
        return np.array([column.distinct for column in self.columns], dtype=np.int64)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each column begins in `points`."""
        return np.concatenate(([0], np.cumsum(self.distinct))).astype(np.int64)

    @property
    def points(self) -> NDArray[np.float64]:
        """Places of all values, column after column; 0 for categories."""
        parts = [column.points if column.is_number else np.zeros(column.distinct) for column in self.columns]
        return np.concatenate(parts)


def code_table(frame: pl.DataFrame, quasi: Sequence[str], *, by_value: bool = False) -> CodedTable:
    """Code the quasi-identifiers of a table."""
    names = tuple(dict.fromkeys(quasi))
    if not names:
        raise ConfigError("no quasi-identifier is named", hint="Name at least one column")
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}", hint=nearest(absent[0], frame.columns))
    if frame.height == 0:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    coded = [_code(frame[name], by_value=by_value) for name in names]
    widest = max(column.distinct for column, _ in coded)
    codes = np.empty((len(coded), frame.height), dtype=np.uint16 if widest <= 1 << 16 else np.uint32)
    for position, (_, found) in enumerate(coded):
        codes[position] = found
    return CodedTable(tuple(column for column, _ in coded), codes)


def _code(column: pl.Series, *, by_value: bool) -> tuple[CodedColumn, NDArray[np.uint32]]:
    if isinstance(column.dtype, pl.List):
        hint = "Declare it as items, or leave it out of the quasi-identifiers"
        raise DataError(f"quasi-identifier {column.name!r} holds lists", hint=hint)
    if column.dtype.is_numeric():
        return _code_number(column)
    return _code_category(column, by_value=by_value or column.dtype.is_temporal())


def _code_number(column: pl.Series) -> tuple[CodedColumn, NDArray[np.uint32]]:
    codes = _dense_rank(column)
    known = column.drop_nulls().unique().sort()
    missing = column.null_count() > 0
    floats = known.cast(pl.Float64).to_numpy()
    extent = float(floats[-1] - floats[0]) if len(floats) else 0.0
    points = (floats - floats[0]) / (extent or 1.0) if len(floats) else floats
    if missing:
        points = np.concatenate(([NULL_POINT], points))
        known = pl.concat([pl.Series(known.name, [None], dtype=known.dtype), known])
    return CodedColumn(column.name, True, known, points), codes


def _code_category(column: pl.Series, *, by_value: bool) -> tuple[CodedColumn, NDArray[np.uint32]]:
    ranks = _dense_rank(column)
    known = column.unique().sort(nulls_last=False)
    if not by_value:
        order = np.argsort(-np.bincount(ranks, minlength=len(known)), kind="stable")
        place = np.empty(len(order), dtype=np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        ranks, known = place[ranks], known[order]
    return CodedColumn(column.name, False, known, np.zeros(0)), ranks


def _dense_rank(column: pl.Series) -> NDArray[np.uint32]:
    """0 for null, if there is one, then the values in their order."""
    known = column.drop_nulls().unique().sort()
    missing = int(column.null_count() > 0)
    if column.dtype == pl.String:
        ranks = column.cast(pl.Enum(known)).to_physical().cast(pl.UInt32)
    else:
        ranks = column.cast(pl.UInt8 if column.dtype == pl.Boolean else column.dtype).rank("dense").cast(pl.UInt32) - 1
    found: NDArray[np.uint32] = (ranks + missing).fill_null(0).to_numpy()
    return found
