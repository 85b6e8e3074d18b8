"""The mapping that a plan file names, as part of the plan: what everybody approves is its content, not its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kohort.tables.harmonise.mapping import TableMapping

__all__ = ["with_mapping"]


def with_mapping(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`raw` with the content of the mapping file that `data.mapping` names, so that the plan's hash covers it.

    Args:
        raw: The sections of a plan file.
        folder: The plan's folder; a relative path starts there or, failing that, at the current folder.

    Raises:
        ConfigError: There is no such file, or it is no mapping.
    """
    data = raw.get("data")
    place = data.get("mapping") if isinstance(data, dict) else None
    if not isinstance(place, str) or not isinstance(data, dict):
        return raw
    beside = folder / place
    mapping = TableMapping.load(beside if beside.is_file() else Path(place))
    return {**raw, "data": {**data, "mapping": mapping.to_plain()}}
