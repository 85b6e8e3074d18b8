"""Shamir's secret sharing on Python integers: the polynomial and Lagrange's formula, term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIME = 2**61 - 1


def share(secret: int, coefficients: Sequence[int], point: int) -> int:
    """The value of secret + c1 x + c2 x^2 + ... at a point."""
    return sum(number * point**power for power, number in enumerate([secret, *coefficients])) % PRIME


def interpolate(shares: Mapping[int, int]) -> int:
    """The value at 0 of the polynomial through the shares, by their points."""
    total = 0
    for point, value in shares.items():
        weight = 1
        for other in shares:
            if other != point:
                weight = weight * other * pow(other - point, -1, PRIME) % PRIME
        total += value * weight
    return total % PRIME
