"""The Gaussian mechanism in closed form (Balle and Wang, ICML 2018).

Releases of one mean with noise compose to a single Gaussian of signal-to-noise ratio mu, so no numerical convolution is
needed. Every root is taken from the private side: epsilon from above, mu from below.
"""

from __future__ import annotations

import math

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_mu"]

_HALVINGS = 80
"""More than a double can tell apart: the two ends of a bracket meet."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta of a Gaussian mechanism whose means differ by `mu` standard deviations."""
    from scipy.special import log_ndtr

    if mu == 0:
        return 0.0
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(upper) * math.expm1(min(0.0, lower - upper))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at `delta`, rounded up."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0:
        return math.inf
    below, above = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # the bound of zero-concentrated privacy
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if gaussian_delta(mu, middle) <= delta:
            above = middle
        else:
            below = middle
    return above


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest signal-to-noise ratio that is (epsilon, delta)-private, rounded down."""
    below, above = 0.0, 1.0
    while gaussian_delta(above, epsilon) <= delta:
        below, above = above, 2 * above
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if gaussian_delta(middle, epsilon) <= delta:
            below = middle
        else:
            above = middle
    return below
