"""Re-identification risk of a table, from the sizes of its classes.

A row in a class of f rows is found with probability 1/f by a prosecutor, who knows that the person is in the table. A
journalist does not know it: the risk is 1/F, F the rows of that class in the population the table was drawn from. A
marketer wants as many matches as possible: the risk is the share of rows expected to match, the mean of 1/F over the
rows (El Emam, Guide to the De-Identification of Personal Health Information, 2013).

F comes from a population table when there is one; else it is estimated as f divided by the sampling fraction. Without
either, the table is its own population: F = f. Distinction and separation are those of Motwani and Xu (2007).

Population uniqueness is estimated by two models, chosen as in Dankar et al. (2012): Pitman's for sampling fractions up
to 0.1; Zayatz's above, and where Pitman's parameters cannot be found (every row unique, or all rows alike). The result
names the model that was used.

- Pitman (Hoshino, 2001): class sizes follow Pitman's sampling formula with parameters alpha in (0, 1) and
  theta > -alpha, fitted by maximum likelihood. The expected number of uniques among N rows is
  N * Gamma(theta + 1) Gamma(theta + alpha + N - 1) / (Gamma(theta + alpha) Gamma(theta + N)), not its limit for
  large N.
- Zayatz (1991): the sample's class sizes stand for the population's. By Bayes, a sample unique is a population unique
  with probability f_1 h(1) / sum f_i h(i), f_i the classes of size i, h(i) the chance that a class of i rows in the
  population shows exactly one row in the sample.

Guarantees: figures depend on class sizes alone and hold no cell value; an estimate of uniques is between 0 and the
population's size, and 0 for a table without uniques.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import Classes, as_frame, group_rows, require_columns
from kohort.anonymity.checker.combinations import Combinations, combine
from kohort.errors import ConfigError, DataError

__all__ = [
    "THRESHOLDS",
    "Distinguishability",
    "PopulationUniqueness",
    "Risk",
    "assess_risk",
    "distinguishability",
    "pitman_log_likelihood",
    "risk_of_classes",
]

Model = Literal["pitman", "zayatz"]
Floats = NDArray[np.float64]
Histogram = Sequence[tuple[int, int]]
"""Sizes of classes, rising, and how many classes have each."""

PITMAN_UP_TO = 0.1
THRESHOLDS = (0.05, 0.1, 0.2, 0.33, 0.5)
_LARGEST_POPULATION = 10**12


@dataclass(frozen=True, kw_only=True)
class PopulationUniqueness:
    """Estimated share of the population that is unique in it, and the model it comes from."""

    share: float
    population_size: int
    model: Model

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return {"share": self.share, "population_size": self.population_size, "model": self.model}


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Risks of one table.

    Attributes:
        prosecutor_max: Largest prosecutor risk 1/f of a row.
        prosecutor_mean: Mean prosecutor risk.
        marketer: Share of the rows that a marketer may expect to match.
        rows_above: For each threshold the number of rows whose prosecutor risk is greater than it (not equal to it).
        sample_uniqueness: Share of the rows that are unique in the table.
        journalist_max: Largest journalist risk 1/F; None when nothing is known about the population.
        journalist_mean: Mean journalist risk; None likewise.
        population: Estimated population uniqueness; None when no size or sampling fraction is given.
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
class Distinguishability:
    """How far a set of columns tells rows apart.

    Attributes:
        columns: Names of the columns.
        distinction: Distinct combinations of values divided by the rows.
        separation: Share of the pairs of rows that differ; 0 for a table of one row, which has no pairs.
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
    """Risks of a table.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        sampling_fraction: Share of the population that the table holds.
        population_size: Rows of the population.
        population: Table of the whole population, generalised like `frame`.
        thresholds: Risks to count the rows above.

    Returns:
        The risks. At most one of the three descriptions of the population may be given.

    Raises:
        ConfigError: The population is described twice, is smaller than the table, or the fraction is not in (0, 1].
        DataError: A column is absent or has another type in the population, or the table is no part of it.

    Example:
        >>> table = pl.DataFrame({"age": [30, 30, 41]})
        >>> assess_risk(table, quasi=["age"]).prosecutor_max
        1.0
    """
    table = as_frame(frame)
    if population is None:
        return risk_of_classes(
            _histogram(combine(table.lazy(), quasi=quasi)),
            sampling_fraction=sampling_fraction,
            population_size=population_size,
            thresholds=thresholds,
        )
    if sampling_fraction is not None or population_size is not None:
        raise _described_twice()
    classes = group_rows(table, quasi)
    in_population = _sizes_in(as_frame(population), table, classes, quasi)
    return _with_population(_alone(classes.sizes, np.ones(classes.count, np.int64), thresholds),
                            classes.sizes, np.ones(classes.count, np.int64), in_population)  # fmt: skip


