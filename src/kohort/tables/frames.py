"""Tables in and out: CSV, Parquet and Arrow files, standard input, and the frames people already have.

Guarantees: a table that is read has rows, distinct named columns, finite numbers and null for every missing value, or a
DataError says in one line what is wrong with the file, never showing a cell. A table that is written is there as a
whole or not at all, and an existing file is kept unless `force` is given. A frame comes back in its caller's kind.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.files import require_new, write_atomic

__all__ = [
    "ITEM_SEPARATOR",
    "FrameKind",
    "Missing",
    "check_finite",
    "from_native",
    "handle_missing",
    "read_table",
    "to_native",
    "write_table",
]

Missing = Literal["drop", "category"]
Format = Literal["csv", "tsv", "parquet", "arrow"]
NULL_MARKERS = ("", "?")
ITEM_SEPARATOR = ";"
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
# A Rust panic reaches Python as a BaseException; on a damaged file it is a fact about the file.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError, OSError)


class FrameKind(StrEnum):
    """The library a caller's frame belongs to."""

    POLARS = "polars"
    PANDAS = "pandas"
    PYARROW = "pyarrow"


def read_table(
    source: str | Path | IO[bytes],
    *,
    format: Format | None = None,
    null_markers: Sequence[str] = NULL_MARKERS,
    separator: str | None = None,
) -> pl.DataFrame:
    """Read a table.

    Args:
        source: A path (format by ending), an open binary stream, or `-` for CSV on standard input.
        format: Format, if not by ending.
        null_markers: Texts that mean a missing value.
        separator: Separator of CSV cells.

    Raises:
        DataError: The table is absent, empty, damaged, ragged or of an unsupported type.
    """
    content, name, by_ending = _fetch(source)
    chosen = format or by_ending
    if not content:
        raise DataError(f"{name} is empty", hint="Give a table with a header and at least one row")
    if chosen in ("csv", "tsv"):
        frame = _parse_csv(content, name, null_markers, separator or ("\t" if chosen == "tsv" else ","))
    else:
        frame = _parse_binary(content, name, chosen)
    if frame.height == 0 or frame.width == 0:
        raise DataError(f"{name} has a header but no rows", hint="Give a table with at least one row")
    return check_finite(_plain_types(frame, name), name)


def check_finite(frame: pl.DataFrame, name: str = "the table") -> pl.DataFrame:
    """NaN becomes null, for it means missing; infinity is an error that names the columns and counts."""
    floats = [column for column, dtype in frame.schema.items() if dtype.is_float()]
    if not floats:
        return frame
    counts = frame.select(pl.col(column).is_infinite().sum() for column in floats).row(0)
    found = [f"{column} ({count:,})" for column, count in zip(floats, counts, strict=True) if count]
    if found:
        hint = "Replace them by a finite number or leave the cells empty"
        raise DataError(f"{name} has infinite numbers in: {', '.join(found)}", hint=hint)
    return frame.with_columns(pl.col(floats).fill_nan(None))


def handle_missing(frame: pl.DataFrame, columns: Sequence[str], how: Missing) -> pl.DataFrame:
    """`drop` keeps the rows that are complete in `columns`; `category` keeps every row, its nulls included.

    With `category` a null stays null: every later step counts it as a value of its own.

    Raises:
        ConfigError: `how` is neither.
        DataError: No row is complete.
    """
    if how == "category":
        return frame
    if how != "drop":
        raise ConfigError(f"unknown way to handle missing values {how!r}", hint=nearest(how, ("drop", "category")))
    kept = frame.drop_nulls(list(columns)) if columns else frame
    if kept.height == 0:
        raise DataError(
            f"all {frame.height:,} rows have a missing value in one of {len(columns)} columns",
            hint='Set missing = "category", or drop the emptiest columns',
        )
    return kept


