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


def test_every_attack_that_once_worked_is_a_test_with_a_counterpart() -> None:
    section = PAGE.partition("## Attacks that once worked")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "::" in line]
    assert len(rows) >= 30
    by_file = defined()
    everywhere = set().union(*by_file.values())
    for attack, test, counterpart in rows:
        (file, name), *_ = re.findall(r"`(test_\w+\.py)::(test_\w+)`", test)
        assert name in by_file[file], attack
        others = re.findall(r"`(test_\w+)`", counterpart)
        assert set(others) <= everywhere, attack
        assert others or "the same test" in counterpart, attack


def test_threats_are_numbered_once() -> None:
    numbers = re.findall(r"^\| (T\d+[a-z]?) \|", PAGE, re.MULTILINE)
    assert len(numbers) == len(set(numbers)) > 45


def test_every_file_that_a_threat_names_is_there() -> None:
    linked = re.findall(r"\]\(\.\./(tests/[\w/.]+)\)", PAGE)
    assert linked
    assert not [name for name in linked if not (TESTS.parent / name).exists()]
