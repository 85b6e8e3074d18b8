"""Keys: which rows of a table look the same to someone who knows their quasi-identifiers.

A key function turns the quasi-identifiers into what counts as "the same": the values as they are, bins, masked text, or
any function of one's own, such as a similarity for images. Named key functions are found in
`kohort.anonymity.gate.key_kinds`, under the entry point group `kohort.gate_keys`, or by `function:package.module:NAME`.
A plan or a command line can only name an installed one, never bring code. `key_version` tells code of one name apart.

Guarantees: two rows share a group if and only if their key values are equal in every column, null being a value and
the two zeros one number; a hash that two different rows share never joins them. The numbers of groups have no meaning,
but the same table always gives the same ones. `texts` gives different groups different bytes, and any two sites the
same bytes for the same values: a number has one text whatever its type, and null differs from the empty text.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest
from kohort.files import disk_errors
from kohort.registry import discover
from kohort.tables.frames import from_native

__all__ = ["GateKey", "Groups", "KeyFunction", "Keys", "group_keys", "group_rows", "key_version", "read_columns"]

Integers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.unsignedinteger[Any]]
KeyFunction: TypeAlias = Callable[[pl.DataFrame], Any]
"""The quasi-identifiers in, one key per row out: a frame, a series, an array [n] or [n, d], or a list of values."""

KINDS, ENTRY_POINTS = "kohort.anonymity.gate.key_kinds", "kohort.gate_keys"
PART_SEPARATOR = ";"

# Long tables are grouped in parts of this many rows: that bounds the memory a grouping takes on top of the table.
PART_ROWS = 1 << 20
SAMPLE_ROWS = 2048
REPEATS_OF_FEW_GROUPS = 24

NULL, PLAIN, OCTETS, SEVERAL = b"\x00", b"\x01", b"\x02", b"\x03"
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000}


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A partition of rows into groups.

    Whichever of `members` and `known_codes` is cheaper to find is kept; the other form is made when it is asked for.

    Attributes:
        sizes: Rows of each group.
        first_rows: First row of each group.
        members: The rows, group by group; or None.
        known_codes: The group of each row; or None.
    """

    sizes: Integers
    first_rows: Integers
    members: Rows | None = field(default=None, repr=False)
    known_codes: Integers | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    @cached_property
    def codes(self) -> Integers:
        """The number of each row's group."""
        if self.known_codes is not None:
            return self.known_codes
        # Half the width while rows are scattered: what costs here is memory, not arithmetic.
        return self.to_rows(np.arange(self.count, dtype=np.uint32)).astype(np.int64)

    def to_rows(self, of_group: NDArray[Any]) -> NDArray[Any]:
        """Spread one value per group over the rows."""
        if self.members is None:
            return of_group[self.codes]
        of_row = np.empty(len(self.members), of_group.dtype)
        of_row[self.members] = np.repeat(of_group, self.sizes)
        return of_row


@dataclass(frozen=True, kw_only=True)
class GateKey:
    """A named key function.

    Attributes:
        name: Its name.
        make: Reads the text after the name and a colon, and gives the function.
        meant: Where that text names a key function in turn: gives it, and what is left of the text.
    """

    name: str
    make: Callable[[str], KeyFunction]
    meant: Callable[[str], tuple[GateKey, str]] | None = None


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
        """The number of each row's group; the numbers have no meaning outside this object."""
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
        """Spread one value per group over the rows."""
        return self.partition.to_rows(of_group)

    @cached_property
    def texts(self) -> list[bytes]:
        """One byte string per group, the same at every site that holds the same values."""
        columns = [_encode_column(column) for column in self.values[self.partition.first_rows]]
        return [b"".join(parts) for parts in zip(*columns, strict=True)]


def group_keys(frame: Any, quasi: Sequence[str], *, key: str | KeyFunction | None = None) -> Keys:
    """Group the rows by their quasi-identifiers, seen through a key function.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        key: A name (`exact`, `bins:age=20,40,60`, `mask:zip=3`, `similarity:12`, several joined by `;`, or an installed
            one) or a function of the quasi-identifiers. None: the values as they are.

    Returns:
        The groups and the key of every row.

    Raises:
        ConfigError: No quasi-identifier is named, or the key function is unknown or does not give one key per row.
        DataError: The table lacks a column, has no rows, or a column holds lists.

    Example:
        >>> ages = pl.DataFrame({"age": [18, 25, 61]})
        >>> group_keys(ages, ["age"], key="bins:age=20,40,60").groups
        3
    """
    if isinstance(quasi, str) or not quasi:
        raise ConfigError("no list of quasi-identifiers is given", hint="Name at least one column")
    return Keys.of(_key_values(read_columns(frame, quasi), key))


def read_columns(frame: Any, names: Sequence[str]) -> pl.DataFrame:
    """These columns of any table kohort reads.

    Args:
        frame: A pandas, polars or pyarrow table.
        names: Names of the columns; one that is named twice is read once.

    Returns:
        The columns in plain types, in the order of their names.

    Raises:
        DataError: A column is absent or holds lists, or the table has no rows.
    """
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
        hint = "A column of the gate has one value per row; leave sets of items out"
        raise DataError(f"columns hold lists: {', '.join(lists)}", hint=hint)
    return found


