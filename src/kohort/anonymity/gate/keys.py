"""Keys: which rows of a table look the same to someone who knows their quasi-identifiers.

A key function turns the quasi-identifiers into what counts as "the same": the values as they are, bins, masked text, or
any function of one's own, such as a similarity for images. Named key functions are found in
`kohort.anonymity.gate.key_kinds` and under the entry point group `kohort.gate_keys`; a plan or a command line can only
name one of these, never bring code.

Guarantees: two rows share a group if and only if their key values are equal, null being a value; `texts` gives
different groups different bytes, and any two sites the same bytes for the same values: a number has one text whatever
its type, and null differs from the empty text.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.groups import Groups, group_rows
from kohort.errors import ConfigError, DataError, nearest
from kohort.registry import discover
from kohort.tables.frames import from_native

__all__ = ["GateKey", "KeyFunction", "Keys", "group_keys", "read_columns"]

Integers: TypeAlias = NDArray[np.int64]
KeyFunction: TypeAlias = Callable[[pl.DataFrame], Any]
"""The quasi-identifiers in, one key a row out: a frame or series, an array [n] or [n, d], or a list of plain values."""

KINDS, ENTRY_POINTS = "kohort.anonymity.gate.key_kinds", "kohort.gate_keys"
PART_SEPARATOR = ";"

NULL, PLAIN, OCTETS, SEVERAL = b"\x00", b"\x01", b"\x02", b"\x03"
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000}


@dataclass(frozen=True, kw_only=True)
class GateKey:
    """A named key function. `make` reads what follows the name and a colon, and gives the function."""

    name: str
    make: Callable[[str], KeyFunction]


@dataclass(frozen=True, kw_only=True, eq=False)
class Keys:
    """Which rows share a key: their partition into groups, and the key of every row."""

    partition: Groups
    values: pl.DataFrame = field(repr=False)

    @classmethod
    def of(cls, values: pl.DataFrame) -> Keys:
        """Group rows by these columns, as they are."""
        return cls(partition=group_rows(values), values=values)

    @property
    def codes(self) -> Integers:
        """The number of each row's group; the numbers mean nothing outside this object."""
        return self.partition.codes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.values.height

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.partition.count

    def to_rows(self, of_group: NDArray[Any]) -> NDArray[Any]:
        """One value a group in, one value a row out."""
        return self.partition.to_rows(of_group)

    @cached_property
    def texts(self) -> list[bytes]:
        """One byte string a group, the same at every site that holds the same values."""
        columns = [_encode_column(column) for column in self.values[self.partition.first_rows]]
        return [b"".join(parts) for parts in zip(*columns, strict=True)]

    def fingerprint_bytes(self, group: int) -> bytes:
        """The bytes of one group."""
        return self.texts[group]


def group_keys(frame: Any, quasi: Sequence[str], *, key: str | KeyFunction | None = None) -> Keys:
    """Group the rows by their quasi-identifiers, seen through a key function.

    `key` is a name (`exact`, `bins:age=20,40,60`, `mask:zip=3`, several joined by `;`, or an installed one) or a
    function of the quasi-identifiers.
    """
    if isinstance(quasi, str) or not quasi:
        raise ConfigError("no list of quasi-identifiers is given", hint="Name at least one column")
    return Keys.of(_key_values(read_columns(frame, quasi), key))


def read_columns(frame: Any, names: Sequence[str]) -> pl.DataFrame:
    """These columns of any frame kohort reads; each must be there and hold one value a row."""
    known = frame if isinstance(frame, pl.DataFrame) else from_native(frame)[0]
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in known.columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, known.columns))
    found, _ = from_native(known.select(wanted))
    if found.height == 0:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    lists = [name for name, dtype in found.schema.items() if isinstance(dtype, pl.List)]
    if lists:
        hint = "A column of the gate has one value a row; leave sets of items out"
        raise DataError(f"columns hold lists: {', '.join(lists)}", hint=hint)
    return found


