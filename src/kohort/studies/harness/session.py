"""How deep a study goes, what its parts share while it runs, and the JSON object it ends with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from kohort.studies.harness.found import Part
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.registry import Say

__all__ = ["Depth", "Session", "study_result"]


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How much of a study is run. A study adds the fields it needs, and has one value for quick and one for full."""

    quick: bool = False
    seeds: tuple[int, ...]


D = TypeVar("D", bound=Depth)
R = TypeVar("R", bound=RunSummary)


@dataclass(frozen=True)
class Session(Generic[D, R]):
    """What the parts of a study share while it runs."""

    depth: D
    out: Path
    """Folder for the figures."""
    say: Say
    """Takes lines about progress."""
    runs: Runs[R]


def study_result(name: str, parts: Iterable[Part], notes: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON object of a study.

    Args:
        name: The study's name.
        parts: Its parts, in the order of the report.
        notes: Notes on the study as a whole; they come before those of the parts.

    Returns:
        `{name, tables: [{name, source, rows: [{setting, paper, ours, sd, delta}]}], figures: [files], notes}`.
    """
    made = list(parts)
    return {
        "name": name,
        "tables": [table.to_mapping() for part in made for table in part.tables],
        "figures": [path.name for part in made for path in part.figures],
        "notes": [*notes, *(note for part in made for note in part.notes)],
    }
