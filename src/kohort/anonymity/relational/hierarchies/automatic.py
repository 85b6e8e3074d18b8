"""Automatic hierarchies after Saleh (2022), Algorithms 1 and 2: values that go with the same target go together.

Algorithm 1 finds for each value of a column the target value it occurs with most often, and the share f of its rows
that have it. Algorithm 2 groups the values of one target value whose f falls into the same bucket of rho percent; the
buckets start at 0, which the printed loop leaves out. Numbers pass through the same grouping.

These hierarchies are made by looking at the labels, and what is looked at leaks: which values share a group tells about
the target. Use `kohort.anonymity.relational.hierarchies.intervals` where that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from kohort.errors import ConfigError, DataError
from kohort.tables.cells import canonical_text
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = ["RHOS", "Association", "automatic_hierarchy", "frequent_targets", "group_values"]

RHOS = (2, 4, 5, 10, 20, 25, 50, 100)
LATTICE_RHOS = (5, 10, 50)
# A share such as 0.7 must not fall into the bucket below it for a rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Association:
    """A value, the target value it goes with most often, and the share of its rows that have it."""

    value: str
    target: str
    share: float


def frequent_targets(frame: pl.DataFrame, column: str, target: str) -> tuple[Association, ...]:
    """Algorithm 1 for one column. Null is no value of a hierarchy; as a target it counts like any other.

    Of two target values that are equally frequent the first in their order is taken.
    """
    for name in (column, target):
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint="Check the name")
    if column == target:
        raise ConfigError(f"column {column!r} is the target itself", hint="Name another column")
    pairs = (
        frame.lazy()
        .select(value=pl.col(column), target=pl.col(target))
        .filter(pl.col("value").is_not_null())
        .group_by("value", "target")
        .len()
        .with_columns(rows=pl.col("len").sum().over("value"))
        .sort("value", pl.col("len"), "target", descending=[False, True, False])
        .unique("value", keep="first", maintain_order=True)
        .collect()
    )
    return tuple(
        Association(canonical_text(value), canonical_text(label), count / rows)
        for value, label, count, rows in pairs.iter_rows()
    )


def group_values(found: Sequence[Association], rho: float) -> tuple[tuple[str, ...], ...]:
    """Algorithm 2 for one column: by target value, then by bucket of rho percent, from bucket 0 on."""
    if not 0 < rho <= 100:
        raise ConfigError(f"rho is {rho:g}", hint="Use a percentage above 0 and up to 100")
    buckets: dict[tuple[str, int], list[str]] = {}
    for one in found:
        buckets.setdefault((one.target, int(one.share * 100 / rho + ROUNDING)), []).append(one.value)
    return tuple(tuple(buckets[key]) for key in sorted(buckets))


def automatic_hierarchy(frame: pl.DataFrame, column: str, target: str, *, rhos: Sequence[float]) -> Hierarchy:
    """Values, groups for each rho, nothing. Several rhos must divide one another, the smallest first."""
    if any(coarse % fine for fine, coarse in pairwise(rhos)):
        raise ConfigError("the rhos do not divide one another", hint="Use such as 5, 10, 50")
    found = frequent_targets(frame, column, target)
    if not found:
        return Hierarchy.of(column, {"-": (ROOT_LABEL,)})
    chains: dict[str, list[str]] = {one.value: [] for one in found}
    for rho in rhos:
        for number, group in enumerate(group_values(found, rho), start=1):
            for value in group:
                chains[value].append(f"group {number} at {rho:g}%")
    return Hierarchy.of(column, {value: (*labels, ROOT_LABEL) for value, labels in chains.items()})
