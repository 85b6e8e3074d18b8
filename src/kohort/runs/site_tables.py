"""The tables of sites that have one each: read by path or address, in the order the plan lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from kohort.errors import ConfigError
from kohort.runs.config import DataSection
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.schema import Role, Schema
from kohort.tables.sources.opening import is_source, source_names

__all__ = ["SiteTables", "read_site_tables"]

ENDINGS = frozenset({".csv", ".parquet", ".arrow", ".feather"})


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
        return SiteTables(frames=frames)
    listed = _listed(section.table)
    names = source_names(listed)
    if len(set(names)) < len(names):
        raise ConfigError("two site files have the same name", hint="Name each file after its site")
    opened = [open_table(table, section.reading, query=section.query) for table in listed]
    return SiteTables(
        frames={name: dataset.frame for name, dataset in zip(names, opened, strict=True)},
        codebook=opened[0].schema_defaults if opened else None,
        default_role=opened[0].default_role if opened else None,
        notes=tuple(
            f"{name}: {note}" for name, one in zip(names, opened, strict=True) for note in (*one.notes, *one.reading)
        ),
    )


def _listed(table: str | Sequence[str]) -> list[str]:
    if not isinstance(table, str):
        return list(table)
    if is_source(table):
        return [table]
    place = Path(table)
    if place.is_dir():
        return sorted(str(path) for path in place.iterdir() if path.suffix in ENDINGS)
    return sorted(str(path) for path in place.parent.glob(place.name)) or [table]
