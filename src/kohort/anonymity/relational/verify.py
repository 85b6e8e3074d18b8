"""The checker's verdict on a release, and the report of what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.classes import FormedClasses
from kohort.anonymity.relational.population import PopulationRule
from kohort.anonymity.relational.problem import Integers
from kohort.anonymity.relational.recode import ColumnCells, as_texts, release_categories
from kohort.anonymity.relational.rule import Rule
from kohort.tables.hierarchy import Hierarchy

if TYPE_CHECKING:
    from kohort.anonymity.checker.measures import Anonymity

__all__ = ["ReleaseVerdict", "Report", "asked_of", "figures", "report_figures", "suppressed_cells", "verify"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was done and what holds for the result. Figures come from the checker and from `kohort.anonymity.loss`."""

    rows: int
    rows_out: int
    classes: int
    k: int
    l_distinct: int | None
    l_entropy: float | None
    t_emd: float | None
    t_kl: float | None
    km: int | None
    ncp: float
    ncp_released: float
    entropy_loss: float | None
    item_loss: float | None
    suppressed_rows: int
    suppressed_cells: int
    algorithm: str
    verified: bool
    problems: tuple[str, ...]
    seconds: float
    tried: Mapping[str, float] = field(default_factory=dict)
    """Of `auto`: the loss of every algorithm that was tried."""
    notes: tuple[str, ...] = ()
    """What was left undone."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseVerdict:
    """A release as the checker saw it.

    Attributes:
        frame: The rows that would be released, the person column included.
        coded: The same, generalised texts as categories.
        kept: Input row of each of them.
        found: What the checker measured.
        problems: One sentence per rule that does not hold.
    """

    frame: pl.DataFrame
    coded: pl.DataFrame
    kept: Integers
    found: Anonymity
    problems: tuple[str, ...]


def verify(
    made: FormedClasses,
    table: pl.DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    rule: Rule,
    person: str | None,
    population: PopulationRule,
) -> ReleaseVerdict:
    """What the checker finds in the table as it would be released.

    Args:
        made: The classes and their cells.
        table: The table they are of, texts as they are or as categories.
        quasi: The quasi-identifiers.
        sensitive: The sensitive columns.
        rule: What every class must meet.
        person: The column that says whom a row is about.
        population: What must hold beside a population.

    Returns:
        The rows, what was measured of them, and what is wrong with them.
    """
    from kohort.anonymity.checker.measures import judged
    from kohort.anonymity.checker.population import unmet_in_population

    coded, kept = release_categories(table, made.partition, made.cells), np.arange(table.height)
    if len(made.suppressed):
        kept = np.setdiff1d(kept, made.suppressed)
        coded = coded[kept]
    found, problems = judged(coded, quasi=quasi, sensitive=sensitive, persons=person, **asked_of(rule))
    released = as_texts(coded)
    if population.frame is not None and not problems:
        problems = unmet_in_population(
            released,
            population.frame,
            quasi=quasi,
            hierarchies=made.hierarchies,
            persons=person,
            k_map=population.k_map,
            presence=population.presence,
        )
    return ReleaseVerdict(frame=released, coded=coded, kept=kept, found=found, problems=problems)


def asked_of(rule: Rule) -> dict[str, Any]:
    """The rule as arguments of the checker.

    Args:
        rule: The rule that a release must meet.

    Returns:
        The arguments of `checker.measures.judged` by name; without those that the rule does not ask for.
    """
    asked: dict[str, Any] = {name: bound for name in ("alpha", "beta", "delta") if (bound := getattr(rule, name)) > 0}
    if rule.beta > 0:
        asked |= {"beta_kind": rule.beta_kind}
    if rule.l > 0:
        asked |= {"l": rule.l, "l_kind": rule.l_kind, "c": rule.c if rule.l_kind == "recursive" else None}
    if rule.t > 0:
        asked |= {"t": rule.t, "t_kind": rule.t_kind}
    return {"k": rule.k, **asked}


def figures(
    before: pl.DataFrame,
    verdict: ReleaseVerdict,
    cells: Sequence[ColumnCells],
    hierarchies: Mapping[str, Hierarchy],
    sensitive: Sequence[str],
    target: str | None,
) -> dict[str, Any]:
    """What holds for the release and what it cost, for its report.

    Args:
        before: The input rows.
        verdict: The released rows, and what the checker measured of them.
        cells: The released cells.
        hierarchies: The hierarchies of released labels.
        sensitive: The sensitive columns.
        target: The column that entropy loss is about; the first sensitive one when None.

    Returns:
        The figures by their names in `Report`.
    """
    from kohort.anonymity.loss import ncp_and_entropy

    names = [one.name for one in cells]
    about = target if target is not None else next(iter(sensitive), None)
    losses = ncp_and_entropy(
        before, verdict.coded, quasi=names, target=about, kept=verdict.kept, hierarchies=hierarchies
    )
    return report_figures(verdict.found, *losses, rows=before.height, rows_out=verdict.coded.height)


def report_figures(found: Anonymity, loss: float, lost: float | None, *, rows: int, rows_out: int) -> dict[str, Any]:
    """The figures of a release by their names in `Report`.

    Args:
        found: What the checker measured.
        loss: The normalised certainty penalty.
        lost: The entropy loss; None where there is no target.
        rows: Rows of the input.
        rows_out: Rows of the release.

    Returns:
        The figures.
    """
    gone = rows - rows_out
    return {
        "rows": rows,
        "rows_out": rows_out,
        "classes": found.classes,
        "k": found.k,
        "l_distinct": found.l_distinct,
        "l_entropy": found.l_entropy,
        "t_emd": found.t_emd,
        "t_kl": found.t_kl,
        "km": None,
        "ncp": loss,
        "ncp_released": max((loss * rows - gone) / rows_out, 0.0),
        "entropy_loss": lost,
        "item_loss": None,
        "suppressed_rows": gone,
    }


def suppressed_cells(cells: Sequence[ColumnCells], sizes: NDArray[np.int64]) -> int:
    """How many released cells say nothing at all.

    Args:
        cells: The released cells.
        sizes: The released rows of each class.

    Returns:
        The number of cells.
    """
    return int(sum(sizes[: len(one.suppressed)][one.suppressed[: len(sizes)]].sum() for one in cells))
