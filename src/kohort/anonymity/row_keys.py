"""One whole number per row for its codes in several columns, and rows in the order of such numbers.

Guarantee: two rows have the same key if and only if they have the same codes; rows of one key keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["fold_codes", "key_order"]

Integers = NDArray[np.int64]

LARGEST_KEY = 1 << 62


def fold_codes(
    parts: Iterable[tuple[int, NDArray[np.integer[Any]]]], key: NDArray[np.integer[Any]], span: int = 1
) -> Integers:
    """The key of each row.

    Args:
        parts: Of each column the number of its codes, and the code of each row.
        key: A number of each row to begin with, such as its group; zeros where there is none.
        span: How many such numbers there are, from 0 on.

    Returns:
        The keys, numbered anew wherever they would grow too large.
    """
    found: Integers = key.astype(np.int64, copy=True)
    largest = LARGEST_KEY >> _bits(len(key))  # so that `key_order` has room for the places of rows
    for distinct, codes in parts:
        if span * distinct > largest:
            order, first = key_order(found)
            span = len(first)
            found[order] = np.repeat(np.arange(span), np.diff(first, append=len(found)))
        found *= distinct
        found += codes
        span *= distinct
    return found


def key_order(key: Integers) -> tuple[Integers, Integers]:
    """Rows in the order of their keys, and where each key begins.

    Args:
        key: The key of each row, 0 or more.

    Returns:
        The rows, those of one key in their order, and the place of the first row of each key.
    """
    bits = _bits(len(key))
    if int(key.max(initial=0)) >= LARGEST_KEY >> bits:
        order = np.argsort(key, kind="stable")
        return order, _begins(key[order])
    # Numbers are sorted several times faster than their places are: so the place is part of the number.
    both = key << bits
    both |= np.arange(len(key))
    both.sort()
    first = _begins(both >> bits)
    both &= (1 << bits) - 1
    return both, first


def _begins(ordered: Integers) -> Integers:
    """The place of the first of each run of equal numbers."""
    new = np.empty(len(ordered), np.bool_)
    new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.flatnonzero(new)


def _bits(count: int) -> int:
    """How many bits the places of so many rows take."""
    return max(count - 1, 0).bit_length()
