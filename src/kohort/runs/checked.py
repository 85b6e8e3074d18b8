"""What a run would start from, without training anything: roles, task, rows, disagreements, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from kohort.methods.registry import find_method
from kohort.rng import Streams
from kohort.runs.config import Plan
from kohort.runs.left_out import LeftOut, shown
from kohort.runs.plan_faults import require_complete
from kohort.runs.simulation import populate

__all__ = ["Checked", "check_plan"]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a run would start from.

    Attributes:
        method: The method.
        task: classification or regression.
        why: The part of the rule that decided so.
        roles: The roles of every column that is used, by column.
        sites: Rows for training per site.
        test_rows: Rows that no site trains on.
        left_out: What takes no part, counted by reason.
        notes: How tables were read, and what sites disagree about.
        refused: By site, why its policy would refuse the plan.
    """

    method: str
    task: str
    why: str
    roles: Mapping[str, tuple[str, ...]]
    sites: Mapping[str, int]
    test_rows: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether every site would take part."""
        return not self.refused

    def __repr__(self) -> str:
        """A few lines."""
        by_role: dict[str, list[str]] = {}
        for column, roles in self.roles.items():
            by_role.setdefault("+".join(roles), []).append(column)
        rows = sorted(self.sites.values())
        lines = [
            f"method {self.method}, {self.task} ({self.why})",
            f"{len(rows)} sites of {rows[0]:,} to {rows[-1]:,} rows, {self.test_rows:,} test rows",
            *(f"{role}: {', '.join(columns)}" for role, columns in by_role.items()),
            *(f"left out: {line}" for line in shown(self.left_out)),
            *(f"note: {note}" for note in self.notes),
            *(f"refused by {site}: {reason}" for site, reason in self.refused.items()),
        ]
        return "\n".join(lines)


def check_plan(plan: Plan, *, tables: dict[str, pl.DataFrame] | None = None, seed: int = 0) -> Checked:
    """Look at what a plan would start from.

    Args:
        plan: The plan.
        tables: Tables in memory, by site, instead of those that the plan names.
        seed: The seed that rows are dealt out by.

    Returns:
        What was found. Counts are those at home: this is for somebody who has the tables.

    Raises:
        KohortError: The plan or a table is at fault.
    """
    plan.model.check()
    require_complete(plan)
    population = populate(plan, Streams.seeded(seed), tables=tables)
    claims, rows = find_method(plan.method).claims, np.diff(population.starts).tolist()
    refused: dict[str, str] = {}
    for name, count in zip(population.names, rows, strict=True):
        said = (plan.policy.judge(claim, task=f"{plan.method}.plan") for claim in claims(plan.config, count))
        reason = next((one for one in said if one is not None), None)
        refused |= {} if reason is None else {name: reason}
    return Checked(
        method=plan.method,
        task="" if population.task is None else population.task.task,
        why="" if population.task is None else population.task.why,
        roles={
            name: tuple(sorted(role.value for role in spec.roles)) for name, spec in population.schema.columns.items()
        },
        sites=dict(zip(population.names, rows, strict=True)),
        test_rows=population.test.height,
        left_out=tuple(entry for entry in population.left_out if entry.count),
        notes=(*plan.notes, *population.notes, *population.warnings),
        refused=refused,
    )
