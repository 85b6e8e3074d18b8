"""Logistic regression with pure epsilon-differential privacy in one go: output and objective perturbation (Chaudhuri,
Monteleoni, Sarwate: Differentially Private Empirical Risk Minimization, JMLR 2011, Algorithms 1 and 2).

Guarantees: epsilon-DP (delta 0) when one row is replaced by another, for the exact minimum of a penalised logistic loss
over rows [x, 1] scaled to norm at most 1. The minimum is found numerically, to a gradient far below the noise; what a
solver that stops early could give away is not accounted for.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.shape import DenseShape
from kohort.models.dp_sgd.fit import gaussian
from kohort.models.options import FloatArray
from kohort.models.rows import Rows

__all__ = ["Perturbation", "fit_perturbed"]

Perturbation = Literal["output", "objective"]
_CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""


def fit_perturbed(
    network: DenseShape,
    rows: Rows,
    *,
    kind: Perturbation,
    epsilon: float,
    penalty: float,
    key: bytes,
    declared: int | None = None,
) -> FloatArray:
    """Weights of a private logistic regression (Chaudhuri, Monteleoni and Sarwate, JMLR 2011).

    Args:
        network: A logistic network without hidden layers.
        rows: The rows, each counted once.
        kind: Whether the minimum or the objective is perturbed.
        epsilon: The budget.
        penalty: The L2 penalty; the more, the less noise.
        key: Of the noise.
        declared: How many rows the mean of the loss is over, at least those given; the others have no loss. By default
            those given.

    Returns:
        The weights.

    Raises:
        ConfigError: The network, the penalty or the rows' weights do not fit.
    """
    if network.hidden or network.loss != "logistic":
        raise ConfigError(f"{kind} perturbation is for logistic regression", hint='Use model.kind = "logistic"')
    if not (penalty > 0 and epsilon > 0):
        raise ConfigError(f"{kind} perturbation needs a penalty and an epsilon above 0", hint="Set train.l2")
    if rows.weight is not None:
        raise ConfigError(f"{kind} perturbation counts every row once", hint="Drop train.class_weights")
    z, side = _unit_rows(rows)
    count = rows.count if declared is None else declared
    if kind == "output":
        found = _minimise(z, side, penalty, np.zeros(z.shape[1]), count)
        # The minimum moves by at most 2 / (n penalty) when a row is replaced.
        noisy = found + _gamma_ball(key, z.shape[1], 2 / (count * penalty * epsilon))
    else:
        left, more = _objective_budget(epsilon, penalty, count)
        tilt = _gamma_ball(key, z.shape[1], 2 / left)
        noisy = _minimise(z, side, penalty + more, tilt / count, count)
    return noisy.astype(network.dtype)


def _unit_rows(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[x, 1], shrunk to norm 1 where it is longer, and the targets as -1 and 1. Shrinking changes no row's side."""
    z = np.concatenate([rows.x.astype(np.float64), np.ones((rows.count, 1))], axis=1)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1.0)
    return z, np.where(rows.y > 0, 1.0, -1.0)


def _objective_budget(epsilon: float, penalty: float, count: int) -> tuple[float, float]:
    """The epsilon that is left for the noise, and how much more penalty the other part of it needs."""
    ratio = _CURVATURE / (count * penalty)
    left = epsilon - math.log(1 + 2 * ratio + ratio * ratio)
    if left > 0:
        return left, 0.0
    return epsilon / 2, max(0.0, _CURVATURE / (count * math.expm1(epsilon / 4)) - penalty)


def _minimise(
    z: NDArray[np.float64],
    side: NDArray[np.float64],
    penalty: float,
    tilt: NDArray[np.float64],
    declared: int | None = None,
) -> NDArray[np.float64]:
    from scipy.optimize import minimize

    count = len(z) if declared is None else declared

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margin = side * (z @ weights)
        pull = -side / (1 + np.exp(np.minimum(margin, 700.0)))
        value = np.logaddexp(0, -margin).sum() / count + penalty / 2 * (weights @ weights) + tilt @ weights
        return float(value), z.T @ pull / count + penalty * weights + tilt

    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-10}
    found = minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, dtype=np.float64)


def _gamma_ball(key: bytes, size: int, scale: float) -> NDArray[np.float64]:
    """A vector with density proportional to exp(-|b| / scale): any direction, and a length of Gamma(size, scale)."""
    direction = gaussian(key, size, label=b"direction")
    # Half the sum of 2 k squared normals is Gamma(k).
    length = scale * float(np.sum(gaussian(key, 2 * size, label=b"length") ** 2)) / 2
    return np.asarray(direction / np.linalg.norm(direction) * length)
