"""How a text table is written: its encoding, what stands between cells, and whether its first line names the columns.

Each is found from the bytes unless the caller declares it, and each is stated, so that a wrong guess is seen at once.

Guarantees: what is declared is never guessed; the same bytes give the same dialect; no error shows a cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted, nearest

__all__ = ["DELIMITERS", "Dialect", "ReadingOptions", "find_dialect", "looks_like_data"]

DELIMITERS = (",", ";", "\t", "|")
NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
DATE_ORDERS = ("dmy", "mdy")
SAMPLE_BYTES = 1 << 16
SAMPLE_ROWS = 200
FEW_WORDS = 5
"""Up to one word in so many cells leaves a column one of numbers."""
DATA_CELL = re.compile(
    r"[+-]?(\d+([.,]\d*)*|[.,]\d+)(e[+-]?\d+)?"  # numbers, with any marks between digits
    r"|\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([ T].*)?",
    re.IGNORECASE,
)
YEAR = re.compile(r"(19|20)\d\d")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How to read a table; what is None is found from the file. In a plan `[data.reading]`, in a schema `[reading]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    delimiter: str | None = None
    """What stands between the cells of a text file: one character."""
    encoding: str | None = None
    """The encoding of a text file, as in "utf-8" or "latin-1"."""
    decimal: Literal[".", ","] | None = None
    """What stands before the decimals of a number."""
    header: bool | None = None
    """Whether the first line names the columns; without names they are column_1, column_2, ..."""
    date_order: Literal["dmy", "mdy"] | None = None
    """Whether 03/04/2020 is in April (dmy) or in March (mdy)."""
    null_values: tuple[str | float, ...] | Mapping[str, tuple[str | float, ...]] = field(default_factory=tuple)
    """Further values that mean a missing one, such as -999: for all columns, or by column."""
    separator: str | None = None
    """What stands between the items of a set in one cell. When None: `;`, or `|` where no cell has a `;`."""
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sets over several columns: the name of the set and the columns that hold its items, one each."""
    long: str | None = None
    """The column that names a person in a table with one row per item; rows of a person become one."""

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError("the delimiter is not one character", hint="Give one, such as ';'")
        if self.separator is not None and not self.separator:
            raise ConfigError("the item separator is empty", hint="Give one, such as ','")

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> ReadingOptions:
        """The options of a `[reading]` table.

        Raises:
            ConfigError: A key is unknown or a value has the wrong type.
        """
        known = cls.__dataclass_fields__
        for key in mapping:
            if key not in known:
                raise ConfigError(f"unknown key {key!r} in [reading]", hint=nearest(key, known))
        values = dict(mapping)
        nulls = values.get("null_values", ())
        by_column = isinstance(nulls, Mapping)
        values["null_values"] = {name: tuple(marks) for name, marks in nulls.items()} if by_column else tuple(nulls)
        if "sets" in values:
            values["sets"] = {name: tuple(columns) for name, columns in values["sets"].items()}
        if values.get("date_order") not in (None, *DATE_ORDERS) or values.get("decimal") not in (None, ".", ","):
            raise ConfigError("date_order or decimal in [reading] is unknown", hint='Use "dmy" or "mdy", "." or ","')
        return cls(**values)

    def marks_of(self, column: str) -> tuple[str, ...]:
        """The declared texts that mean a missing value in a column."""
        marks = self.null_values.get(column, ()) if isinstance(self.null_values, Mapping) else self.null_values
        return tuple(_mark(value) for value in marks)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What was found: the text as UTF-8 without byte order mark, and how to read it."""

    content: bytes = field(repr=False)
    encoding: str
    delimiter: str
    columns: tuple[str, ...]
    header: bool
    spaced: bool = False
    """Whether a space follows every delimiter."""
    trailing: bool = False
    """Whether every line ends with a delimiter: the last column has neither name nor values."""
    notes: tuple[str, ...] = ()


def find_dialect(content: bytes, name: str, options: ReadingOptions, *, delimiter: str | None = None) -> Dialect:
    """How a text table is written.

    Args:
        content: The bytes of the file.
        name: What errors call it.
        options: What is declared.
        delimiter: What the file's ending says, if it says anything.

    Returns:
        The dialect, with the content as UTF-8.

    Raises:
        DataError: The bytes are not text, have no header, or names repeat.
    """
    text, encoding = _decoded(content, name, options.encoding)
    text = text.rstrip(b"\r\n") + b"\n"
    excel_separator, text = _excel_line(text)
    chosen = options.delimiter or excel_separator or delimiter or _delimiter_of(text)
    rows = _first_rows(text, chosen)
    if not rows or not rows[0]:
        raise DataError(f"{name} has no header", hint="The first line must name the columns")
    header = options.header
    if header is None:
        header = not looks_like_data(rows)
    notes = [] if encoding == "UTF-8" else [f"read as {encoding}"]
    if chosen != ",":
        notes.append(f"cells are separated by {NAMES.get(chosen, chosen)}s")
    trailing = False
    if header:
        columns, trailing = _named([cell.strip() for cell in rows[0]], rows[1:], name, notes)
    else:
        columns = tuple(f"column_{number}" for number in range(1, len(rows[0]) + 1))
        notes.append("the first line holds values, so columns are called column_1, column_2, ...")
    return Dialect(
        content=text,
        encoding=encoding,
        delimiter=chosen,
        columns=columns,
        header=header,
        spaced=_spaced(rows),
        trailing=trailing,
        notes=tuple(notes),
    )


def looks_like_data(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of some rows holds values rather than names.

    It names columns where a text, or a year, stands above other numbers or dates; it holds values where only numbers or
    dates stand above numbers or dates. A few words may be among those: names that stand in another line are. Where
    nothing tells, the first line is taken for names, as in most files.

    Args:
        rows: The cells of the first lines of a file.

    Returns:
        True if the first line holds values, False if it names columns.
    """
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if not below:
        return False
    like_below = False
    for place, cell in enumerate(first):
        values = [row[place].strip() for row in below if row[place].strip() not in ("", "NA", "?", ".")]
        words = sum(not DATA_CELL.fullmatch(value) for value in values)
        if not values or words > len(values) // FEW_WORDS:
            continue
        above_numbers = YEAR.fullmatch(cell.strip()) and not all(YEAR.fullmatch(value) for value in values)
        if above_numbers or not DATA_CELL.fullmatch(cell.strip()):
            return False
        like_below = True
    return like_below