@cache
def _kinds() -> dict[str, GateKey]:
    return discover(KINDS, attribute="KEY", kind=GateKey, group=ENTRY_POINTS)


def _key_values(columns: pl.DataFrame, key: str | KeyFunction | None) -> pl.DataFrame:
    if key is None:
        return columns
    functions = [_named(part) for part in key.split(PART_SEPARATOR)] if isinstance(key, str) else [key]
    found = columns
    for function in functions:
        found = _as_values(function(found), rows=columns.height)
    return found


def _named(text: str) -> KeyFunction:
    name, _, argument = text.strip().partition(":")
    kind = _kinds().get(name)
    if kind is None:
        raise ConfigError(f"unknown key function {name!r}", hint=nearest(name, _kinds()))
    return kind.make(argument)


def _as_values(found: Any, *, rows: int) -> pl.DataFrame:
    """What a key function gave, as columns. Python values become bytes, for they may be of any kind, row by row."""
    values = _as_columns(found)
    if values.height != rows:
        hint = "A key function gives one key a row"
        raise ConfigError(f"the key function gave {values.height:,} keys for {rows:,} rows", hint=hint)
    return values


def _as_columns(found: Any) -> pl.DataFrame:
    if isinstance(found, pl.DataFrame):
        return from_native(found)[0]
    if isinstance(found, pl.Series):
        return from_native(found.to_frame("key"))[0]
    if isinstance(found, np.ndarray) and found.dtype.kind in "biufU" and found.ndim in (1, 2):
        table = found.reshape(len(found), -1)
        return from_native(pl.DataFrame({f"key{i}": table[:, i] for i in range(table.shape[1])}))[0]
    try:
        encoded = [_encode(value) for value in found]
    except TypeError:
        hint = "Give a series, an array, or a list of texts, numbers, dates, bytes and tuples of these"
        raise ConfigError("the key function gave no list of plain values", hint=hint) from None
    return pl.DataFrame({"key": pl.Series(encoded, dtype=pl.Binary)})


def _encode_column(column: pl.Series) -> list[bytes]:
    if column.dtype == pl.Binary:
        return column.to_list()  # Python values, encoded when they came from a key function
    if isinstance(column.dtype, (pl.Datetime, pl.Time)):
        return [_encode(text) for text in _moment_texts(column)]
    if isinstance(column.dtype, pl.Duration):
        factor = NANOSECONDS[column.dtype.time_unit]
        spans: list[int | None] = column.to_physical().to_list()
        return [_encode(None if span is None else span * factor) for span in spans]
    if isinstance(column.dtype, pl.Date):
        column = column.cast(pl.String)
    return [_encode(value) for value in column.to_list()]


def _moment_texts(column: pl.Series) -> list[str | None]:
    """Universal time, fractions of a second without trailing zeros: equal moments have equal texts in every unit."""
    if isinstance(column.dtype, pl.Time):
        texts = column.dt.to_string("%H:%M:%S%.9f")
    else:
        if column.dtype.time_zone is not None:  # type: ignore[attr-defined] # a Datetime here
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        texts = column.dt.to_string("%Y-%m-%d %H:%M:%S%.9f")
    return texts.str.strip_chars_end("0").str.strip_chars_end(".").to_list()


def _encode(value: Any) -> bytes:
    """Bytes that tell every value from every other and say where they end, so that several can be joined."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or (isinstance(plain, float) and math.isnan(plain)):
        return NULL
    if isinstance(plain, (bytes, bytearray)):
        return OCTETS + len(plain).to_bytes(8, "big") + bytes(plain)
    if isinstance(plain, (tuple, list, np.ndarray)):
        return SEVERAL + len(plain).to_bytes(8, "big") + b"".join(_encode(member) for member in plain)
    octets = _text(plain).encode()
    return PLAIN + len(octets).to_bytes(8, "big") + octets


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isinf(value):
            raise DataError("a key function gave an infinite number", hint="Give finite numbers")
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
