"""Ends of intervals that are nobody's own values: round numbers, about a hundredth of a column's range apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["SMALLEST_RANGE", "grid_step", "on_grid"]

SMALLEST_RANGE = 1e-300
"""Numbers whose range is smaller count as one: a part of it would be no number with all its digits."""
GRID_STEPS = 100
"""About how many steps of the public grid the range of a number has."""


def grid_step(values: Sequence[float], *, whole: bool) -> float:
    """The distance of two ends of the public grid: 1, 2 or 5 times a power of ten, about a hundredth of the range.

    Args:
        values: The values of the column.
        whole: Whether they are whole numbers; the grid then has no parts of them.

    Returns:
        The step; 0 for a column without a range.

    Example:
        >>> grid_step([0.0, 730.0], whole=False)
        10.0
    """
    extent = max(values, default=0.0) - min(values, default=0.0)
    if not extent >= SMALLEST_RANGE or not math.isfinite(extent):
        return 0.0
    power = 10.0 ** math.floor(math.log10(extent / GRID_STEPS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= extent / GRID_STEPS * (1 - 1e-9))
    return max(step, 1.0) if whole else step


def on_grid(low: float, high: float, step: float) -> tuple[float, float]:
    """The smallest interval of the grid that holds two values.

    Args:
        low: The smaller value.
        high: The larger value.
        step: The distance of two ends of the grid; 0 leaves the values as they are.

    Returns:
        The ends.
    """
    if step == 0.0:
        return low, high
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    first -= _clean(first * step) > low  # where rounding would leave a value outside
    last += _clean(last * step) < high
    return _clean(first * step), _clean(last * step)


@lru_cache(1 << 14)
def _clean(value: float) -> float:
    return float(f"{value:.12g}")
