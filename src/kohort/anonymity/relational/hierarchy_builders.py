"""Hierarchies made for a table: from the kind of each column, or from the target (Saleh, 2022).

Data-independent: round-number intervals, shorter dates, masked codes, plain suppression. They depend on the kind of a
column and on the values it can take, not on how often values occur or what they occur with, so choosing them discloses
nothing. Bounds that are not given are the smallest and the largest value of the column.

By target, after Saleh (2022), Algorithms 1 and 2: values that occur with the same target value are grouped. Algorithm 1
finds for each value of a column the target value it occurs with most often, and the share f of its rows that have it.
Algorithm 2 groups the values of one target value whose f falls into the same bucket of rho percent. The buckets start
at 0, which the printed loop leaves out, and f of 100 % is in the last one, as the thesis's text has it; its printed
floor would give it a bucket of its own. Numbers pass through the same grouping. These hierarchies are made by looking
at the target, which leaks: the values that share a group tell about it. Use the data-independent ones where that
matters.

Guarantee: every builder returns a checked `Hierarchy` that covers all the values it was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from kohort.anonymity.relational.public_grid import SMALLEST_RANGE
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import canonical_text
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = [
    "LATTICE_RHOS",
    "RHOS",
    "TargetAssociation",
    "automatic_hierarchy",
    "data_independent",
    "date_hierarchy",
    "frequent_targets",
    "group_values",
    "interval_hierarchy",
    "mask_hierarchy",
    "suppression_hierarchy",
]

MASK = "*"
FIRST_INTERVALS = 32
DAY = 10
"""Characters of a date without a time."""
SHORTEST_CODE = 3

RHOS = (2, 4, 5, 10, 20, 25, 50, 100)
LATTICE_RHOS = (5, 10, 50)
# A share such as 0.7 must not fall into the bucket below it for a rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True)
class TargetAssociation:
    """A value, the target value it occurs with most often, and the share of its rows that have it."""

    value: str
    target: str
    share: float


def interval_hierarchy(
    column: str, values: Iterable[float], *, bounds: tuple[float, float] | None = None, width: float | None = None
) -> Hierarchy:
    """Intervals of 1, 2 or 5 times a power of ten, each level twice or five times as wide as the one below.

    Args:
        column: Name of the column.
        values: Values to cover.
        bounds: Lowest and highest possible value; those of `values` when None.
        width: Width of the first level; when None, about 32 intervals cover the bounds. Intervals are half open:
            [low, high).

    Returns:
        The hierarchy of the given values; its top is `*`.

    Raises:
        DataError: The bounds or the width make no sense.
    """
    known = sorted(set(values))
    low, high = bounds or (float(known[0]), float(known[-1])) if known or bounds else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise DataError(f"the bounds of column {column!r} are not [low, high]", hint="Give two finite numbers")
    widths = _widths(high - low, width)
    chains = {}
    for value in known:
        chains[canonical_text(value)] = (*_interval_labels(value, widths), ROOT_LABEL)
    return Hierarchy.of(column, chains)


def date_hierarchy(column: str, values: Iterable[str]) -> Hierarchy:
    """ISO dates and times: day, month, quarter, year, decade.

    Args:
        column: Name of the column.
        values: The dates as text, such as 2024-03-09 or 2024-03-09 12:30:00.

    Returns:
        The hierarchy. Where no value has a time, its first level is the month.
    """
    known = list(dict.fromkeys(values))
    timed = any(len(text) > DAY for text in known)
    chains = {}
    for text in known:
        quarter = f"{text[:4]}-Q{(int(text[5:7]) + 2) // 3}"
        labels = [*([text[:DAY]] if timed else []), text[:7], quarter, text[:4], f"{text[:3]}0s"]
        chains[text] = (*labels, ROOT_LABEL)
    return Hierarchy.of(column, chains)


def mask_hierarchy(column: str, values: Iterable[str], *, from_left: bool = False) -> Hierarchy:
    """Mask one more character at each level: 1145*, 114**, ...

    Args:
        column: Name of the column.
        values: Texts to cover; shorter ones are filled up with blanks on the masked side.
        from_left: Whether to mask from the left end instead of the right.

    Returns:
        The hierarchy; its top is `*`.
    """
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
    """A hierarchy of two levels: the value, or `*`.

    Args:
        column: Name of the column.
        values: Texts to cover.

    Returns:
        The hierarchy.
    """
    return Hierarchy.of(column, dict.fromkeys(values, (ROOT_LABEL,)))


def data_independent(
    frame: pl.DataFrame, columns: Sequence[str], *, bounds: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Hierarchy]:
    """One hierarchy per column by its kind: numbers, dates, codes of one length (such as ZIP), anything else.

    Args:
        frame: The table.
        columns: Names of the columns.
        bounds: Lowest and highest possible value of number columns.

    Returns:
        The hierarchy of each column, by name.
    """
    return {name: _by_kind(frame[name], (bounds or {}).get(name)) for name in columns}


def frequent_targets(
    frame: pl.DataFrame, column: str, target: str, *, counts: str | None = None
) -> tuple[TargetAssociation, ...]:
    """Algorithm 1 for one column: the most frequent target value of each value.

    Null is no value of a hierarchy; as a target it counts like any other. Of two target values that are equally
    frequent the first in their order is taken.

    Args:
        frame: The table.
        column: The column.
        target: The target.
        counts: Column that says how many rows each row stands for; None: each is one.

    Returns:
        One entry per value, in their order.

    Raises:
        DataError: The table lacks a column.
        ConfigError: The column is the target itself.
    """
    for name in (column, target):
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint="Check the name")
    if column == target:
        raise ConfigError(f"column {column!r} is the target itself", hint="Name another column")
    pairs = (
        frame.lazy()
        .select(value=pl.col(column), target=pl.col(target), **({} if counts is None else {"rows": pl.col(counts)}))
        .filter(pl.col("value").is_not_null())
        .group_by("value", "target")
        .agg((pl.len() if counts is None else pl.col("rows").sum()).alias("len"))
        .with_columns(rows=pl.col("len").sum().over("value"))
        .sort("value", pl.col("len"), "target", descending=[False, True, False])
        .unique("value", keep="first", maintain_order=True)
        .collect()
    )
    return tuple(
        TargetAssociation(canonical_text(value), canonical_text(label), count / rows)
        for value, label, count, rows in pairs.iter_rows()
    )


def group_values(found: Sequence[TargetAssociation], rho: float) -> tuple[tuple[str, ...], ...]:
    """Algorithm 2 for one column: group the values of one target value by buckets of rho percent.

    Args:
        found: The values of the column with their shares, from `frequent_targets`.
        rho: Width of a bucket in percent; buckets start at 0, and 100 % is in the last one.

    Returns:
        The groups that are not empty, by target value, then by bucket.

    Raises:
        ConfigError: rho is not in (0, 100].
    """
    if not 0 < rho <= 100:
        raise ConfigError(f"rho is {rho:g}", hint="Use a percentage above 0 and up to 100")
    last = math.ceil(100 / rho - ROUNDING) - 1
    buckets: dict[tuple[str, int], list[str]] = {}
    for one in found:
        bucket = min(int(one.share * 100 / rho + ROUNDING), last)
        buckets.setdefault((one.target, bucket), []).append(one.value)
    return tuple(tuple(buckets[key]) for key in sorted(buckets))


def automatic_hierarchy(
    frame: pl.DataFrame, column: str, target: str, *, rhos: Sequence[float], counts: str | None = None
) -> Hierarchy:
    """Algorithms 1 and 2 for one column: values, their groups for each rho, then suppression.

    Args:
        frame: The table.
        column: The column.
        target: The target, which the groups tell about.
        rhos: Widths of the buckets in percent, the smallest first; each divides the next.
        counts: Column that says how many rows each row stands for; None: each is one.

    Returns:
        The hierarchy, one level per rho between the values and `*`.

    Raises:
        ConfigError: A rho does not divide the next (the smallest comes first); or the column is the target.
        DataError: The table lacks a column.
    """
    if any(coarse % fine for fine, coarse in pairwise(rhos)):
        raise ConfigError("each rho must divide the next", hint="Use such as 5, 10, 50")
    found = frequent_targets(frame, column, target, counts=counts)
    if not found:
        return Hierarchy.of(column, {"-": (ROOT_LABEL,)})
    chains: dict[str, list[str]] = {one.value: [] for one in found}
    for rho in rhos:
        for number, group in enumerate(group_values(found, rho), start=1):
            for value in group:
                chains[value].append(f"group {number} at {rho:g}%")
    return Hierarchy.of(column, {value: (*labels, ROOT_LABEL) for value, labels in chains.items()})


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
    if extent < SMALLEST_RANGE:
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


def _interval_labels(value: float, widths: Sequence[float]) -> Iterator[str]:
    """The interval of a value at each level; only the first is found by division, so that they nest exactly."""
    start, below = 0, 0.0
    for width in widths:
        start = start // round(width / below) if below else math.floor(value / width + 1e-9)
        below = width
        yield f"{canonical_text(_clean(start * width))} to {canonical_text(_clean((start + 1) * width))}"


def _clean(value: float) -> float:
    return float(f"{value:.12g}")
