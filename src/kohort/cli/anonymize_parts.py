"""`kohort anonymize` on Parquet tables larger than memory: whether a release can be made in parts, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.anonymity.relational.in_parts import AnonymisedFile
    from kohort.tables.prepared import Declared, ScannedRelease

__all__ = ["fits_parts", "release_in_parts"]

WHOLE = ("presence", "rounding", "top", "bottom", "means")
"""Options that need the table as a whole."""


def fits_parts(table: str, out: Path, declared: Declared, asked: Mapping[str, Any]) -> bool:
    """Whether a table is to be anonymised in parts: a large one, from Parquet to Parquet, by options that allow it.

    Args:
        table: Where the table is.
        out: Where the release goes.
        declared: What the user said about the columns.
        asked: The arguments of `anonymise`.

    Returns:
        False where the table is small, or has to be held as a whole.

    Raises:
        DataError: The file is damaged.
    """
    from kohort.tables.parts import is_large

    reading = declared.reading
    if declared.items or reading.sets or reading.long or reading.null_values:
        return False
    if any(asked[name] for name in WHOLE) or not (asked["population"] is None or isinstance(asked["population"], int)):
        return False
    if not is_large(table, out):
        return False
    from kohort.anonymity.relational.in_parts import can_be_in_parts

    return can_be_in_parts(**{name: asked[name] for name in ("algorithm", "hierarchies", "keep_exact")})


def release_in_parts(
    table: str, out: Path, declared: Declared, asked: Mapping[str, Any], *, keep_order: bool
) -> tuple[ScannedRelease, AnonymisedFile, tuple[str, ...]]:
    """Anonymise a table in parts.

    Args:
        table: Where the table is.
        out: Where the release goes.
        declared: What the user said about the columns.
        asked: The arguments of `anonymise`.
        keep_order: Whether rows stay in their order even where it tells about persons.

    Returns:
        The table and its columns, the release, and what is to be said about numbers that seem to mean a missing value.
    """
    from kohort.anonymity.relational.in_parts import anonymise_in_parts
    from kohort.tables.prepared import missing_code_lines, scan_release
    from kohort.tables.scanning import readable

    with readable(table):
        opened = scan_release(table, declared)
        moved = opened.order_tells and not keep_order
        options = {name: value for name, value in asked.items() if name not in WHOLE}
        made = anonymise_in_parts(opened.table, out, person=opened.person, in_value_order=moved, **options)
        notes = missing_code_lines(opened.table, opened.released, known=False)
    return opened, made, notes
