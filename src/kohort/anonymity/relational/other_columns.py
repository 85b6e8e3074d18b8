"""Columns of a table that a release would carry although nobody gave them a role."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.roles import suspected

__all__ = ["released_as_they_are"]


def released_as_they_are(frame: pl.DataFrame, roles: Sequence[str | None], keep: Sequence[str] | None) -> list[str]:
    """Refuse to release what looks like an identifier, and say which other columns nobody named.

    Args:
        frame: The table.
        roles: The columns that have a role.
        keep: Columns to release as they are; None asks nothing.

    Returns:
        What is to be said: at most one note.

    Raises:
        ConfigError: A column without a role looks like an identifier.
        DataError: A column to keep is not in the table.
    """
    if keep is None:
        return []
    absent = [name for name in keep if name not in frame.columns]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}", hint=nearest(absent[0], frame.columns))
    named = {*roles, *keep}
    others = [name for name in frame.columns if name not in named]
    suspects = suspected(frame.select(others))
    if suspects:
        raise ConfigError(
            "; ".join(f"column {name!r} {why}" for name, why in suspects.items()),
            hint="Leave them out of the table, name the person's column in person=, or release them with keep=[...]",
        )
    return [f"columns without a role are released as they are: {', '.join(others)}"] if others else []
