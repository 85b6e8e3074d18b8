"""Tables in and out: CSV, Parquet and Arrow files, standard input, and the frames people already have.

Guarantees: a table that is read has rows, distinct named columns, finite numbers and null for every missing value, or a
DataError says in one line what is wrong with the file, never showing a cell. A table that is written is there as a
whole or not at all, and an existing file is kept unless `force` is given. A frame comes back in its caller's kind.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal

import polars as pl

from kohort.errors import ConfigError, DataError
from kohort.files import require_new, write_atomic
from kohort.tables.calendar import far_dates, refuse_far_dates
from kohort.tables.dialect import ReadingOptions
from kohort.tables.fetching import ENDINGS, SMALLER, Format, fetch, format_of
from kohort.tables.memory import CELLS_HELD, LIBRARIES, cell_bytes, require_address_space, require_memory
from kohort.tables.missing import Missing, complete_rows, complete_where, handle_missing, none_complete
from kohort.tables.parquet_pages import lengths_agree
from kohort.tables.reading import UNREADABLE, declare_missing, parse_text
from kohort.tables.text_types import NULL_MARKERS
from kohort.tables.trial import quiet_reader, survives_reading, unknown_zones

__all__ = [
    "ENDINGS",
    "ITEM_SEPARATOR",
    "OTHER_ITEM_SEPARATOR",
    "FrameKind",
    "Missing",
    "TableRead",
    "check_finite",
    "complete_rows",
    "complete_where",
    "from_native",
    "handle_missing",
    "in_value_order",
    "like_input",
    "none_complete",
    "not_readable",
    "order_tells",
    "plain_types",
    "read_source",
    "read_table",
    "refuse_infinite",
    "to_native",
    "value_order",
    "write_table",
]

ITEM_SEPARATOR, OTHER_ITEM_SEPARATOR = ";", "|"
TEXT_ENDINGS = (".csv", ".tsv")


class FrameKind(StrEnum):
    """The library a caller's frame belongs to."""

    POLARS = "polars"
    PANDAS = "pandas"
    PYARROW = "pyarrow"


@dataclass(frozen=True, kw_only=True)
class TableRead:
    """A table that was read, and how.

    Attributes:
        frame: The table.
        texts: Its columns as they stand in a text file; None for other files.
        notes: How it was read, one statement each; no cell is in them.
    """

    frame: pl.DataFrame
    texts: pl.DataFrame | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()


def read_table(
    source: str | Path | IO[bytes],
    *,
    format: Format | None = None,
    null_markers: Sequence[str] = NULL_MARKERS,
    separator: str | None = None,
    dates: bool = True,
) -> pl.DataFrame:
    """Read a table.

    Args:
        source: A path (format by ending), an open binary stream, or `-` for CSV on standard input.
        format: Format, if not by ending.
        null_markers: Texts that mean a missing value.
        separator: Separator of CSV cells; found from the file when None.
        dates: Whether dates in a text file become ordered values; else they stay text.

    Returns:
        The table in plain column types.

    Raises:
        DataError: The table is absent, empty, damaged, ragged or of an unsupported type.
    """
    options = ReadingOptions(delimiter=separator)
    return read_source(source, options, format=format, null_markers=null_markers, dates=dates).frame


def read_source(
    source: str | Path | IO[bytes],
    options: ReadingOptions | None = None,
    *,
    format: Format | None = None,
    null_markers: Sequence[str] = NULL_MARKERS,
    dates: bool = True,
) -> TableRead:
    """Read a table and say how it was read.

    Args:
        source: A path (format by ending), an open binary stream, or `-` for CSV on standard input.
        options: What is declared about the file; the rest is found.
        format: Format, if not by ending.
        null_markers: Texts that mean a missing value.
        dates: Whether dates in a text file become ordered values; else they stay text.

    Returns:
        The table, its texts if it is a text file, and what was found.

    Raises:
        DataError: The table is absent, empty, damaged, ragged or of an unsupported type.
    """
    chosen_options = options or ReadingOptions()
    content, name, by_ending = fetch(source)
    chosen = format or by_ending
    if not content:
        raise DataError(f"{name} is empty", hint="Give a table with a header and at least one row")
    texts: pl.DataFrame | None = None
    notes: tuple[str, ...] = ()
    if chosen in ("csv", "tsv"):
        delimiter = "\t" if chosen == "tsv" else None
        parsed = parse_text(content, name, chosen_options, delimiter=delimiter, markers=null_markers, dates=dates)
        frame, texts, notes = parsed.frame, parsed.texts, parsed.notes
    else:
        frame = _parse_binary(content, name, chosen)
    if frame.height == 0 or frame.width == 0:
        raise DataError(f"{name} has a header but no rows", hint="Give a table with at least one row")
    plain = _plain(frame, name)
    if chosen_options.null_values:
        plain, _ = declare_missing(plain, chosen_options)
    return TableRead(frame=plain, texts=texts, notes=notes)