def _mark(value: str | float) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(cast(float, value))) if whole else str(value)


def _decoded(content: bytes, name: str, declared: str | None) -> tuple[bytes, str]:
    """The content as UTF-8, and what it was."""
    if declared is not None:
        return _declared_text(content, name, declared)
    if content.startswith(b"\xef\xbb\xbf"):
        return _checked(content[3:], name), "UTF-8"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _declared_text(content, name, "utf-16")
    if b"\x00" in content:
        return _wide(content, name)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return _one_byte(content, name)
    return content, "UTF-8"


def _checked(content: bytes, name: str) -> bytes:
    if b"\x00" in content:
        raise DataError(f"{name} holds NUL bytes", hint="It is binary or damaged: save it as UTF-8 CSV")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise DataError(f"{name} is not UTF-8 (line {line:,})", hint="Save it as UTF-8") from None
    return content


def _declared_text(content: bytes, name: str, encoding: str) -> tuple[bytes, str]:
    try:
        text = content.decode(encoding)
    except LookupError:
        raise ConfigError(f"unknown encoding {encoding!r}", hint='Use "utf-8", "latin-1" or "utf-16"') from None
    except UnicodeDecodeError:
        raise DataError(f"{name} is not {encoding}", hint="Save it as UTF-8, or declare its encoding") from None
    return _checked(text.removeprefix("\ufeff").encode(), name), encoding.upper()


def _wide(content: bytes, name: str) -> tuple[bytes, str]:
    """UTF-16 without a byte order mark: zeros in every second byte of the first line."""
    head = np.frombuffer(content[:400], dtype=np.uint8)
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = head[start::2] == 0
        others = head[1 - start :: 2] == 0
        if len(content) % 2 == 0 and zeros.mean() > 0.7 and not others.any():
            return _declared_text(content, name, encoding)
    return _checked(content, name), "UTF-8"


