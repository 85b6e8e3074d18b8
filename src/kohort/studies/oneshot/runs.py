"""The study's plans and runs: every figure is a run of the real method, through doors, ledgers and secure sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.methods.oneshot.state import FILE, load_state
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.datasets.catalogue import Dataset, load_dataset

__all__ = ["TABLES", "Runs", "Table", "bounds_around_mean", "fedavg_plan", "oneshot_plan", "tables_here"]

TABLES: Final = ("dry_bean", "skin", "higgs", "miniboone", "susy", "hepmass")
TARGETS: Final = ("label", "class", "signal")


@dataclass(frozen=True, eq=False)
class Table:
    """A table the study can use, and what must be declared to use it encrypted."""

    name: str
    target: str
    frame: pl.DataFrame
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of tables without public bounds: their own ranges, declared for the study."""

    @property
    def inputs(self) -> list[str]:
        """The columns to learn from."""
        return [name for name in self.frame.columns if name != self.target]

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.frame[self.target].n_unique())


def tables_here(names: tuple[str, ...] = TABLES) -> dict[str, Table]:
    """Those of `names` that can be loaded on this machine."""
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


def bounds_around_mean(table: Table, deviations: float = 3.0) -> dict[str, tuple[float, float]]:
    """Tight public bounds: published means and standard deviations of the columns; what is beyond is clipped."""
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
    """The method on one table. Simulated sites of a study may be as small as a row, and their ledgers show it."""
    return load_plan(
        {
            "data": {
                "table": table.name,
                "target": table.target,
                "features": "rest",
                "kinds": {table.target: "category"},
                "bounds": {name: list(pair) for name, pair in (bounds or table.bounds).items()},
                "test": 0.3,
            },
            "sites": {"count": sites, "split": split},
            "model": {"dtype": "float64"},
            "method": {"name": "oneshot", "secure": {"sum": scheme}, "oneshot": {"min_rows": 1, **(oneshot or {})}},
            "policy": {"min_rows": 1},
        }
    )


def fedavg_plan(table: Table, *, sites: int, fraction: float, rounds: int) -> Plan:
    """Federated averaging of the same one-layer network."""
    return load_plan(
        {
            "data": {
                "table": table.name,
                "target": table.target,
                "features": "rest",
                "kinds": {table.target: "category"},
                "bounds": {name: list(pair) for name, pair in table.bounds.items()},
                "test": 0.3,
            },
            "sites": {"count": sites},
            "model": {"kind": "onelayer"},
            "train": {"rounds": rounds, "batch": 64, "optimizer": "adam", "lr": 0.01, "fraction": fraction},
            "method": {"name": "fedavg"},
            "policy": {"min_rows": 1},
        }
    )


@dataclass(frozen=True, eq=False)
class Found:
    """What the study keeps of a run."""

    accuracy: float
    """Percent."""
    labels: NDArray[Any]
    """What the model says of every row of the table."""
    total: NDArray[np.uint64] | None
    slowest: float
    hub: float
    cpu: float
    watt_hours: float
    up: int
    down: int
    notes: tuple[str, ...]

    def same_total(self, other: Found) -> bool:
        """Whether both opened the same integers."""
        return self.total is not None and other.total is not None and np.array_equal(self.total, other.total)


class Runs:
    """Runs by plan and seed, each made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Found] = {}

    def of(self, plan: Plan, table: Table, seed: int = 0) -> Found:
        """The run of this plan."""
        key = (plan.digest(), seed)
        if key not in self._known:
            self._known[key] = _found(run(plan, seed=seed), table)
        return self._known[key]


def _found(outcome: Outcome, table: Table) -> Found:
    seconds = outcome.seconds
    total = None
    if FILE in outcome.files:
        total = load_state(outcome.files[FILE]).batches[0].total
    return Found(
        accuracy=100 * outcome.accuracy,
        labels=outcome.model.predict(table.frame).to_physical().to_numpy(),
        total=total,
        slowest=seconds["slowest_site"],
        hub=seconds["hub"],
        cpu=seconds["cpu_total"],
        watt_hours=outcome.watt_hours,
        up=outcome.bytes["up"],
        down=outcome.bytes["down"],
        notes=outcome.notes,
    )
