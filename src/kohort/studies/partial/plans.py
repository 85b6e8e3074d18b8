"""The study's plans, how much of them is run, and what is kept of a run.

The paper counts groups over all 30,162 rows. Here sites hold the 70 % they train on, so a threshold of the paper is
multiplied by 0.7, and one above the largest group becomes one that no group can reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kohort.models.dense.network import Init
from kohort.protocol.table_payload import pack_table
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome
from kohort.studies.harness.runs import RunSummary
from kohort.studies.harness.session import Depth, Session
from kohort.studies.partial.paper import LARGEST

__all__ = [
    "ABOVE",
    "E2_WIDTH",
    "GATE_K",
    "LENIENT",
    "PAPER",
    "START",
    "TEST",
    "TRUSTING",
    "TUNED",
    "Letter",
    "PartialDepth",
    "PartialRun",
    "PartialSession",
    "PartialTraining",
    "ReleaseCase",
    "adult_plan",
    "gate_for",
    "marks_of",
    "paper_gate",
    "release_plan",
    "summarise_partial",
]  # fmt: skip

Letter = Literal["k", "l"]
Gate = Mapping[str, Any]

TEST: Final = 0.3
UNREACHABLE: Final = 30_163
"""More rows than the table has."""
E2_WIDTH: Final = 88
LENIENT: Final = {"raw": True, "trust_counts": True}
TRUSTING: Final = {**LENIENT, "min_rows": 1}
ABOVE: Final = LARGEST["k"] + 1
"""A k that no group reaches: nothing is shared, which is federated averaging."""
GATE_K: Final = 100
MARKS: Final = (20, 60)
"""Rounds before the last one whose accuracy is reported too."""


@dataclass(frozen=True)
class PartialTraining:
    """How the hub and the sites train."""

    name: str
    optimizer: str
    lr: float
    batch: int


# The paper prints neither the batch size nor the initialisation. The batch is that of `examples/fedavg.toml`; of three
# common initialisations this one comes nearest to the paper's two end points. Tables show the others beside them.
START: Final[Init] = "pytorch"
PAPER = PartialTraining("paper's setting", "adam", 0.001, 64)
TUNED = PartialTraining("tuned", "sgd", 0.3, 64)


def adult_plan(
    training: PartialTraining,
    *,
    rounds: int,
    gate: Gate | None,
    encoding: str = "label",
    split: str = "interval:age",
    train: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    start: Init = START,
) -> Plan:
    """Adult as the paper prepares it, over ten sites; without a gate, federated averaging.

    Args:
        training: Optimizer, rate and batch of hub and sites.
        rounds: The rounds.
        gate: Keys of `[method.gate]`; None for federated averaging.
        encoding: "label" or "onehot", which also decides the number of hidden units.
        split: How rows are dealt out to the ten sites, as `sites.split`.
        train: Further keys of `[train]`, which win over `training`.
        policy: Keys of `[policy]`.
        start: How weights are initialised.

    Returns:
        The plan, with 30 % of the rows for testing.
    """
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
    """The paper's gate at a threshold of its own scale: raw rows, counted in clear over all sites.

    Args:
        letter: The gate: k or l.
        threshold: A threshold as the paper counts it, over all 30,162 rows.

    Returns:
        Keys of `[method.gate]`, with the threshold scaled to the training rows. One that no group of the paper exceeds
        becomes one that no group here reaches.
    """
    scaled = UNREACHABLE if threshold >= LARGEST[letter] else max(1, round(threshold * (1 - TEST)))
    rule = {"rule": "k-anonymity", "k": scaled} if letter == "k" else {"rule": "paper-l", "l": scaled}
    return {**rule, "count": "global", "released": "raw"}


def paper_gate(
    training: PartialTraining,
    letter: Letter,
    threshold: int,
    *,
    rounds: int,
    encoding: str = "label",
    train: Mapping[str, Any] | None = None,
    start: Init = START,
) -> Plan:
    """The plan of one threshold of the paper; 1 is central learning, one above the largest group is FedAvg.

    Args:
        training: Optimizer, rate and batch of hub and sites.
        letter: The gate: k or l.
        threshold: A threshold as the paper counts it.
        rounds: The rounds.
        encoding: "label" or "onehot".
        train: Further keys of `[train]`.
        start: How weights are initialised.

    Returns:
        The plan.
    """
    gate = gate_for(letter, threshold)
    return adult_plan(training, rounds=rounds, gate=gate, encoding=encoding, train=train, policy=TRUSTING, start=start)


def release_plan(
    training: PartialTraining, released: str | None, *, split: str, rounds: int, k: int = GATE_K, start: Init = START
) -> Plan:
    """The plan of `examples/partial.toml` with another release, split or training.

    Args:
        training: Optimizer, rate and batch of hub and sites.
        released: "generalised" or "raw"; None shares nothing, which is federated averaging.
        split: How rows are dealt out, as `sites.split`.
        rounds: The rounds.
        k: The gate's k, counted over training rows.
        start: How weights are initialised.

    Returns:
        The plan.
    """
    gate = {"rule": "k-anonymity", "k": k, "count": "secure", "released": released, "release_k": 10, "release_l": 2}
    return adult_plan(
        training,
        rounds=rounds,
        split=split,
        gate=None if released is None else gate,
        policy=LENIENT if released == "raw" else None,
        start=start,
    )


def marks_of(rounds: int) -> tuple[int, ...]:
    """The rounds of a run whose accuracy is reported.

    Args:
        rounds: How long the run is.

    Returns:
        20 and 60 where the run is longer, then its last round.
    """
    return (*(mark for mark in MARKS if mark < rounds), rounds)


ReleaseCase = tuple[str, PartialTraining, tuple[int, ...]]
"""Split, training, and the rounds to compare after."""


@dataclass(frozen=True, kw_only=True)
class PartialDepth(Depth):
    """How much of the study is run."""

    variant_seeds: tuple[int, ...]
    """Seeds for the other aggregators."""
    rounds: int
    ks: tuple[int, ...]
    ls: tuple[int, ...]
    tuned_ks: tuple[int, ...]
    tuned_ls: tuple[int, ...]
    component_ls: tuple[int, ...]
    epochs: tuple[int, ...]
    """Of Figure 3."""
    batches: tuple[int, ...]
    starts: tuple[Init, ...]
    """Initialisations of the weights: the study's own, or that and others."""
    timed_ks: tuple[int, ...]
    timed_ls: tuple[int, ...]
    repetitions: int
    releases: tuple[ReleaseCase, ...]

    def thresholds(self, letter: Letter) -> dict[PartialTraining, tuple[int, ...]]:
        """The thresholds to run in the paper's setting and in the tuned one."""
        if letter == "k":
            return {PAPER: self.ks, TUNED: self.tuned_ks}
        return {PAPER: self.ls, TUNED: self.tuned_ls}


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialRun(RunSummary):
    """What the study keeps of a run."""

    rows: int
    shared: int
    unique: int
    """Shared rows that no other shared row equals in every column but the target."""
    row_bytes: int
    """The largest number of bytes that one site sent as rows."""

    @property
    def share(self) -> float:
        """Share of all training rows that the hub received."""
        return self.shared / self.rows


PartialSession = Session[PartialDepth, PartialRun]


def summarise_partial(outcome: Outcome) -> PartialRun:
    """What the study keeps of a finished run.

    Args:
        outcome: The run.

    Returns:
        The summary, with counts of the rows that the hub received.
    """
    received = outcome.received
    by_site = [] if received is None else received.drop("batch").partition_by("sender", include_key=False)
    return PartialRun(
        **RunSummary.fields_of(outcome),
        rows=sum(outcome.site_rows.values()),
        shared=0 if received is None else received.height,
        unique=0 if received is None else int(received.drop("sender", "batch", "income").is_unique().sum()),
        row_bytes=max((len(pack_table(part)) for part in by_site), default=0),
    )
