"""Shamir's secret sharing of 256-bit secrets, limb by limb over the prime 2^61 - 1, for all recipients at once.

A secret is five limbs of at most 60 bits. Each limb has a polynomial of its own; recipient number i gets the five
values at the point i + 1. Sharing and opening are matrix products modulo the prime.

Guarantee: any `threshold` shares give the secret back; fewer tell nothing about it, as the coefficients are uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

import numpy as np

from kohort.crypto.sums.modular import P61, Integers, Limbs, matrix_product, multiply, split_limbs

__all__ = ["LIMBS", "SECRET", "combine", "join_secret", "split", "split_secret"]

SECRET, LIMBS = 32, 5
"""Bytes of a secret, and the limbs it is shared in."""
_BITS = 60


def split_secret(secret: bytes) -> Integers:
    """The limbs of a secret of 32 bytes, the lowest first.

    Args:
        secret: 32 bytes.

    Returns:
        Five limbs, each below 2^60, the lowest first.
    """
    number = int.from_bytes(secret, "little")
    limbs = [(number >> (_BITS * place)) & (2**_BITS - 1) for place in range(LIMBS)]
    return np.array(limbs, dtype=np.uint64)


def join_secret(limbs: Integers) -> bytes | None:
    """Put the limbs of a secret together again.

    Args:
        limbs: Five limbs, the lowest first.

    Returns:
        The secret of 32 bytes; None if no secret has these limbs, which means that shares were wrong.
    """
    number = sum(int(limb) << (_BITS * place) for place, limb in enumerate(limbs))
    fits = int(limbs.max()) < 2**_BITS and number < 2 ** (8 * SECRET)
    return number.to_bytes(SECRET, "little") if fits else None


def split(limbs: Integers, count: int, threshold: int, coefficients: Integers) -> Integers:
    """Shares of limbs for recipients 0 to count - 1.

    Args:
        limbs: What is shared: k residues, each with a polynomial of its own.
        count: How many recipients there are.
        threshold: How many shares open.
        coefficients: (threshold - 1) x k uniform residues.

    Returns:
        count x k residues, one row per recipient.

    Raises:
        ValueError: The sizes do not fit.
    """
    if coefficients.shape != (threshold - 1, len(limbs)) or count < threshold:
        raise ValueError("a sharing needs threshold - 1 coefficients per limb and at least threshold recipients")
    return matrix_product(_powers(count, threshold), np.concatenate([limbs[None], coefficients]))


def combine(recipients: Sequence[int], shares: Integers) -> Integers:
    """The limbs behind the shares of as many recipients as the threshold, by interpolation at 0.

    Args:
        recipients: Whose shares they are: distinct numbers from 0.
        shares: One row of residues per recipient.

    Returns:
        The limbs; with fewer shares than the threshold, or altered ones, others than those that were shared.
    """
    limbs: Integers = matrix_product(_weights(tuple(recipients)), shares)[0]
    return limbs


@lru_cache(maxsize=4)
def _powers(count: int, threshold: int) -> Limbs:
    """The powers 0 to threshold - 1 of each recipient's point, ready for products."""
    points = np.arange(1, count + 1, dtype=np.uint64)
    powers = list(
        accumulate(range(threshold - 1), lambda power, _: multiply(power, points), initial=np.ones_like(points))
    )
    return split_limbs(np.stack(powers, axis=1))


@lru_cache(maxsize=8)
def _weights(recipients: tuple[int, ...]) -> Limbs:
    """What each share counts for at 0. It depends on the public points alone; all secrets of one sum share it."""
    points = [recipient + 1 for recipient in recipients]
    everything = prod(points)
    # The share at x weighs prod(others) / prod(other - x); x / x puts the same product over all of them.
    below = [point * prod(other - point for other in points if other != point) % P61 for point in points]
    weights = [everything * inverse % P61 for inverse in _inverses(below)]
    return split_limbs(np.array([weights], dtype=np.uint64))


def _inverses(numbers: Sequence[int]) -> list[int]:
    """1 / number modulo the prime for each (none is 0), from a single inversion of their product."""
    upto = list(accumulate(numbers, lambda left, right: left * right % P61, initial=1))
    rest = pow(upto[-1], -1, P61)
    found = []
    for number, before in zip(reversed(numbers), reversed(upto[:-1]), strict=True):
        found.append(rest * before % P61)
        rest = rest * number % P61
    return found[::-1]
