"""A lower bound of epsilon from canaries, tested against the Gaussian curve that a budget claims.

Each canary is in or out by a fair coin, and leaves a score: how much of its direction is in what was released. Under a
Gaussian mechanism the scores of both groups are normal with the same spread, and their distance in standard deviations
is mu, the one parameter of the trade-off curve (Dong, Roth, Su: Gaussian Differential Privacy, JRSS-B 2022). A lower
confidence bound of mu gives one of epsilon at any delta.

Why not guesses counted in one run (Steinke, Nasr, Jagielski, NeurIPS 2023)? At epsilon 1, a thousand ideal canaries
expose halved noise that way in at most three of ten tries; by the distance of the means nearly always.

Guarantee: for scores with normal noise that keep their claim, the bound lies above the true epsilon with probability
1 - confidence at most. A bound above the claim shows a bug; a bound below it shows nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError

__all__ = ["CONFIDENCE", "EpsilonAudit", "audit_scores"]

CONFIDENCE = 0.99
_POWER = 0.95


@dataclass(frozen=True, kw_only=True)
class EpsilonAudit:
    """What an audit found beside what is claimed."""

    epsilon_lower: float
    claimed: float
    delta: float
    confidence: float
    canaries: int
    mu: float
    """The measured distance of the two groups, in standard deviations."""
    mu_lower: float
    mu_claimed: float
    detects: float
    """Noise below this share of the planned one would have been exposed with a probability of 0.95."""

    @property
    def exposed(self) -> bool:
        """Whether the bound is above the claim."""
        return self.epsilon_lower > self.claimed

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "exposed": self.exposed}


def audit_scores(
    scores: NDArray[np.float64],
    coins: NDArray[np.bool_],
    *,
    epsilon: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> EpsilonAudit:
    """Bound epsilon from below.

    Args:
        scores: One number per canary; larger where it took part.
        coins: Whether it did.
        epsilon: The claimed epsilon.
        delta: The claimed delta, above 0.
        confidence: How sure the bound is.

    Returns:
        The bound beside the claim.

    Raises:
        DataError: There are fewer than 20 canaries in or out.
    """
    from scipy.stats import norm

    from kohort.privacy.dp.gaussian import gaussian_epsilon, gaussian_mu

    inside, outside = scores[coins], scores[~coins]
    if min(len(inside), len(outside)) < 20:
        raise DataError(f"{len(scores)} canaries are too few for an audit", hint="Plant more: --canaries 1000")
    spread = sqrt(
        (np.square(inside - inside.mean()).sum() + np.square(outside - outside.mean()).sum()) / (len(scores) - 2)
    )
    mu = float(inside.mean() - outside.mean()) / max(spread, 1e-300)
    error = sqrt(1 / len(inside) + 1 / len(outside) + mu * mu / (2 * (len(scores) - 2)))
    lower = max(0.0, mu - float(norm.ppf(confidence)) * error)
    claimed = gaussian_mu(epsilon, delta)
    return EpsilonAudit(
        epsilon_lower=gaussian_epsilon(lower, delta) if lower else 0.0,
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        canaries=len(scores),
        mu=mu,
        mu_lower=lower,
        mu_claimed=claimed,
        detects=min(1.0, mu / (claimed + float(norm.ppf(confidence) + norm.ppf(_POWER)) * error)),
    )
