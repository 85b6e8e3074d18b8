"""Text tables as they are: the dialect is found, cells become numbers, dates or texts, and what was decided is said.

Guarantees: every line has as many fields as there are columns, or an error counts those that have not; notes name
columns and counts, never a cell; the texts of the file are kept where the caller wants untouched columns back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from kohort.errors import DataError, counted
from kohort.tables.dialect import Dialect, ReadingOptions, find_dialect
from kohort.tables.text_types import NULL_MARKERS, TypedColumn, TypeRules, dates_of, typed
from kohort.tables.trial import READER_ERRORS

__all__ = ["ROW", "UNREADABLE", "TextTable", "declare_missing", "parse_text", "restore_texts", "with_dates"]

ROW = "kohort row"
"""A column of row numbers that is carried through a change of the table, so that untouched texts can be given back."""
UNREADABLE = (*READER_ERRORS, ValueError, TypeError, OSError)


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A text table that was read.

    Attributes:
        frame: The typed columns.
        texts: The columns as they stand in the file.
        notes: How it was read, one statement each.
    """

    frame: pl.DataFrame
    texts: pl.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()


def parse_text(
    content: bytes,
    name: str,
    options: ReadingOptions,
    *,
    delimiter: str | None = None,
    markers: Sequence[str] = NULL_MARKERS,
    dates: bool = True,
) -> TextTable:
    """Read a text table.

    Args:
        content: The bytes of the file.
        name: What errors call it.
        options: What is declared about it.
        delimiter: What the file's ending says, if it says anything.
        markers: Texts that mean a missing value.
        dates: Whether dates and times become ordered values; else they stay text.

    Returns:
        The table, its texts and what is to be said.

    Raises:
        DataError: The file is damaged, ragged or has no header.
    """
    dialect = find_dialect(content, name, options, delimiter=delimiter)
    _check_row_widths(dialect, name)
    try:
        texts = pl.read_csv(
            dialect.content,
            separator=dialect.delimiter,
            infer_schema=False,
            has_header=dialect.header,
        )
    except UNREADABLE:
        raise DataError(f"{name} is not readable as CSV", hint="Check quotes and separators") from None
    texts.columns = list(dialect.columns)
    if dialect.trailing:
        if (texts.to_series(texts.width - 1).fill_null("").str.strip_chars() != "").any():
            raise DataError(f"{name} has 1 column without a name", hint="Name every column")
        texts = texts.drop(texts.columns[-1])
    found = _typed_columns(texts, dialect, options, markers=markers, dates=dates)
    frame = pl.DataFrame([column.values for column in found.values()])
    return TextTable(frame=frame, texts=texts, notes=(*dialect.notes, *_notes(found)))


def declare_missing(frame: pl.DataFrame, options: ReadingOptions) -> tuple[pl.DataFrame, int]:
    """A table with the declared values as null, and how many cells those were.

    Args:
        frame: The table.
        options: Its `null_values`; a number means every cell of that number, however it is written.

    Returns:
        The table, and the number of cells that became null.

    Raises:
        DataError: A column is named that the table does not have.
    """
    by_column = options.null_values if isinstance(options.null_values, Mapping) else {}
    absent = [name for name in by_column if name not in frame.columns]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}", hint="Check null_values in [reading]")
    changes, count = [], 0
    for column in frame:
        marks = options.marks_of(column.name)
        if not marks or isinstance(column.dtype, pl.List):
            continue
        if column.dtype.is_numeric():
            found = column.cast(pl.Float64).is_in([value for mark in marks if (value := _number(mark)) is not None])
        elif column.dtype == pl.String:
            found = column.is_in(list(marks))
        else:
            continue
        cells = int(found.sum())
        if cells:
            changes.append(column.set(found.fill_null(False), None))
            count += cells
    return frame.with_columns(changes), count


