"""The study's tables and plans, how much of them is run, and what is kept of a run."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.methods.oneshot.state import FILE, load_state
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome
from kohort.studies.harness.runs import RunSummary
from kohort.studies.harness.session import Depth, Session
from kohort.tables.datasets.catalogue import Dataset, load_dataset

__all__ = [
    "TABLES", "OneshotDepth", "OneshotRun", "OneshotSession", "Summarise", "Table", "bounds_around_mean", "fedavg_plan",
    "listed", "oneshot_plan", "tables_here",
]  # fmt: skip

TABLES: Final = ("dry_bean", "dry_bean:x10", "skin", "higgs", "higgs:x4", "miniboone", "susy", "hepmass")
"""Replicas as the paper makes them: its Figures 2-4 and Table 2 use those, its accuracies the tables themselves."""
P = TypeVar("P")
TARGETS: Final = ("label", "class", "signal")


@dataclass(frozen=True, eq=False)
class Table:
    """A table of the study, and what must be declared to use it with encryption."""

    name: str
    target: str
    frame: pl.DataFrame
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds declared for the study: the ranges of columns without public bounds."""

    @property
    def inputs(self) -> list[str]:
        """The columns to learn from."""
        return [name for name in self.frame.columns if name != self.target]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.frame[self.target].n_unique())


def tables_here(names: tuple[str, ...] = TABLES) -> dict[str, Table]:
    """Those of `names` that can be loaded on this machine.

    Args:
        names: Names of datasets.

    Returns:
        The tables by name, in the order of `names`; those that cannot be loaded are left out.
    """
    found = {}
    for name in names:
        try:
            loaded = load_dataset(name)
        except (DataError, ConfigError):
            continue
        found[name] = _table(name, loaded)
    return found


def _table(name: str, loaded: Dataset) -> Table:
    frame = loaded.frame
    target = loaded.target or next((word for word in TARGETS if word in frame.columns), frame.columns[0])
    known = loaded.schema_defaults.columns
    open_ended = [column for column in frame.columns if column != target and column not in known]
    bounds = {column: (float(frame[column].min()), float(frame[column].max())) for column in open_ended}  # type: ignore[arg-type] # numbers
    return Table(name, target, frame, bounds)


def listed(tables: Mapping[str, Table], printed: Mapping[str, P]) -> Iterator[tuple[str, Table, P]]:
    """The tables that the paper prints something of and that are on this machine, with what it prints.

    Args:
        tables: The tables on this machine, by name.
        printed: What the paper prints, by name of the table.

    Returns:
        Name, table and what is printed, in the paper's order.
    """
    return ((name, tables[name], found) for name, found in printed.items() if name in tables)


def bounds_around_mean(table: Table, deviations: float = 3.0) -> dict[str, tuple[float, float]]:
    """Tight bounds from the means and standard deviations of the columns; values beyond them are clipped.

    Args:
        table: The table.
        deviations: How many standard deviations a bound is away from the mean.

    Returns:
        The lower and the upper bound of each input, on its own scale.
    """
    found = {}
    for name in table.inputs:
        column = table.frame[name].cast(pl.Float64).to_numpy()
        centre, spread = float(column.mean()), float(column.std())
        found[name] = (centre - deviations * spread, centre + deviations * spread)
    return found


