"""The rows of a site that a phase of training is about: those it trains on, and those held out to judge models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_

import numpy as np
import polars as pl

from kohort.errors import SiteError
from kohort.models.rows import Rows, StackedRows, person_of_rows, stack
from kohort.protocol.enrolment import DomainState
from kohort.protocol.plan.phases import RowPart, TrainingPhase
from kohort.protocol.site import Site, SiteTable
from kohort.protocol.state import TaskState
from kohort.tables.domain import undeclared_columns
from kohort.tables.persons import persons_of

__all__ = ["first_of_each_person", "reported_rows", "rows_of", "stacked_rows"]


@dataclass
class PhaseRowsState(TaskState):
    """Cache: the rows each phase trains on or judges with, what messages say of their number, and those of
    several sites stacked."""

    parts: dict[str, Rows] = field(default_factory=dict)
    reported: dict[tuple[str, float, bool, bool, int], int] = field(default_factory=dict)
    stack: tuple[list[Rows], StackedRows] | None = None
    """Kept by the first of the sites that train together."""


def rows_of(site: Site, phase: TrainingPhase, *, held_out: bool = False) -> Rows:
    """The rows a phase is about: those to train on, or those kept for judging.

    Args:
        site: The site, which has enrolled.
        phase: The phase of training.
        held_out: Whether to give the rows kept for judging.

    Returns:
        The rows, the same for the same site and plan. No row, and where an identifier is declared no person, is in both
        parts.

    Raises:
        SiteError: The site has not enrolled; the phase is about low-risk or high-risk rows and the site does not know
            which those are; or its budget protects persons and no identifier is declared.
    """
    place = f"rows.{phase.rows}.{phase.held_out}.{held_out}.{_per_person(phase)}"
    parts = site.state(PhaseRowsState).parts
    if place not in parts:
        parts[place] = _cut(site, phase, held_out=held_out)
    return parts[place]


def reported_rows(site: Site, phase: TrainingPhase, *, held_out: bool = False) -> int:
    """How many rows, or persons, a phase counts as: in messages, in its account and as the divisor of noisy gradients.

    Under a budget or a secure sum, rows outside the domain are among them. A hub may have chosen the domain, and how
    many rows have a value would leave the site without noise; so would whether there are enough of them.

    Args:
        site: The site.
        phase: The phase.
        held_out: Whether the rows that judge are meant, as in `rows_of`.

    Returns:
        The number of `rows_of`, or what it would be if all rows took part.
    """
    whole, known = site.state(DomainState).whole, site.state(PhaseRowsState).reported
    if whole is None:
        return rows_of(site, phase, held_out=held_out).count
    if site.plan.own_rows and not (site.plan.has_budget and undeclared_columns(site.plan.schema)):
        # The method makes its rows of some of the table's; those outside the domain count beside them.
        left_out = _units_in(site, whole, phase) - _units_in(site, site.table, phase)
        return rows_of(site, phase, held_out=held_out).count + left_out
    place = (phase.rows, phase.held_out, _per_person(phase), held_out, whole.count)
    if place not in known:
        begin, end = _span(site.name, whole, phase.rows)
        units = _first_in(site, whole)[begin:end] if _per_person(phase) else np.ones(end - begin, dtype=np.bool_)
        if phase.held_out:
            person = person_of_rows(site.schema, whole.rows().slice(begin, end - begin))
            aside = _drawn_aside(site, phase, end - begin, person)
            units = units & (aside if held_out else ~aside)
        known[place] = int(units.sum())
    return known[place]


def _units_in(site: Site, table: SiteTable, phase: TrainingPhase) -> int:
    return int(_first_in(site, table).sum()) if _per_person(phase) else table.count


def stacked_rows(sites: Sequence[Site], phase: TrainingPhase) -> StackedRows:
    """The rows that several sites train on, side by side.

    Args:
        sites: The sites, which have enrolled; at least one.
        phase: The phase of training.

    Returns:
        `rows_of` each site, in this order. They are stacked once and kept as long as the same sites are asked together.

    Raises:
        SiteError: As for `rows_of`.
    """
    parts = [rows_of(site, phase) for site in sites]
    first = sites[0].state(PhaseRowsState)
    known = first.stack
    if known is None or len(known[0]) != len(parts) or not all(map(is_, known[0], parts)):
        known = first.stack = (parts, stack(parts))
    return known[1]


def _per_person(phase: TrainingPhase) -> bool:
    return phase.dp is not None and phase.dp.unit == "person"


def _cut(site: Site, phase: TrainingPhase, *, held_out: bool) -> Rows:
    every = site.training_rows
    if every is None:
        raise SiteError(f"site {site.name!r} was asked to train before it had rows to train on")
    begin, end = _span(site.name, site.table, phase.rows)
    if not phase.held_out and not _per_person(phase):
        return every.part(begin, end)
    chosen = np.arange(begin, end)
    if _per_person(phase):
        chosen = chosen[first_of_each_person(site)[begin:end]]
    if phase.held_out:
        aside = _drawn_aside(site, phase, end - begin, every.part(begin, end).person)[chosen - begin]
        chosen = chosen[aside if held_out else ~aside]
    return every.take(chosen)


def _drawn_aside(
    site: Site, phase: TrainingPhase, count: int, person: pl.Series | None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows judge: one draw per run for each person, or row, so no model was ever trained on them."""
    persons = None if person is None else persons_of(person)
    generator = site.streams.generator("held-out", phase.rows)
    if persons is None:
        return generator.random(count) < phase.held_out
    return (generator.random(int(persons.max()) + 1) < phase.held_out)[persons]


def _span(name: str, table: SiteTable, part: RowPart) -> tuple[int, int]:
    low = table.low
    if part == "all":
        return 0, table.count
    if low is None:
        raise SiteError(
            f"site {name!r} does not know which of its rows carry a low risk",
            hint='Set low_risk in [sites], or in each site.toml, or rows = "all" in the phase',
        )
    return (0, low) if part == "low" else (low, table.count)


def first_of_each_person(site: Site) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are the first of their person.

    Args:
        site: The site.

    Returns:
        True or false per row of its table.

    Raises:
        SiteError: No column tells persons apart.
    """
    return _first_in(site, site.table)


def _first_in(site: Site, table: SiteTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    identifiers = site.schema.identifiers
    if not identifiers:
        raise SiteError(
            f'site {site.name!r} has no column that tells persons apart, which unit = "person" needs',
            hint="Name it in data.identifiers",
        )
    column = table.rows()[identifiers[0]]
    first: np.ndarray[tuple[int], np.dtype[np.bool_]] = column.is_first_distinct().to_numpy()
    return first
