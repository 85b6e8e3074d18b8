"""Audit private training with canaries: a lower bound of epsilon from one run, to hold against the epsilon claimed.

Each canary is a row whose gradient points in a direction of its own, so none hides another (the strongest rows an
attacker could plant). A fair coin says whether a canary is trained on; the auditor sees every weight before and after,
and guesses the coins it is surest of. If training is (epsilon, delta)-private, the right guesses cannot be many more
than those of a coin that falls on the right side with probability e^epsilon / (1 + e^epsilon) (Steinke, Nasr,
Jagielski: Privacy Auditing with One Training Run, NeurIPS 2023, Theorem 5.2).

Guarantee: for training that keeps its claim, the bound lies above the true epsilon with probability at most
1 - confidence. A bound above the claim therefore shows a bug; a bound below it shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray, Network
from kohort.models.rows import Rows, StackedRows, stack

__all__ = ["CanaryAudit", "audit_training", "epsilon_lower_bound"]

_FEATURE, _TARGET = 1e4, 1e12
"""So large that a canary's gradient is clipped at every step, whatever the model has learned, and hardly moves the
bias, which all canaries share."""


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What an audit found."""

    epsilon_lower: float
    canaries: int
    guesses: int
    correct: int


Trainer = Callable[[Network, FloatArray, StackedRows], FloatArray]
"""Trains all sites of a stack from one start; returns weights [sites, parameters]."""


def audit_training(
    trainer: Trainer,
    *,
    canaries: int,
    delta: float,
    generator: np.random.Generator,
    width: int = 500,
    confidence: float = 0.95,
) -> CanaryAudit:
    """Plant `canaries`, at many sites of `width` canaries each, train once, and bound epsilon from below."""
    sites = -(-canaries // width)
    network = Network(inputs=width, hidden=(), outputs=1, loss="squared", dtype="float64")
    coins = generator.random((sites, width)) < 0.5
    directions = np.eye(width) * _FEATURE
    parts = [Rows.of(directions[chosen], np.full(int(chosen.sum()), _TARGET), dtype="float64") for chosen in coins]
    start = np.zeros(network.parameter_count)
    trained = trainer(network, start, stack(parts))
    # A canary pushes its own weight up, and nobody else's but the bias.
    scores = (trained[:, :width] - start[:width]).reshape(-1)
    return _best_bound(scores, coins.reshape(-1), delta=delta, confidence=confidence)


def _best_bound(
    scores: NDArray[np.float64], coins: NDArray[np.bool_], *, delta: float, confidence: float
) -> CanaryAudit:
    """The best bound over several numbers of guesses; each gets its part of the permitted error."""
    centred = scores - np.median(scores)
    order = np.argsort(-np.abs(centred), kind="stable")
    right = (centred[order] > 0) == coins[order]
    counts = [count for count in (100, 300, 1000, 3000, 10000, 30000) if count < len(scores)] + [len(scores)]
    found = []
    for count in counts:
        correct = int(right[:count].sum())
        bound = epsilon_lower_bound(
            correct, count, canaries=len(scores), delta=delta, confidence=1 - (1 - confidence) / len(counts)
        )
        found.append(CanaryAudit(epsilon_lower=bound, canaries=len(scores), guesses=count, correct=correct))
    return max(found, key=lambda audit: audit.epsilon_lower)


def epsilon_lower_bound(correct: int, guesses: int, *, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon at which so many right guesses would be a surprise; 0 when they never would."""
    low, high = 0.0, 40.0
    if _chance(correct, guesses, canaries=canaries, epsilon=low, delta=delta) > 1 - confidence:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _chance(correct, guesses, canaries=canaries, epsilon=middle, delta=delta) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low


def _chance(correct: int, guesses: int, *, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability of at least `correct` right guesses under (epsilon, delta)-privacy."""
    from scipy.stats import binom

    rate = 1 / (1 + np.exp(-epsilon))
    beta = float(binom.sf(correct - 1, guesses, rate))
    if delta == 0:
        return beta
    # How much more may fall at or above `correct` when delta moves mass up by i guesses, for the worst i.
    steps = np.arange(1, correct + 1)
    mass = binom.cdf(correct - 1, guesses, rate) - binom.cdf(correct - 1 - steps, guesses, rate)
    alpha = float(np.max(mass / steps, initial=0.0))
    return min(1.0, beta + alpha * canaries * 2 * delta)
