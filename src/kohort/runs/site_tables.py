"""The tables of sites that have one each: read by path or address, mapped as agreed, and compared before a run.

The comparison before a run (`preflight`) looks at profiles alone (`kohort.tables.harmonise.profiles`). Types that do
not fit together are an error, since one site's text would make a column of numbers a category for all; every other
disagreement is a note. Neither names a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.runs.config import DataSection
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.domain import column_kind
from kohort.tables.harmonise.compare import Disagreement, compare_profiles
from kohort.tables.harmonise.profiles import profile_table
from kohort.tables.schema import Role, Schema
from kohort.tables.sources.opening import is_source, source_names

__all__ = ["SiteTables", "preflight", "read_site_tables"]

ENDINGS = frozenset({".csv", ".parquet", ".arrow", ".feather"})
MANY_SITES: Final = 100
"""Beyond so many sites only types are compared before a run; `kohort harmonise` compares all."""
_HARMONISE: Final = (
    "kohort harmonise PLAN.toml --out mapping.toml proposes what mends them: check it, and set data.mapping to it"
)
_WORDS: Final = {"number": "a number", "category": "text", "items": "a set of items"}


@dataclass(frozen=True, kw_only=True)
class SiteTables:
    """One table per site, by name, and what is known of their columns."""

    frames: Mapping[str, pl.DataFrame]
    codebook: Schema | None = None
    default_role: Role | None = None
    notes: tuple[str, ...] = field(default=())


def read_site_tables(section: DataSection, frames: Mapping[str, pl.DataFrame] | None = None) -> SiteTables:
    """Read the table of every site.

    Args:
        section: `[data]` of the plan. A folder, a pattern, or a list of paths and addresses names the tables.
        frames: Tables in memory instead, by site.

    Returns:
        The tables. The roles that follow from their kind are those of the first one.

    Raises:
        ConfigError: Two tables have the same name, or an address cannot be read.
        DataError: A table cannot be read.
    """
    if frames is not None:
        return _mapped(SiteTables(frames=frames), section)
    listed = _listed(section.table)
    names = source_names(listed)
    if len(set(names)) < len(names):
        raise ConfigError("two site files have the same name", hint="Name each file after its site")
    opened = [open_table(table, section.reading, query=section.query) for table in listed]
    found = SiteTables(
        frames={name: dataset.frame for name, dataset in zip(names, opened, strict=True)},
        codebook=opened[0].schema_defaults if opened else None,
        default_role=opened[0].default_role if opened else None,
        notes=tuple(
            f"{name}: {note}" for name, one in zip(names, opened, strict=True) for note in (*one.notes, *one.reading)
        ),
    )
    return _mapped(found, section)


def preflight(tables: Mapping[str, pl.DataFrame], schema: Schema, *, least: int) -> tuple[str, ...]:
    """Compare the tables of sites before a run.

    Args:
        tables: The tables by site, as they are after the plan's mapping.
        schema: The roles and declarations of the columns.
        least: The minimum cell count: no fact is about fewer persons.

    Returns:
        Notes on what sites disagree about.

    Raises:
        DataError: A site lacks columns, or a column that the plan does not declare is a number at one site and
            something else at another. The error names everything that sites disagree about, in one line.
    """
    lacking = {
        name: [column for column in schema.columns if column not in frame.columns] for name, frame in tables.items()
    }
    wrong = [f"the table of site {name!r} lacks columns: {', '.join(some)}" for name, some in lacking.items() if some]
    clashes = _clashes(tables, schema)
    if clashes:
        wrong.append(
            "sites disagree about types: " + "; ".join(f"{name} is {words}" for name, words in clashes.items())
        )
    found = _disagreements(tables, schema, least)
    if wrong:
        others = [one.brief for one in found if one.column not in clashes and one.kind != "absent"]
        also = f"; sites also disagree about: {', '.join(others)}" if others else ""
        raise DataError("; ".join(wrong) + also, hint=f"{_HARMONISE}, or add what is missing")
    notes = [f"sites disagree: {one.brief}" for one in found]
    return (*notes, _HARMONISE) if any(one.mended for one in found) else tuple(notes)


def _disagreements(tables: Mapping[str, pl.DataFrame], schema: Schema, least: int) -> list[Disagreement]:
    """What the profiles of the sites say about the columns of the plan, under whatever name."""
    if not 2 <= len(tables) <= MANY_SITES:
        return []
    person = next((name for name in schema.identifiers if all(name in frame for frame in tables.values())), None)
    looked_at = [*schema.inputs, *([] if schema.target is None else [schema.target])]
    strangers = {*schema.dropped, *schema.identifiers}
    profiles = [
        profile_table(
            frame,
            site=name,
            least=least,
            columns=[column for column in frame.columns if column not in strangers],
            person=person,
        )
        for name, frame in tables.items()
    ]
    found = compare_profiles(profiles, columns=looked_at, target=schema.target).disagreements
    return [one for one in found if one.column is None or one.column in looked_at]


def _clashes(tables: Mapping[str, pl.DataFrame], schema: Schema) -> dict[str, str]:
    """Columns without a declared kind that are numbers at some sites and not at others, with the sites."""
    clashes = {}
    for column in (*schema.inputs, *([] if schema.target is None else [schema.target])):
        if schema.columns[column].declared_kind is not None:
            continue
        kinds: dict[str, list[str]] = {}
        for name, frame in tables.items():
            if column in frame.columns and frame[column].null_count() < frame.height:
                kinds.setdefault(column_kind(schema.columns[column], frame.schema[column]), []).append(name)
        if len(kinds) > 1 and not _only_switches(tables, column):
            clashes[column] = ", ".join(f"{_WORDS[kind]} at {_some(sites)}" for kind, sites in kinds.items())
    return clashes


def _only_switches(tables: Mapping[str, pl.DataFrame], column: str) -> bool:
    """Whether the column holds booleans and whole numbers alone, which mean the same when joined."""
    types = [frame.schema[column] for frame in tables.values() if column in frame.columns]
    return all(dtype == pl.Boolean or dtype.is_integer() for dtype in types)


def _some(sites: Sequence[str]) -> str:
    return ", ".join(sites[:3]) + (f" and {len(sites) - 3} more" if len(sites) > 3 else "")


def _mapped(found: SiteTables, section: DataSection) -> SiteTables:
    """The tables as agreed; a part of the mapping for a site that is not there is an error."""
    if section.mapping is None:
        return found
    mapping = section.table_mapping
    for name in mapping.sites:
        if name not in found.frames:
            raise ConfigError(f"data.mapping names a site {name!r} that is not there", hint=nearest(name, found.frames))
    frames, notes = {}, list(found.notes)
    for name, frame in found.frames.items():
        frames[name], said = mapping.apply(frame, site=name)
        notes += said
    return replace(found, frames=frames, notes=tuple(notes))


def _listed(table: str | Sequence[str]) -> list[str]:
    if not isinstance(table, str):
        return list(table)
    if is_source(table):
        return [table]
    place = Path(table)
    if place.is_dir():
        return sorted(str(path) for path in place.iterdir() if path.suffix in ENDINGS)
    return sorted(str(path) for path in place.parent.glob(place.name)) or [table]
