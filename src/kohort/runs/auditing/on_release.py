"""Attacks on a table that `kohort anonymize` made: what whoever gets the table can find out by it.

The maker's own classes referee the bets; no bet looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.downcoding import Recoded, downcode
from kohort.evaluate.attacks.finding import Finding
from kohort.runs.auditing.audit import Audit
from kohort.runs.auditing.measured import table_risk
from kohort.runs.auditing.on_rows import released_findings
from kohort.runs.simulation import Population
from kohort.tables.column_blocks import Taxonomy
from kohort.tables.schema import Schema

__all__ = ["MadeRelease", "audit_release"]

BY: Final = "whoever gets the table"
ON: Final = "the released table"


@dataclass(frozen=True, kw_only=True)
class MadeRelease:
    """A release, and what its maker knows of it.

    Attributes:
        table: The released rows.
        rows: The rows as they were, in the same order.
        classes: The class of each released row.
        quasi: Generalised columns.
        sensitive: Sensitive columns.
        target: The column to predict, if any.
        hierarchies: What released labels stand for.
    """

    table: pl.DataFrame
    rows: pl.DataFrame
    classes: NDArray[np.int64]
    quasi: tuple[str, ...]
    sensitive: tuple[str, ...] = ()
    target: str | None = None
    hierarchies: Mapping[str, Taxonomy] | None = None


def audit_release(made: MadeRelease, *, name: str, control: pl.DataFrame | None = None, seed: int = 0) -> Audit:
    """Attack a released table.

    Args:
        made: The release.
        name: What it is called.
        control: Rows of persons who are not in it; without them, attacks that need a comparison are not made.
        seed: Of the draws.

    Returns:
        The findings, with the risk before and after.
    """
    others = made.rows.clear() if control is None else control.select(made.rows.columns)
    schema = Schema.of(target=made.target, quasi=made.quasi, sensitive=made.sensitive)
    population = Population(
        schema=schema,
        frame=made.rows,
        names=("table",),
        starts=np.array([0, made.rows.height]),
        test=others,
        test_sites=None,
    )
    findings = released_findings(
        made.table, population, what=ON, by=BY, why=NO_CONTROL, hierarchies=made.hierarchies, seed=seed
    )
    measured: dict[str, Any] = {"risk": table_risk(made.rows, made.table, made.quasi)}
    return Audit(
        audited=(name,),
        method="anonymize",
        findings=(*findings, *_downcoded(made, others, seed)),
        measured=measured,
    )


NO_CONTROL: Final = "no persons to compare with: give rows of others, made alike, by --control"


def _downcoded(made: MadeRelease, others: pl.DataFrame, seed: int) -> list[Finding]:
    """Finer values; without others, the attacker knows how common values are among the rows themselves."""
    if not made.quasi:
        return []
    known, first = np.unique(made.classes, return_index=True)
    cells = made.table.select(made.quasi)[first.tolist()]
    recoded = Recoded(
        cells,
        np.zeros(len(known), dtype=np.int64),
        made.rows,
        np.searchsorted(known, made.classes),
        dict(made.hierarchies or {}),
    )
    return [downcode(recoded, others if others.height else made.rows, on=ON, by=BY, seed=seed)]
