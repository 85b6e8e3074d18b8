"""Finished runs of a study in a file, so that a study that was stopped goes on where it was.

The file has one line of JSON per run, appended when the run is finished, by the process that made it. A line that was
cut off is left out, and its run is made again. The first line says which study this is, at which depth and by which
version of kohort: runs of another one are not taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from kohort.errors import ConfigError
from kohort.files import disk_errors, write_atomic, write_whole
from kohort.studies.harness.runs import RunSummary

__all__ = ["RUNS_FILE", "KeptRuns", "kept_runs"]

RUNS_FILE: Final = "runs.jsonl"
R = TypeVar("R", bound=RunSummary)


@dataclass(frozen=True)
class KeptRuns(Generic[R]):
    """The finished runs of one kind: on which rows, and how they were made.

    What is kept of a run is what its summary says (`RunSummary.to_kept`).

    Args:
        path: The file.
        kind: Such as "validation"; runs of other kinds are not looked at.
        summary: The class of the runs' summaries.
    """

    path: Path
    kind: str
    summary: type[R]

    @cached_property
    def _found(self) -> dict[tuple[str, int], R]:
        lines = [_parsed(line) for line in self.path.read_bytes().splitlines()[1:]]
        return {
            (line["plan"], line["seed"]): self.summary.from_kept(line)
            for line in lines
            if line and line.get("kind") == self.kind
        }

    def find(self, digest: str, seed: int) -> R | None:
        """The run of a plan and a seed; None if it was not finished when the study began."""
        return self._found.get((digest, seed))

    def add(self, digest: str, seed: int, run: R) -> None:
        """Append a finished run."""
        line = {"kind": self.kind, "plan": digest, "seed": seed, **run.to_kept()}
        # One write to a file opened for appending: lines of several processes do not mix. A line that was cut off by
        # a stop ends before this one begins.
        with disk_errors(self.path), self.path.open("ab", buffering=0) as file:
            write_whole(file, b"\n" + json.dumps(line).encode() + b"\n")


def kept_runs(out: Path, about: Mapping[str, Any], *, resume: bool) -> Path:
    """The file of a study's runs in its folder.

    Args:
        out: The study's folder.
        about: What the runs depend on beside their plans: study, depth, version. Values of JSON.
        resume: Whether to keep the runs that are there; otherwise the file begins anew.

    Returns:
        The file.

    Raises:
        ConfigError: There is nothing to go on with, or it is of another study, depth or version.
    """
    path, first = out / RUNS_FILE, json.dumps(dict(about), sort_keys=True)
    if not resume:
        write_atomic(path, first.encode() + b"\n")
        return path
    if not path.is_file():
        raise ConfigError(f"{out} holds no study that was begun", hint="Leave out --resume to begin one")
    with disk_errors(path):
        there = _parsed(path.read_bytes().partition(b"\n")[0]) or {}
    differ = sorted(key for key in {*there, *about} if there.get(key) != json.loads(first).get(key))
    if differ:
        raise ConfigError(
            f"the runs in {out} were made with another {', '.join(differ)}",
            hint="Begin the study in another --out, or use --force to begin anew",
        )
    return path


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line; None if it was cut off."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
