"""Integers of a secure sum: modulo 2^64, or modulo the prime 2^61 - 1 where products must keep their meaning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["P61", "add", "multiply", "reduce_stream", "subtract"]

P61 = 2**61 - 1
_P = np.uint64(P61)
_LOW, _SHIFT = np.uint64(2**61 - 1), np.uint64(61)
Integers = NDArray[np.uint64]


def add(left: Integers, right: Integers, modulus: int) -> Integers:
    """left + right; `modulus` 0 means 2^64."""
    total = left + right
    return total if modulus == 0 else _reduced(total)


def subtract(left: Integers, right: Integers, modulus: int) -> Integers:
    """left - right; `modulus` 0 means 2^64."""
    return left - right if modulus == 0 else _reduced(left + (_P - right))


def reduce_stream(words: Integers, modulus: int) -> Integers:
    """Uniform 64-bit words as uniform residues; modulo the prime the bias is below 2^-60."""
    return words if modulus == 0 else _reduced(words & _LOW)


def multiply(left: Integers, right: Integers) -> Integers:
    """Products modulo 2^61 - 1, by halves that do not overflow."""
    half = np.uint64(31)
    mask = np.uint64(2**31 - 1)
    high, low = left >> half, left & mask  # left = high 2^31 + low, high below 2^30
    upper, lower = right >> half, right & mask
    middle = _fold(high * lower + low * upper)  # times 2^31
    # high * upper * 2^62 = 2 * high * upper; middle * 2^31: its top 30 bits wrap around.
    carried = (middle >> np.uint64(30)) + ((middle & np.uint64(2**30 - 1)) << half)
    return _fold(_fold(_fold(np.uint64(2) * _fold(high * upper)) + _fold(low * lower)) + _fold(carried))


def _reduced(numbers: Integers) -> Integers:
    """Numbers below 2 p as residues: taking p off a smaller one wraps around and loses against the number itself."""
    smaller: Integers = np.minimum(numbers, numbers - _P)
    return smaller


def _fold(numbers: Integers) -> Integers:
    """Numbers below 2^64 as residues below 2^61 - 1."""
    return _reduced((numbers & _LOW) + (numbers >> _SHIFT))
