"""Studies are discovered: every module of this package with a STUDY."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, nearest
from kohort.registry import discover

__all__ = ["Say", "Study", "find_study", "studies"]

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A re-run of one paper's tables and figures.

    `run(out, quick, say)` writes figures into `out` and returns `{name, tables: [{name, source, rows: [{setting, paper,
    ours, sd, delta}]}], figures: [files], notes}`.
    """

    name: str
    summary: str
    cites: str
    run: Callable[[Path, bool, Say], dict[str, Any]]
    resume: Callable[[Path, bool, Say], dict[str, Any]] | None = None
    """Goes on with a study that was stopped, from the runs that are kept in `out`; None where none are kept."""


@cache
def studies() -> dict[str, Study]:
    """Every study by name."""
    return discover("kohort.studies", attribute="STUDY", kind=Study, group="kohort.studies")


def find_study(name: str) -> Study:
    """The study of a name.

    Args:
        name: The name.

    Returns:
        The study.

    Raises:
        ConfigError: None is called so.
    """
    known = studies()
    if name not in known:
        raise ConfigError(f"unknown study {name!r}", hint=nearest(name, known) if known else "None is installed")
    return known[name]