def write_table(frame: pl.DataFrame, path: str | Path, *, force: bool = False, private: bool = False) -> None:
    """Write CSV, Parquet or Arrow by ending; whole or not at all, and readable by its owner only if it is `private`.

    Raises:
        ConfigError: The ending is unknown, or the file exists and `force` is not given.
        DataError: An item holds the item separator and cannot be written as CSV.
    """
    target = Path(path)
    chosen = _format_of(target, ConfigError)
    require_new(target, force=force)
    buffer = io.BytesIO()
    if chosen == "parquet":
        frame.write_parquet(buffer)
    elif chosen == "arrow":
        frame.write_ipc(buffer)
    else:
        _join_items(frame).write_csv(buffer, separator="\t" if chosen == "tsv" else ",")
    write_atomic(target, buffer.getvalue(), private=private)


def from_native(frame: Any) -> tuple[pl.DataFrame, FrameKind]:
    """A polars copy of a pandas, polars or pyarrow table, and the kind to give back. A pandas index is not kept.

    Raises:
        ConfigError: The object is no table kohort can read.
        DataError: Columns repeat, have an unsupported type or hold infinite numbers.
    """
    import narwhals as nw  # files need no narwhals, and sites read files

    try:
        narrow = nw.from_native(frame, eager_only=True)
        kind = FrameKind(narrow.implementation.value)
    except nw.exceptions.DuplicateError:
        raise DataError("the frame has two columns of the same name", hint="Rename one of them") from None
    except (TypeError, ValueError):
        raise ConfigError(
            f"a {type(frame).__name__} is not a table kohort can read",
            hint="Give a pandas or polars DataFrame (collect a lazy one) or a pyarrow Table",
        ) from None
    try:
        inner: pl.DataFrame = frame if isinstance(frame, pl.DataFrame) else narrow.to_polars()
    except ModuleNotFoundError:
        raise ConfigError(f"reading a {kind} frame needs pyarrow", hint="pip install pyarrow") from None
    return check_finite(_plain_types(inner, "the frame"), "the frame"), kind


def to_native(frame: pl.DataFrame, kind: FrameKind) -> Any:
    """The frame in the caller's kind."""
    if kind is FrameKind.POLARS:
        return frame
    try:
        return frame.to_pandas() if kind is FrameKind.PANDAS else frame.to_arrow()
    except ModuleNotFoundError:
        raise ConfigError(f"returning a {kind} frame needs pyarrow", hint="pip install pyarrow") from None


def _fetch(source: str | Path | IO[bytes]) -> tuple[bytes, str, Format]:
    if not isinstance(source, (str, Path)):
        return source.read(), "the stream", "csv"
    if str(source) == "-":
        return sys.stdin.buffer.read(), "standard input", "csv"
    path = Path(source)
    name = repr(str(source))
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"no file {name}", hint="Check the path") from None
    except IsADirectoryError:
        raise DataError(f"{name} is a folder", hint="Name a table inside it") from None
    except OSError as problem:
        raise DataError(f"cannot open {name} ({type(problem).__name__})", hint="Check its permissions") from None
    return content, name, _format_of(path, DataError)


def _format_of(path: Path, error: type[ConfigError] | type[DataError]) -> Format:
    found = ENDINGS.get(path.suffix.lower())
    if found is None:
        raise error(f"{str(path)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
    return found


def _parse_binary(content: bytes, name: str, chosen: Format) -> pl.DataFrame:
    try:
        stream = io.BytesIO(content)
        return pl.read_parquet(stream) if chosen == "parquet" else pl.read_ipc(stream)
    except UNREADABLE:
        kind = "Parquet" if chosen == "parquet" else "Arrow"
        hint = "It is truncated, damaged or of another kind: write or copy it again"
        raise DataError(f"{name} is not a readable {kind} file", hint=hint) from None


def _parse_csv(content: bytes, name: str, null_markers: Sequence[str], separator: str) -> pl.DataFrame:
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n") + b"\n"
    if b"\x00" in content:
        raise DataError(f"{name} holds NUL bytes", hint="It is binary or UTF-16: save it as UTF-8 CSV")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise DataError(f"{name} is not UTF-8 (line {line:,})", hint="Save it as UTF-8") from None
    header = _header(content, name, separator)
    _check_row_widths(content, name, separator, len(header))
    try:
        texts = pl.read_csv(
            content,
            separator=separator,
            infer_schema=False,
            null_values=[marker for marker in null_markers if marker],
        )
    except UNREADABLE:
        raise DataError(f"{name} is not readable as CSV", hint="Check quotes and separators") from None
    if "" in null_markers:
        texts = texts.with_columns(pl.all().replace("", None))
    return texts.select(_best_type(column) for column in texts)


def _header(content: bytes, name: str, separator: str) -> list[str]:
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline=""), delimiter=separator)
    try:
        header = next(rows)
    except (StopIteration, csv.Error):
        header = []
    if not header:
        raise DataError(f"{name} has no header", hint="The first line must name the columns")
    unnamed = sum(not column for column in header)
    if unnamed:
        hint = "Name every column; an index written by accident has no name: remove it"
        raise DataError(f"{name} has {unnamed} column(s) without a name", hint=hint)
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        raise DataError(f"{name} names a column twice: {', '.join(repeated)}", hint="Rename one of them")
    return header


