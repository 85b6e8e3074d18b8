"""Reading run folders: intact runs are read, changed runs are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_reports import failed, finished

from kohort.errors import ConfigError, IntegrityError
from kohort.report.runs import read_runs, read_shared_plan
from kohort.runs.config import read_plan
from kohort.runs.run import run


def write(folder: Path, content: object, *, name: str = "run.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_one_run_or_several(tmp_path: Path) -> None:
    write(tmp_path / "b", finished("central"))
    write(tmp_path / "a", finished())
    write(tmp_path / "c", failed(), name="failed.json")
    (tmp_path / "empty").mkdir()
    assert [(item["name"], item["method"]) for item in read_runs(tmp_path)] == [
        ("a", "fedavg"),
        ("b", "central"),
        ("c", "partial"),
    ]
    assert read_runs(tmp_path / "a")[0]["method"] == "fedavg"
    assert read_shared_plan(tmp_path) is None


def test_a_run_beside_others_that_did_not_finish_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "b", finished("central"))
    (tmp_path / "a" / "ledger").mkdir(parents=True)
    first, second = read_runs(tmp_path)
    assert (first["name"], second["name"]) == ("a", "b")
    assert "did not finish" in first["error"]
    (tmp_path / "b" / "run.json").unlink()
    with pytest.raises(ConfigError):
        read_runs(tmp_path)


def test_of_several_runs_the_damaged_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", finished())
    write(tmp_path / "b", "{")
    with pytest.raises(IntegrityError, match=r"^b: "):
        read_runs(tmp_path)


def test_a_shared_plan_holds_only_what_all_runs_share(tmp_path: Path) -> None:
    for name, rounds in (("a", 3), ("b", 4)):
        folder = write(tmp_path / name, finished())
        plan = {"data": {"table": "t"}, "train": {"rounds": rounds, "lr": 0.1}, "method": {"name": name}}
        write(folder, plan, name="plan.json")
    assert read_shared_plan(tmp_path) == {"data": {"table": "t"}, "train": {"lr": 0.1}, "method": {}}
    assert read_shared_plan(tmp_path / "b") == plan


def test_no_run_is_an_error_of_the_user(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            read_runs(place)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"run"',
        "{}",
        "[" * 100_000,
        {**finished(), "metrics": {}},
        {**finished(), "metrics": {"accuracy": "good"}},
        {**finished(), "metrics": {"accuracy": 0.5, "by_site": [1]}},
        {**finished(), "disclosed": [{"kind": "raw"}]},
        {**finished(), "sites": -1},
        {key: value for key, value in finished().items() if key != "method"},
        failed(),
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(IntegrityError):
        read_runs(write(tmp_path, content))


def test_a_damaged_run_is_named_without_its_values(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as caught:
        read_runs(write(tmp_path, {**finished(), "rounds": "a-cell-value"}))
    assert "rounds" in str(caught.value)
    assert "a-cell-value" not in str(caught.value)


def test_what_a_run_claims_about_its_ledger_is_ignored(tmp_path: Path) -> None:
    boast = {"lines": 1, "releases": 1, "refusals": 0}
    assert read_runs(write(tmp_path, {**finished(), "ledger": boast}))[0]["ledger"] is None


def test_the_ledger_beside_a_run_is_verified(tmp_path: Path, plan_file: Path) -> None:
    folder = tmp_path / "run"
    run(read_plan(plan_file), out=folder, seed=1)
    found = read_runs(folder)[0]
    assert found["ledger"]["releases"] > 0
    assert read_shared_plan(folder) is not None

    original = (folder / "run.json").read_text()
    (folder / "run.json").write_text(original.replace(found["ledger_head"], "0" * 32))
    with pytest.raises(IntegrityError, match="was changed after the run"):
        read_runs(folder)

    (folder / "run.json").write_text(original)
    ledger = folder / "ledger" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"seq":1', b'"seq":2', 1))
    with pytest.raises(IntegrityError):
        read_runs(folder)
