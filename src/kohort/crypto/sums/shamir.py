"""Shamir's secret sharing over the prime 2^127 - 1, on Python integers.

Guarantee: any `threshold` shares give the secret back; fewer tell nothing about it, as the coefficients are uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

from kohort.errors import IntegrityError

__all__ = ["PRIME", "combine", "split"]

PRIME = 2**127 - 1


def split(secret: int, points: Sequence[int], threshold: int, coefficients: Sequence[int]) -> dict[int, int]:
    """One share for each of `points` (distinct, not 0); `coefficients`: threshold - 1 uniform numbers below PRIME."""
    if not 0 <= secret < PRIME:
        raise ValueError("a secret must be below the prime")
    if len(coefficients) != threshold - 1 or len(points) < threshold:
        raise ValueError("a sharing needs threshold - 1 coefficients and at least threshold points")
    descending = [*reversed(coefficients), secret]
    shares = {}
    for point in points:
        value = 0
        for coefficient in descending:
            value = value * point + coefficient  # points are small: growing costs less than reducing at each step
        shares[point] = value % PRIME
    return shares


def combine(shares: Mapping[int, int], threshold: int) -> int:
    """The secret behind at least `threshold` shares, by interpolation at 0."""
    if len(shares) < threshold:
        raise IntegrityError(f"{len(shares)} shares are too few to open what {threshold} were needed for")
    used = sorted(shares)[:threshold]
    weights = _weights(tuple(used))
    return sum(shares[point] * weight for point, weight in zip(used, weights, strict=True)) % PRIME


@lru_cache(maxsize=8)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """What each share counts for at 0. They depend on the public points alone, and seeds of one sum share theirs."""
    everything = prod(points)
    # The share at x weighs prod(others) / prod(other - x); x / x puts the same product over all of them.
    below = [point * prod(other - point for other in points if other != point) % PRIME for point in points]
    return tuple(everything * inverse % PRIME for inverse in _inverses(below))


def _inverses(numbers: Sequence[int]) -> list[int]:
    """1 / number modulo the prime for each (none is 0), from a single inversion of their product."""
    upto = list(accumulate(numbers, lambda left, right: left * right % PRIME, initial=1))
    rest = pow(upto[-1], -1, PRIME)
    found = []
    for number, before in zip(reversed(numbers), reversed(upto[:-1]), strict=True):
        found.append(rest * before % PRIME)
        rest = rest * number % PRIME
    return found[::-1]
