"""What a run gives back, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from kohort.errors import ConfigError
from kohort.models.base import Model, Remarks
from kohort.privacy.dp.budget import dp_facts
from kohort.privacy.ledger.figures import figures_of_ledger
from kohort.privacy.ledger.ledger import Disclosure, Ledger
from kohort.protocol.engine import Engine
from kohort.protocol.hub import Hub, Result
from kohort.runs.config import Plan
from kohort.runs.folder import RunFolder
from kohort.runs.judged import Judged
from kohort.runs.left_out import LeftOut
from kohort.runs.retention import RECEIVED
from kohort.tables.answers import TargetTask

__all__ = ["Outcome", "outcome_of"]

HubFiles = Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gives back."""

    plan: Plan
    engine: str = "local"
    seed: int | None
    model: Model
    metrics: dict[str, Any]
    history: list[dict[str, float]]
    rounds: int
    stopped_by: str
    sites: tuple[str, ...]
    site_rows: dict[str, int]
    disclosed: list[Disclosure]
    refused: dict[str, str]
    dropped: dict[str, str]
    seconds: dict[str, float]
    bytes: dict[str, int]
    watt_hours: float
    notes: tuple[str, ...]
    ledger_head: str
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    dp: dict[str, Any] | None = None
    """What the budget speaks of and what other accounts say; none without differential privacy."""
    received: pl.DataFrame | None = field(default=None, repr=False)
    keep_days: int | None = None
    received_path: str | None = None
    files: HubFiles = field(default_factory=dict, repr=False)
    """What the hub keeps of the run, by name."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the method tells about the run."""
    task: Mapping[str, str] = field(default_factory=dict)
    """What was learned and by which part of the rule that was decided."""
    baselines: Mapping[str, Any] = field(default_factory=dict)
    """What the measures stand beside: the majority class, the best single site, all rows pooled."""
    left_out: tuple[LeftOut, ...] = ()
    """What was left out, clipped or changed, counted by reason."""
    warnings: tuple[str, ...] = ()
    """What a reader of the measures must know."""

    @property
    def accuracy(self) -> float:
        """Share of right classes on the test rows (R2 for a number)."""
        if not self.metrics:
            raise ConfigError("nothing was measured: the plan keeps no test rows", hint="Set data.test above 0")
        return float(self.metrics["accuracy"] if "accuracy" in self.metrics else self.metrics["r2"])

    def to_mapping(self) -> dict[str, Any]:
        """The JSON object of `kohort run`."""
        return {
            "method": self.plan.method,
            "engine": self.engine,
            "seed": self.seed,
            "sites": len(self.sites),
            "site_rows": self.site_rows,
            "rounds": self.rounds,
            "stopped_by": self.stopped_by,
            "metrics": self.metrics,
            "task": dict(self.task),
            "baselines": dict(self.baselines),
            "left_out": [entry.to_mapping() for entry in self.left_out],
            "warnings": list(self.warnings),
            "history": self.history,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "watt_hours": self.watt_hours,
            "disclosed": [item.to_mapping() for item in self.disclosed],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            **({} if self.dp is None else {"dp": self.dp}),
            **({"facts": dict(self.facts)} if self.facts else {}),
            "refused": self.refused,
            "dropped": self.dropped,
            "received": self.received_path,
            "notes": list(self.notes),
            "ledger_head": self.ledger_head,
        }


def outcome_of(
    *,
    plan: Plan,
    backend: str,
    seed: int | None,
    model: Model,
    metrics: dict[str, Any],
    history: list[dict[str, float]],
    result: Result,
    hub: Hub,
    engine: Engine,
    ledger: Ledger,
    notes: list[str],
    remarks: Remarks,
    judged: Judged,
    task: TargetTask | None,
    wall: float,
    cpu: float,
    folder: RunFolder | None,
) -> Outcome:
    """The outcome of a run from what its parts know."""
    costs = engine.costs
    refused = {item.site: item.reason for item in engine.excluded if item.kind == "refused"}
    dropped = {item.site: item.reason for item in engine.excluded if item.kind != "refused"}
    figures = figures_of_ledger(ledger)
    own = result.claim  # noise the hub added itself stands in no site's ledger
    if own is not None and "epsilon" not in figures:
        figures |= {"epsilon": own.epsilon, "delta": own.delta, "unit": own.unit, "dp": dp_facts([own])}
    return Outcome(
        plan=plan,
        engine=backend,
        seed=seed,
        model=model,
        metrics=metrics,
        history=history,
        rounds=result.rounds,
        stopped_by=result.stopped_by,
        sites=hub.sites,
        site_rows=dict(hub.rows),
        disclosed=ledger.disclosures(),
        refused=refused,
        dropped=dropped,
        seconds={
            "slowest_site": costs.slowest_site,
            "hub": costs.hub,
            "transfer": costs.most_bytes_a_site / plan.costs.bytes_per_second,
            "longest_exchange": costs.longest_exchange,
            "cpu_total": cpu,
            "wall": wall,
        },
        bytes={"up": costs.bytes_up, "down": costs.bytes_down},
        watt_hours=cpu * plan.costs.watts / 3600,
        notes=(*notes, *remarks.notes, *judged.warnings),
        task={"kind": model.task, **({} if task is None else {"why": task.why})},
        baselines=judged.baselines,
        left_out=judged.left_out,
        warnings=judged.warnings,
        ledger_head=ledger.fingerprint(),
        epsilon=figures.get("epsilon"),
        delta=figures.get("delta"),
        unit=figures.get("unit"),
        dp=figures.get("dp"),
        received=result.received,
        keep_days=result.keep_days,
        files=result.files,
        facts={**result.facts, **remarks.facts},
        received_path=None if folder is None or result.received is None else str(folder.path / RECEIVED),
    )
