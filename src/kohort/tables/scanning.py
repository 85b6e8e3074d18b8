"""Parquet tables that are read in parts, so that they may be larger than memory.

Guarantees: those of `kohort.tables.frames`: rows, distinct named columns, plain types, finite numbers and null for
every missing value, or a DataError that shows no cell. Damage may show only when a part is read: `readable` turns it
into the same error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from kohort.errors import DataError
from kohort.tables.calendar import far_dates, refuse_far_dates
from kohort.tables.frames import ENDINGS, not_readable, plain_types, refuse_infinite
from kohort.tables.memory import require_address_space
from kohort.tables.parquet_pages import lengths_agree
from kohort.tables.reading import UNREADABLE
from kohort.tables.trial import READER_ERRORS, quiet_reader

__all__ = ["is_parquet", "readable", "scan_parquet", "spread_rows"]

_PARTS = 20


def is_parquet(source: str) -> bool:
    """Whether a source is the path of a Parquet file that is there.

    Args:
        source: A path, or any other name of a table.

    Returns:
        True for an existing file with an ending of Parquet.
    """
    path = Path(source)
    return ENDINGS.get(path.suffix.lower()) == "parquet" and path.is_file()


def scan_parquet(source: str) -> pl.LazyFrame:
    """Open a Parquet file without reading its rows.

    Args:
        source: Path of the file.

    Returns:
        The table, of the types that `kohort.tables.frames.read_table` gives.

    Raises:
        DataError: The file is damaged or empty, or has columns of unsupported types, infinite numbers or dates outside
            the years 1 to 9999.
        ResourceError: A limit on addresses is too low for the reader.
    """
    require_address_space(Path(source).stat().st_size, repr(source))
    with readable(source):
        try:
            if not lengths_agree(Path(source)):
                raise not_readable(Path(source), repr(source), "Parquet")
            scanned = pl.scan_parquet(source, glob=False)  # brackets may be part of a name
            schema = scanned.collect_schema()
            rows = int(scanned.select(pl.len()).collect().item())
        except UNREADABLE:
            raise not_readable(Path(source), repr(source), "Parquet") from None
        if rows == 0 or not schema:
            raise DataError(f"{source!r} has a header but no rows", hint="Give a table with at least one row")
        plain = scanned.with_columns(plain_types(schema, repr(source)))
        dates = far_dates(schema)
        if dates:
            refuse_far_dates(scanned.select(dates).collect(engine="streaming"), repr(source))
        floats = [name for name, dtype in plain.collect_schema().items() if dtype.is_float()]
        if not floats:
            return plain
        infinite = plain.select(pl.col(floats).is_infinite().sum()).collect(engine="streaming").row(0)
        refuse_infinite(dict(zip(floats, infinite, strict=True)), repr(source))
        return plain.with_columns(pl.col(floats).fill_nan(None))


def spread_rows(table: pl.LazyFrame, columns: Sequence[str], most: int) -> pl.DataFrame:
    """Some rows of a table that may be larger than memory: all of a small one, else parts from its begin to its end.

    Args:
        table: The table.
        columns: Its columns that are read.
        most: The most rows.

    Returns:
        The rows, in table order.
    """
    chosen = table.select(columns)
    count = int(chosen.select(pl.len()).collect(engine="streaming").item())
    if count <= most:
        return chosen.collect()
    starts = [part * (count - most // _PARTS) // (_PARTS - 1) for part in range(_PARTS)]
    return pl.concat(pl.collect_all([chosen.slice(start, most // _PARTS) for start in starts]))


@contextmanager
def readable(source: str) -> Iterator[None]:
    """Turn every error of the Parquet reader into one about the file; no error and no output holds a cell.

    Args:
        source: Path of the file that the block reads.

    Yields:
        Nothing; the block reads the file.

    Raises:
        DataError: The file is damaged.
    """
    try:
        with quiet_reader():
            yield
    except READER_ERRORS:
        raise not_readable(Path(source), repr(source), "Parquet") from None