def check_finite(frame: pl.DataFrame, name: str = "the table") -> pl.DataFrame:
    """Refuse infinite numbers, and make NaN null.

    Args:
        frame: The table.
        name: What errors call it.

    Returns:
        The table with null for NaN.

    Raises:
        DataError: A number is infinite; the message names columns and counts.
    """
    floats = [column for column, dtype in frame.schema.items() if dtype.is_float()]
    if not floats:
        return frame
    counts = frame.select(pl.col(column).is_infinite().sum() for column in floats).row(0)
    refuse_infinite(dict(zip(floats, counts, strict=True)), name)
    return frame.with_columns(pl.col(floats).fill_nan(None))


def refuse_infinite(counts: Mapping[str, int], name: str) -> None:
    """Refuse infinite numbers.

    Args:
        counts: How many each column has.
        name: What errors call the table.

    Raises:
        DataError: A column has some.
    """
    found = [f"{column} ({count:,})" for column, count in counts.items() if count]
    if found:
        hint = "Replace them by a finite number or leave the cells empty"
        raise DataError(f"{name} has infinite numbers in: {', '.join(found)}", hint=hint)


def write_table(
    frame: pl.DataFrame,
    path: str | Path,
    *,
    force: bool = False,
    private: bool = False,
    item_separator: str = ITEM_SEPARATOR,
) -> None:
    """Write CSV, Parquet or Arrow by ending; whole or not at all.

    Args:
        frame: The table.
        path: The file.
        force: Replace an existing file.
        private: Whether only the owner may read it.
        item_separator: What stands between the items of a set in a text file.

    Raises:
        ConfigError: The ending is unknown, or the file exists and `force` is not given.
        DataError: An item holds the item separator and cannot be written as CSV.
    """
    target = Path(path)
    chosen = format_of(target, ConfigError)
    require_new(target, force=force)
    buffer = io.BytesIO()
    if chosen == "parquet":
        frame.write_parquet(buffer)
    elif chosen == "arrow":
        frame.write_ipc(buffer)
    else:
        _join_items(frame, item_separator).write_csv(buffer, separator="\t" if chosen == "tsv" else ",")
    write_atomic(target, buffer.getvalue(), private=private)


def from_native(frame: Any) -> tuple[pl.DataFrame, FrameKind]:
    """Read a pandas, polars or pyarrow table into polars.

    Args:
        frame: The table; a pandas index is not kept.

    Returns:
        The table in plain column types, and the caller's kind for `to_native`.

    Raises:
        ConfigError: The object is no table kohort can read.
        DataError: Columns repeat, have an unsupported type or hold infinite numbers.
    """
    if isinstance(frame, pl.DataFrame):
        return _plain(frame), FrameKind.POLARS
    import narwhals as nw  # files and polars tables need no narwhals, which takes long to import

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
        inner: pl.DataFrame = narrow.to_polars()
    except ModuleNotFoundError:
        raise ConfigError(f"reading a {kind} frame needs pyarrow", hint="pip install pyarrow") from None
    return _plain(inner), kind


def _plain(frame: pl.DataFrame, name: str = "the frame") -> pl.DataFrame:
    changes = plain_types(frame.schema, name)
    refuse_far_dates(frame.select(far_dates(frame.schema)), name)
    return check_finite(frame.with_columns(changes), name)


def to_native(frame: pl.DataFrame, kind: FrameKind) -> Any:
    """The frame in the caller's kind.

    Args:
        frame: The table.
        kind: The kind that `from_native` gave.

    Returns:
        A polars, pandas or pyarrow table.

    Raises:
        ConfigError: The kind needs pyarrow, which is not installed.
    """
    if kind is FrameKind.POLARS:
        return frame
    try:
        return frame.to_pandas() if kind is FrameKind.PANDAS else frame.to_arrow()
    except ModuleNotFoundError:
        raise ConfigError(f"returning a {kind} frame needs pyarrow", hint="pip install pyarrow") from None


def order_tells(frame: pl.DataFrame, columns: Sequence[str], person: str | None) -> bool:
    """Whether the order of rows says something about persons that a release must not.

    Args:
        frame: The rows.
        columns: Columns that rows may be sorted by: identifiers and quasi-identifiers.
        person: The column that says whom a row is about; rows of one person may stand together.

    Returns:
        True where persons are declared, or where the rows are sorted by one of the columns.
    """
    if person is not None:
        return True
    known = (frame[name].drop_nulls() for name in columns)
    return any((one.is_sorted() or one.is_sorted(descending=True)) and one.n_unique() > 1 for one in known)


