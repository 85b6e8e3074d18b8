"""A table as a command needs it: read, its item sets as lists, its identifiers known, nothing undeclared by accident.

`check`, `anonymize` and `gate` share this step, and so read the same table in the same way.

Guarantees: a declared or suspected identifier is never among the columns to release unless the user names it in `keep`;
columns of a release that nobody declared are an error that lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from kohort.errors import ConfigError, DataError, nearest, nearest_column
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.dialect import ReadingOptions
from kohort.tables.frames import TEXT_ENDINGS, order_tells
from kohort.tables.harmonise.profiles import SAMPLE, missing_code_notes
from kohort.tables.item_sets import with_declared_sets
from kohort.tables.parts import order_tells_in_parts
from kohort.tables.reading import ROW, restore_texts
from kohort.tables.roles import person_of, suspected
from kohort.tables.scanning import is_parquet, scan_parquet, spread_rows
from kohort.toml import read_toml

__all__ = [
    "REST",
    "Declared",
    "Prepared",
    "Scanned",
    "ScannedRelease",
    "missing_code_lines",
    "prepare",
    "read_schema_file",
    "scan",
    "scan_release",
]

REST = "rest"
"""In `drop`: every column that has no other role."""
ROWS_JUDGED = 100_000
"""Rows by which columns of a table that is read in parts are suspected to be identifiers."""
LISTS = ("quasi", "sensitive", "identifiers", "items", "drop", "keep")
SCHEMA_FILE_KEYS = (
    *LISTS,
    "target",
    "person",
    "features",
    "kinds",
    "bins",
    "bounds",
    "categories",
    "other",
    "nullable",
    "hierarchies",
    "ancestors",
    "ordered",
)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user said about the columns of a table."""

    quasi: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    target: str | None = None
    items: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    person: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    reading: ReadingOptions = field(default_factory=ReadingOptions)

    def with_file(self, path: Path | None) -> Declared:
        """What is said here, and what a schema file says where nothing is said here.

        Raises:
            ConfigError: The file cannot be read or has an unknown key.
        """
        if path is None:
            return self
        found = read_schema_file(path)
        reading = ReadingOptions.of(found.pop("reading", {}))
        own = {name: getattr(self, name) or _value(found.get(name), name) for name in (*LISTS, "target", "person")}
        separator = self.reading.separator or reading.separator
        nulls = self.reading.null_values or reading.null_values
        return Declared(**own, reading=replace(reading, separator=separator, null_values=nulls))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A table that was read, and what its columns are.

    Attributes:
        frame: The table without dropped columns, item sets as lists.
        declared: What was said, item sets by their plain names.
        identifiers: The declared identifiers, the person's column among them.
        person: The column that names the person; None where none does.
        suspicions: Columns that look like identifiers and that nobody named, and why.
        undeclared: Columns without any role, the suspected ones among them.
        reading: How the file was read.
        in_dropped_order: Whether rows are sorted by a dropped column: their order then tells what it held.
        known: Whether it is a named dataset, whose columns are described already.
    """

    frame: pl.DataFrame
    declared: Declared
    identifiers: tuple[str, ...] = ()
    person: str | None = None
    suspicions: Mapping[str, str] = field(default_factory=dict)
    undeclared: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    in_dropped_order: bool = False
    known: bool = False
    texts: pl.DataFrame | None = field(default=None, repr=False)
    typed: pl.DataFrame | None = field(default=None, repr=False)

    def for_release(self) -> pl.DataFrame:
        """The columns to release, and the person's, which is needed to count; with row numbers in `ROW`.

        Raises:
            ConfigError: Some columns have no role; the message lists them, suspected identifiers apart.
        """
        if self.undeclared:
            raise _without_role(self.undeclared, self.suspicions)
        hidden = [name for name in self.identifiers if name != self.person]
        return self.frame.drop(hidden).with_row_index(ROW)

    def as_in_file(self, released: pl.DataFrame, out: Path) -> pl.DataFrame:
        """A released table without row numbers and identifiers; in a text file, untouched columns as they were."""
        exact = self.typed is not None and out.suffix.lower() in TEXT_ENDINGS
        plain = released if not exact or self.typed is None else restore_texts(released, self.texts, self.typed)
        return plain.drop([name for name in (ROW, *self.identifiers) if name in plain.columns])


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """A table to look at, which may be larger than memory, and what its columns are.

    Attributes:
        table: The table without dropped columns, item sets as lists; read in parts where it is a Parquet file.
        declared: What was said, item sets by their plain names.
        identifiers: The declared identifiers, the person's column among them.
        person: The column that names the person; None where none does.
        reading: How the file was read.
        known: Whether it is a named dataset, whose columns are described already.
    """

    table: pl.LazyFrame
    declared: Declared
    identifiers: tuple[str, ...] = ()
    person: str | None = None
    reading: tuple[str, ...] = ()
    known: bool = False


@dataclass(frozen=True, kw_only=True)
class ScannedRelease:
    """A Parquet table to release, which may be larger than memory, and what its columns are.

    Attributes:
        table: The columns to release, and the person's, which is needed to count.
        declared: What was said.
        identifiers: The declared identifiers, the person's column among them.
        person: The column that names the person; None where none does.
        order_tells: Whether the order of rows says something about persons that a release must not.
        reading: How the file was read.
    """

    table: pl.LazyFrame
    declared: Declared
    identifiers: tuple[str, ...] = ()
    person: str | None = None
    order_tells: bool = False
    reading: tuple[str, ...] = ()

    @property
    def released(self) -> list[str]:
        """The columns to release, in table order."""
        return [name for name in self.table.collect_schema().names() if name != self.person]


def prepare(source: str, declared: Declared) -> Prepared:
    """Read a table for a command.

    Args:
        source: A named dataset, a path, or `-` for CSV on standard input.
        declared: What the user said.

    Returns:
        The table and what its columns are.

    Raises:
        ConfigError: Roles contradict one another, or there are several identifiers and no person.
        DataError: The table cannot be read or lacks a column.
    """
    opened = open_table(source, declared.reading)
    frame, declared = with_declared_sets(opened.frame, declared)
    columns = _columns(frame.columns, declared)
    plain = [name for name in columns.dropped if not isinstance(frame.schema[name], pl.List)]
    in_dropped_order = order_tells(frame, plain, None)
    frame = frame.drop(columns.dropped)
    is_file = opened.texts is not None and declared.reading.long is None
    return Prepared(
        frame=frame,
        declared=declared,
        identifiers=columns.identifiers,
        person=columns.person,
        suspicions=suspected(frame.select(columns.undeclared)) if columns.undeclared else {},
        undeclared=columns.undeclared,
        reading=opened.reading,
        in_dropped_order=in_dropped_order,
        known=opened.default_role is not None,
        texts=opened.texts if is_file else None,
        typed=opened.frame if is_file else None,
    )


def scan(source: str, declared: Declared) -> Scanned:
    """Open a table for a command that looks at it and releases nothing.

    A Parquet file is read in parts, unless item sets or values that mean missing are declared: these need it whole.

    Args:
        source: A named dataset, a path, or `-` for CSV on standard input.
        declared: What the user said.

    Returns:
        The table and what its columns are.

    Raises:
        ConfigError: Roles contradict one another, or there are several identifiers and no person.
        DataError: The table cannot be read or lacks a column.
    """
    reading = declared.reading
    notes: tuple[str, ...] = ()
    known = False
    if is_parquet(source) and not (declared.items or reading.sets or reading.long or reading.null_values):
        table = scan_parquet(source)
    else:
        opened = open_table(source, reading)
        frame, declared = with_declared_sets(opened.frame, declared)
        table, notes, known = frame.lazy(), opened.reading, opened.default_role is not None
    columns = _columns(table.collect_schema().names(), declared)
    return Scanned(
        table=table.drop(columns.dropped),
        declared=declared,
        identifiers=columns.identifiers,
        person=columns.person,
        reading=notes,
        known=known,
    )


def scan_release(source: str, declared: Declared) -> ScannedRelease:
    """Open a Parquet file for a command that releases it, without holding it.

    Args:
        source: Path of the file.
        declared: What the user said; neither item sets nor values that mean missing.

    Returns:
        The table and what its columns are, as `prepare` and `Prepared.for_release` find it.

    Raises:
        ConfigError: Roles contradict one another, there are several identifiers and no person, or columns have no role.
        DataError: The table cannot be read or lacks a column.
    """
    table = scan_parquet(source)
    schema = table.collect_schema()
    columns = _columns(schema.names(), declared)
    if columns.undeclared:
        raise _without_role(columns.undeclared, suspected(spread_rows(table, columns.undeclared, ROWS_JUDGED)))
    hidden = [name for name in columns.identifiers if name != columns.person]
    plain = [name for name in columns.dropped if not isinstance(schema[name], pl.List)]
    values = [name for name in (*columns.identifiers, *declared.quasi) if not isinstance(schema[name], pl.List)]
    return ScannedRelease(
        table=table.drop([*columns.dropped, *hidden]),
        declared=declared,
        identifiers=columns.identifiers,
        person=columns.person,
        order_tells=columns.person is not None or order_tells_in_parts(table, [*plain, *values]),
    )


def _without_role(undeclared: Sequence[str], suspicions: Mapping[str, str]) -> ConfigError:
    plain = [name for name in undeclared if name not in suspicions]
    parts = [f"columns without a role: {', '.join(plain)}"] if plain else []
    parts += [f"column {name!r} {why}" for name, why in suspicions.items()]
    return ConfigError(
        "; ".join(parts),
        hint="Leave them out with --drop a,b (or --drop rest), or release them as they are with --keep a,b",
    )


def missing_code_lines(table: pl.LazyFrame | pl.DataFrame, columns: Sequence[str], *, known: bool) -> tuple[str, ...]:
    """What a command says of numbers such as -999, which seem to mean a missing value and were not declared.

    Args:
        table: The table; one that is larger than memory is looked at in parts.
        columns: The columns to look at; those that hold no numbers say nothing.
        known: Whether it is a named dataset, of which nothing is said.

    Returns:
        A sentence per column, with the option that declares the number.
    """
    lazy = table.lazy()
    schema = lazy.collect_schema()
    numbers = [name for name in dict.fromkeys(columns) if schema[name].is_numeric()]
    if known or not numbers:
        return ()
    how = "if it means a missing value, add --null-values {codes}"
    return tuple(missing_code_notes([spread_rows(lazy, numbers, SAMPLE)], numbers, how=how))


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What the columns of a table are, by what the user said."""

    identifiers: tuple[str, ...]
    person: str | None
    dropped: tuple[str, ...]
    undeclared: tuple[str, ...]


