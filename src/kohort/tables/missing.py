"""Rows with missing values: which are kept.

Guarantee: "drop" keeps exactly the rows that have a value in every named column; "category" keeps all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest

__all__ = ["Missing", "complete_rows", "complete_where", "handle_missing", "none_complete"]

Missing = Literal["drop", "category"]


def handle_missing(frame: pl.DataFrame, columns: Sequence[str], how: Missing) -> pl.DataFrame:
    """Keep the complete rows, or all.

    Args:
        frame: The table.
        columns: Columns that must have a value.
        how: "drop" keeps rows that are complete in `columns`; "category" keeps all, and later steps count null as a
            value.

    Returns:
        The rows that are kept.

    Raises:
        ConfigError: `how` is neither.
        DataError: No row is complete.
    """
    where = complete_where(columns, how)
    if where is None:
        return frame
    kept = frame.filter(pl.Series(_is_complete(frame, columns)))
    if kept.height == 0:
        raise none_complete(frame.height, len(columns))
    return kept


def complete_where(columns: Sequence[str], how: Missing) -> pl.Expr | None:
    """The condition of the rows that `handle_missing` keeps.

    Args:
        columns: Columns that must have a value.
        how: "drop" or "category".

    Returns:
        The condition; None where all rows are kept.

    Raises:
        ConfigError: `how` is neither "drop" nor "category".
    """
    if how == "category":
        return None
    if how != "drop":
        raise ConfigError(f"unknown way to handle missing values {how!r}", hint=nearest(how, ("drop", "category")))
    return pl.all_horizontal(pl.col(name).is_not_null() for name in columns) if columns else None


def none_complete(rows: int, columns: int) -> DataError:
    """The error where every row has a missing value.

    Args:
        rows: Number of rows.
        columns: Number of columns that were looked at.

    Returns:
        The error, to be raised.
    """
    return DataError(
        f"all {rows:,} rows have a missing value in one of {columns} columns",
        hint='Set missing = "category", or drop the emptiest columns',
    )


def complete_rows(frame: pl.DataFrame) -> NDArray[np.int64]:
    """The rows without a missing value, which `handle_missing` keeps with "drop".

    Args:
        frame: The table; all its columns are looked at.

    Returns:
        Their numbers, rising.
    """
    return np.flatnonzero(_is_complete(frame, frame.columns)).astype(np.int64)


def _is_complete(frame: pl.DataFrame, columns: Sequence[str]) -> NDArray[np.bool_]:
    found = np.ones(frame.height, np.bool_)
    for name in columns:
        if frame[name].null_count():
            found &= frame[name].is_not_null().to_numpy()
    return found
