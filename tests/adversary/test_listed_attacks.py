"""The table of attacks in docs/threats.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "threats.md").read_text()


def defined() -> dict[str, set[str]]:
    """The names of all test functions, by file."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        found.setdefault(path.name, set()).update(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
    return found


def attacks() -> list[str]:
    """The rows of the table."""
    section = PAGE.partition("## Attacks that once worked")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if "::" in line]


def test_every_attack_that_once_worked_is_a_test_with_a_counterpart() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in attacks()]
    assert len(rows) >= 30
    by_file = defined()
    everywhere = set().union(*by_file.values())
    for attack, test, counterpart in rows:
        (file, name), *_ = re.findall(r"`(test_\w+\.py)::(test_\w+)`", test)
        assert name in by_file[file], attack
        others = re.findall(r"`(test_\w+)`", counterpart)
        assert set(others) <= everywhere, attack
        assert others or "the same test" in counterpart, attack


WHOLE = re.compile(r"^def (test_\w+)(\(.*?)(?=^(?:def|class|@)|\Z)", re.MULTILINE | re.DOTALL)
"""A test function: its name, and the rest of it."""
BESIDE = {
    "test_classes_of_visits_hold_k_patients",  # a batch that is made by rows
    "test_held_out_rows_of_two_plans_differ_by_no_single_row",  # a share that a plan may not have
}
"""Tests whose counterpart needs no patch: they call what the check keeps away."""


def test_every_counterpart_takes_a_check_away() -> None:
    """In the same test or in one of those named beside it, something is patched."""
    patched = {
        name
        for path in TESTS.rglob("test_*.py")
        for name, text in WHOLE.findall(path.read_text())
        if re.search(r"setattr|setitem|monkeypatch[,)]", text)
    }
    for line in attacks():
        names = set(re.findall(r"(test_\w+)`", line))
        assert names & (patched | BESIDE), line


def test_threats_are_numbered_once() -> None:
    numbers = re.findall(r"^\| (T\d+[a-z]?) \|", PAGE, re.MULTILINE)
    assert len(numbers) == len(set(numbers)) > 45


def test_every_file_that_a_threat_names_is_there() -> None:
    linked = re.findall(r"\]\(\.\./(tests/[\w/.]+)\)", PAGE)
    assert linked
    assert not [name for name in linked if not (TESTS.parent / name).exists()]
