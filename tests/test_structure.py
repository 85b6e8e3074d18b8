"""The shape of the source tree: no circles of imports, and a map whose paths exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LONGEST_FILE = 500
NEW = {"models/cox/"}
"""The answer to where something would go that is not there yet."""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "tools" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of ARCHITECTURE.md."""
    section = MAP.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_no_module_imports_itself_through_others() -> None:
    structure = _tool()
    known = structure.modules_in(SRC)
    graph = {name: structure.imports_of(path, known) for name, path in known.items()}
    assert structure.circles(graph) == 0
    below = next(other for other in graph["kohort.protocol.site"] if graph[other])
    assert structure.circles({**graph, below: {*graph[below], "kohort.protocol.site"}}) == 1


def test_no_file_is_longer_than_can_be_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (SRC / "kohort").rglob("*.py")}
    assert [str(path) for path, length in lengths.items() if length > LONGEST_FILE] == []


@pytest.mark.parametrize(("question", "answer"), _rows("Where things are"))
def test_every_question_is_answered_by_a_path_that_exists(question: str, answer: str) -> None:
    path, *names = re.findall(r"`([^`]+)`", answer)
    assert path in NEW or (SRC / "kohort" / path).exists(), question
    for name in names:
        beside = SRC / "kohort" / name, (SRC / "kohort" / path).parent / name
        inside = name.isidentifier() and f" {name}(" in (SRC / "kohort" / path).read_text(encoding="utf-8")
        assert inside or any(place.exists() for place in beside), (question, name)


def test_every_package_is_on_the_map() -> None:
    rows = _rows("The map")
    named = {name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    there = {path.stem for path in (SRC / "kohort").iterdir() if not path.name.startswith("_")} - {"py"}
    assert there <= named, there - named
    for first, _, start in rows:
        packages = [*re.findall(r"`([^`]+)/`", first), "."]
        for path in re.findall(r"`([^`]+)`", start):
            assert any((SRC / "kohort" / package / path).exists() for package in packages), path


WORDS = {"company", "keeper", "occasion", "panel", "desk", "crew", "tail", "told", "groundwork", "venue", "premises"}
WORDS |= {"holding", "trouble"}


def test_modules_classes_and_functions_have_the_fields_own_words() -> None:
    names = [path.stem for path in (SRC / "kohort").rglob("*.py")]
    for path in (SRC / "kohort").rglob("*.py"):
        names += re.findall(r"^ *(?:class|def|async def) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    parts = {part.lower() for name in names for part in re.findall(r"[A-Z]?[a-z]+", name.replace("KeyHolder", ""))}
    assert parts & WORDS == set()
    assert {"site", "release", "door"} <= parts


def test_no_state_is_a_dictionary_of_strings() -> None:
    assert [str(path) for path in SRC.rglob("*.py") if "memory[" in path.read_text(encoding="utf-8")] == []
