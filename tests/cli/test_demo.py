"""`kohort demo`: every registered method, one page, and no folder lost that is not a demo's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError, ResourceError
from kohort.methods import registry
from kohort.methods.registry import Method
from kohort.privacy.guarantee import KAnonymous
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.demo import _here_or_there, _Job, _Made, _waited, demo_plan
from kohort.runs.demo_start import MARK, prepare_folder

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def boastful(monkeypatch: pytest.MonkeyPatch) -> str:
    """A method every site refuses: it claims a k-anonymity nobody verified."""
    refused = replace(registry.find_method("fedavg"), name="boastful", claims=lambda config, rows: (KAnonymous(k=2),))
    known = {**registry.methods(), refused.name: refused}
    for module in ("kohort.methods.registry", "kohort.runs.demo"):
        monkeypatch.setattr(f"{module}.methods", lambda: known)
    return refused.name


def test_the_demo_runs_every_method_and_shows_the_one_that_is_refused(
    tmp_path: Path, boastful: str, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    out = tmp_path / "demo"
    code, shown, said = kohort_here("demo", "--out", out, "--rounds", "1", "--jobs", "1")
    assert code == 0, said
    assert "did not finish: 10 of 10 sites refuse the plan" in shown
    result = json.loads((out / "report.json").read_text())
    assert {run["method"] for run in result["runs"]} == set(registry.methods())
    assert boastful in registry.methods()
    for run in result["runs"]:
        if run["method"] == boastful:
            assert "refuse the plan" in run["error"]
        elif "error" not in run:
            assert verify_ledger(out / run["method"]).head == run["ledger_head"]
            assert run["sites"] == 10
    page = (out / "report.html").read_text()
    assert all(name in page for name in registry.methods())
    assert "refuse the plan" in page

    code, _, said = kohort_here("report", out, "--force")
    assert code == 0, said
    again = (out / "report.html").read_text()
    assert "refuse the plan" in again
    assert "membership attack" in again  # from the audit.json beside the runs


def test_the_demo_ends_with_a_table_and_what_to_look_at(
    tmp_path: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: registry.methods()[name] for name in ("fedavg", "silo")}
    monkeypatch.setattr("kohort.runs.demo.methods", lambda: two)
    out = tmp_path / "demo"
    code, shown, said = kohort_here("demo", "--out", out, "--rounds", "1", "--jobs", "2")
    assert code == 0, said
    assert all(word in shown for word in ("fedavg", "accuracy", "F1", "AUC", "epsilon", "attack"))
    page = (out / "report.html").read_text()
    assert "Recommendation" in page
    assert "membership attack" in page
    *_, first, second = said.strip().splitlines()
    assert str(out / "report.html") in first
    assert "kohort ledger show" in second
    rounds = [line.partition(":")[0] for line in said.splitlines() if ": round " in line]
    assert [title.partition(" ")[2] for title in rounds] == ["fedavg", "silo"]
    side_by_side = _written(out)
    code, shown, said = kohort_here("demo", "--out", out, "--rounds", "1", "--jobs", "1", "--json")
    assert code == 0, said
    result = json.loads(shown)
    assert result["report"] == str(out / "report.html")
    assert result["runs"] == json.loads((out / "report.json").read_text())["runs"]
    assert _written(out) == side_by_side


def _written(out: Path) -> dict[str, bytes]:
    """Models and ledgers: what does not depend on the clock."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for method in ("fedavg", "silo")
        for path in (out / method).glob("*/*")
        if path.name in {"ledger.jsonl", "receipts.jsonl", "model.safetensors"}
    }


def test_a_process_that_was_ended_is_an_error_with_a_next_step() -> None:
    future: Future[Any] = Future()
    future.set_exception(BrokenProcessPool())
    with pytest.raises(ResourceError, match="--jobs 1"):
        _waited(future, lambda _: None)


def test_a_run_is_made_here_unless_another_process_has_begun_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _Made(run={"made": "here"}, audit={})
    there = _Made(run={"made": "there"}, audit={})
    monkeypatch.setattr("kohort.runs.demo._make", lambda job, watch: here)
    job = _Job("fedavg", 1, 0, Path("unused"))
    waiting: Future[Any] = Future()
    assert _here_or_there(job, waiting, lambda _: None) is here
    assert waiting.cancelled()  # nobody else makes it too
    begun: Future[Any] = Future()
    begun.set_running_or_notify_cancel()
    begun.set_result((there, []))
    assert _here_or_there(job, begun, lambda _: None) is there


