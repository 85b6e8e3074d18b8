"""Membership inference by likelihood ratio (LiRA; Carlini et al., S&P 2022), with shadow models made all at once.

The attacker trains models of the same shape on halves of rows like the target's, so that every row is in half of them.
For each row he has two Gaussians: how sure models are that saw it, and models that did not. The log ratio of both at
the target's own log odds says how much like a member the row is. Spreads are pooled over rows, as few models give a
poor spread of one row.

All shadow networks are one call of the compiled kernel that trains many sites: a model is a "site" whose rows are its
half. Of numbers the error with its sign takes the place of log odds. Sharp edges: shadow models are made of pooled rows
without noise; a target that was trained in another way is less like them, and the attack is weaker than a perfect
attacker's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.evaluate.attacks.membership import Floats, sureness
from kohort.models.base import Model
from kohort.models.dense.network import Network
from kohort.models.dense.training import fit_many
from kohort.models.options import Training
from kohort.models.rows import Rows, StackedRows, target_range

__all__ = [
    "LEAST_SHADOWS",
    "as_target_trained",
    "evidence",
    "halves",
    "likelihood_ratios",
    "stacked_halves",
    "train_shadows",
]

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


def halves(rows: int, shadows: int, *, seed: int = 0) -> NDArray[np.bool_]:
    """Which shadow model sees which row: every row is in half of the models.

    Args:
        rows: Members and others alike.
        shadows: How many models; an even number.
        seed: Of the draws.

    Returns:
        [models, rows].

    Raises:
        ConfigError: There are too few models, or an odd number.
    """
    if shadows < LEAST_SHADOWS or shadows % 2:
        raise ConfigError(f"{shadows} shadow models are no attack", hint=f"Use an even number from {LEAST_SHADOWS} on")
    rank = np.argsort(np.random.default_rng(seed).random((shadows, rows), dtype=np.float32), axis=0)
    return np.asarray(rank < shadows // 2)


def train_shadows(
    network: Network, rows: Rows, seen: NDArray[np.bool_], *, training: Training, seed: int = 0, threads: int = 2
) -> NDArray[np.floating]:
    """Train shadow networks, each on the rows it sees.

    Args:
        network: The shape of the target.
        rows: Members and others alike.
        seen: Which model sees which row, [models, rows].
        training: Passes, batches, optimizer and rate of the target.
        seed: Of starts and orders.
        threads: Of the kernel.

    Returns:
        Weights [models, parameters].
    """
    shadows, random = len(seen), np.random.default_rng([seed, 1])
    starts = np.stack([network.start(random) for _ in range(shadows)])
    keys = random.integers(0, 2**63, shadows, dtype=np.uint64)
    at_once = max(1, _ROWS_AT_ONCE // max(1, rows.x.size // 2))
    parts = []
    for begin in range(0, shadows, at_once):
        part = slice(begin, begin + at_once)
        stacked = stacked_halves(rows, seen[part])
        fitted = fit_many(
            network, starts[part], stacked, training=training, keys=keys[part], round=0, keep_state=False,
            threads=threads,
        )  # fmt: skip
        parts.append(fitted.weights)
    return np.concatenate(parts)


def evidence(model: Model, rows: Rows) -> Floats:
    """What is compared of a row between models: the log odds of its class, or how far its number is off, with sign.

    Args:
        model: The target or a shadow model.
        rows: Encoded rows with their targets.

    Returns:
        One number per row.
    """
    if model.task != "regression":
        return sureness(model, rows)
    low, width = target_range(model.encoder)
    truth = rows.y.astype(np.float64) * width + low
    return np.asarray(truth - model.codes(rows.x).astype(np.float64))


def as_target_trained(training: Training, *, passes: int) -> Training:
    """Training options for a shadow model that is trained in one call for as many passes as its target had in all.

    Args:
        training: How the target was trained.
        passes: How often the target saw each of its rows; less than 1 counts as 1.

    Returns:
        The options with that many epochs and without a proximal term.
    """
    return replace(training, epochs=max(1, passes), prox=0.0)


def stacked_halves(rows: Rows, seen: NDArray[np.bool_]) -> StackedRows:
    """The rows of every shadow model, one model after the other, as the kernel that trains many sites takes them.

    Args:
        rows: Members and others alike.
        seen: Which model sees which row, [models, rows].

    Returns:
        Copies of the rows, with the start and the number of rows of each model.
    """
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
