"""How many rows are unique in the population, estimated from a sample of it.

Two models, chosen as in Dankar et al. (2012): Pitman's for sampling fractions up to 0.1, Zayatz's above, and where
Pitman's parameters cannot be found (every row unique, or all rows alike). The result names the model that was used.

- Pitman (Hoshino, 2001): class sizes follow Pitman's sampling formula with parameters alpha in (0, 1) and
  theta > -alpha, fitted by maximum likelihood. The expected number of uniques among N rows is
  N * Gamma(theta + 1) Gamma(theta + alpha + N - 1) / (Gamma(theta + alpha) Gamma(theta + N)), used as it is and not by
  its limit for large N.
- Zayatz (1991): the sample's class sizes stand for the population's. By Bayes, a sample unique is a population unique
  with probability f_1 h(1) / sum f_i h(i), f_i the classes of size i, h(i) the chance that a class of i rows in the
  population shows exactly one row in the sample.

Guarantee: an estimate is between 0 and the population's size; a table without uniques has an estimate of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["PopulationUniqueness", "pitman_log_likelihood", "population_uniqueness"]

Model = Literal["pitman", "zayatz"]
Floats = NDArray[np.float64]

PITMAN_UP_TO = 0.1


@dataclass(frozen=True, kw_only=True)
class PopulationUniqueness:
    """Estimated share of the population that is unique in it, and by which model."""

    share: float
    population_size: int
    model: Model

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return {"share": self.share, "population_size": self.population_size, "model": self.model}


def population_uniqueness(sizes: NDArray[np.int64], *, population_size: int) -> PopulationUniqueness:
    """Estimate from the class sizes of a sample of a population of `population_size` rows."""
    size, count = np.unique(sizes, return_counts=True)
    rows = int(sizes.sum())
    uniques = int(count[0]) if size[0] == 1 else 0
    model: Model = "zayatz"
    expected: float | None = None
    if uniques == 0:
        expected = 0.0
    elif rows / population_size <= PITMAN_UP_TO and 1 < len(sizes) < rows:
        expected = _pitman(size, count, population_size)
        model = "zayatz" if expected is None else "pitman"
    if expected is None:
        expected = _zayatz(size, count, population_size)
    share = min(max(expected / population_size, 0.0), 1.0)
    return PopulationUniqueness(share=share, population_size=population_size, model=model)


def pitman_log_likelihood(theta: float, alpha: float, size: NDArray[np.int64], count: NDArray[np.int64]) -> float:
    """ln of Pitman's sampling formula, up to a constant, for `count` classes of each `size`."""
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
