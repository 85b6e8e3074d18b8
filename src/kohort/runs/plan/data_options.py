"""What the command line says about columns, as keys of a plan's `[data]` section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kohort.tables.prepared import read_schema_file

__all__ = ["data_of", "with_data"]

NullValues = Sequence[str | float] | Mapping[str, Sequence[str | float]]


def data_of(roles: Mapping[str, Any], nulls: NullValues, schema: Path | None) -> dict[str, Any]:
    """The keys of `[data]` that the command line gives.

    Args:
        roles: Values of the shared options; empty ones say nothing.
        nulls: Values that mean a missing one.
        schema: A schema file; options win over it.

    Raises:
        ConfigError: The schema file cannot be read or has an unknown key.

    Returns:
        The keys of the schema file, overridden by the options.
    """
    found = {} if schema is None else read_schema_file(schema)
    found |= {key: list(value) if isinstance(value, tuple) else value for key, value in roles.items() if value}
    if nulls:
        marks = {key: list(value) for key, value in nulls.items()} if isinstance(nulls, Mapping) else list(nulls)
        found["reading"] = {**found.get("reading", {}), "null_values": marks}
    return found


def with_data(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a plan with the keys of `[data]` that the command line gives.

    A column that is dropped or declared an identifier loses the roles the file gave it.

    Args:
        raw: The sections of a plan file.
        given: Keys of `[data]`, as `data_of` gives them.

    Returns:
        A copy of the sections; without given keys, or without a `[data]` table, as they were.
    """
    if not given or not isinstance(raw.get("data"), Mapping):
        return dict(raw)
    data = {**raw["data"], **given}
    gone = {*given.get("drop", ()), *given.get("identifiers", ()), str(given.get("person"))}
    for key in ("quasi", "sensitive", "features", "items", "keep", "drop", "identifiers"):
        if key in given or not isinstance(data.get(key), list):
            continue
        data[key] = [name for name in data[key] if name not in gone]
    return {**raw, "data": data}
