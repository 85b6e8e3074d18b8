"""A value that one row alone has, and a search for it in what left a site."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.protocol.wire import decode

__all__ = ["CANARY", "shows_canary"]

CANARY = 19.9173
"""The value, in the column `dose`."""
_BOUNDS = (-10.0, 20.0)
"""The declared bounds of that column."""
_VALUES = np.asarray([CANARY, (CANARY - _BOUNDS[0]) / (_BOUNDS[1] - _BOUNDS[0])])
"""The value as it stands in the table, and as a model's input."""
_PATTERNS = [struct.pack("<d", value) for value in _VALUES] + [str(value)[:12].encode() for value in _VALUES]


def shows_canary(body: bytes) -> bool:
    """Whether a reply's body holds the canary: as a number of an array, or as bytes or text.

    Args:
        body: An encoded payload.

    Returns:
        True when it does.
    """
    return any(pattern in body for pattern in _PATTERNS) or any(_is_in(array) for array in _arrays(body))


def _is_in(array: NDArray[Any]) -> bool:
    if array.dtype.kind != "f":
        return False
    return bool(np.isin(_VALUES.astype(array.dtype), array).any())


def _arrays(content: bytes) -> Iterator[NDArray[Any]]:
    """Every array and number of a payload, and of the payloads it holds."""
    try:
        payload = decode(content)
    except IntegrityError:
        return
    yield from payload.arrays.values()
    yield np.asarray([float(value) for value in payload.metrics.values()])
    for blob in payload.blobs.values():
        yield from _arrays(blob)