def in_value_order(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows in the order of their values, column after column: an order that tells nothing more.

    Args:
        frame: The table.

    Returns:
        The sorted rows, null first.
    """
    keys = value_order(frame.schema)
    return frame.sort(keys, nulls_last=False, maintain_order=False) if keys else frame


def value_order(schema: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """The keys that `in_value_order` sorts by.

    Args:
        schema: The types of the table's columns.

    Returns:
        One key per column; a list is compared as the text of its items.
    """
    return [
        pl.col(name).list.join(ITEM_SEPARATOR, ignore_nulls=True) if isinstance(kind, pl.List) else pl.col(name)
        for name, kind in schema.items()
    ]


def like_input(made: pl.DataFrame, given: Any, kind: FrameKind, rows: Any, changed: Collection[str]) -> Any:
    """Rows of a table with changed columns in the caller's kind: a pandas index and untouched columns as they went in.

    Args:
        made: The table to give back.
        given: The caller's frame.
        kind: Its kind.
        rows: The row of `given` that each row of `made` is.
        changed: Columns of `made` that are not those of `given`.

    Returns:
        The frame.
    """
    found = to_native(made, kind)
    if kind is not FrameKind.PANDAS:
        return found
    source = given.iloc[rows]
    found.index = source.index
    for name in made.columns:
        if name not in changed:
            found[name] = source[name]
    return found


def _parse_binary(content: bytes, name: str, chosen: Format) -> pl.DataFrame:
    kind: Literal["Parquet", "Arrow"] = "Parquet" if chosen == "parquet" else "Arrow"
    if not (lengths_agree(content) if chosen == "parquet" else survives_reading(content)):
        raise not_readable(content, name, kind)
    try:
        stream = io.BytesIO(content)
        with quiet_reader():
            if chosen == "parquet":
                opened = pl.scan_parquet(stream)
                rows = int(opened.select(pl.len()).collect().item())
                cells = cell_bytes(opened.collect_schema(), rows)
                require_memory(cells, name, hint=SMALLER)
                require_address_space(cells * CELLS_HELD, name, reserved=LIBRARIES)
                stream.seek(0)
            return pl.read_parquet(stream) if chosen == "parquet" else pl.read_ipc(stream)
    except UNREADABLE:
        raise not_readable(content, name, kind) from None


def not_readable(source: bytes | Path, name: str, kind: Literal["Parquet", "Arrow"]) -> DataError:
    """What is wrong with a file that the native reader refused.

    Args:
        source: The bytes of the file, or its path.
        name: What errors call it.
        kind: Its format.

    Returns:
        An error that names the columns of an unknown time zone, or says that the file is damaged.
    """
    zones = unknown_zones(source, kind.lower())
    if zones:
        columns = ", ".join(repr(column) for column in zones)
        hint = "Convert it to UTC, or to a named zone such as Europe/Rome"
        return DataError(f"a time zone that is not known here is in {name}: column {columns}", hint=hint)
    hint = "It is truncated, damaged or of another kind: write or copy it again"
    return DataError(f"{name} is not a readable {kind} file", hint=hint)


def plain_types(schema: Mapping[str, pl.DataType], name: str) -> list[pl.Expr]:
    """How the columns of a table become numbers, text, booleans, dates or lists of text.

    Args:
        schema: The types of its columns.
        name: What errors call the table.

    Returns:
        The columns that change.

    Raises:
        DataError: A column has an unsupported type.
    """
    changes: list[pl.Expr] = []
    for column, dtype in schema.items():
        if isinstance(dtype, (pl.Categorical, pl.Enum, pl.Null)):
            changes.append(pl.col(column).cast(pl.String))
        elif isinstance(dtype, pl.Decimal):
            changes.append(pl.col(column).cast(pl.Float64))
        elif isinstance(dtype, pl.Duration):
            changes.append(pl.col(column).dt.total_microseconds() / 1e6)
        elif isinstance(dtype, pl.Time):
            changes.append(pl.col(column).cast(pl.Int64) / 1e9)
        elif isinstance(dtype, pl.List) and _is_single(dtype.inner):
            changes.append(pl.col(column).cast(pl.List(pl.String)))
        elif not _is_single(dtype):
            hint = "Use numbers, text, booleans, dates or lists of text"
            raise DataError(f"column {column!r} of {name} has the unsupported type {dtype}", hint=hint)
    return changes


def _is_single(dtype: Any) -> bool:
    """Whether a cell of this type is one number, text, truth value, date or time."""
    texts = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
    return dtype.is_numeric() or dtype.is_temporal() or isinstance(dtype, texts)


def _join_items(frame: pl.DataFrame, separator: str) -> pl.DataFrame:
    lists = [column for column, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    for column in lists:
        clashes = frame[column].explode().cast(pl.String).str.contains(separator, literal=True).sum()
        if clashes:
            hint = f"CSV joins items by {separator!r}: write Parquet instead"
            raise DataError(f"{clashes:,} items of column {column!r} hold the item separator", hint=hint)
    return frame.with_columns(pl.col(column).list.join(separator) for column in lists)
