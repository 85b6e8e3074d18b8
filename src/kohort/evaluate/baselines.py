"""What a result stands beside: the majority class, the best single site, and all rows pooled.

The last two are logistic (or, for numbers, linear) regressions with a small ridge, fitted here to rows that only a
simulation has in one place. They answer "was it worth it?", not "how well could it be done?".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.rows import Rows

__all__ = ["majority_baseline", "trained_baselines"]

Floats = NDArray[np.float64]
RIDGE = 1e-3
STEPS = 12
MOST_WORK = 2e8
"""Multiplications of one fit; of longer tables every so many rows are taken."""
MOST_SITES = 20


def majority_baseline(target: NDArray[Any], truth: NDArray[Any], *, classes: int) -> dict[str, Any]:
    """The measure of a model that says the same for every row.

    Args:
        target: Codes or numbers of the training rows.
        truth: Those of the test rows.
        classes: Number of classes; 0 for a number.

    Returns:
        `accuracy` and `code` of the most frequent class, or `rmse` and `r2` of the mean.
    """
    if not classes:
        errors = truth - target.mean()
        spread = float(np.mean(np.square(truth - truth.mean())))
        mean_square = float(np.mean(np.square(errors)))
        return {"rmse": mean_square**0.5, "r2": 1 - mean_square / spread if spread else 0.0}
    code = int(np.bincount(target.astype(np.int64), minlength=classes).argmax())
    return {"accuracy": float(np.mean(truth == code)), "code": code}


def trained_baselines(
    rows: Rows, starts: Sequence[int], names: Sequence[str], test: Rows, *, classes: int
) -> dict[str, Any]:
    """Measures of a regression on one site's rows, at the best site, and on the rows of all sites.

    Args:
        rows: Encoded training rows, sorted by site.
        starts: Where each site's rows begin, and the end of the last.
        names: The sites.
        test: Encoded test rows.
        classes: Number of classes; 0 for a number.

    Returns:
        `best_site`: its name, measure and how many sites were tried; `pooled`: the measure. The measure is `accuracy`
        for classes, `r2` for a number.
    """
    measure = "accuracy" if classes else "r2"
    bounds = np.asarray(starts)
    largest = np.argsort(-np.diff(bounds), kind="stable")[:MOST_SITES]
    scores = {}
    for index in sorted(largest.tolist()):
        part = rows.part(int(bounds[index]), int(bounds[index + 1]))
        scores[names[index]] = _score(part, test, classes)
    best = max(scores, key=lambda name: scores[name])
    return {
        "best_site": {"site": best, measure: scores[best], "sites_tried": len(scores)},
        "pooled": {measure: _score(rows, test, classes)},
    }


def _score(rows: Rows, test: Rows, classes: int) -> float:
    width = rows.x.shape[1] + 1
    step = max(1, int(np.ceil(rows.count * width * width * STEPS / MOST_WORK)))
    x, y = _with_ones(rows.x[::step]), rows.y[::step].astype(np.float64)
    judged, truth = _with_ones(test.x), test.y.astype(np.float64)
    if not classes:
        found = judged @ _solve(x.T @ x, x.T @ y, len(y))
        spread = float(np.mean(np.square(truth - truth.mean())))
        return 1 - float(np.mean(np.square(truth - found))) / spread if spread else 0.0
    codes = range(1, 2) if classes == 2 else range(classes)
    scores = np.stack([judged @ _logistic(x, (y == code).astype(np.float64)) for code in codes], axis=1)
    guessed = (scores[:, 0] > 0).astype(np.float64) if classes == 2 else scores.argmax(axis=1)
    return float(np.mean(guessed == truth))


def _with_ones(x: NDArray[Any]) -> Floats:
    return np.hstack([x.astype(np.float64), np.ones((len(x), 1))])


def _logistic(x: Floats, y: Floats) -> Floats:
    """Newton's method with a ridge; steps are halved until they help."""
    weights = np.zeros(x.shape[1])
    loss = _loss(x, y, weights)
    for _ in range(STEPS):
        share = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (share - y) + RIDGE * len(y) * weights
        curve = (x * (share * (1 - share))[:, None]).T @ x
        step = _solve(curve, slope, len(y))
        for _half in range(6):
            new = _loss(x, y, weights - step)
            if new <= loss:
                break
            step = step / 2
        else:
            break
        weights = weights - step
        if loss - new < 1e-7 * len(y):
            break
        loss = new
    return weights


def _loss(x: Floats, y: Floats, weights: Floats) -> float:
    score = x @ weights
    return float(np.sum(np.logaddexp(0, score) - y * score) + RIDGE * len(y) * float(weights @ weights) / 2)


def _solve(square: Floats, right: Floats, rows: int) -> Floats:
    ridge = np.eye(len(square)) * (RIDGE * rows + 1e-9)
    return np.asarray(np.linalg.solve(square + ridge, right), dtype=np.float64)
