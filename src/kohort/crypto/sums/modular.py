"""Integers of a secure sum: modulo 2^64, or modulo the prime 2^61 - 1 where products must keep their meaning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "P61",
    "RunningSum",
    "add",
    "join_halves",
    "matrix_product",
    "multiply",
    "residues",
    "split_limbs",
    "subtract",
    "total",
]

P61 = 2**61 - 1
_P = np.uint64(P61)
_LOW, _SHIFT = np.uint64(2**61 - 1), np.uint64(61)
_HALF = np.uint64(31)
_PENDING = 7
"""How many numbers up to p fit into 64 bits on top of a residue: 8 p is below 2^64."""
_LIMB, _LIMBS = np.uint64(21), 3
_LIMB_WEIGHTS = np.array([pow(2, 21 * place, P61) for place in range(2 * _LIMBS - 1)], dtype=np.uint64)[:, None, None]
"""What products of limbs count for, by the sum of the limbs' places."""
_MOST_TERMS = 2**11
"""Sums of so many products of two limbs stay below 2^53, so floating point gives them exactly, in any order."""
Integers = NDArray[np.uint64]
Limbs = NDArray[np.float64]


def add(left: Integers, right: Integers, modulus: int) -> Integers:
    """left + right; `modulus` 0 means 2^64.

    Args:
        left: Residues.
        right: Residues, of the same shape.
        modulus: 2^61 - 1, or 0 for 2^64.

    Returns:
        The sums, as residues.
    """
    words = left + right
    return words if modulus == 0 else _reduced(words)


def subtract(left: Integers, right: Integers, modulus: int) -> Integers:
    """left - right; `modulus` 0 means 2^64.

    Args:
        left: Residues.
        right: Residues, of the same shape.
        modulus: 2^61 - 1, or 0 for 2^64.

    Returns:
        The differences, as residues.
    """
    return left - right if modulus == 0 else _reduced(left + (_P - right))


class RunningSum:
    """A sum of many vectors of words, reduced only when the next one might not fit: the same residues, fewer passes.

    Modulo the prime the lowest 61 bits of a word count: residues stay what they are, and uniform 64-bit words become
    uniform residues with a bias below 2^-60.
    """

    def __init__(self, start: Integers, modulus: int) -> None:
        self._sum = start.copy() if modulus == 0 else _fold(start)
        self._modulus = modulus
        self._word = np.empty_like(self._sum)
        self._pending = 0

    def add(self, words: Integers) -> None:
        """One more vector; `words` may be overwritten afterwards."""
        if self._modulus == 0:
            np.add(self._sum, words, out=self._sum)
            return
        if self._pending == _PENDING:
            self._sum = _fold(self._sum)
            self._pending = 0
        np.bitwise_and(words, _LOW, out=self._word)
        np.add(self._sum, self._word, out=self._sum)
        self._pending += 1

    def value(self) -> Integers:
        """The sum of all so far, as residues."""
        return self._sum.copy() if self._modulus == 0 else _fold(self._sum)


def multiply(left: Integers, right: Integers | np.uint64) -> Integers:
    """Products modulo 2^61 - 1, by halves that do not overflow.

    Args:
        left: Residues modulo 2^61 - 1.
        right: Residues of the same shape, or one for all.

    Returns:
        The products, as residues.
    """
    mask = np.uint64(2**31 - 1)
    high, low = left >> _HALF, left & mask  # left = high 2^31 + low, high below 2^30
    upper, lower = right >> _HALF, right & mask
    # high upper 2^62 = 2 high upper is below 2^61, low lower below 2^62, the middle below 2^61 + 2^32: they fit.
    return _fold(np.uint64(2) * (high * upper) + low * lower + _times_half(high * lower + low * upper))


def total(numbers: Integers) -> int:
    """The sum of residues modulo 2^61 - 1, exact for up to 2^32 of them: their halves of 32 bits are added apart.

    Args:
        numbers: Residues modulo 2^61 - 1, of any shape.

    Returns:
        The sum, as a residue.
    """
    high, low = numbers >> np.uint64(32), numbers & np.uint64(2**32 - 1)
    return ((int(high.sum()) << 32) + int(low.sum())) % P61


def join_halves(high: Integers, low: Integers) -> Integers:
    """high 2^31 + low modulo 2^61 - 1, for sums of halves (each below 2^61).

    Args:
        high: Sums of the upper halves, each below 2^61.
        low: Sums of the lower halves, each below 2^61.

    Returns:
        One residue per pair.
    """
    return _fold(_times_half(high) + low)


def residues(words: Integers) -> Integers:
    """Uniform 64-bit words as residues modulo 2^61 - 1, by their lowest 61 bits; the bias is below 2^-60.

    Args:
        words: Uniform words of 64 bits.

    Returns:
        One residue per word.
    """
    return _fold(words & _LOW)


def split_limbs(numbers: Integers) -> Limbs:
    """Residues as three limbs of 21 bits in floating point, the lowest first, along a new first axis.

    Args:
        numbers: Residues modulo 2^61 - 1, of any shape.

    Returns:
        The limbs, [3, *shape of the numbers].
    """
    shifts = _LIMB * np.arange(_LIMBS, dtype=np.uint64).reshape(-1, *(1,) * numbers.ndim)
    limbs: Limbs = ((numbers[None] >> shifts) & np.uint64(2**21 - 1)).astype(np.float64)
    return limbs


def matrix_product(left: Limbs, right: Integers) -> Integers:
    """A product of two matrices modulo 2^61 - 1, by exact products of limbs in floating point.

    Args:
        left: What `split_limbs` makes of an m x k matrix, k at most 2048: a matrix that is used again is split once.
        right: A k x c matrix of residues.

    Returns:
        The m x c matrix of residues.

    Raises:
        ValueError: k is too large for exact sums.
    """
    _, rows, terms = left.shape
    if terms > _MOST_TERMS:
        raise ValueError(f"a sum of {terms} products is not exact in floating point")
    beside = np.concatenate(list(split_limbs(right)), axis=1)
    products = (left.reshape(-1, terms) @ beside).astype(np.uint64).reshape(_LIMBS, rows, _LIMBS, -1)
    sums = np.zeros((len(_LIMB_WEIGHTS), rows, right.shape[1]), dtype=np.uint64)
    for low in range(_LIMBS):
        for high in range(_LIMBS):
            sums[low + high] += products[low, :, high]  # at most three, so below 2^55
    return _fold(multiply(sums, _LIMB_WEIGHTS).sum(axis=0))  # five residues fit into 64 bits


def _times_half(numbers: Integers) -> Integers:
    """Numbers below 2^62 times 2^31, below 2^61 + 2^32: what passes 2^61 comes back at the bottom."""
    return (numbers >> np.uint64(30)) + ((numbers & np.uint64(2**30 - 1)) << _HALF)


def _reduced(numbers: Integers) -> Integers:
    """Numbers below 2 p as residues: taking p off a smaller one wraps around and loses against the number itself."""
    smaller: Integers = np.minimum(numbers, numbers - _P)
    return smaller


def _fold(numbers: Integers) -> Integers:
    """Numbers below 2^64 as residues below 2^61 - 1."""
    return _reduced((numbers & _LOW) + (numbers >> _SHIFT))
