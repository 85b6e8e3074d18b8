"""Files that a plan file names, as part of the plan: what everybody approves is their content, not their path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from kohort.tables.frames import FrameKind, from_native, to_native
from kohort.tables.harmonise.mapping import TableMapping
from kohort.tables.hierarchy import Hierarchy

__all__ = ["agreed_table", "with_hierarchies", "with_mapping"]


def with_mapping(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`raw` with the content of the mapping file that `data.mapping` names, so that the plan's hash covers it.

    Args:
        raw: The sections of a plan file.
        folder: The plan's folder; a relative path starts there or, failing that, at the current folder.

    Raises:
        ConfigError: There is no such file, or it is no mapping.

    Returns:
        A copy of the sections; `raw` itself where no file is named.
    """
    data = raw.get("data")
    place = data.get("mapping") if isinstance(data, dict) else None
    if not isinstance(place, str) or not isinstance(data, dict):
        return raw
    beside = folder / place
    mapping = TableMapping.load(beside if beside.is_file() else Path(place))
    return {**raw, "data": {**data, "mapping": mapping.to_plain()}}


def with_hierarchies(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`raw` with the content of the CSV files that `data.hierarchies` names.

    Args:
        raw: The sections of a plan file.
        folder: The plan's folder; a relative path starts there or, failing that, at the current folder.

    Raises:
        DataError: There is no such file, or it is no hierarchy.

    Returns:
        A copy of the sections; `raw` itself without `data.hierarchies`.
    """
    data = raw.get("data")
    named = data.get("hierarchies") if isinstance(data, dict) else None
    if not isinstance(named, dict) or not isinstance(data, dict):
        return raw
    found = {}
    for column, place in named.items():
        found[column] = place
        if isinstance(place, str) and place.endswith(".csv"):
            beside = folder / place
            read = Hierarchy.read(beside if beside.is_file() else Path(place), column)
            found[column] = [list(chain) for chain in read.chains]
    return {**raw, "data": {**data, "hierarchies": found}}


def agreed_table(mapping: TableMapping, frame: Any, site: str | None = None) -> Any:
    """A table as a plan's mapping makes it, of the kind that was given.

    Args:
        mapping: The plan's mapping.
        frame: A polars, pandas or Arrow table.
        site: Whose table it is; None applies what holds for all sites, as does a site without rules of its own.

    Returns:
        The mapped table; `frame` itself where the mapping is empty.

    Raises:
        KohortError: The mapping does not fit the table.
    """
    if mapping.is_empty:
        return frame
    table, kind = (frame, FrameKind.POLARS) if isinstance(frame, pl.DataFrame) else from_native(frame)
    made = to_native(mapping.apply(table, site=site)[0], kind)
    if kind is FrameKind.PANDAS:
        made.index = frame.index
    return made
