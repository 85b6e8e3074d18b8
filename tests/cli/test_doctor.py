"""`kohort doctor`: all is well here, and whatever is broken is named and ends with its own exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kohort.cli import doctor
from kohort.errors import IntegrityError

Call = Callable[..., tuple[int, str, str]]


def test_all_is_well_here(tmp_path: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, shown, said = kohort_here("doctor", "--json")
    assert code == 0, said
    found = json.loads(shown)
    assert found["ok"] is True
    assert found["problems"] == []
    assert found["libraries"]["numpy"]
    assert set(found["extras"]) == {"flower", "torch", "sql"}
    assert found["data"]["adult"] == "embedded"
    assert found["data"]["mimic3"] == "not here, needs KOHORT_DATA"
    assert found["cache"] == {"folder": str(tmp_path / "cache" / "kohort"), "writable": True}
    assert found["threads"]["processors"] >= 1
    assert found["kernel_cache"]["state"] in {"warm", "cold", "off"}
    assert found["self_test"]["passed"] is True
    assert found["self_test"]["accuracy"] > 0.9
    assert found["self_test"]["ledger_lines"] > 3
    assert list(tmp_path.iterdir()) == []


def test_for_people(kohort_here: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOHORT_DATA", raising=False)
    code, shown, _ = kohort_here("doctor")
    assert code == 0
    assert "No problem found." in shown
    assert "ledger lines verified" in shown


def fails_with(error: Exception) -> Callable[[], NoReturn]:
    def broken() -> NoReturn:
        raise error

    return broken


@pytest.mark.parametrize(
    ("error", "code"), [(IntegrityError("the ledger was cut"), 6), (ValueError("broken"), 1)], ids=["ledger", "bug"]
)
def test_a_self_test_that_fails(
    error: Exception, code: int, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_tiny_federation", fails_with(error))
    found, shown, _ = kohort_here("doctor", "--json")
    assert found == code
    result = json.loads(shown)
    assert result["ok"] is False
    assert str(error) in result["problems"][0]
    assert kohort_here("doctor")[0] == code


@pytest.mark.parametrize("version", [None, "1.9.9", "2.0"])
def test_a_library_that_is_missing_or_too_old(
    version: str | None, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = doctor._version_of
    monkeypatch.setattr(doctor, "_version_of", lambda name: version if name == "numpy" else installed(name))
    code, shown, _ = kohort_here("doctor", "--json")
    result = json.loads(shown)
    if version == "2.0":
        assert code == 0
        return
    assert code == 2
    assert "numpy>=2.0" in result["problems"][0]
    assert ("self_test" in result) == (version is not None)
    assert "numpy" in kohort_here("doctor")[1]


def test_an_extra_that_is_not_installed_is_a_note(kohort_here: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor._version_of
    monkeypatch.setattr(doctor, "_version_of", lambda name: None if name == "flwr" else installed(name))
    code, shown, _ = kohort_here("doctor", "--json")
    assert code == 0
    assert any("kohort[flower]" in note for note in json.loads(shown)["notes"])


def test_a_data_folder_that_is_none_and_a_cache_that_cannot_be_written(
    tmp_path: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, shown, _ = kohort_here("doctor", "--json")
    result: dict[str, Any] = json.loads(shown)
    assert code == 2
    assert result["self_test"]["passed"] is True
    assert "KOHORT_DATA" in result["problems"][0]
    assert result["cache"]["writable"] is False
    assert any("XDG_CACHE_HOME" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("installed", "bounds", "fits"),
    [
        ("2.0", ">=2.0", True),
        ("2", ">=2.0", True),
        ("1.26.4", ">=2.0", False),
        ("2.13.0+cpu", ">=2.5", True),
        ("1.42.0", "<1.42,>=1.41", False),
        ("1.41.3", "<1.42,>=1.41", True),
        ("0.4.5rc1", ">=0.4.5", True),
        ("7.0", "", True),
    ],
)
def test_bounds_of_versions(installed: str, bounds: str, fits: bool) -> None:
    assert doctor._within(installed, bounds) is fits


def test_kernels_are_compiled_when_asked(kohort_here: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOHORT_DATA", raising=False)
    monkeypatch.setattr("kohort.runs.compile.compile_kernels", lambda *, releases: ("partial",) if releases else ())
    code, shown, _ = kohort_here("doctor", "--compile", "--json")
    found = json.loads(shown)
    assert code == 0
    assert found["compiled"]["failed"] == ["partial"]
    assert any("partial" in note for note in found["notes"])