def risk_of_classes(
    histogram: Histogram,
    *,
    sampling_fraction: float | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Risk:
    """Risks of a table, from the sizes of its classes alone.

    Args:
        histogram: Sizes of classes, rising, and how many classes have each.
        sampling_fraction: Share of the population that the table holds.
        population_size: Rows of the population.
        thresholds: Risks to count the rows above.

    Returns:
        The risks, as `assess_risk` gives them.

    Raises:
        ConfigError: The population is described twice, is smaller than the table, or the fraction is not in (0, 1].
    """
    size, count = (np.array(column, np.int64) for column in zip(*histogram, strict=True))
    rows = int((size * count).sum())
    alone = _alone(size, count, thresholds)
    if sampling_fraction is not None and population_size is not None:
        raise _described_twice()
    if sampling_fraction is None and population_size is None:
        return alone
    whole = _size(rows, sampling_fraction, population_size)
    known = _with_population(alone, size, count, size * (whole / rows))
    return replace(known, population=_uniqueness(size, count, whole))


def _described_twice() -> ConfigError:
    hint = "Give the population's size, the sampling fraction or its table, not two of them"
    return ConfigError("the population is described twice", hint=hint)


def _alone(size: NDArray[np.int64], count: NDArray[np.int64], thresholds: Sequence[float]) -> Risk:
    """Risks of a table that is its own population: `count` classes of each `size`."""
    row_risk = 1.0 / size  # of each row of the class
    rows, classes = int((size * count).sum()), int(count.sum())
    return Risk(
        prosecutor_max=float(row_risk.max()),
        prosecutor_mean=classes / rows,
        marketer=classes / rows,
        rows_above={float(limit): int((size * count)[row_risk > limit].sum()) for limit in thresholds},
        sample_uniqueness=int(count[size == 1].sum()) / rows,
    )


def _with_population(
    alone: Risk, size: NDArray[np.int64], count: NDArray[np.int64], in_population: NDArray[np.floating[Any]]
) -> Risk:
    expected_matches = float((count * size / in_population).sum() / (count * size).sum())
    largest = float((1.0 / in_population).max())
    return replace(alone, marketer=expected_matches, journalist_max=largest, journalist_mean=expected_matches)


def distinguishability(counted: Combinations, histogram: Histogram) -> tuple[Distinguishability, ...]:
    """Distinction and separation of each quasi-identifier and, last, of all of them together.

    Args:
        counted: The combinations of a table.
        histogram: The sizes of its classes and how many classes have each.

    Returns:
        One entry per quasi-identifier; one more for all, if there are several.
    """
    each = [_distinguishability((name,), _tallied(counted.sizes(name)), counted.rows) for name in counted.quasi]
    if len(counted.quasi) > 1:
        each.append(_distinguishability(counted.quasi, histogram, counted.rows))
    return tuple(each)


def _histogram(counted: Combinations) -> Histogram:
    return _tallied(np.concatenate([part.classes.sizes for part in counted.parts()]))


def _tallied(sizes: NDArray[np.int64]) -> Histogram:
    size, count = np.unique(sizes, return_counts=True)
    return list(zip(size.tolist(), count.tolist(), strict=True))


def _distinguishability(columns: tuple[str, ...], histogram: Histogram, rows: int) -> Distinguishability:
    pairs = rows * (rows - 1) // 2
    alike = sum(count * (size * (size - 1) // 2) for size, count in histogram)
    return Distinguishability(
        columns=columns,
        distinction=sum(count for _, count in histogram) / rows,
        separation=1.0 - alike / pairs if pairs else 0.0,
    )


def _size(rows: int, sampling_fraction: float | None, population_size: int | None) -> int:
    if sampling_fraction is not None:
        if not 0.0 < sampling_fraction <= 1.0:
            raise ConfigError(f"the sampling fraction is {sampling_fraction:g}", hint="Use above 0, up to 1")
        size = rows / sampling_fraction
    elif population_size is None or population_size < rows:
        hint = "The population holds at least the rows of the table"
        raise ConfigError(f"the population is smaller than the {rows:,} rows of the table", hint=hint)
    else:
        size = population_size
    if size > _LARGEST_POPULATION:
        hint = f"Use at most {_LARGEST_POPULATION:,}"
        raise ConfigError("the population is larger than any there is", hint=hint)
    return round(size)


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


def _uniqueness(size: NDArray[np.int64], count: NDArray[np.int64], population_size: int) -> PopulationUniqueness:
    rows, classes = int((size * count).sum()), int(count.sum())
    uniques = int(count[0]) if size[0] == 1 else 0
    model: Model = "zayatz"
    expected: float | None = None
    if uniques == 0:
        expected = 0.0
    elif rows / population_size <= PITMAN_UP_TO and 1 < classes < rows:
        expected = _pitman(size, count, population_size)
        model = "zayatz" if expected is None else "pitman"
    if expected is None:
        expected = _zayatz(size, count, population_size)
    share = min(max(expected / population_size, 0.0), 1.0)
    return PopulationUniqueness(share=share, population_size=population_size, model=model)


def pitman_log_likelihood(theta: float, alpha: float, size: NDArray[np.int64], count: NDArray[np.int64]) -> float:
    """Natural logarithm of Pitman's sampling formula for the class sizes of a table, up to a constant.

    Args:
        theta: Parameter of the formula, above -alpha.
        alpha: Parameter of the formula, between 0 and 1.
        size: The sizes of classes that occur, each once.
        count: How many classes have each of these sizes.

    Returns:
        The log-likelihood; larger fits better.
    """
    from scipy.special import gammaln

    classes, rows = int(count.sum()), int((size * count).sum())
    start = theta / alpha
    opened = (classes - 1) * np.log(alpha) + gammaln(start + classes) - gammaln(start + 1.0)
    drawn = gammaln(theta + rows) - gammaln(theta + 1.0)
    grown = (count * (gammaln(size - alpha) - gammaln(1.0 - alpha))).sum()
    return float(opened - drawn + grown)


def _pitman(size: NDArray[np.int64], count: NDArray[np.int64], population_size: int) -> float | None:
    from scipy.optimize import minimize
    from scipy.special import expit, gammaln

    def parameters(point: Floats) -> tuple[float, float]:
        alpha = float(np.clip(expit(point[0]), 1e-9, 1.0 - 1e-9))
        return float(np.exp(np.clip(point[1], -50.0, 50.0)) - alpha), alpha

    def loss(point: Floats) -> float:
        theta, alpha = parameters(point)
        return -pitman_log_likelihood(theta, alpha, size, count)

    rows, uniques = int((size * count).sum()), int(count[0])
    # In a large sample the share of uniques among the classes tends to alpha.
    share = np.clip(uniques / count.sum(), 0.01, 0.99)
    start = np.array([np.log(share / (1.0 - share)), np.log(1.0 + rows / 10.0)])
    options = {"xatol": 1e-8, "fatol": 1e-8, "maxiter": 4000, "maxfev": 4000}
    found = minimize(loss, start, method="Nelder-Mead", options=options)
    if not found.success or not np.isfinite(found.fun):
        return None
    theta, alpha = parameters(found.x)
    log_share = (
        gammaln(theta + 1.0)
        - gammaln(theta + alpha)
        + gammaln(theta + alpha + population_size - 1.0)
        - gammaln(theta + population_size)
    )
    return float(population_size * np.exp(log_share)) if np.isfinite(log_share) else None


def _zayatz(size: NDArray[np.int64], count: NDArray[np.int64], population_size: int) -> float:
    from scipy.stats import hypergeom

    rows = int((size * count).sum())
    shown_once = count * hypergeom.pmf(1, population_size, size, rows)
    also_in_population = shown_once[0] / shown_once.sum()
    return float(count[0] * also_in_population * population_size / rows)
