"""Dates and times that Python can hold: the years 1 to 9999.

Parquet and Arrow store dates as numbers of days, and times as numbers of seconds or parts of them, which reach much
further. Such a value is a fault of its file: nothing that reads it as a date survives.

Guarantee: after `refuse_far_dates` with the counts of `far_dates`, every date and time of a table, as its own time zone
shows it, is in the years 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Final

import polars as pl

from kohort.errors import DataError

__all__ = ["far_dates", "refuse_far_dates"]

_EPOCH: Final = date(1970, 1, 1)
_DAYS: Final = ((date.min - _EPOCH).days, (date.max - _EPOCH).days)
_A_SECOND: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_A_DAY: Final = int(timedelta(days=1).total_seconds())
_FROM_UTC: Final = 16 * 3600
"""Seconds: no place on earth is, or was, further from UTC."""


def far_dates(schema: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """How many values of each date and time lie outside the years 1 to 9999.

    Args:
        schema: The types of the columns.

    Returns:
        One count per column of dates or times, or of lists of them, by the name of its column.
    """
    found = []
    for name, kind in schema.items():
        is_list = isinstance(kind, pl.List)
        inner: Any = kind.inner if isinstance(kind, pl.List) else kind
        if isinstance(inner, (pl.Date, pl.Datetime)):
            values = pl.col(name).explode() if is_list else pl.col(name)
            found.append((~values.to_physical().is_between(*_bounds(inner))).sum().alias(name))
    return found


def refuse_far_dates(counts: pl.DataFrame, name: str) -> None:
    """Refuse dates outside the years 1 to 9999.

    Args:
        counts: What `far_dates` gives of the table.
        name: What errors call the table.

    Raises:
        DataError: A column has some.
    """
    found = [f"{column} ({count:,})" for column, count in _row(counts).items() if count]
    if found:
        hint = "Correct them or leave the cells empty; a wrong unit of time is a usual cause"
        raise DataError(f"{name} has dates outside the years 1 to 9999 in: {', '.join(found)}", hint=hint)


def _bounds(kind: pl.DataType) -> tuple[int, int]:
    """The first and the last value, as the number that is stored."""
    first, last = _DAYS
    if not isinstance(kind, pl.Datetime):
        return first, last
    away = 0 if kind.time_zone is None else _FROM_UTC
    second = _A_SECOND[kind.time_unit]
    low = (first * _SECONDS_A_DAY + away) * second
    high = ((last + 1) * _SECONDS_A_DAY - away) * second - 1
    return max(low, -(2**63)), min(high, 2**63 - 1)


def _row(counts: pl.DataFrame) -> dict[str, int]:
    return counts.row(0, named=True) if counts.height else {}
