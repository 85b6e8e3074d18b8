"""The Gaussian mechanism in closed form (Balle and Wang, ICML 2018).

Full-batch Gaussian releases compose to a single Gaussian mechanism with signal-to-noise ratio mu, so no numerical
convolution is needed. Every root is rounded to the private side: epsilon up, mu down.
"""

from __future__ import annotations

import math

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_mu"]

_HALVINGS = 80
"""Bisection steps: after these, the two ends of an interval are the same double."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of a Gaussian mechanism at `epsilon`.

    Args:
        mu: By how many standard deviations the means of neighbouring tables differ.
        epsilon: The epsilon of the guarantee.

    Returns:
        The smallest delta for which the mechanism is (epsilon, delta)-differentially private.
    """
    from scipy.special import log_ndtr

    if mu == 0:
        return 0.0
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(upper) * math.expm1(min(0.0, lower - upper))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism at `delta`, rounded up.

    Args:
        mu: By how many standard deviations the means of neighbouring tables differ.
        delta: The delta of the guarantee.

    Returns:
        The smallest epsilon; infinity when delta is 0 and mu is not.
    """
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
    """The largest signal-to-noise ratio that is (epsilon, delta)-differentially private, rounded down.

    Args:
        epsilon: The epsilon of the guarantee.
        delta: The delta of the guarantee, above 0.

    Returns:
        The ratio mu; 1/mu is the noise multiplier of one release.
    """
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
