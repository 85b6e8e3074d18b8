"""The bill of materials and the check of pinned packages: what is unknown or vulnerable is named, and fails."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kohort_tools_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_installed_package_has_a_known_licence() -> None:
    bill = tool("sbom")
    doubtful = [one.metadata["Name"] for one in bill.packages() if not bill.ALLOWED.search(bill.licence_of(one))]
    assert doubtful == []


@pytest.mark.parametrize("found", [None, [{"name": "numpy", "skip_reason": "not found"}]])
def test_nothing_is_said_to_be_safe_where_nobody_was_asked(
    found: list[dict[str, object]] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool("supply").vulnerable(found) == []
    assert "not asked" in capsys.readouterr().out


def test_a_known_vulnerability_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [
        {"name": "numpy", "version": "1.0", "vulns": []},
        {"name": "pillow", "version": "2.0", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]},
        {"name": "torch", "skip_reason": "not found"},
    ]
    assert tool("supply").vulnerable(answers) == ["pillow 2.0: CVE-1, CVE-2"]
    assert "2 packages asked, 1 not, 1 with some" in capsys.readouterr().out


def test_the_lock_has_the_versions_that_are_tested_and_a_hash_each() -> None:
    root = TOOLS.parent
    pinned = dict(
        line.lower().split("==") for line in (root / "constraints.txt").read_text().splitlines() if "==" in line
    )
    pinned = {name.replace("_", "-"): version for name, version in pinned.items()}
    locked = {}
    for line in (root / "requirements.lock").read_text().splitlines()[1:]:
        found = re.fullmatch(r"([^=]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
        assert found is not None, line
        locked[found[1].replace("_", "-")] = found[2]
    assert {name: version for name, version in locked.items() if pinned.get(name, version) != version} == {}
    asked = [re.split(r"[<>=;\[ ]", entry)[0].lower() for entry in tool("lock").needed()]
    assert [name for name in asked if name not in locked] == []


def test_a_line_of_the_lock_is_what_pip_would_install() -> None:
    file = {"archive_info": {"hashes": {"sha256": "ab"}}}
    found = {"install": [{"metadata": {"name": "B", "version": "2"}, "download_info": file}]}
    assert tool("lock").lines(found) == ["b==2 --hash=sha256:ab"]


def test_the_suite_with_the_lowest_versions_installs_all_that_its_tests_import(monkeypatch: pytest.MonkeyPatch) -> None:
    nox = ModuleType("nox")
    nox.session = lambda **_: lambda session: session  # type: ignore[attr-defined]
    nox.options = SimpleNamespace()  # type: ignore[attr-defined]
    nox.Session = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.chdir(TOOLS.parent)
    asked: list[str] = []
    matrix = tool("../noxfile")
    matrix.minimum(SimpleNamespace(install=lambda *given: asked.extend(given), run=lambda *_: None, posargs=[]))
    assert ".[dev]" in asked
    versions = {re.split(r"[\[=]", entry)[0]: entry.rpartition("==")[2] for entry in asked if "==" in entry}
    assert {"numpy", "pandas", "pyarrow", "sqlalchemy", "duckdb", "onnx", "distributed"} <= versions.keys()
    project = tomllib.loads((TOOLS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = dict(re.match(r"([\w.-]+)[^>]*>=([\d.]+)", line).groups() for line in project["dependencies"])  # type: ignore[union-attr]
    assert lowest.items() <= versions.items()