def oneshot_plan(
    table: Table,
    *,
    sites: int,
    split: str = "iid",
    scheme: str = "none",
    oneshot: Mapping[str, Any] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Plan:
    """The method on one table. Simulated sites of a study may have a single row, which their ledgers show.

    Args:
        table: The table.
        sites: The number of sites.
        split: How rows are dealt out, as `sites.split`.
        scheme: The secure sum; "none" for a sum in clear.
        oneshot: Keys of `[method.oneshot]`.
        bounds: Bounds of the inputs; None takes those of the table.

    Returns:
        The plan, with 30 % of the rows for testing.
    """
    in_clear = {"min_rows": 1} if scheme == "none" else {}
    method = {"name": "oneshot", "secure": {"sum": scheme}, "oneshot": {**in_clear, **(oneshot or {})}}
    model = {"kind": "onelayer", "dtype": "float64"}
    return _plan(table, bounds or table.bounds, {"count": sites, "split": split}, model=model, method=method)


def fedavg_plan(table: Table, *, sites: int, fraction: float, rounds: int, batch: int, rate: float) -> Plan:
    """Federated averaging of the same one-layer network.

    Args:
        table: The table.
        sites: The number of sites.
        fraction: The share of the sites that takes part in a round.
        rounds: The rounds.
        batch: Rows per batch.
        rate: The rate of Adam.

    Returns:
        The plan, with 30 % of the rows for testing.
    """
    train = {"rounds": rounds, "batch": batch, "optimizer": "adam", "lr": rate, "fraction": fraction}
    method = {"name": "fedavg"}
    return _plan(table, table.bounds, {"count": sites}, model={"kind": "onelayer"}, train=train, method=method)


def _plan(table: Table, bounds: Mapping[str, tuple[float, float]], sites: dict[str, Any], **sections: Any) -> Plan:
    data = {
        "table": table.name,
        "target": table.target,
        "features": "rest",
        "kinds": {table.target: "category"},
        "bounds": {name: list(pair) for name, pair in bounds.items()},
        "test": 0.3,
    }
    return load_plan({"data": data, "sites": sites, **sections, "policy": {"min_rows": 1, "pairs": "open"}})


@dataclass(frozen=True, kw_only=True)
class OneshotDepth(Depth):
    """How much of the study is run. The seeds are those of the linear model's accuracy."""

    tables: tuple[str, ...]
    """Those that are not on this machine are left out."""
    counts: Mapping[str, Sequence[int]]
    """Numbers of sites of Figures 2-4, by table; the others are compared with the first."""
    schemes: Mapping[int, Sequence[str]]
    """The secure sums, by number of sites."""
    repetitions: Mapping[int, Sequence[int]]
    fedavg_tables: tuple[str, ...]
    """SUSY alone, as in the paper, if it is on this machine."""
    fedavg_sites: tuple[int, ...]
    fractions: tuple[float, ...]
    rates: tuple[float, ...]
    """Learning rates of FedAvg to choose among, with each of `batches`."""
    batches: tuple[int, ...]
    rounds: int
    """The most rounds of FedAvg; the paper's number."""
    bytes_sites: int
    power_seeds: tuple[int, ...]
    features: Mapping[str, int]
    baseline_rows: int
    attack_sizes: tuple[int, ...]
    attack_sites: int


@dataclass(frozen=True, kw_only=True, eq=False)
class OneshotRun(RunSummary):
    """What the study keeps of a run."""

    labels: NDArray[Any] = field(repr=False)
    """The model's prediction for every row of the table, as places among the classes in alphabetical order."""
    total: NDArray[np.uint64] | None = field(repr=False)

    @property
    def percent(self) -> float:
        """Accuracy in percent."""
        return 100 * self.accuracy

    @property
    def training_seconds(self) -> float:
        """The slowest site plus the hub, as the paper defines it."""
        return self.seconds["slowest_site"] + self.seconds["hub"]

    def same_total(self, other: OneshotRun) -> bool:
        """Whether both opened the same integers."""
        return self.total is not None and other.total is not None and np.array_equal(self.total, other.total)

    def to_kept(self) -> dict[str, Any]:
        """All of it: time, bytes, and the labels and total that other runs are compared with."""
        return {
            **super().to_kept(),
            "seconds": dict(self.seconds),
            "bytes": dict(self.bytes),
            "watt_hours": self.watt_hours,
            "labels": _packed(self.labels.astype(np.int16)),
            "total": None if self.total is None else _packed(self.total),
        }

    @classmethod
    def from_kept(cls, line: Mapping[str, Any]) -> Self:
        """The summary that `to_kept` was asked for, without metrics and facts."""
        return cls(
            accuracy=line["accuracy"],
            curve=tuple(line["curve"]),
            metrics={},
            seconds=line["seconds"],
            bytes=line["bytes"],
            watt_hours=line["watt_hours"],
            epsilon=line["epsilon"],
            void=bool(line["void"]),
            facts={},
            labels=np.frombuffer(_unpacked(line["labels"]), np.int16),
            total=None if line["total"] is None else np.frombuffer(_unpacked(line["total"]), np.uint64),
        )


def _packed(numbers: NDArray[Any]) -> str:
    return b64encode(zlib.compress(numbers.tobytes())).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(b64decode(text))


OneshotSession = Session[OneshotDepth, OneshotRun]


@dataclass(frozen=True, eq=False)
class Summarise:
    """What the study keeps of a finished run on one of its tables."""

    tables: Mapping[str, Table]

    def __call__(self, outcome: Outcome) -> OneshotRun:
        """The summary of a run."""
        table = self.tables[str(outcome.plan.data.table)]
        frame = table.frame
        classes = pl.Enum(frame[table.target].drop_nulls().cast(pl.String).unique().sort())
        return OneshotRun(
            **RunSummary.fields_of(outcome),
            labels=outcome.model.predict(frame).cast(pl.String).cast(classes).to_physical().to_numpy(),
            total=load_state(outcome.files[FILE]).batches[0].total if FILE in outcome.files else None,
        )
