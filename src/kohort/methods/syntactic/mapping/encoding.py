"""Mappings as bytes: canonical JSON in which every distinct cell, item and label stands once.

Guarantee: `decoded` gives plain values of the expected types or raises IntegrityError; it never runs what it reads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from kohort.errors import IntegrityError

if TYPE_CHECKING:
    from kohort.methods.syntactic.mapping.mapping import QuasiColumn, SiteMapping

__all__ = ["decoded", "encoded"]

FORMAT = "kohort-mapping"
VERSION = 1
MAX_BYTES = 1 << 28


def encoded(mapping: SiteMapping) -> bytes:
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
        "columns": [_column(column) for column in mapping.columns],
        "cells": [_interned(line) for line in mapping.cells],
        "items": mapping.items,
        "item_names": items,
        "labels": list(mapping.groups.labels),
        "members": [[number[item] for item in held] for held in mapping.groups.members],
        "of_class": [list(held) for held in mapping.groups.of_class],
        "sizes": list(mapping.sizes),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decoded(content: bytes) -> dict[str, Any]:
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


def _column(column: QuasiColumn) -> dict[str, Any]:
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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError
    return tuple(_text(value) for value in values)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _place(value: Any) -> int:
    if _whole(value) < 0:
        raise IndexError
    return int(value)
