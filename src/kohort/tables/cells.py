r"""One type for a generalised cell, its text form, and the rule by which a model reads it.

A cell of an anonymised table is a plain value or stands for several: an interval, a set of values, a label of a
taxonomy, or nothing at all (suppressed). Each has one text form, so an anonymised table survives CSV:

    plain value      as it is                      Private
    Interval         [low, high], both included    [20, 30]      with missing values: [20, 30, \N]
    ValueSet         {a, b}, sorted                {Divorced, Widowed}
    Label            <text>                        <Higher education>
    Suppressed       *                             *

In a set, `\` stands before a comma, a brace or a backslash of a member, and `\N` is the missing value. A plain value
that would read as one of these forms, or that starts with a backslash, is written with one backslash before it.

Learning rule: a generalised cell is encoded as the mean of the encodings of the values it could stand for (interval:
its midpoint; set: mean over members; label: mean over its leaves; suppressed: mean over the column's whole domain).

Guarantee: `parse_cell(format_cell(cell)) == cell` for every cell and every text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from kohort.errors import DataError

__all__ = [
    "SUPPRESSED",
    "Cell",
    "Interval",
    "Label",
    "Suppressed",
    "ValueSet",
    "canonical_text",
    "format_cell",
    "parse_cell",
]

EXACT_INTEGERS = 2.0**53
MISSING_MEMBER = r"\N"
SPECIAL_FORMS = (("[", "]"), ("{", "}"), ("<", ">"))
MEMBER_PIECE = re.compile(r"\\N|\\[\\,{}]|, |[^\\,{}]")


@dataclass(frozen=True)
class Interval:
    """Any number from `low` to `high`, both included; with `missing`, possibly no value at all."""

    low: float
    high: float
    missing: bool = False

    def __post_init__(self) -> None:
        # Adding zero turns -0.0 into 0.0, so that equal intervals have equal texts.
        object.__setattr__(self, "low", float(self.low) + 0.0)
        object.__setattr__(self, "high", float(self.high) + 0.0)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise DataError("an interval needs two finite ends, low first", hint="Check the generalised table")


@dataclass(frozen=True)
class ValueSet:
    """Any one of `values`: texts, or None for a missing value. Kept sorted and free of repeats."""

    values: tuple[str | None, ...]

    def __post_init__(self) -> None:
        members: Iterable[object] = self.values
        texts = {member if member is None or isinstance(member, str) else canonical_text(member) for member in members}
        if not texts:
            raise DataError("a set of values is empty", hint="Check the generalised table")
        ordered = sorted(texts, key=lambda text: (text is None, text or ""))
        object.__setattr__(self, "values", tuple(ordered))


@dataclass(frozen=True)
class Label:
    """Any leaf below this label of a taxonomy."""

    text: str


@dataclass(frozen=True)
class Suppressed:
    """Any value of the column."""


SUPPRESSED = Suppressed()
Cell: TypeAlias = Interval | ValueSet | Label | Suppressed


def canonical_text(value: object) -> str:
    """The text of a plain value: false/true for booleans, no `.0` on whole numbers, texts unchanged.

    Args:
        value: The value.

    Returns:
        The text by which values are compared and stored.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    return str(value)


def format_cell(cell: Cell | str | float | bool | None) -> str | None:
    """The text form of a cell.

    Args:
        cell: A generalised cell or a plain value.

    Returns:
        The text, from which `parse_cell` reads the cell again; None for None, a missing value.

    Example:
        >>> format_cell(ValueSet(("b", "a")))
        '{a, b}'
    """
    if cell is None:
        return None
    if isinstance(cell, Interval):
        ends = f"{_number(cell.low)}, {_number(cell.high)}"
        return f"[{ends}, {MISSING_MEMBER}]" if cell.missing else f"[{ends}]"
    if isinstance(cell, Suppressed):
        return "*"
    if isinstance(cell, Label):
        return f"<{cell.text}>"
    if isinstance(cell, ValueSet):
        return "{" + ", ".join(_escape_member(member) for member in cell.values) + "}"
    text = canonical_text(cell)
    return "\\" + text if _reads_as_special(text) else text


def parse_cell(text: str | None) -> Cell | str | None:
    """The inverse of `format_cell`.

    Args:
        text: The text of a cell; None is a missing value.

    Returns:
        The generalised cell; the text of a plain value; None for None.

    Raises:
        DataError: The text looks like a set or an interval and is not well-formed.

    Example:
        >>> parse_cell("[20, 30]")
        Interval(low=20.0, high=30.0, missing=False)
    """
    if text is None:
        return None
    if text == "*":
        return SUPPRESSED
    if text.startswith("\\"):
        return text[1:]
    if not _reads_as_special(text):
        return text
    inner = text[1:-1]
    if text[0] == "<":
        return Label(inner)
    return _parse_interval(inner) if text[0] == "[" else ValueSet(tuple(_parse_members(inner)))


@lru_cache(1 << 14)
def _number(value: float) -> str:
    whole = value.is_integer() and abs(value) < EXACT_INTEGERS
    return str(int(value)) if whole else repr(value)


def _reads_as_special(text: str) -> bool:
    bracketed = any(text.startswith(first) and text.endswith(last) for first, last in SPECIAL_FORMS)
    return text == "*" or text.startswith("\\") or (bracketed and len(text) > 1)


@lru_cache(1 << 14)
def _escape_member(member: str | None) -> str:
    return MISSING_MEMBER if member is None else re.sub(r"([\\,{}])", r"\\\1", member)


def _parse_members(inner: str) -> list[str | None]:
    """Split at `, ` outside escapes; anything else that holds a bare comma, brace or backslash is malformed."""
    members: list[str | None] = []
    current: list[str] = []
    missing = False
    position = 0
    while position < len(inner):
        match = MEMBER_PIECE.match(inner, position)
        if match is None:
            raise DataError("a generalised cell is not a well-formed set", hint="Write cells with format_cell")
        piece = match.group()
        position = match.end()
        if piece == ", ":
            members.append(_finish(current, missing))
            current, missing = [], False
        elif piece == MISSING_MEMBER:
            missing = True
            current.append(piece)
        else:
            current.append(piece[-1])
    members.append(_finish(current, missing))
    return members


def _finish(pieces: list[str], missing: bool) -> str | None:
    if missing and len(pieces) > 1:
        raise DataError("a generalised cell is not a well-formed set", hint="Write cells with format_cell")
    return None if missing else "".join(pieces)


def _parse_interval(inner: str) -> Interval:
    parts = inner.split(", ")
    missing = len(parts) == 3 and parts[2] == MISSING_MEMBER
    try:
        low, high = (float(part) for part in (parts[:2] if missing else parts))
    except ValueError:
        hint = "An interval reads [low, high]; a plain value with brackets needs a backslash before it"
        raise DataError("a generalised cell is not a well-formed interval", hint=hint) from None
    return Interval(low, high, missing)
