"""Hierarchies that look at no row: round-number intervals, shorter dates, masked codes, plain suppression.

They depend on the kind of a column and on the values it can take, not on how the values occur or what they go with, so
choosing them gives nothing away. Bounds that are not given are the smallest and the largest value of the column.

Guarantee: every builder returns a checked `Hierarchy` that covers all the values it was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from kohort.errors import DataError
from kohort.tables.cells import canonical_text
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = [
    "data_independent",
    "date_hierarchy",
    "interval_hierarchy",
    "mask_hierarchy",
    "suppression_hierarchy",
]

MASK = "*"
FIRST_INTERVALS = 32
DATE_LENGTHS = (7, 4, 3)
SHORTEST_CODE = 3


def interval_hierarchy(
    column: str, values: Iterable[float], *, bounds: tuple[float, float] | None = None, width: float | None = None
) -> Hierarchy:
    """Intervals of 1, 2 or 5 times a power of ten, each level twice or five times as wide as the one below.

    `width` is that of the first level; unset, about 32 of them cover the bounds. Intervals are half open: [low, high).
    """
    known = sorted(set(values))
    low, high = bounds or (float(known[0]), float(known[-1])) if known or bounds else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise DataError(f"the bounds of column {column!r} are not [low, high]", hint="Give two finite numbers")
    widths = _widths(high - low, width)
    chains = {}
    for value in known:
        labels = [_interval_label(value, step) for step in widths]
        chains[canonical_text(value)] = (*labels, ROOT_LABEL)
    return Hierarchy.of(column, chains)


def date_hierarchy(column: str, values: Iterable[str]) -> Hierarchy:
    """ISO dates cut to month, year and decade."""
    chains = {}
    for text in dict.fromkeys(values):
        labels = [text[:length] + ("0s" if length == DATE_LENGTHS[-1] else "") for length in DATE_LENGTHS]
        chains[text] = (*labels, ROOT_LABEL)
    return Hierarchy.of(column, chains)


def mask_hierarchy(column: str, values: Iterable[str], *, from_left: bool = False) -> Hierarchy:
    """One more character masked at each level, from the right end unless told otherwise: 1145*, 114**, ..."""
    known = list(dict.fromkeys(values))
    longest = max(map(len, known), default=0)
    chains = {}
    for text in known:
        padded = text.rjust(longest) if from_left else text.ljust(longest)
        labels = [
            MASK * hidden + padded[hidden:] if from_left else padded[: longest - hidden] + MASK * hidden
            for hidden in range(1, longest)
        ]
        chains[text] = (*labels, ROOT_LABEL)
    return Hierarchy.of(column, chains)


def suppression_hierarchy(column: str, values: Iterable[str]) -> Hierarchy:
    """The value, or nothing."""
    return Hierarchy.of(column, dict.fromkeys(values, (ROOT_LABEL,)))


def data_independent(
    frame: pl.DataFrame, columns: Sequence[str], *, bounds: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Hierarchy]:
    """One hierarchy a column by its kind: numbers, dates, codes of one length (such as ZIP), anything else."""
    return {name: _by_kind(frame[name], (bounds or {}).get(name)) for name in columns}


def _by_kind(column: pl.Series, bounds: tuple[float, float] | None) -> Hierarchy:
    known = column.drop_nulls().unique().sort()
    if known.is_empty():
        return suppression_hierarchy(column.name, ["-"])
    if column.dtype.is_numeric():
        return interval_hierarchy(column.name, known.to_list(), bounds=bounds)
    texts = [canonical_text(value) for value in known.to_list()]
    if column.dtype in (pl.Date, pl.Datetime):
        return date_hierarchy(column.name, texts)
    lengths = {len(text) for text in texts}
    if len(lengths) == 1 and min(lengths) >= SHORTEST_CODE and all(text.isdigit() for text in texts):
        return mask_hierarchy(column.name, texts)
    return suppression_hierarchy(column.name, texts)


def _widths(extent: float, first: float | None) -> list[float]:
    if extent <= 0:
        return []
    if first is not None and first <= 0:
        raise DataError("the width of an interval is not above 0", hint="Give a width above 0")
    width = _round_up(extent / FIRST_INTERVALS) if first is None else first
    found = []
    while width < 2 * extent:
        found.append(width)
        lead = width / 10 ** math.floor(math.log10(width) + 1e-9)
        # 1 -> 5 -> 10 -> 50: every interval is a union of those below it.
        width *= 5 if round(lead) in {1, 2} else 2
    return found


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 5, 10) if factor * power >= width * (1 - 1e-9))


def _interval_label(value: float, width: float) -> str:
    start = math.floor(value / width + 1e-9)
    return f"{canonical_text(_clean(start * width))} to {canonical_text(_clean((start + 1) * width))}"


def _clean(value: float) -> float:
    return float(f"{value:.12g}")