def _columns(names: Sequence[str], declared: Declared) -> _Columns:
    identifiers = tuple(dict.fromkeys((*declared.identifiers, *([declared.person] if declared.person else []))))
    person = person_of(identifiers, declared.person)
    target = () if declared.target is None else (declared.target,)
    used = (*declared.quasi, *declared.sensitive, *declared.items, *target, *declared.keep)
    _check(names, used, identifiers, tuple(name for name in declared.drop if name != REST))
    roles = {*used, *identifiers}
    if REST in declared.drop and REST not in names:
        dropped = tuple(name for name in names if name not in roles)
    else:
        dropped = declared.drop
    return _Columns(
        identifiers=identifiers,
        person=person,
        dropped=dropped,
        undeclared=tuple(name for name in names if name not in roles and name not in dropped),
    )


def read_schema_file(path: Path) -> dict[str, Any]:
    """The declarations of a schema file: lists of names by role, and `[reading]`.

    Args:
        path: The TOML file; its keys may stand in a table `[schema]`.

    Returns:
        The declarations by key, unchecked but for their keys.

    Raises:
        ConfigError: The file cannot be read or has an unknown key.
    """
    content = read_toml(path, "schema file")
    found = {**{key: value for key, value in content.items() if key != "schema"}, **_section(content, "schema")}
    _section(found, "reading")
    for key in found:
        if key not in (*SCHEMA_FILE_KEYS, "reading"):
            raise ConfigError(
                f"unknown key {key!r} in the schema file", hint=nearest(key, (*SCHEMA_FILE_KEYS, "reading"))
            )
    return found


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = content.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} in the schema file is no table", hint=f"Write [{name}] and its keys below")
    return section


