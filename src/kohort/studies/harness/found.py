"""What a study reports: measured figures beside the paper's, in tables, with the charts and notes that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

__all__ = ["Figure", "Found", "Part", "ResultTable", "confidence_interval"]

Figure = float | int | str | bool | None
"""A number, a word, or whether something holds, which is written as "yes" or "no"."""


@dataclass(frozen=True)
class Found:
    """One measured figure beside the paper's.

    Example:
        >>> Found("k = 3: accuracy", 0.84, 0.83).to_row()["paper"]
        0.83
    """

    setting: str
    ours: Figure
    paper: Figure = None
    sd: float | None = None
    """Standard deviation over the seeds, when there are two or more."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of the mean, where the study reports it."""

    @classmethod
    def mean(
        cls, setting: str, values: Sequence[float], paper: float | None = None, *, interval: bool = False
    ) -> Found:
        """The mean of one value per seed, with its standard deviation.

        Args:
            setting: What was measured.
            values: One value per seed.
            paper: The paper's figure, if it prints one.
            interval: Also report the 95 % confidence interval of the mean.
        """
        sd = stdev(values) if len(values) > 1 else None
        return cls(setting, fmean(values), paper, sd, confidence_interval(values) if interval else None)

    @property
    def delta(self) -> float | None:
        """Ours minus the paper's, where both are numbers."""
        ours, paper = _number(self.ours), _number(self.paper)
        return None if ours is None or paper is None else ours - paper

    def to_row(self) -> dict[str, Any]:
        """A row of the study's JSON object; `interval` is there only where it is reported."""
        row = {
            "setting": self.setting,
            "paper": _plain(self.paper),
            "ours": _plain(self.ours),
            "sd": self.sd,
            "delta": self.delta,
        }
        return row if self.interval is None else {**row, "interval": list(self.interval)}


def _number(value: Figure) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: Figure) -> float | int | str | None:
    return ("yes" if value else "no") if isinstance(value, bool) else value


@dataclass(frozen=True)
class ResultTable:
    """A table of the study: its title, the paper's table or figure it re-runs, and its rows."""

    name: str
    source: str
    rows: Sequence[Found]

    def to_mapping(self) -> dict[str, Any]:
        """The table in the study's JSON object."""
        return {"name": self.name, "source": self.source, "rows": [row.to_row() for row in self.rows]}


@dataclass(frozen=True)
class Part:
    """One part of a study: its tables, the files of its figures, and its notes."""

    tables: Sequence[ResultTable] = ()
    figures: Sequence[Path] = ()
    notes: Sequence[str] = ()


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % confidence interval of the mean.

    Args:
        values: One value per seed.

    Returns:
        Both ends; None for fewer than two values.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half
