"""One line of a study's table: a setting, the paper's figure, ours, and how far ours spreads over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

__all__ = ["interval_of", "row", "row_of"]


def row(
    setting: str, paper: Any, ours: Any, *, sd: float | None = None, interval: Sequence[float] | None = None
) -> dict[str, Any]:
    """One line of a table, with the difference where both are numbers."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (paper, ours))
    line = {"setting": setting, "paper": paper, "ours": ours, "sd": sd, "delta": ours - paper if numbers else None}
    return line if interval is None else {**line, "interval": list(interval)}


def row_of(setting: str, paper: float | None, values: Sequence[float], *, interval: bool = False) -> dict[str, Any]:
    """One line from a value a seed."""
    sd = stdev(values) if len(values) > 1 else None
    return row(setting, paper, fmean(values), sd=sd, interval=interval_of(values) if interval else None)


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; none for a single value."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half