def _check_row_widths(content: bytes, name: str, separator: str, width: int) -> None:
    """Every line must have as many fields as the header: readers fill or cut the others without a word."""
    octets = np.frombuffer(content, dtype=np.uint8)
    ends, between = octets == ord("\n"), octets == ord(separator)
    if b'"' in content:
        # Parity of the quotes so far tells inside from outside; doubled quotes cancel. uint8 may wrap: parity stays.
        inside = (np.cumsum(octets == ord('"'), dtype=np.uint8) & 1).astype(bool)
        if inside[-1]:
            raise DataError(f"{name} has a quote that never closes", hint="Double the quotes inside quoted cells")
        ends &= ~inside
        between &= ~inside
    line_ends, separators = np.flatnonzero(ends), np.flatnonzero(between)
    fields = np.diff(np.searchsorted(separators, line_ends), prepend=0) + 1
    wrong = np.flatnonzero(fields != width)
    if wrong.size:
        raise DataError(
            f"{name} is ragged: {wrong.size:,} row(s) do not have the {width} fields of the header "
            f"(first: record {wrong[0] + 1:,} with {fields[wrong[0]]})",
            hint="Check separators and quotes there",
        )


def _best_type(column: pl.Series) -> pl.Series:
    """Integer, float, boolean or text: the first that loses nothing. Codes such as 007 stay text."""
    known = column.drop_nulls().unique()
    if known.is_empty():
        return column
    if not known.str.contains(r"^[+-]?0\d").any():
        integers = known.cast(pl.Int64, strict=False)
        if integers.null_count() == 0:
            return column.cast(pl.Int64)
        # Numbers too long for 64 bits are identifiers; as floats two of them could become one.
        all_digits = known.str.contains(r"^[+-]?\d+$").all()
        if not all_digits and known.cast(pl.Float64, strict=False).null_count() == 0:
            return column.cast(pl.Float64)
    lowered = known.str.to_lowercase()
    if lowered.is_in(["true", "false"]).all():
        return (column.str.to_lowercase() == "true").alias(column.name)
    return column


def _plain_types(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    changes: list[pl.Expr] = []
    for column, dtype in frame.schema.items():
        if isinstance(dtype, (pl.Categorical, pl.Enum, pl.Null)):
            changes.append(pl.col(column).cast(pl.String))
        elif isinstance(dtype, pl.Decimal):
            changes.append(pl.col(column).cast(pl.Float64))
        elif isinstance(dtype, pl.List):
            changes.append(pl.col(column).cast(pl.List(pl.String)))
        elif isinstance(dtype, (pl.Struct, pl.Binary, pl.Object, pl.Array)):
            hint = "Use numbers, text, booleans, dates or lists of text"
            raise DataError(f"column {column!r} of {name} has the unsupported type {dtype}", hint=hint)
    return frame.with_columns(changes)


def _join_items(frame: pl.DataFrame) -> pl.DataFrame:
    lists = [column for column, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    for column in lists:
        clashes = frame[column].explode().cast(pl.String).str.contains(ITEM_SEPARATOR, literal=True).sum()
        if clashes:
            hint = f"CSV joins items by {ITEM_SEPARATOR!r}: write Parquet instead"
            raise DataError(f"{clashes:,} items of column {column!r} hold the item separator", hint=hint)
    return frame.with_columns(pl.col(column).list.join(ITEM_SEPARATOR) for column in lists)
