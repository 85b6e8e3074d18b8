"""Rows that may be shipped: every column but the target is the same for all rows of a class of at least k.

Classes are made by clustering on a public grid, so no cut point tells a value. Numbers go out as the class's mean
rounded to 1/50 of the public range, or as the middle of the class's cells when fewer than three rows are off the
lower end or one row makes up most of the mean: an exact mean would give single values back. Columns with public bins
go out as a bin, categories as the commonest value of the class.

Guarantee: the batch by itself meets k and, over the sensitive column, l; the checker, which shares no code with this
file, has verified the rows that are returned. A batch too small for that is not released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.measures import unmet
from kohort.anonymity.relational.algorithms.cluster import cluster
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.errors import IntegrityError, RefusedError
from kohort.tables.domain import ColumnDomain, Domain, category_text, number
from kohort.tables.schema import Schema

__all__ = ["GRID", "generalise_batch"]

GRID = 50
DOMINANT = 0.5
"""The largest part one row may have in a class's mean before the mean is not told."""
FEW = 3

Floats = NDArray[np.float64]


def generalise_batch(
    frame: pl.DataFrame,
    *,
    schema: Schema,
    domain: Domain,
    k: int,
    l: int,  # noqa: E741 - the literature's own letter
) -> pl.DataFrame:
    """The rows of `frame`, inputs generalised and the target as it is. Refused when k or l cannot be met."""
    target = str(schema.target)
    columns = list(schema.inputs)
    on_grid = frame.select(*(_on_grid(frame[name], schema, domain.columns[name]) for name in columns), target)
    diverse = l > 1 and (target in schema.sensitive or domain.columns[target].categories is not None)
    rule = Rule(k=k, l=l if diverse else 0)
    sensitive = SensitiveColumns.of(frame, [target] if diverse else [])
    if frame.height < k or (diverse and frame[target].n_unique() < l):
        raise RefusedError(
            f"{frame.height} rows cannot be released in classes of {k} with {l} values of {target!r}",
            hint="They wait for more rows, or lower release_k and release_l",
        )
    classes = cluster(Problem(code_table(on_grid, columns), sensitive, rule))
    released = pl.DataFrame(
        [_released(frame[name], classes, schema, domain.columns[name]) for name in columns] + [frame[target]]
    )
    broken = unmet(released, quasi=columns, sensitive=[target] if diverse else (), k=k, l=l if diverse else None)
    if broken:
        raise IntegrityError(f"the generalised batch does not hold what it claims: {'; '.join(broken)}")
    return released


def _range(domain: ColumnDomain) -> tuple[float, float]:
    low, high = domain.bounds if domain.bounds is not None else (0.0, 1.0)
    return low, (high - low) or 1.0


def _bin_codes(column: pl.Series, bins: Sequence[float]) -> NDArray[np.int64]:
    return np.searchsorted(np.asarray(bins), number(column).to_numpy(), side="left").astype(np.int64)


def _cell_of(values: Floats, low: float, width: float) -> NDArray[np.int64]:
    return np.clip(np.floor((values - low) / width * GRID), 0, GRID - 1).astype(np.int64)


def _on_grid(column: pl.Series, schema: Schema, domain: ColumnDomain) -> pl.Series:
    """The column as the classes are cut on: grid cells of numbers, bins, categories."""
    bins = schema.columns[column.name].bins
    if bins is not None:
        return pl.Series(column.name, _bin_codes(column, bins))
    if domain.kind == "number":
        return pl.Series(column.name, _cell_of(number(column).to_numpy().astype(float), *_range(domain)))
    return category_text(column)


def _released(column: pl.Series, classes: Partition, schema: Schema, domain: ColumnDomain) -> pl.Series:
    bins = schema.columns[column.name].bins
    if bins is not None:
        return _released_bins(column, classes, bins)
    if domain.kind == "number":
        return _released_numbers(column, classes, domain)
    return _released_categories(category_text(column), classes)


def _released_bins(column: pl.Series, classes: Partition, bins: Sequence[float]) -> pl.Series:
    """The bin nearest to the class's mean bin, as a number that lies in it."""
    means = _sums(_bin_codes(column, bins).astype(float), classes) / classes.sizes
    inside = np.asarray([*bins, bins[-1] + 1.0], dtype=float)
    return pl.Series(column.name, inside[np.rint(means).astype(np.int64)][classes.labels])


def _released_numbers(column: pl.Series, classes: Partition, domain: ColumnDomain) -> pl.Series:
    low, width = _range(domain)
    values = number(column).to_numpy().astype(float)
    shifted = np.abs(values - low)
    total = _sums(shifted, classes)
    off_the_end = _sums((shifted > 0).astype(float), classes)
    largest = np.maximum.reduceat(shifted[classes.order], classes.starts[:-1])
    cells = _cell_of(values, low, width)[classes.order]
    first = np.minimum.reduceat(cells, classes.starts[:-1])
    last = np.maximum.reduceat(cells, classes.starts[:-1])
    middles = low + (first + last + 1) / 2 / GRID * width
    means = low + np.rint(_sums(values - low, classes) / classes.sizes / width * GRID) / GRID * width
    telling = (off_the_end < FEW) | (largest > DOMINANT * np.maximum(total, 1e-300))
    return pl.Series(column.name, np.where(telling, middles, means)[classes.labels])


def _released_categories(column: pl.Series, classes: Partition) -> pl.Series:
    """The commonest value of each class; of equally common ones the first by name."""
    tally = pl.DataFrame({"class": classes.labels, "value": column}).group_by("class", "value").len()
    ordered = tally.sort("class", "len", "value", descending=[False, True, False], nulls_last=True)
    commonest = ordered.unique("class", keep="first", maintain_order=True)["value"]
    return commonest.gather(classes.labels).alias(column.name)


def _sums(values: Floats, classes: Partition) -> Floats:
    found: Floats = np.add.reduceat(values[classes.order], classes.starts[:-1])
    return found
