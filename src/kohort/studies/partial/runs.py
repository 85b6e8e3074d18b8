"""The study's plans, and their runs by seed.

Every figure is a run of the real method through doors and ledgers. The paper counts groups over all 30,162 rows; here
sites hold the 70 % they train on, so a threshold of the paper becomes 0.7 times as many rows, and one above the largest
group becomes one nothing can reach.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import polars as pl

from kohort.models.dense.network import Init
from kohort.protocol.table_payload import pack_table
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate
from kohort.studies.harness.side_by_side import spread
from kohort.studies.partial.paper import LARGEST

__all__ = [
    "E2_WIDTH",
    "PAPER",
    "TEST",
    "TUNED",
    "Found",
    "Runs",
    "Training",
    "adult_plan",
    "gate_for",
    "paper_gate",
    "random_share",
]

Letter = Literal["k", "l"]
Gate = Mapping[str, Any]
T = TypeVar("T")

TEST: Final = 0.3
NOBODY: Final = 30_163
"""More rows than the table has."""
E2_WIDTH: Final = 88
TRUSTING: Final = {"raw": True, "trust_counts": True, "min_rows": 1}


@dataclass(frozen=True)
class Training:
    """How everybody trains."""

    name: str
    optimizer: str
    lr: float
    batch: int


# The paper prints no batch: this is the one of `examples/fedavg.toml`, and a table shows others beside it.
# Nor how weights start. Of three common ways this one comes nearest to its two ends; a table shows the others.
START: Final[Init] = "pytorch"
PAPER = Training("paper's setting", "adam", 0.001, 64)
TUNED = Training("tuned", "sgd", 0.3, 64)


def adult_plan(
    training: Training,
    *,
    rounds: int,
    gate: Gate | None,
    encoding: str = "label",
    split: str = "interval:age",
    train: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    start: Init = START,
) -> Plan:
    """Adult as the paper prepares it, over ten sites; without a gate, federated averaging."""
    own = {"name": "fedavg"} if gate is None else {"name": "partial", "gate": dict(gate)}
    return load_plan(
        {
            "data": {
                "table": "adult:train",
                "target": "income",
                "quasi": ["age", "race", "sex"],
                "sensitive": ["income"],
                "drop": ["fnlwgt", "education"],
                "missing": "drop",
                "encoding": encoding,
                "test": TEST,
                "bins": {"hours_per_week": [25, 40, 60], "capital_gain": [0, 7298], "capital_loss": [0, 1887]},
            },
            "sites": {"count": 10, "split": split},
            "model": {"kind": "mlp", "hidden": [12 if encoding == "label" else E2_WIDTH], "init": start},
            "train": {
                "rounds": rounds, "batch": training.batch, "optimizer": training.optimizer, "lr": training.lr,
                **(train or {}),
            },
            "method": own,
            "policy": dict(policy or {}),
        }
    )  # fmt: skip


def gate_for(letter: Letter, threshold: int) -> Gate:
    """The paper's gate at a threshold of its own scale: raw rows, counted in clear over all sites."""
    scaled = NOBODY if threshold >= LARGEST[letter] else max(1, round(threshold * (1 - TEST)))
    rule = {"rule": "k-anonymity", "k": scaled} if letter == "k" else {"rule": "paper-l", "l": scaled}
    return {**rule, "count": "global", "released": "raw"}


def paper_gate(training: Training, letter: Letter, threshold: int, *, rounds: int, encoding: str = "label") -> Plan:
    """One point of the paper's dial; k or l = 1 is central learning, above the largest group it is FedAvg."""
    return adult_plan(training, rounds=rounds, gate=gate_for(letter, threshold), encoding=encoding, policy=TRUSTING)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the study keeps of a run."""

    accuracy: float
    curve: tuple[float, ...]
    """Accuracy on the test rows after every round."""
    rows: int
    shared: int
    unique: int
    """Shared rows that no other shared row equals in every column but the target."""
    row_bytes: int
    """The most bytes one site shipped as rows."""
    seconds: Mapping[str, float] = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def share(self) -> float:
        """Rows the hub was given, of all training rows."""
        return self.shared / self.rows


class Runs:
    """Runs by plan and seed, each made once, several side by side."""

    def __init__(self, seeds: Sequence[int], *, processes: int = 1) -> None:
        self.seeds = tuple(seeds)
        self.processes = processes
        self._known: dict[tuple[str, int], Found] = {}

    def prepare(self, plans: Sequence[Plan], *, seeds: Sequence[int] | None = None) -> None:
        """Make what is still missing of these plans."""
        wanted = {(plan.digest(), seed): (plan, seed) for plan in plans for seed in seeds or self.seeds}
        missing = {place: job for place, job in wanted.items() if place not in self._known}
        self._known |= dict(zip(missing, spread(_made, list(missing.values()), self.processes), strict=True))

    def of(self, plan: Plan, *, seeds: Sequence[int] | None = None) -> list[Found]:
        """One run a seed."""
        self.prepare([plan], seeds=seeds)
        return [self._known[plan.digest(), seed] for seed in seeds or self.seeds]

    def accuracies(self, plan: Plan) -> list[float]:
        """Accuracy on the test rows, one a seed."""
        return [found.accuracy for found in self.of(plan)]

    def curve(self, plan: Plan) -> list[float]:
        """Mean accuracy over the seeds after every round."""
        return [float(value) for value in np.mean([found.curve for found in self.of(plan)], axis=0)]


def _made(plan: Plan, seed: int) -> Found:
    return found_of(run(plan, seed=seed))


def found_of(outcome: Outcome) -> Found:
    """The figures of a finished run."""
    received = outcome.received
    by_site = [] if received is None else received.drop("batch").partition_by("sender", include_key=False)
    return Found(
        accuracy=outcome.accuracy,
        curve=tuple(point["accuracy"] for point in outcome.history),
        rows=sum(outcome.site_rows.values()),
        shared=0 if received is None else received.height,
        unique=0 if received is None else int(received.drop("sender", "batch", "income").is_unique().sum()),
        row_bytes=max((len(pack_table(part)) for part in by_site), default=0),
        seconds=dict(outcome.seconds),
        plan=outcome.plan,
    )


def random_share(plan: Plan, shared: int, seed: int) -> float:
    """Accuracy when the hub is given so many rows drawn at random, everything else as in `plan`.

    The hub is one more participant of the mean, so this is federated averaging with one site more, table the drawn
    rows. Sites left without a row take no part.
    """
    population = populate(plan, Streams.seeded(seed))
    drawn = np.zeros(population.frame.height, dtype=bool)
    generator = Streams.seeded(seed).generator("random share")
    drawn[generator.permutation(len(drawn))[:shared]] = True
    tables = {
        name: population.frame[begin:end].filter(pl.Series(~drawn[begin:end]))
        for name, (begin, end) in zip(population.names, pairwise(population.starts.tolist()), strict=True)
    }
    tables["hub"] = population.frame.filter(pl.Series(drawn))
    columns = population.schema.columns
    mapping = plan.to_mapping()
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test.parquet"
        population.test.write_parquet(test)
        mapping["data"] |= {
            "table": "memory",
            "test": str(test),
            "features": "rest",
            "drop": [],
            "categories": {name: spec.categories for name, spec in columns.items() if spec.categories is not None},
            "bounds": {name: spec.bounds for name, spec in columns.items() if spec.bounds is not None},
        }
        mapping["sites"]["split"] = "files"
        mapping["method"] = {"name": "fedavg"}
        held = {name: part for name, part in tables.items() if part.height}
        outcome = run(load_plan(mapping, complete=True), seed=seed, tables=held)
    return outcome.accuracy