def restore_texts(frame: pl.DataFrame, texts: pl.DataFrame | None, typed_before: pl.DataFrame) -> pl.DataFrame:
    """A changed table with the cells that did not change as the file has them.

    Args:
        frame: The changed table, with the column `ROW`.
        texts: The columns as they stand in the file; None leaves the table as it is.
        typed_before: The table before the change.

    Returns:
        The table without `ROW`. A column that has the values it had is given back in the file's own texts.
    """
    if ROW not in frame.columns:
        return frame
    rows = frame[ROW]
    out = frame.drop(ROW)
    if texts is None:
        return out
    restored = []
    for name in out.columns:
        if name not in texts.columns or name not in typed_before.columns:
            continue
        before = typed_before[name].gather(rows)
        if before.dtype == out.schema[name] and before.equals(out[name]) and not isinstance(before.dtype, pl.List):
            restored.append(texts[name].gather(rows))
    return out.with_columns(restored)


def with_dates(frame: pl.DataFrame) -> pl.DataFrame:
    """A table in memory with its dates read as a file's are: texts that are dates, and times that are all midnight.

    Args:
        frame: The table.

    Returns:
        The table; other columns are as they were.
    """
    changed = []
    for column in frame:
        if column.dtype == pl.String:
            found = dates_of(column)
        elif isinstance(column.dtype, pl.Datetime) and column.null_count() < len(column):
            found = column.cast(pl.Date) if (column.dt.truncate("1d") == column).all() else None
        else:
            found = None
        if found is not None:
            changed.append(found.alias(column.name))
    return frame.with_columns(changed)


def _number(mark: str) -> float | None:
    try:
        return float(mark)
    except ValueError:
        return None


def _typed_columns(
    texts: pl.DataFrame, dialect: Dialect, options: ReadingOptions, *, markers: Sequence[str], dates: bool
) -> dict[str, TypedColumn]:
    rules = TypeRules(
        decimal=options.decimal,
        delimiter=dialect.delimiter,
        dates=dates,
        date_order=options.date_order,
        strip=dialect.spaced,
    )
    chosen = {name: (*markers, *options.marks_of(name)) for name in texts.columns}
    found = {column.name: typed(column, replace(rules, markers=chosen[column.name])) for column in texts}
    if options.decimal is None and any(column.how == "decimal comma" for column in found.values()):
        # Where one column has a decimal comma, 1.234 in another one is a thousand.
        again = [name for name, column in found.items() if _dotted(column.values, texts[name])]
        for name in again:
            found[name] = typed(texts[name], replace(rules, markers=chosen[name], decimal=","))
    return found


def _dotted(values: pl.Series, texts: pl.Series) -> bool:
    if not values.dtype.is_float():
        return False
    known = texts.filter(values.is_not_null())
    return bool(known.str.contains(r"^[+-]?\d{1,3}(\.\d{3})+$").all())


def _notes(found: Mapping[str, TypedColumn]) -> list[str]:
    said = {
        "decimal comma": "decimal commas in: {}",
        "thousands": "marks between thousands in: {}",
        "date": "dates in: {}",
        "time": "dates with times in: {}",
        "date order": "day and month cannot be told apart, so these stay text (declare reading.date_order): {}",
        "other order": "dates that do not fit the declared reading.date_order, so these stay text: {}",
        "odd words": "numbers with a few words among them, so these stay text (to read the words as missing, name them "
        "with --null-values or in reading.null_values): {}",
    }
    notes = []
    for how, text in said.items():
        names = [name for name, column in found.items() if column.how == how]
        if names:
            notes.append(text.format(", ".join(names)))
    markers: dict[str, list[str]] = {}
    for name, column in found.items():
        for marker in column.markers:
            markers.setdefault(marker, []).append(name)
    notes += [f"{marker!r} is a missing value in: {', '.join(names)}" for marker, names in markers.items()]
    return notes


def _check_row_widths(dialect: Dialect, name: str) -> None:
    """Every line must have as many fields as the header: readers fill or cut the others without a word."""
    content, width = dialect.content, len(dialect.columns)
    octets = np.frombuffer(content, dtype=np.uint8)
    ends, between = octets == ord("\n"), octets == ord(dialect.delimiter)
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
            f"{name} is ragged: {counted(wrong.size, 'row')} without the {width} fields of the header "
            f"(first: record {wrong[0] + 1:,} with {fields[wrong[0]]})",
            hint="Check separators and quotes there",
        )
