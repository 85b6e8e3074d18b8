"""What the head of a report says: what it is for, of which day it is, and who took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kohort.report.runs import Run
from kohort.report.words import count, printable

__all__ = ["About", "facts_of"]

SITES_NAMED: Final = 12


@dataclass(frozen=True)
class About:
    """What no ledger knows.

    Attributes:
        purpose: What the processing is for, in the controller's words.
        date: The day of the report.
    """

    purpose: str = ""
    date: str = ""


def facts_of(runs: Sequence[Run], about: About) -> list[tuple[str, str]]:
    """Purpose, date and parties.

    Args:
        runs: The finished runs.
        about: What the writer of the report states.

    Returns:
        Terms and texts.
    """
    return [
        ("Purpose", printable(about.purpose) or "not stated (kohort report --purpose)"),
        ("Date of this report", printable(about.date) or "not stated (kohort report --date)"),
        ("Parties", _parties(runs)),
    ]


def _parties(runs: Sequence[Run]) -> str:
    """The sites, by name where the edition has them, and everybody who was sent something."""
    names = list(dict.fromkeys(name for run in runs for name in run.site_rows))
    sites = max((run.sites for run in runs), default=0)
    said = f"{count(sites)} {'site' if sites == 1 else 'sites'}"
    if names:
        more = f" and {count(len(names) - SITES_NAMED)} more" if len(names) > SITES_NAMED else ""
        said += f" ({', '.join(names[:SITES_NAMED])}{more})"
    recipients = {item.recipient for run in runs for item in run.disclosed}
    holder = any("key-holder" in f"{item.recipient} {item.guarantee}" for run in runs for item in run.disclosed)
    others = sorted({"hub", *recipients} - {"key-holder"}) + (["key-holder"] if holder else [])
    return f"{said}; recipients: {', '.join(others)}"
