"""Noise for running sums of a sequence to which each unit adds once: the square root of the matrix of running sums.

A training without a second look at a row is a running sum: the weights after round t are the first ones less the sum of
t noisy gradients. Independent noise adds up with the rounds. Correlated noise does not have to: with a lower triangular
matrix C, the releases y = x + C^-1 z have running sums whose noise is A C^-1 z, A being the matrix of running sums.
Here C is the square root of A, so that the noise of every running sum is C z (Fichtenberger, Henzinger, Upadhyay:
Constant Matters, ICML 2023; for training, Kairouz et al.: Practical and Private (Deep) Learning without Sampling or
Shuffling, ICML 2021). Its variance grows with the logarithm of the number of rounds.

Proof. C y = C x + z is a function of all y and the reverse, so both are equally private. Take two tables that differ in
one unit, which adds to round j alone, at most `clip` in norm. Given the releases before a round, all that the round is
computed from is the same in both, but for that unit. So C x differs by a multiple of column j of C, of length at most
`clip` times the norm of that column, whatever the releases were and whoever chose the weights (Denisov, McMahan, Rush,
Smith, Thakurta: Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams, NeurIPS
2022). With z of standard deviation sigma * clip * `column_norm`, all rounds together are one Gaussian mechanism of
noise multiplier sigma. Rounds that are left out release less, which costs nothing.

The proof is about one site's releases. It does not cover a sum over sites that adds up their noise: where other sites
are missing in some rounds, what remains is no longer C^-1 z.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError

__all__ = ["column_norm", "noise_weights"]

_ROUNDING = 1 + 1e-12


def column_norm(rounds: int) -> float:
    """The largest norm of a column of C, which is that of the first one, rounded up.

    Args:
        rounds: How many rounds there are.

    Returns:
        By how much more noise than for a single release each z has.

    Raises:
        ConfigError: There is no round.

    Example:
        >>> round(column_norm(2) ** 2, 6)
        1.25
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds", hint="Use at least 1")
    entries = np.cumprod([1.0, *(1 - 1 / (2 * step) for step in range(1, rounds))])
    return math.sqrt(math.fsum((entries**2).tolist())) * _ROUNDING


def noise_weights(passed: int) -> NDArray[np.float64]:
    """The row of C^-1 that makes the noise of a round.

    Args:
        passed: Rounds before this one.

    Returns:
        What the z of rounds 0 to `passed` are multiplied by.

    Example:
        >>> noise_weights(2).tolist()
        [-0.125, -0.5, 1.0]
    """
    entries = np.cumprod(np.asarray([1.0, *(1 - 3 / (2 * step) for step in range(1, passed + 1))], dtype=np.float64))
    return np.asarray(entries[::-1], dtype=np.float64)