_KERNELS = """
from kohort.models.dense import kernel
from kohort.runs import demo
demo._compile_kernel()
before = list(kernel.train_sites.signatures)
demo.run(demo.demo_plan(demo.find_method("fedavg"), rounds=1), seed=0)
print(len(before), before == list(kernel.train_sites.signatures))
"""


def test_the_kernel_that_is_compiled_first_is_the_one_that_trains() -> None:
    done = subprocess.run([sys.executable, "-c", _KERNELS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True"]


def test_a_folder_that_is_not_a_demo_s_is_kept(tmp_path: Path, kohort_here: Call) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    code, _, said = kohort_here("demo", "--out", tmp_path, "--rounds", "1")
    assert code == 2
    assert "--force" in said
    assert precious.read_text() == "keep me"


def test_only_marked_empty_or_forced_folders_are_replaced(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    prepare_folder(fresh, force=False)
    (fresh / "old").write_text("from the last demo")
    prepare_folder(fresh, force=False)
    assert [path.name for path in fresh.iterdir()] == [MARK]
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("")
    with pytest.raises(ConfigError):
        prepare_folder(other, force=False)
    prepare_folder(other, force=True)
    assert [path.name for path in other.iterdir()] == [MARK]
    with pytest.raises(ConfigError):
        prepare_folder(other / MARK, force=False)


def test_when_no_method_finishes_the_demo_fails(
    tmp_path: Path, boastful: str, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {boastful: registry.methods()[boastful]}
    monkeypatch.setattr("kohort.runs.demo.methods", lambda: alone)
    code, _, said = kohort_here("demo", "--out", tmp_path / "demo", "--rounds", "1", "--jobs", "1")
    assert code == 4
    assert "refuse the plan" in said
    assert "No run finished" in (tmp_path / "demo" / "report.html").read_text()


def test_a_method_s_own_example_is_part_of_its_plan() -> None:
    fedavg = registry.find_method("fedavg")
    changed: Method = replace(fedavg, example="[train]\nlocal_epochs = 3")
    assert demo_plan(changed, rounds=2).train.local_epochs == 3
    assert demo_plan(fedavg, rounds=2).train.rounds == 2
    assert demo_plan(fedavg).sites.count == 10


@pytest.mark.parametrize(
    ("content", "code"), [(None, 2), ("{", 6), ('{"method": "fedavg"}', 6)], ids=["missing", "cut", "incomplete"]
)
def test_report_refuses_what_is_no_run(tmp_path: Path, kohort_here: Call, content: str | None, code: int) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    found, _, said = kohort_here("report", tmp_path)
    assert found == code
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "report.json").exists()


def test_report_of_one_run(tmp_path: Path, plan_file: Path, kohort_here: Call) -> None:
    folder = tmp_path / "run"
    assert kohort_here("run", plan_file, "--out", folder)[0] == 0
    code, shown, said = kohort_here("report", folder, "--json", "--title", "Wards & beds")
    assert code == 0, said
    result = json.loads(shown)
    assert result == {"out": str(folder / "report.html"), "json": str(folder / "report.json"), "runs": 1}
    assert "<h1>Wards &amp; beds</h1>" in Path(result["out"]).read_text()

    kept = Path(result["out"]).read_bytes()
    code, _, said = kohort_here("report", folder, "--title", "Other")
    assert code == 2
    assert "--force" in said
    assert Path(result["out"]).read_bytes() == kept

    assert kohort_here("report", folder, "--out", tmp_path / "elsewhere.html")[0] == 0
    assert (tmp_path / "elsewhere.json").is_file()
    assert kohort_here("report", folder, "--out", tmp_path / "page.pdf")[0] == 2
    assert kohort_here("report", tmp_path / "nowhere")[0] == 2


def test_report_of_a_run_whose_ledger_was_changed(tmp_path: Path, plan_file: Path, kohort_here: Call) -> None:
    folder = tmp_path / "run"
    assert kohort_here("run", plan_file, "--out", folder)[0] == 0
    ledger = folder / "ledger" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    code, _, _ = kohort_here("report", folder)
    assert code == 6
    assert not (folder / "report.html").exists()
