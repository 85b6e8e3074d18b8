"""A mapping as TOML text, with the disagreements that it answers as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kohort.tables.harmonise.mapping import TableMapping

__all__ = ["mapping_text"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def mapping_text(mapping: TableMapping, *, about: Iterable[str] = (), suggestions: Iterable[str] = ()) -> str:
    """Write a mapping as TOML.

    Args:
        mapping: The mapping.
        about: Lines for the head of the file.
        suggestions: Lines for its end: what somebody has to decide.

    Returns:
        Text that `TableMapping.load` reads back.
    """
    plain = mapping.to_plain()
    lines = [*(_comment(line) for line in about), ""]
    lines += _sections((), {key: plain[key] for key in ("columns", "values") if key in plain})
    for site, own in plain.get("sites", {}).items():
        lines += _sections(("sites", site), own)
    decide = [_comment(line) for line in suggestions]
    return "\n".join([*lines, *(["# To decide:", *decide] if decide else [])]).strip() + "\n"


def _sections(place: tuple[str, ...], content: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = []
    for section, columns in content.items():
        for column, entries in columns.items():
            if not entries:
                continue
            lines.append("[" + ".".join(_key(part) for part in (*place, section, column)) + "]")
            lines += [f"{_key(key)} = {_value(value)}" for key, value in entries.items()]
            lines.append("")
    return lines


def _comment(line: str) -> str:
    """One line of comment: a value with a line break in it must not become a line of its own."""
    return "# " + _CONTROL.sub(" ", line)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _text(text)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_text(text) for text in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)
