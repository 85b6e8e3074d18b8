"""Values as small whole numbers: the rank of each among the sorted distinct values, null first.

One pass over the rows for texts (a hash table) and for whole numbers of a small range (their place in it); everything
else is sorted.

Guarantee: two rows have the same code if and only if they have the same value; codes have no gaps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["TEXTS", "categories", "ranked"]

Codes = NDArray[np.unsignedinteger[Any]]

# Times the rows: a range of whole numbers that is small enough to have an entry each.
SMALL_RANGE = 4
# Texts that Python sorts faster than a query is planned; code points and bytes of UTF-8 have the same order.
FEW = 500
TEXTS = (pl.String, pl.Categorical)


def categories(column: pl.Series) -> pl.Series:
    """A column with its texts as categories, so that whoever codes it later need not hash them again.

    Args:
        column: Any column.

    Returns:
        Categories for a column of texts; the column itself for any other.
    """
    return column.cast(pl.Categorical) if column.dtype == pl.String else column


def ranked(column: pl.Series) -> tuple[Codes, pl.Series]:
    """The code of each row, and the value of each code.

    Args:
        column: Texts, as they are or as categories, numbers, truth values, dates or times.

    Returns:
        Codes from 0 on, as small as their number allows; and the distinct values in their order, null first if there is
        one.
    """
    places = _places(column)
    if places is None:
        return _by_sorting(column)
    nulls = column.null_count()
    codes, missing = places.to_numpy(), 0
    if nulls:
        missing = _whole(places.max()) + 1
        codes = places.fill_null(missing).to_numpy()
    row = np.full(max(int(codes.max(initial=0)), missing) + 1, -1, np.int64)
    row[codes] = np.arange(len(codes))
    held = np.flatnonzero(row >= 0)
    values = column[row[held]]
    if column.dtype in TEXTS:
        values = values.cast(pl.String)
        order = _order(values)
        held, values = held[order], values[order]
    elif nulls:
        held, values = np.roll(held, 1), pl.concat([values[-1:], values[:-1]])
    rank = np.zeros(len(row), _small(len(held)))
    rank[held] = np.arange(len(held))
    return rank[codes], values


def _order(texts: pl.Series) -> NDArray[np.int64]:
    """The places of distinct texts in their order, null first."""
    if len(texts) > FEW:
        return texts.arg_sort(nulls_last=False).to_numpy().astype(np.int64)
    known = [(text is not None, text or "", place) for place, text in enumerate(texts.to_list())]
    return np.array([place for _, _, place in sorted(known)], dtype=np.int64)


def _small(count: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if count <= 1 << 16 else np.uint32


def _places(column: pl.Series) -> pl.Series | None:
    """A number of its own for each value, in their order but for texts; None where there could be too many."""
    if column.dtype in TEXTS:
        return column.cast(pl.Categorical).to_physical()
    if column.dtype == pl.Boolean:
        return column.cast(pl.UInt32)
    physical = column if column.dtype.is_integer() else column.to_physical()
    if not physical.dtype.is_integer() or column.dtype == pl.UInt64:
        return None
    numbers = physical.cast(pl.Int64)
    low, high = _whole(numbers.min()), _whole(numbers.max())
    return (numbers - low).cast(pl.UInt32) if high - low <= SMALL_RANGE * len(column) else None


def _whole(value: Any) -> int:
    return 0 if value is None else int(value)


def _by_sorting(column: pl.Series) -> tuple[Codes, pl.Series]:
    codes = (column.rank("dense").cast(pl.Int64) - (column.null_count() == 0)).fill_null(0).to_numpy()
    values = column.unique().sort(nulls_last=False)
    return codes.astype(_small(len(values))), values
