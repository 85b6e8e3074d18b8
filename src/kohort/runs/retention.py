"""Retention of rows that a hub received: each table has a last day, and is deleted after it.

    DIR/hub/received.parquet   the rows
    DIR/hub/received.json      when they were received, their last day, and when they were deleted

Guarantee: after `drop_overdue`, no table whose last day is over is left in the folder. Models trained on it stay: rows
cannot be removed from them.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic

__all__ = ["RECEIVED", "drop_overdue", "note_last_day"]

RECEIVED: Final = Path("hub") / "received.parquet"
_DATES: Final = Path("hub") / "received.json"


def note_last_day(folder: Path, *, days: int, today: date) -> None:
    """Record the last day of the rows of a run that were received today.

    Args:
        folder: The run folder.
        days: How many days the rows may be kept.
        today: The date of receipt.
    """
    until = today + timedelta(days=days)
    _write(folder, {"received": today.isoformat(), "keep_until": until.isoformat()})


def drop_overdue(folder: Path, *, today: date) -> Path | None:
    """Delete the rows of a run if their last day is over.

    Args:
        folder: The run folder.
        today: The day to compare with; on the last day itself rows stay.

    Returns:
        The path of the deleted table; None when nothing was deleted.

    Raises:
        IntegrityError: The file with the dates is damaged.
    """
    dates, table = _read(folder), folder / RECEIVED
    if dates is None or today <= date.fromisoformat(dates["keep_until"]) or not table.is_file():
        return None
    with disk_errors(table):
        table.unlink()
    _write(folder, {**dates, "dropped": today.isoformat()})
    return table


def _read(folder: Path) -> dict[str, Any] | None:
    place = folder / _DATES
    if not place.is_file():
        return None
    try:
        dates: dict[str, Any] = json.loads(place.read_bytes())
        date.fromisoformat(dates["keep_until"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "Correct the file, or delete the rows beside it"
        raise IntegrityError(f"{place} does not say until when rows may be kept", hint=hint) from error
    return dates


def _write(folder: Path, dates: dict[str, Any]) -> None:
    write_atomic(folder / _DATES, (json.dumps(dates, indent=1) + "\n").encode())
