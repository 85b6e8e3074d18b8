"""Private selection: try settings a random number of times, tell the best alone, and pay for that alone.

Papernot and Steinke (Hyperparameter Tuning with Rényi Differential Privacy, ICLR 2022, Theorem 2) bound what leaves
when an algorithm is run K times and only its best output is told, where K is drawn from a truncated negative binomial
distribution and nobody learns K. Here its shape is 0, the logarithmic distribution: the price is close to that of two
runs, not of all.

Guarantee: an upper bound for those who see the selected run alone. The number of tries, the other runs, and how long
all of them took must stay with whoever made them. Which settings are tried, and how many on average, is fixed
beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log

import numpy as np

from kohort.errors import ConfigError
from kohort.privacy.dp.composition import parts_of, quiet, renyi
from kohort.privacy.dp.events import AnyEvent, Relation

__all__ = ["draw_tries", "selection_epsilon", "stopping"]

ORDERS = tuple(1 + step / 10 for step in range(1, 100)) + tuple(range(11, 257)) + (320, 512, 768, 1024, 2048, 4096)
MOST_TRIES = 1000.0


@lru_cache(maxsize=16)
def stopping(mean: float) -> float:
    """The probability parameter gamma of the logarithmic distribution with a mean.

    Args:
        mean: The mean number of tries, above 1.

    Returns:
        gamma: the mean is (1 / gamma - 1) / log(1 / gamma).

    Raises:
        ConfigError: The mean is not above 1, or is too large.
    """
    if not 1 < mean <= MOST_TRIES:
        raise ConfigError(
            f"{mean:g} tries on average cannot be drawn", hint=f"Give a number above 1, and {MOST_TRIES:g} at most"
        )
    low, high = -log(1 - 1e-12), log(1e12)  # log(1 / gamma); the mean rises with it
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.expm1(middle) / middle < mean else (low, middle)
    return float(np.exp(-(low + high) / 2))


def draw_tries(mean: float, generator: np.random.Generator) -> int:
    """Draw how often settings are tried; the number must not be told.

    Args:
        mean: The mean number of tries.
        generator: The randomness.

    Returns:
        The number of tries, 1 at least.
    """
    return int(generator.logseries(1 - stopping(mean)))


def selection_epsilon(
    tried: Sequence[Sequence[AnyEvent]], *, mean: float, delta: float, relation: Relation = "add-or-remove-one"
) -> float:
    """Epsilon of telling the best of a random number of tries.

    Args:
        tried: For everything that one try may expose a unit to, its events: the settings, one of which is drawn with
            equal chances, and the score that ranks tries. A unit is exposed to one of these lists in a try.
        mean: The mean number of tries.
        delta: The delta of the whole selection, above 0.
        relation: Which tables count as neighbours.

    Returns:
        Epsilon at `delta`.

    Raises:
        ConfigError: An event has a delta of its own, of which Rényi differential privacy says nothing.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    with quiet():
        one = np.max([_divergences(events, relation) for events in tried], axis=0)
        orders = np.asarray(ORDERS, dtype=np.float64)
        # Any second order may be taken; the best is.
        second = np.min((1 - 1 / orders) * one + log(1 / stopping(mean)) / orders)
        whole = one + second + log(mean) / (orders - 1)
        return float(compute_epsilon(orders.tolist(), whole.tolist(), delta)[0])


def _divergences(events: Sequence[AnyEvent], relation: Relation) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The Rényi divergence of some events at every order."""
    parts = parts_of(events, relation)
    if parts.leak:
        raise ConfigError(
            "private selection needs releases without a delta of their own",
            hint="Declare the categories and bounds of all columns, and set train.batch = 0",
        )
    return np.asarray(renyi(parts, ORDERS).rdp, dtype=np.float64)
