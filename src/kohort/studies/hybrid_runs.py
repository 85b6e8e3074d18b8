"""Runs of the study's plans by seed, each made once, several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Final

import numpy as np
import polars as pl

from kohort.config import PlanFile
from kohort.data.datasets import open_table
from kohort.experiment import run
from kohort.studies.partial_runs import spread

__all__ = ["Found", "Runs", "digits", "table_rows"]

SHUFFLE: Final = 7


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the study keeps of a run."""

    accuracy: float
    curve: tuple[float, ...]
    """Accuracy on test rows after every round with the hub."""
    epsilon: float | None
    void: bool
    """Whether some site's delta was too large for a claim."""
    seconds: float


@lru_cache(maxsize=3)
def table_rows(name: str, limit: int = 0) -> pl.DataFrame:
    """The table in an order of no meaning, or so many of its rows: the curves look at the first test rows only."""
    frame = digits() if name == "digits" else open_table(name).frame
    return frame.sample(n=min(limit or frame.height, frame.height), shuffle=True, seed=SHUFFLE)


def digits() -> pl.DataFrame:
    """scikit-learn's handwritten digits: one column a pixel."""
    from sklearn.datasets import load_digits

    pictures, names = load_digits(return_X_y=True)
    columns = {f"pixel_{place:02d}": pictures[:, place] for place in range(pictures.shape[1])}
    return pl.DataFrame({**columns, "digit": pl.Series(names).cast(pl.String)})


def made(plan: PlanFile, limit: int, seed: int) -> Found:
    """One run."""
    outcome = run(plan, seed=seed, tables={"rows": table_rows(str(plan.data.table), limit)})
    return Found(
        accuracy=outcome.accuracy,
        curve=tuple(point["accuracy"] for point in outcome.history if "accuracy" in point),
        epsilon=outcome.epsilon,
        void=bool((outcome.dp or {}).get("void")),
        seconds=outcome.seconds["cpu_total"],
    )


class Runs:
    """Runs by plan, rows and seed."""

    def __init__(self, seeds: Sequence[int], *, processes: int = 1) -> None:
        self.seeds = tuple(seeds)
        self._processes = processes
        self._known: dict[tuple[str, int, int], Found] = {}

    def prepare(self, plans: Sequence[PlanFile], *, limit: int = 0) -> None:
        """Make what is still missing of these plans."""
        wanted = {(plan.digest(), limit, seed): (plan, limit, seed) for plan in plans for seed in self.seeds}
        missing = {place: job for place, job in wanted.items() if place not in self._known}
        self._known |= dict(zip(missing, spread(made, list(missing.values()), self._processes), strict=True))

    def of(self, plan: PlanFile, *, limit: int = 0) -> list[Found]:
        """One run a seed."""
        self.prepare([plan], limit=limit)
        return [self._known[plan.digest(), limit, seed] for seed in self.seeds]

    def accuracies(self, plan: PlanFile, *, limit: int = 0) -> list[float]:
        """Accuracy on the test rows, one a seed."""
        return [found.accuracy for found in self.of(plan, limit=limit)]

    def mean(self, plan: PlanFile, *, limit: int = 0) -> float:
        """Mean accuracy over the seeds."""
        return fmean(self.accuracies(plan, limit=limit))

    def curve(self, plan: PlanFile, *, limit: int = 0) -> list[float]:
        """Mean accuracy over the seeds after every round with the hub."""
        return [float(value) for value in np.mean([found.curve for found in self.of(plan, limit=limit)], axis=0)]