def _one_byte(content: bytes, name: str) -> tuple[bytes, str]:
    """Latin-1, or Windows-1252 where it uses the places that Latin-1 leaves to control codes."""
    windows = bool(((np.frombuffer(content, dtype=np.uint8) & 0xE0) == 0x80).any())
    if not windows:
        return content.decode("latin-1").encode(), "Latin-1"
    try:
        return content.decode("cp1252").encode(), "Windows-1252"
    except UnicodeDecodeError:
        return _checked(content, name), "UTF-8"


def _excel_line(text: bytes) -> tuple[str | None, bytes]:
    """`sep=;` as the first line, as Excel writes and hides it."""
    first, _, rest = text.partition(b"\n")
    found = re.fullmatch(rb"sep=(.)\r?", first)
    return (found.group(1).decode(), rest) if found else (None, text)


def _delimiter_of(text: bytes) -> str:
    """The delimiter that gives every record the most fields; where none does, the most frequent one of the header."""
    sample = text[:SAMPLE_BYTES]
    if len(text) > SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    octets = np.frombuffer(sample, dtype=np.uint8)
    outside = ~(np.cumsum(octets == ord('"'), dtype=np.uint8) & 1).astype(bool)
    ends = np.flatnonzero((octets == ord("\n")) & outside)
    if not ends.size:
        return ","
    best, most = ",", (False, 0)
    for candidate in DELIMITERS:
        fields = _fields(octets, outside, ends, candidate)
        found = (bool((fields == fields[0]).all()), int(fields[0]))
        if found[1] > 1 and found > most:
            best, most = candidate, found
    return best


def _fields(
    octets: NDArray[np.uint8], outside: NDArray[np.bool_], ends: NDArray[np.int64], delimiter: str
) -> NDArray[np.int64]:
    places = np.flatnonzero((octets == ord(delimiter)) & outside)
    return np.diff(np.searchsorted(places, ends), prepend=0) + 1


def _first_rows(text: bytes, delimiter: str) -> list[list[str]]:
    sample = text[:SAMPLE_BYTES].decode("utf-8", errors="ignore")
    found: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter):
            found.append(row)
            if len(found) > SAMPLE_ROWS:
                break
    except csv.Error:
        pass  # the rows so far tell enough; the whole file is checked when it is read
    if len(text) > SAMPLE_BYTES and len(found) <= SAMPLE_ROWS:
        found = found[:-1] or found  # the last one may be cut
    return found


def _spaced(rows: Sequence[Sequence[str]]) -> bool:
    later = [cell for row in rows for cell in row[1:]]
    return len(rows) > 1 and bool(later) and all(cell.startswith(" ") for cell in later)


def _named(
    names: list[str], below: Sequence[Sequence[str]], name: str, notes: list[str]
) -> tuple[tuple[str, ...], bool]:
    """The names of the header; an index without a name and an empty last column are known mistakes of writers."""
    if names[0] == "" and len(names) > 1 and _counts_rows([row[0] for row in below if row]):
        names = ["index", *names[1:]] if "index" not in names else names
        notes.append("the first column has no name and counts the rows; it is called index")
    blank = len(names) > 1 and all(row[-1].strip() == "" for row in (names, *below) if len(row) == len(names))
    if blank:
        names = [*names[:-1], f"column_{len(names)}"]
        notes.append("the last column has neither name nor values and is left out")
    unnamed = sum(not column for column in names)
    if unnamed:
        hint = "Name every column; an index written by accident has no name: remove it"
        raise DataError(f"{name} has {counted(unnamed, 'column')} without a name", hint=hint)
    repeated = sorted({column for column in names if names.count(column) > 1})
    if repeated:
        raise DataError(f"{name} names a column twice: {', '.join(repeated)}", hint="Rename one of them")
    return tuple(names), blank


def _counts_rows(cells: Sequence[str]) -> bool:
    if not cells or not all(cell.isdigit() for cell in cells):
        return False
    first = int(cells[0])
    return first in (0, 1) and [int(cell) for cell in cells] == list(range(first, first + len(cells)))