def _value(value: Any, name: str) -> Any:
    if name not in LISTS:
        if value is None or isinstance(value, str):
            return value
        raise ConfigError(f"{name} in the schema file is no name", hint=f'Write the name of a column: {name} = "..."')
    if isinstance(value, str):
        raise ConfigError(f"{name} in the schema file is one string", hint=f'Write a list: {name} = ["{value}"]')
    if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        hint = f'Write a list of names: {name} = ["a", "b"]'
        raise ConfigError(f"{name} in the schema file is no list of names", hint=hint)
    return tuple(value or ())


def _check(names: Sequence[str], used: Iterable[str], identifiers: Iterable[str], drop: Iterable[str]) -> None:
    for name in (asked := (*used, *identifiers, *drop)):
        if name not in names:
            raise DataError(f"the table has no column {name!r}", hint=nearest_column(name, names, asked))
    both = sorted({*used} & {*identifiers})
    if both:
        hint = "An identifier is never released: give it that role alone"
        raise ConfigError(f"columns are identifiers and also have another role: {', '.join(both)}", hint=hint)
    gone = sorted({*drop} & {*used, *identifiers})
    if gone:
        raise ConfigError(
            f"columns with a role are also dropped: {', '.join(gone)}", hint="Remove them from --drop or from the role"
        )
