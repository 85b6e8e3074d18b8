"""A site's classes as something it can share, in memory and as bytes (Choudhury et al., 2020, section 3.4).

A mapping says, for every class of a site's anonymised rows, which cell each quasi-identifier was released as and which
labels its items were released as. A new row is assigned to one of these classes before a model that learned from
anonymised rows sees it (`kohort.methods.syntactic.mapping.assign`).

The bytes are canonical JSON in which every distinct cell, item and label occurs once.

Guarantees: no class of a mapping is smaller than its k; the bytes are the same for the same mapping, and reading them
runs no code: anything else than what `to_bytes` writes, or another schema, is an IntegrityError.
"""

from __future__ import annotations

import json
from collections import abc
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, IntegrityError, counted
from kohort.tables.cells import Interval, Label, Suppressed, ValueSet, parse_cell

__all__ = ["ItemGroups", "JointMapping", "Leaves", "QuasiColumn", "SiteMapping", "number_of"]

Integers = NDArray[np.int64]
Leaves = abc.Mapping[str, tuple[str, ...]]

FORMAT = "kohort-mapping"
VERSION = 1
MAX_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class QuasiColumn:
    """What a column's cells are measured against: a number's range or a category's values; and what its labels hold.

    `missing` says that a missing value is one of the values.
    """

    name: str
    kind: Literal["number", "category"]
    bounds: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    missing: bool = False
    labels: Leaves = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ItemGroups:
    """Which items a released label stands for: `labels[g]` for `members[g]`; class c has the labels `of_class[c]`.

    A label is a cell's text: an item as it is, `{a, b}`, or `<label>` of an item hierarchy. Within a class no item
    stands under two labels, unless all labels are nested, as those of a hierarchy are; it then goes by the smallest.
    """

    labels: tuple[str, ...] = ()
    members: tuple[tuple[str, ...], ...] = ()
    of_class: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteMapping:
    """The classes of one site's release. `cells[column][class]` is a cell's text, None for a missing value."""

    site: str
    schema: str
    data_version: str
    k: int
    m: int
    columns: tuple[QuasiColumn, ...]
    items: str | None
    cells: tuple[tuple[str | None, ...], ...]
    groups: ItemGroups
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise IntegrityError(f"the mapping of site {self.site!r} {problem}", hint="Ask the site to publish again")

    @property
    def quasi(self) -> tuple[str, ...]:
        """Names of the quasi-identifiers."""
        return tuple(column.name for column in self.columns)

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.sizes)

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return _encoded(self)

    @classmethod
    def from_bytes(cls, content: bytes, *, schema: str | None = None) -> SiteMapping:
        """The inverse of `to_bytes`. With `schema`, a fingerprint, a mapping made for another one is refused."""
        fields = _decoded(content)
        columns = tuple(QuasiColumn(**column) for column in fields.pop("columns"))
        found = cls(columns=columns, groups=ItemGroups(**fields.pop("groups")), **fields)
        if found.to_bytes() != content:
            raise IntegrityError("the bytes of a mapping are not canonical", hint="Ask the site to publish again")
        if schema is not None and found.schema != schema:
            hint = "All sites need one schema: compare their plans"
            raise IntegrityError(f"the mapping of site {found.site!r} is for another schema", hint=hint)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class JointMapping:
    """The classes of several sites, those of the first site first. `site_of[class]` counts into `sites`.

    `versions[s]` is the data version of `sites[s]`; a site stands twice when it published two versions.
    """

    schema: str
    sites: tuple[str, ...]
    versions: tuple[str, ...]
    columns: tuple[QuasiColumn, ...]
    items: str | None
    cells: tuple[tuple[str | None, ...], ...]
    groups: ItemGroups
    sizes: Integers
    site_of: Integers

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.sizes)

    def first_class(self, site: str) -> int:
        """The number of a site's first class: where its own numbering starts; of its last version if there are two."""
        for place in reversed(range(len(self.sites))):
            if self.sites[place] == site:
                return int(np.searchsorted(self.site_of, place))
        raise ConfigError(f"site {site!r} has no mapping in the union", hint=f"Sites: {', '.join(self.sites)}")


def _problem(mapping: SiteMapping) -> str:
    """What is wrong with a mapping, without a value of it; empty when nothing is."""
    groups, count = mapping.groups, len(mapping.sizes)
    if mapping.k < 1 or mapping.m < 0 or not count or not (mapping.columns or mapping.items):
        return "has no k, no m, no class or no column"
    if len(set(mapping.quasi)) < len(mapping.columns) or mapping.items in mapping.quasi:
        return "names a column twice"
    if min(mapping.sizes) < mapping.k:
        return f"has {sum(size < mapping.k for size in mapping.sizes):,} class(es) of fewer than {mapping.k} rows"
    lengths = {len(line) for line in mapping.cells} | {len(groups.of_class)}
    if len(mapping.cells) != len(mapping.columns) or lengths != {count} or len(groups.labels) != len(groups.members):
        return "has columns of different lengths"
    for column, line in zip(mapping.columns, mapping.cells, strict=True):
        if column.kind == "number" and not (column.bounds and np.isfinite(column.bounds).all()):
            return f"has no bounds for column {column.name!r}"
        unreadable = sum(not _readable(text, column) for text in set(line))
        if unreadable:
            return f"has {counted(unreadable, 'unreadable cell')} in column {column.name!r}"
    return _groups_problem(groups, has_items=mapping.items is not None)


