"""Steps of powers of two, to which what a model tells is rounded: the same digits wherever they are computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["rounded_to", "steps_within"]

Floats = NDArray[np.float64]


def steps_within(largest: Floats) -> Floats:
    """The largest powers of two that are not above some numbers.

    Args:
        largest: The numbers, all above 0.

    Returns:
        One step for each.
    """
    return np.asarray(np.exp2(np.floor(np.log2(largest))))


def rounded_to(values: Floats, steps: Floats) -> Floats:
    """The nearest multiples of steps.

    Args:
        values: The numbers.
        steps: The step of each.

    Returns:
        The multiples.
    """
    return np.asarray(np.rint(values / steps) * steps)
