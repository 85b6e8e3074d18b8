"""Shamir's secret sharing over the prime 2^127 - 1, on Python integers.

Guarantee: any `threshold` shares give the secret back; fewer tell nothing about it, as the coefficients are uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
            value = (value * point + coefficient) % PRIME
        shares[point] = value
    return shares


def combine(shares: Mapping[int, int], threshold: int) -> int:
    """The secret behind at least `threshold` shares, by interpolation at 0."""
    if len(shares) < threshold:
        raise IntegrityError(f"{len(shares)} shares are too few to open what {threshold} were needed for")
    used = sorted(shares.items())[:threshold]
    secret = 0
    for point, share in used:
        over, under = 1, 1
        for other, _ in used:
            if other != point:
                over = over * other % PRIME
                under = under * (other - point) % PRIME
        secret = (secret + share * over * pow(under, -1, PRIME)) % PRIME
    return secret