def group_rows(values: pl.DataFrame) -> Groups:
    """Group the rows of a table by all its columns, about as fast as one group-by.

    Args:
        values: The columns to group by; null is a value.

    Returns:
        The groups. Their numbers have no meaning, but the same table always gives the same ones.
    """
    # Aliases, for a column may be called like one the grouping makes.
    plain = values.select(pl.col(name).alias(f"key{position}") for position, name in enumerate(values.columns))
    if plain.height > SAMPLE_ROWS and _has_many_groups(plain):
        return _group_by_hash(plain)
    return _group_by_value(plain) if plain.height <= PART_ROWS else _group_in_parts(plain)


def _has_many_groups(values: pl.DataFrame) -> bool:
    """Whether a spread-out sample hardly repeats itself."""
    sample = values[np.linspace(0, values.height - 1, SAMPLE_ROWS).astype(np.int64)]
    return SAMPLE_ROWS - sample.n_unique() < REPEATS_OF_FEW_GROUPS


def _group_by_value(values: pl.DataFrame) -> Groups:
    lists = values.with_row_index("row").group_by(values.columns, maintain_order=True).agg(pl.col("row"))["row"]
    sizes = lists.list.len().to_numpy().astype(np.int64)
    members = lists.explode().to_numpy()
    first_rows = members[np.cumsum(sizes) - sizes].astype(np.int64)
    return Groups(sizes=sizes, first_rows=first_rows, members=members)


def _group_in_parts(values: pl.DataFrame) -> Groups:
    """Group part by part, then group the first rows of all parts' groups."""
    codes = np.empty(values.height, np.int64)
    heads: list[Integers] = []
    known = 0
    for start in range(0, values.height, PART_ROWS):
        part = _group_by_value(values.slice(start, PART_ROWS))
        codes[start : start + PART_ROWS] = part.codes + known
        heads.append(part.first_rows + start)
        known += part.count
    all_heads = np.concatenate(heads)
    merged = _group_by_value(values[all_heads])
    merged_codes = merged.codes
    for start in range(0, values.height, PART_ROWS):
        codes[start : start + PART_ROWS] = merged_codes[codes[start : start + PART_ROWS]]
    sizes = np.bincount(codes, minlength=merged.count).astype(np.int64, copy=False)
    return Groups(sizes=sizes, first_rows=all_heads[merged.first_rows], known_codes=codes)


def _group_by_hash(values: pl.DataFrame) -> Groups:
    """Sort the hashes of the rows, then compare every row with the first of its group: hashes do not prove equality."""
    hashes = _row_hashes(values)
    members = hashes.arg_sort().to_numpy()
    ordered = hashes.to_numpy()[members]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    del ordered
    first_rows = np.minimum.reduceat(members, starts)
    groups = Groups(
        sizes=np.diff(starts, append=values.height), first_rows=first_rows.astype(np.int64), members=members
    )
    first_of_row = pl.Series(groups.to_rows(first_rows))
    if any(column.ne_missing(column.gather(first_of_row)).any() for column in values):
        return _group_by_value(values)
    return groups


def _row_hashes(values: pl.DataFrame) -> pl.Series:
    return values.hash_rows()


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
    kind, argument = _find_kind(text)
    return kind.make(argument)


def _find_kind(text: str) -> tuple[GateKey, str]:
    name, _, argument = text.strip().partition(":")
    kind = _kinds().get(name)
    if kind is None:
        raise ConfigError(f"unknown key function {name!r}", hint=nearest(name, _kinds()))
    return kind, argument


def key_version(key: str) -> str:
    """Which code a key is made by, where it is not kohort's own.

    It covers the files in which the `make` of each named key function stands, not what these import.

    Args:
        key: The key as a plan names it.

    Returns:
        A digest of these files; empty where all of it is kohort's own.

    Raises:
        ConfigError: A key function is unknown here, or its file cannot be read.
    """
    made = hashlib.blake2b(digest_size=16)
    outside = False
    for part in key.split(PART_SEPARATOR):
        kind, argument = _find_kind(part)
        if kind.meant is not None:
            kind, _ = kind.meant(argument)
        home = getattr(kind.make, "__module__", "")
        if home.partition(".")[0] == __name__.partition(".")[0]:
            continue
        made.update(hashlib.blake2b(_source_of(kind, home), digest_size=32).digest())
        outside = True
    return made.hexdigest() if outside else ""


def _source_of(kind: GateKey, module: str) -> bytes:
    """The bytes of the file that a key function is written in."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        raise ConfigError(
            f"the file of the key function {kind.name!r} cannot be found", hint="Let make be a function of a module"
        )
    with disk_errors(Path(path)):
        return Path(path).read_bytes()


def _as_values(found: Any, *, rows: int) -> pl.DataFrame:
    """The output of a key function as columns. Python values become bytes, for they may be of any kind in each row."""
    values = _as_columns(found)
    if values.height != rows:
        hint = "A key function gives one key per row"
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


def _encode(value: object) -> bytes:
    """Bytes that differ for different values and mark their own end, so that several can be joined."""
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
