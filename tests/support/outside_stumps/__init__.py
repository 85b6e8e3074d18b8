"""A package that brings a method and a model kind by entry points, and how to install it into a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["install", "path_with"]


def install(place: Path) -> Path:
    """A folder as an installer leaves it: the module and its dist-info with the entry points."""
    info = place / "kohort_stumps-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "kohort_stumps.py", place)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kohort-stumps\nVersion: 1.0\n")
    points = "[kohort.methods]\nstumps = kohort_stumps:METHOD\n\n[kohort.models]\nstumps = kohort_stumps:KIND\n"
    (info / "entry_points.txt").write_text(points)
    (info / "RECORD").write_text("")
    return place


def path_with(place: Path) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))}