def _groups_problem(groups: ItemGroups, *, has_items: bool) -> str:
    if not has_items and groups.labels:
        return "has item labels and no items column"
    if any(not held or list(held) != sorted(set(held)) for held in groups.members):
        return "has an item label that stands for nothing, or for an item twice"
    nested = _is_nested(groups.members)
    for held in groups.of_class:
        if any(not 0 <= g < len(groups.labels) for g in held) or list(held) != sorted(set(held)):
            return "has a class with unknown or repeated item labels"
        listed = [] if nested else [item for g in held for item in groups.members[g]]
        if len(set(listed)) < len(listed):
            return "has a class with an item under two labels"
    return ""


def _is_nested(members: tuple[tuple[str, ...], ...]) -> bool:
    """Whether any two of the sets are disjoint, or one holds the other."""
    top: dict[str, int] = {}
    for place in sorted(range(len(members)), key=lambda at: len(members[at])):
        below = {top[item] for item in members[place] if item in top}
        if sum(len(members[other]) for other in below) != sum(item in top for item in members[place]):
            return False
        top.update(dict.fromkeys(members[place], place))
    return True


def _readable(text: str | None, column: QuasiColumn) -> bool:
    try:
        cell = parse_cell(text)
    except DataError:
        return False
    if isinstance(cell, Label):
        leaves = column.labels.get(cell.text, ())
        return bool(leaves) and (column.kind == "category" or all(number_of(leaf) is not None for leaf in leaves))
    if isinstance(cell, Interval):
        return column.kind == "number"
    if column.kind == "category" or isinstance(cell, Suppressed):
        return True
    members = cell.values if isinstance(cell, ValueSet) else (cell,)
    return all(member is None or number_of(member) is not None for member in members)


def number_of(text: str) -> float | None:
    """The finite number a text stands for.

    Args:
        text: The text of a cell or of a member.

    Returns:
        The number; None for any other text, "nan" and "inf" among them.
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _encoded(mapping: SiteMapping) -> bytes:
    """The bytes of a mapping."""
    items = sorted({item for held in mapping.groups.members for item in held})
    number = {item: at for at, item in enumerate(items)}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "site": mapping.site,
        "schema": mapping.schema,
        "data_version": mapping.data_version,
        "k": mapping.k,
        "m": mapping.m,
        "columns": [_column_document(column) for column in mapping.columns],
        "cells": [_interned(line) for line in mapping.cells],
        "items": mapping.items,
        "item_names": items,
        "labels": list(mapping.groups.labels),
        "members": [[number[item] for item in held] for held in mapping.groups.members],
        "of_class": [list(held) for held in mapping.groups.of_class],
        "sizes": list(mapping.sizes),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _decoded(content: bytes) -> dict[str, Any]:
    """The fields of a mapping; `columns` and `groups` as keyword arguments."""
    if len(content) > MAX_BYTES:
        _refuse("is too large")
    try:
        document = json.loads(content.decode("ascii"), parse_constant=_no_number)
        if not isinstance(document, dict) or (document.pop("format"), document.pop("version")) != (FORMAT, VERSION):
            _refuse("is of another format")
        names = _texts(document.pop("item_names"))
        fields = {
            "site": _text(document.pop("site")),
            "schema": _text(document.pop("schema")),
            "data_version": _text(document.pop("data_version")),
            "k": _whole(document.pop("k")),
            "m": _whole(document.pop("m")),
            "columns": [_column_fields(column) for column in document.pop("columns")],
            "items": _optional_text(document.pop("items")),
            "cells": tuple(_line(entry) for entry in document.pop("cells")),
            "groups": {
                "labels": _texts(document.pop("labels")),
                "members": tuple(tuple(names[_place(at)] for at in held) for held in document.pop("members")),
                "of_class": tuple(tuple(_whole(at) for at in held) for held in document.pop("of_class")),
            },
            "sizes": tuple(_whole(size) for size in document.pop("sizes")),
        }
    except (UnicodeDecodeError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        _refuse("is malformed")
    if document:
        _refuse("has fields this version does not know")
    return fields


def _refuse(what: str) -> NoReturn:
    raise IntegrityError(f"a mapping {what}", hint="Ask the site to publish again") from None


def _no_number(_: str) -> NoReturn:
    """NaN and infinity are not JSON."""
    raise ValueError


def _column_document(column: QuasiColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "kind": column.kind,
        "bounds": None if column.bounds is None else list(column.bounds),
        "values": list(column.values),
        "missing": column.missing,
        "labels": {label: list(leaves) for label, leaves in column.labels.items()},
    }


def _column_fields(entry: dict[str, Any]) -> dict[str, Any]:
    if set(entry) != {"name", "kind", "bounds", "values", "missing", "labels"} or not isinstance(
        entry["missing"], bool
    ):
        raise ValueError
    if entry["kind"] not in ("number", "category"):
        raise ValueError
    bounds = entry["bounds"]
    if bounds is not None:
        low, high = bounds
        if not isinstance(low, float) or not isinstance(high, float) or low > high:
            raise ValueError
    return {
        "name": _text(entry["name"]),
        "kind": entry["kind"],
        "bounds": None if bounds is None else (low, high),
        "values": _texts(entry["values"]),
        "missing": entry["missing"],
        "labels": {_text(label): _texts(leaves) for label, leaves in entry["labels"].items()},
    }


def _interned(line: tuple[str | None, ...]) -> dict[str, Any]:
    texts = sorted({text for text in line if text is not None})
    number: dict[str | None, int] = {text: at for at, text in enumerate(texts)}
    number[None] = -1
    return {"texts": texts, "of_class": [number[text] for text in line]}


def _line(entry: dict[str, Any]) -> tuple[str | None, ...]:
    texts = _texts(entry["texts"])
    return tuple(None if _whole(at) == -1 else texts[_place(at)] for at in entry["of_class"])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError
    return tuple(_text(value) for value in values)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _place(value: object) -> int:
    found = _whole(value)
    if found < 0:
        raise IndexError
    return found
