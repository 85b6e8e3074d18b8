"""Re-identification risk of a table, from the sizes of its classes.

A row in a class of f rows is found with probability 1/f by a prosecutor, who knows that the person is in the table. A
journalist does not know it: his risk is 1/F, F the rows of that class in the population the table was drawn from. A
marketer wants as many matches as possible, whichever: his risk is the share of rows he may expect to match, the mean
of 1/F over the rows (El Emam, Guide to the De-Identification of Personal Health Information, 2013).

F comes from a population table when there is one; else it is estimated as f divided by the sampling fraction. Without
either, the table is its own population: F = f. Distinction and separation are those of Motwani and Xu (2007).

Guarantee: figures depend on class sizes alone and hold no cell value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import Classes, as_frame, group_rows, require_columns
from kohort.anonymity.risk.population import PopulationUniqueness, population_uniqueness
from kohort.errors import ConfigError, DataError

__all__ = ["THRESHOLDS", "Identifying", "Risk", "assess_risk", "distinction_and_separation"]

THRESHOLDS = (0.05, 0.1, 0.2, 0.33, 0.5)


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Risks of one table.

    `rows_above[x]` is the number of rows whose prosecutor risk 1/f is greater than x (not equal to it). The journalist
    figures and the estimated population uniqueness are None when nothing is known about the population.
    """

    prosecutor_max: float
    prosecutor_mean: float
    marketer: float
    rows_above: Mapping[float, int]
    sample_uniqueness: float
    journalist_max: float | None = None
    journalist_mean: float | None = None
    population: PopulationUniqueness | None = None

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "prosecutor_max": self.prosecutor_max,
            "prosecutor_mean": self.prosecutor_mean,
            "journalist_max": self.journalist_max,
            "journalist_mean": self.journalist_mean,
            "marketer": self.marketer,
            "rows_above": {f"{threshold:g}": count for threshold, count in self.rows_above.items()},
            "sample_uniqueness": self.sample_uniqueness,
            "population_uniqueness": None if self.population is None else self.population.to_mapping(),
        }


@dataclass(frozen=True, kw_only=True)
class Identifying:
    """How far a set of columns tells rows apart.

    `distinction` is the number of distinct values (combinations) for each row, `separation` the share of pairs of rows
    that differ; a table of one row has no pairs and a separation of 0.
    """

    columns: tuple[str, ...]
    distinction: float
    separation: float

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return {"columns": list(self.columns), "distinction": self.distinction, "separation": self.separation}


def assess_risk(
    frame: Any,
    *,
    quasi: Sequence[str],
    sampling_fraction: float | None = None,
    population_size: int | None = None,
    population: Any = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Risk:
    """Risks of a frame. Tell at most one thing about the population: its size, the fraction drawn, or its table."""
    table = as_frame(frame)
    classes = group_rows(table, quasi)
    row_risk = 1.0 / classes.sizes  # of each row of the class
    alone = Risk(
        prosecutor_max=float(row_risk.max()),
        prosecutor_mean=classes.count / classes.rows,
        marketer=classes.count / classes.rows,
        rows_above={float(limit): int(classes.sizes[row_risk > limit].sum()) for limit in thresholds},
        sample_uniqueness=int((classes.sizes == 1).sum()) / classes.rows,
    )
    told = [thing is not None for thing in (sampling_fraction, population_size, population)]
    if sum(told) > 1:
        hint = "Give the population's size, the sampling fraction or its table, not two of them"
        raise ConfigError("the population is described twice", hint=hint)
    if not any(told):
        return alone
    if population is not None:
        return _with_population(alone, classes, _sizes_in(as_frame(population), table, classes, quasi))
    size = _size(classes.rows, sampling_fraction, population_size)
    known = _with_population(alone, classes, classes.sizes * (size / classes.rows))
    return replace(known, population=population_uniqueness(classes.sizes, population_size=size))


def _with_population(alone: Risk, classes: Classes, sizes: NDArray[np.floating[Any]]) -> Risk:
    expected_matches = float((classes.sizes / sizes).sum() / classes.rows)
    return replace(
        alone, marketer=expected_matches, journalist_max=float((1.0 / sizes).max()), journalist_mean=expected_matches
    )


def distinction_and_separation(frame: Any, *, quasi: Sequence[str]) -> tuple[Identifying, ...]:
    """Of each quasi-identifier and, last, of all of them together."""
    table = as_frame(frame)
    names = require_columns(table, quasi)
    sets = [(name,) for name in names] + ([names] if len(names) > 1 else [])
    return tuple(_identifying(table, columns) for columns in sets)


def _identifying(frame: pl.DataFrame, columns: tuple[str, ...]) -> Identifying:
    sizes = group_rows(frame, columns).sizes
    pairs = frame.height * (frame.height - 1) // 2
    alike = int((sizes * (sizes - 1) // 2).sum())
    return Identifying(
        columns=columns,
        distinction=len(sizes) / frame.height,
        separation=1.0 - alike / pairs if pairs else 0.0,
    )


def _size(rows: int, sampling_fraction: float | None, population_size: int | None) -> int:
    if sampling_fraction is not None:
        if not 0.0 < sampling_fraction <= 1.0:
            raise ConfigError(f"the sampling fraction is {sampling_fraction:g}", hint="Use above 0, up to 1")
        return round(rows / sampling_fraction)
    if population_size is None or population_size < rows:
        hint = "The population holds at least the rows of the table"
        raise ConfigError(f"the population is smaller than the {rows:,} rows of the table", hint=hint)
    return population_size


def _sizes_in(
    population: pl.DataFrame, table: pl.DataFrame, classes: Classes, quasi: Sequence[str]
) -> NDArray[np.float64]:
    """Rows of the population in each class of the table; the table must be a part of it."""
    names = list(require_columns(population, quasi))
    if [population.schema[name] for name in names] != [table.schema[name] for name in names]:
        hint = "Read both in the same way, and generalise the population like the table"
        raise DataError("quasi-identifiers have another type in the population", hint=hint)
    both = group_rows(pl.concat([table.select(names), population.select(names)]), names)
    in_population = np.bincount(both.of_row[table.height :], minlength=both.count)
    representative = np.empty(classes.count, np.int64)
    representative[classes.of_row] = np.arange(classes.rows)
    found = in_population[both.of_row[representative]]
    short = int((found < classes.sizes).sum())
    if short:
        hint = "The table must be a part of the population, generalised in the same way"
        raise DataError(f"{short:,} of {classes.count:,} classes have fewer rows in the population", hint=hint)
    return found.astype(np.float64)
