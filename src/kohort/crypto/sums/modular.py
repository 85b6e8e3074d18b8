"""Integers of a secure sum: modulo 2^64, or modulo the prime 2^61 - 1 where products must keep their meaning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["P61", "RunningSum", "add", "join_halves", "multiply", "subtract"]

P61 = 2**61 - 1
_P = np.uint64(P61)
_LOW, _SHIFT = np.uint64(2**61 - 1), np.uint64(61)
_HALF = np.uint64(31)
_PENDING = 7
"""How many numbers up to p fit into 64 bits on top of a residue: 8 p is below 2^64."""
Integers = NDArray[np.uint64]


def add(left: Integers, right: Integers, modulus: int) -> Integers:
    """left + right; `modulus` 0 means 2^64."""
    total = left + right
    return total if modulus == 0 else _reduced(total)


def subtract(left: Integers, right: Integers, modulus: int) -> Integers:
    """left - right; `modulus` 0 means 2^64."""
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


def multiply(left: Integers, right: Integers) -> Integers:
    """Products modulo 2^61 - 1, by halves that do not overflow."""
    mask = np.uint64(2**31 - 1)
    high, low = left >> _HALF, left & mask  # left = high 2^31 + low, high below 2^30
    upper, lower = right >> _HALF, right & mask
    # high upper 2^62 = 2 high upper is below 2^61, low lower below 2^62, the middle below 2^61 + 2^32: they fit.
    return _fold(np.uint64(2) * (high * upper) + low * lower + _times_half(high * lower + low * upper))


def join_halves(high: Integers, low: Integers) -> Integers:
    """high 2^31 + low modulo 2^61 - 1, for sums of halves (each below 2^61)."""
    return _fold(_times_half(high) + low)


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
