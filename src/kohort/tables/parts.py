"""Parquet tables larger than memory: read and written part by part, and put in the order of their values.

A file is sorted in two steps. Rows that are spread over the file give the limits of ranges of about the same size;
every part is dealt out to the ranges; and each range, which fits into memory, is sorted by itself.

Guarantees: parts come in table order and are no larger than asked; a file that is written is one that was not there, or
a temporary one of the caller; sorted rows are those of `kohort.tables.frames.in_value_order`. Only rows that are equal
in every column stay in one range however many they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from kohort.files import scratch_folder
from kohort.tables.frames import in_value_order, value_order
from kohort.tables.memory import cell_bytes
from kohort.tables.scanning import is_parquet, readable, scan_parquet, spread_rows

__all__ = [
    "LARGE",
    "PART_BYTES",
    "free_name",
    "is_large",
    "order_tells_in_parts",
    "part_rows",
    "read_parts",
    "row_count",
    "sort_file",
    "write_parts",
]

LARGE: Final = 1 << 28
"""Bytes of cells above which a table is read in parts."""
PART_BYTES: Final = 1 << 26
MOST_PACKED: Final = 64
"""A file that is this many times smaller than asked is taken as small without a look at its columns."""
LOOKED_AT: Final = 64
"""Rows, for each range of a file to be sorted, that its limits are chosen from."""


def is_large(source: str, out: Path) -> bool:
    """Whether a table is to be read in parts: from Parquet to Parquet, and large.

    Args:
        source: Where the table is.
        out: Where it goes.

    Returns:
        False also where the source is no file.

    Raises:
        DataError: The file is damaged.
    """
    if not is_parquet(source) or out.suffix.lower() != ".parquet":
        return False
    if Path(source).stat().st_size * MOST_PACKED < LARGE:
        return False
    table = scan_parquet(source)
    with readable(source):
        return cell_bytes(table.collect_schema(), row_count(table)) > LARGE


def row_count(table: pl.LazyFrame) -> int:
    """Rows of a table.

    Args:
        table: A query; it is read in parts where its source allows it.

    Returns:
        The number of its rows.
    """
    return int(table.select(pl.len()).collect(engine="streaming").item())


def part_rows(table: pl.LazyFrame, rows: int) -> int:
    """Rows of a part that is small enough to be held several times.

    Args:
        table: The table.
        rows: Its rows.

    Returns:
        At least 1.
    """
    return max(1, rows * PART_BYTES // max(1, cell_bytes(table.collect_schema(), rows)))


def read_parts(table: pl.LazyFrame, step: int) -> Iterator[pl.DataFrame]:
    """The rows of a table in their order, part by part.

    Args:
        table: The table: a file, of which some columns may be chosen.
        step: Rows of a part.

    Yields:
        The parts.
    """
    for start in range(0, row_count(table), step):
        yield table.slice(start, step).collect()


def write_parts(parts: Callable[[], Iterator[pl.DataFrame]], schema: Mapping[str, Any], path: Path) -> None:
    """Write Parquet part by part.

    Args:
        parts: Gives the parts, from the first on.
        schema: The types of their columns.
        path: The file.

    Raises:
        OSError: The disk is full, or the file cannot be written: the operating system's error, whatever the writer
            wraps it in.
    """

    def source(*_: object) -> Iterator[pl.DataFrame]:
        return parts()  # all of them: the writer asks for no columns, rows or filter of its own

    try:
        register_io_source(source, schema=pl.Schema(schema)).sink_parquet(path)
    except pl.exceptions.PolarsError as problem:
        wrapped = re.search(r"\(os error (\d+)\)", str(problem))
        if wrapped is None:
            raise
        raise OSError(int(wrapped.group(1)), "writing failed") from None


@dataclass
class _Monotonicity:
    """How the values of a column go on from part to part; nulls are left out."""

    rises: bool = True
    falls: bool = True
    ends: tuple[Any, Any] | None = None

    @property
    def tells(self) -> bool:
        """Whether the rows are sorted by the column, and it has two values at least."""
        return (self.rises or self.falls) and self.ends is not None and self.ends[0] != self.ends[1]

    def add(self, known: pl.Series) -> None:
        """Look at the values of the next part."""
        if known.is_empty():
            return
        first, last = known[0], known[-1]
        before = self.ends[1] if self.ends is not None else first
        self.rises = self.rises and before <= first and known.is_sorted()
        self.falls = self.falls and before >= first and known.is_sorted(descending=True)
        self.ends = (first if self.ends is None else self.ends[0], last)


def order_tells_in_parts(table: pl.LazyFrame, columns: Sequence[str]) -> bool:
    """Whether the rows of a table are sorted by one of some columns, as `order_tells` finds it.

    Args:
        table: The table.
        columns: Columns that rows may be sorted by.

    Returns:
        True where they are. A column is read only as far as it may still be sorted.
    """
    monotonic = {name: _Monotonicity() for name in columns}
    rows = row_count(table)
    step, start, left = part_rows(table, rows), 0, list(monotonic)
    while left and start < rows:
        part = table.slice(start, step).select(left).collect()
        for name in left:
            monotonic[name].add(part[name].drop_nulls())
        left = [name for name in left if monotonic[name].rises or monotonic[name].falls]
        start += step
    return any(one.tells for one in monotonic.values())


def sort_file(source: Path, out: Path) -> None:
    """Write the rows of a Parquet file in the order of their values, column after column.

    Args:
        source: The file; it stays.
        out: The file to write. Ranges of rows lie beside it until it is complete, and go in any case.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    table = pl.scan_parquet(source, glob=False)
    schema, rows = table.collect_schema(), row_count(table)
    step = part_rows(table, rows)
    ranges = math.ceil(rows / step)
    sample = in_value_order(spread_rows(table, schema.names(), LOOKED_AT * ranges))
    limits = sample[[place * sample.height // ranges for place in range(1, ranges)]].unique(maintain_order=True)
    with scratch_folder(out) as folder:
        for number, part in enumerate(read_parts(table, step)):
            for (place,), rest in _dealt(part, limits).items():
                inside = folder / f"{place:09d}"
                inside.mkdir(exist_ok=True)
                rest.write_parquet(inside / f"{number:09d}.parquet")

        def ordered() -> Iterator[pl.DataFrame]:
            for inside in sorted(folder.iterdir()):
                yield in_value_order(pl.read_parquet(sorted(inside.iterdir()), glob=False))

        write_parts(ordered, schema, out)


def _dealt(part: pl.DataFrame, limits: pl.DataFrame) -> dict[tuple[Any, ...], pl.DataFrame]:
    """The rows of a part by the range they are in; a row that equals a limit is below it."""
    mark, place = free_name("limit", part.columns), free_name("range", part.columns)
    rows, marks = part.with_columns(pl.lit(False).alias(mark)), limits.with_columns(pl.lit(True).alias(mark))
    both = pl.concat([rows, marks]).sort([*value_order(part.schema), mark], nulls_last=False)
    placed = both.with_columns(pl.col(mark).cum_sum().alias(place)).filter(~pl.col(mark)).drop(mark)
    return placed.partition_by(place, as_dict=True, include_key=False)


def free_name(wanted: str, taken: Sequence[str]) -> str:
    """A name for a further column that no column has.

    Args:
        wanted: The name to use if it is free.
        taken: Names of the columns.

    Returns:
        `wanted`, followed by `_` until no column has the name.
    """
    return wanted if wanted not in taken else free_name(f"{wanted}_", taken)
