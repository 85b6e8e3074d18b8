"""Runs of the study's plans by seed, each made once, several side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import Final

import numpy as np
import polars as pl

from kohort.rng import Streams
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import Population, populate
from kohort.studies.harness.side_by_side import spread
from kohort.tables.datasets.catalogue import open_table

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


@dataclass(frozen=True, kw_only=True)
class _Dealt(Simulation):
    """A simulation whose rows were dealt out before."""

    population: Population = field(repr=False)

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """What was dealt out for plans of the same rows."""
        del plan, streams
        return self.population


def made(plans: Sequence[Plan], limit: int, seed: int) -> list[Found]:
    """Runs of plans that want the same rows at the same sites, which are read, held out and dealt out once."""
    tables = {"rows": table_rows(str(plans[0].data.table), limit)}
    backend = _Dealt(population=populate(plans[0], Streams.seeded(seed), tables=tables))
    return [_found(run(plan, seed=seed, backend=backend)) for plan in plans]


def _found(outcome: Outcome) -> Found:
    return Found(
        accuracy=outcome.accuracy,
        curve=tuple(point["accuracy"] for point in outcome.history if "accuracy" in point),
        epsilon=outcome.epsilon,
        void=bool((outcome.dp or {}).get("void")),
        seconds=outcome.seconds["cpu_total"],
    )


def _same_rows(plan: Plan) -> str:
    """What plans must have in common to have the same rows at the same sites."""
    mapping = plan.to_mapping()
    return json.dumps([mapping["data"], mapping["sites"]], sort_keys=True)


class Runs:
    """Runs by plan, rows and seed."""

    def __init__(self, seeds: Sequence[int], *, processes: int = 1) -> None:
        self.seeds = tuple(seeds)
        self._processes = processes
        self._known: dict[tuple[str, int, int], Found] = {}

    def prepare(self, plans: Sequence[Plan], *, limit: int = 0) -> None:
        """Make what is still missing of these plans."""
        by_digest = {plan.digest(): plan for plan in plans}
        groups: dict[tuple[str, int], list[str]] = {}
        for digest, plan in by_digest.items():
            for seed in self.seeds:
                if (digest, limit, seed) not in self._known:
                    groups.setdefault((_same_rows(plan), seed), []).append(digest)
        # Few groups are cut up, so that no process waits for another's long one.
        cuts = 1 if self._processes == 1 else -(-2 * self._processes // max(1, len(groups)))
        parts = [
            (seed, digests)
            for (_, seed), group in groups.items()
            for digests in (group[cut::cuts] for cut in range(cuts))
            if digests
        ]
        jobs = [([by_digest[digest] for digest in digests], limit, seed) for seed, digests in parts]
        for (seed, digests), found in zip(parts, spread(made, jobs, self._processes), strict=True):
            self._known |= {(digest, limit, seed): one for digest, one in zip(digests, found, strict=True)}

    def of(self, plan: Plan, *, limit: int = 0) -> list[Found]:
        """One run a seed."""
        self.prepare([plan], limit=limit)
        return [self._known[plan.digest(), limit, seed] for seed in self.seeds]

    def accuracies(self, plan: Plan, *, limit: int = 0) -> list[float]:
        """Accuracy on the test rows, one a seed."""
        return [found.accuracy for found in self.of(plan, limit=limit)]

    def mean(self, plan: Plan, *, limit: int = 0) -> float:
        """Mean accuracy over the seeds."""
        return fmean(self.accuracies(plan, limit=limit))

    def curve(self, plan: Plan, *, limit: int = 0) -> list[float]:
        """Mean accuracy over the seeds after every round with the hub."""
        return [float(value) for value in np.mean([found.curve for found in self.of(plan, limit=limit)], axis=0)]
