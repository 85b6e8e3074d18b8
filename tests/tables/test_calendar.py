"""Dates that Python cannot hold are an error that names the column, however the table is read."""

from __future__ import annotations

import datetime
from pathlib import Path

import polars as pl
import pytest

from kohort.errors import DataError
from kohort.tables.calendar import far_dates, refuse_far_dates
from kohort.tables.frames import from_native, read_table
from kohort.tables.scanning import scan_parquet

FIRST, LAST = datetime.date.min, datetime.date.max


def far(kind: pl.DataType, *numbers: int) -> pl.DataFrame:
    """A column of dates or times as they are stored, and a sound one."""
    return pl.DataFrame({"born": pl.Series(numbers, dtype=pl.Int64).cast(pl.Int32 if kind == pl.Date else pl.Int64)}
    ).with_columns(pl.col("born").cast(kind), age=1)  # fmt: skip


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("kind", [pl.Date(), pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("us", "UTC")])
def test_a_date_after_the_year_9999_is_refused(kind: pl.DataType, ending: str, tmp_path: Path) -> None:
    table = far(kind, 2**30 if kind == pl.Date else 2**60, 0)
    path = tmp_path / f"people{ending}"
    table.write_parquet(path) if ending == ".parquet" else table.write_ipc(path)
    readers = [lambda: read_table(path), lambda: from_native(table)]
    for read in (*readers, lambda: scan_parquet(str(path))) if ending == ".parquet" else readers:
        with pytest.raises(DataError, match=r"dates outside the years 1 to 9999 in: born \(1\)"):
            read()


def test_a_list_of_such_dates_is_refused_too() -> None:
    table = far(pl.Date(), 2**30, 0).select(pl.col("born").implode())
    with pytest.raises(DataError, match=r"born \(1\)"):
        from_native(table)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_the_first_and_the_last_moment_are_dates(unit: str) -> None:
    times = [datetime.datetime.min, datetime.datetime.max, None]
    plain = pl.DataFrame({"day": [FIRST, LAST, None], "time": pl.Series(times, dtype=pl.Datetime(unit))})
    refuse_far_dates(plain.select(far_dates(plain.schema)), "the table")
    for step in (-1, 1):
        moved = plain.select((pl.col("time").to_physical() + step).cast(pl.Datetime(unit)))
        counts = moved.select(far_dates(moved.schema))
        assert counts.item() == 1


def test_a_last_day_in_a_place_east_of_utc_is_a_date() -> None:
    local = pl.Series("time", [datetime.datetime(9999, 12, 31)]).dt.replace_time_zone("Europe/Rome").to_frame()
    refuse_far_dates(local.select(far_dates(local.schema)), "the table")
    assert from_native(local)[0]["time"].to_list()[0].year == 9999


def test_a_table_without_dates_has_no_counts() -> None:
    plain = pl.DataFrame({"age": [1]})
    refuse_far_dates(plain.select(far_dates(plain.schema)), "the table")
