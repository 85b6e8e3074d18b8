"""Columns of a simulation's tables that nobody named: which of them are no features, and what is said about them.

Guarantee: what is left out is named in a note and counted; what the plan names is never left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from kohort.runs.config import Plan, SitesSection
from kohort.runs.left_out import LeftOut
from kohort.tables.harmonise.profiles import missing_code_notes as code_notes
from kohort.tables.roles import MANY_CATEGORIES, is_measured, suspected, wide_texts
from kohort.tables.schema import ColumnSpec, Role, Schema

__all__ = ["Undeclared", "missing_code_notes", "number_notes", "undeclared_columns"]

MANY_TEXTS = 50
"""More texts than so many, if they are numbers with a fraction or a unit, are worth a word."""


@dataclass(frozen=True, kw_only=True)
class Undeclared:
    """Columns that would be features of a plan with `features = "rest"`, and are none.

    Attributes:
        suspicions: Columns that look like identifiers, and why.
        wide: Texts with too many values to be categories, and what they are.
    """

    suspicions: Mapping[str, str] = field(default_factory=dict)
    wide: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.suspicions, *self.wide)

    @property
    def notes(self) -> list[str]:
        """One sentence per column: why it is left out, and how to use it."""
        how = "name it in data.keep to use it, or in data.identifiers or data.drop"
        grouped = "group its values first, name it in data.keep to use it as it is, or in data.drop"
        read = 'data.mapping.columns.NAME.type = "number" reads them; or name it in data.keep or data.drop'
        return [
            *(f"column {name!r} {why}, so it is left out: {how}" for name, why in self.suspicions.items()),
            *(
                f"column {name!r} {why}, so it is left out: {read if why == MEASURED else grouped}"
                for name, why in self.wide.items()
            ),
        ]

    @property
    def left_out(self) -> list[LeftOut]:
        """How many of each kind there are."""
        reasons = {
            "they look like identifiers and nobody named them": len(self.suspicions),
            f"texts with more than {MANY_CATEGORIES} values that nobody named": len(self.wide),
        }
        return [LeftOut(what="columns", why=why, count=n, of_rows=False) for why, n in reasons.items() if n]


MEASURED = "holds numbers written as text"


def undeclared_columns(frames: Mapping[str, pl.DataFrame], plan: Plan, *, default: Role | None) -> Undeclared:
    """Columns that nobody named and that would be features, but at some site do not look like features.

    Args:
        frames: The tables by site.
        plan: The plan.
        default: The role that columns without one have in a named dataset, whose texts are known and stay.

    Returns:
        The columns with the reason for each; none where the plan names its features.
    """
    section = plan.data
    if section.features != "rest" and default is None:
        return Undeclared()
    named = _named(plan)
    suspicions: dict[str, str] = {}
    wide: dict[str, str] = {}
    for frame in frames.values():
        suspicions = {**suspected(frame, declared=named), **suspicions}
        if default is None:
            measured = {name: is_measured(frame[name].drop_nulls()) for name in wide_texts(frame, declared=named)}
            many = f"holds texts with more than {MANY_CATEGORIES} values"
            wide = {**{name: MEASURED if number else many for name, number in measured.items()}, **wide}
    return Undeclared(suspicions=suspicions, wide={name: why for name, why in wide.items() if name not in suspicions})


def number_notes(frames: Iterable[pl.DataFrame], schema: Schema) -> list[str]:
    """Features that hold numbers with a fraction or a unit as text, so that each of them counts as a category.

    Args:
        frames: The tables of the sites.
        schema: What their columns are.

    Returns:
        One note per column, with what to write in the plan.
    """
    found: dict[str, None] = {}
    for frame in frames:
        kinds = frame.schema
        texts = [name for name in schema.inputs if kinds[name] == pl.String]
        found |= dict.fromkeys(
            name for name in texts if frame[name].n_unique() > MANY_TEXTS and is_measured(frame[name].drop_nulls())
        )
    how = 'read them as numbers, or map them: data.mapping.columns.NAME.type = "number"'
    return [f"column {name!r} holds numbers written as text, and each counts as a category: {how}" for name in found]


def missing_code_notes(frames: Iterable[pl.DataFrame], schema: Schema) -> list[str]:
    """Notes on numbers such as -999, which seem to mean a missing value and would be learned as numbers.

    Args:
        frames: The tables of the sites.
        schema: What their columns are. Columns with declared bounds, bins or categories are passed over.

    Returns:
        One note per column, with what to write in the plan.
    """
    target = [] if schema.target is None else [schema.target]
    open_ = [name for name in (*schema.inputs, *target) if not _says_what_numbers_are(schema.columns[name])]
    how = "if it means a missing value, list it in data.reading.null_values (kohort init writes it)"
    return code_notes(frames, open_, how=how)


def _says_what_numbers_are(spec: ColumnSpec) -> bool:
    return spec.bounds is not None or spec.bins is not None or spec.categories is not None


def _named(plan: Plan) -> set[str]:
    """The columns that a plan says anything about."""
    section = plan.data
    named = {*section.quasi, *section.sensitive, *section.identifiers, *section.drop, *section.keep}
    named |= {name.partition("=")[0] for name in section.items}
    named |= {str(one) for one in (section.target, section.person, section.weight, section.consent)}
    for said in (section.kinds, section.bins, section.bounds, section.categories, section.hierarchies):
        named |= {*said}
    named |= {*section.other, *section.nullable, *section.ancestors, *section.ordered}
    if section.features != "rest":
        named |= {*section.features}
    return named | {*placing_columns(plan.sites)}


def placing_columns(sites: SitesSection) -> tuple[str, ...]:
    """The columns by which simulated sites, clusters and low-risk rows are told apart, as far as a plan names any."""
    choices = (sites.split, sites.clusters, sites.low_risk)
    return tuple(name for choice in choices if isinstance(choice, str) for name in choice.split(":")[1:2])
