"""Membership inference by likelihood ratio (LiRA; Carlini et al., S&P 2022), with shadow models trained all at once.

The attacker trains models of the same shape on halves of rows like the target's, so that every row is in half of them.
For each row he has two Gaussians: how sure models are that saw it, and models that did not. The log ratio of both at
the target's own log odds says how much like a member the row is. Spreads are pooled over rows, as few models give a
poor spread of one row.

All shadow models are one call of the compiled kernel that trains many sites: a model is a "site" whose rows are its
half. Sharp edges: shadow models are trained on pooled rows for as many passes as the target, without noise; a target
that was trained in another way is less like them, and the attack is weaker than a perfect attacker's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.evaluate.attacks.membership import Floats, log_odds
from kohort.models.dense.network import Network
from kohort.models.dense.training import fit_many
from kohort.models.options import Training
from kohort.models.rows import Rows, StackedRows
from kohort.models.scoring import probabilities

__all__ = ["LEAST_SHADOWS", "as_target_trained", "likelihood_ratios", "shadow_scores", "train_shadows"]

LEAST_SHADOWS: Final = 4
_ROWS_AT_ONCE: Final = 20_000_000
"""Numbers that are stacked for one call of the kernel."""


def likelihood_ratios(target: Floats, shadows: Floats, seen: NDArray[np.bool_]) -> Floats:
    """How much like a member each row is.

    Args:
        target: The target's log odds of each row's own class.
        shadows: The same of every shadow model, [models, rows].
        seen: Which model was trained on which row, [models, rows]; every row is in some and not in others.

    Returns:
        The log likelihood ratio of each row.
    """
    inside = _gaussian(shadows, seen)
    outside = _gaussian(shadows, ~seen)
    return np.asarray(_log_density(target, *inside) - _log_density(target, *outside))


def train_shadows(
    network: Network, rows: Rows, *, training: Training, shadows: int, seed: int = 0, threads: int = 2
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Train shadow models, each on a random half of the rows.

    Args:
        network: The shape of the target.
        rows: Members and others alike.
        training: Passes, batches, optimizer and rate of the target.
        shadows: How many models; an even number.
        seed: Of halves, starts and orders.
        threads: Of the kernel.

    Returns:
        Weights [models, parameters], and which model saw which row [models, rows].

    Raises:
        ConfigError: There are too few models, or an odd number.
    """
    if shadows < LEAST_SHADOWS or shadows % 2:
        raise ConfigError(f"{shadows} shadow models are no attack", hint=f"Use an even number from {LEAST_SHADOWS} on")
    random = np.random.default_rng(seed)
    rank = np.argsort(random.random((shadows, rows.count), dtype=np.float32), axis=0)
    seen = rank < shadows // 2
    starts = np.stack([network.start(random) for _ in range(shadows)])
    keys = random.integers(0, 2**63, shadows, dtype=np.uint64)
    at_once = max(1, _ROWS_AT_ONCE // max(1, rows.x.size // 2))
    parts = []
    for begin in range(0, shadows, at_once):
        part = slice(begin, begin + at_once)
        stacked = _halves(rows, seen[part])
        fitted = fit_many(
            network, starts[part], stacked, training=training, keys=keys[part], round=0, keep_state=False,
            threads=threads,
        )  # fmt: skip
        parts.append(fitted.weights)
    return np.concatenate(parts), seen


def shadow_scores(network: Network, weights: NDArray[np.floating], rows: Rows) -> Floats:
    """The log odds of each row's own class by every model, [models, rows]."""
    codes = rows.y.astype(np.int64)
    found = np.empty((len(weights), rows.count))
    for number, own in enumerate(weights):
        found[number] = log_odds(probabilities(network, own, rows.x)[np.arange(rows.count), codes])
    return found


def as_target_trained(training: Training, *, passes: int) -> Training:
    """Training options of a model that makes so many passes over its rows in one go."""
    return replace(training, epochs=max(1, passes), prox=0.0)


def _halves(rows: Rows, seen: NDArray[np.bool_]) -> StackedRows:
    """The rows of every model, one after the other."""
    counts = seen.sum(axis=1).astype(np.int64)
    chosen = np.nonzero(seen)[1]
    weight = None if rows.weight is None else np.ascontiguousarray(rows.weight[chosen])
    return StackedRows(
        np.ascontiguousarray(rows.x[chosen]),
        np.ascontiguousarray(rows.y[chosen]),
        weight,
        np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64),
        counts,
    )


def _gaussian(scores: Floats, chosen: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Mean of each row over the chosen models, and the spread around it, pooled over rows."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, scores, 0.0).sum(axis=0) / count
    square = np.where(chosen, (scores - mean) ** 2, 0.0).sum() / max(1, int((count - 1).sum()))
    return mean, float(np.sqrt(max(square, 1e-12)))


def _log_density(value: Floats, mean: Floats, spread: float) -> Floats:
    return np.asarray(-0.5 * ((value - mean) / spread) ** 2 - np.log(spread))
