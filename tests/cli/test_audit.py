"""`kohort audit`: its table, its JSON, and what it says of folders that it cannot attack."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
PLAN = """
[data]
table = "{table}"
target = "outcome"
features = ["age", "ward"]
quasi = ["age", "ward"]
sensitive = ["outcome"]
test = {test}
[data.bounds]
age = [0, 100]
[data.categories]
ward = ["a", "b"]
outcome = ["ill", "well"]
[sites]
count = 3
[model]
kind = "logistic"
[train]
rounds = 2
optimizer = "sgd"
lr = 0.1
[policy]
min_rows = 1
raw = true
[method]
name = "central"
"""
KEYS = {
    "audited",
    "method",
    "ledger_heads",
    "membership",
    "linkage",
    "attribute",
    "reconstruction",
    "findings",
    "notes",
    "risk",
    "calibration",
    "groups",
}
FINDING = {
    "attack", "family", "on", "by", "measure", "success", "guess", "interval", "verdict", "note", "details",
}  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    rows = "\n".join(
        f"{20 + number % 50},{'ab'[number % 2]},{['ill', 'well'][number // 3 % 2]}" for number in range(120)
    )
    (tmp_path / "table.csv").write_text(f"age,ward,outcome\n{rows}\n")
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(table=tmp_path / "table.csv", test=0.3))
    return path


def test_json_of_a_finished_run_has_the_documented_keys(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    assert kohort_here("run", plan, "--out", tmp_path / "run")[0] == 0
    code, out, _ = kohort_here("audit", tmp_path / "run", "--shadows", 4, "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == KEYS
    assert all(set(one) == FINDING for one in found["findings"])
    assert {"auc", "tpr_at_1", "tpr_at_01", "guess", "interval", "attack"} == set(found["membership"])
    assert {"success", "guess", "interval", "attack"} <= set(found["attribute"])
    documented = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert all(f"`{key}`" in documented for key in {*KEYS, *FINDING})


def test_a_plan_is_run_and_attacked_and_the_table_names_guess_and_interval(plan: Path, kohort_here: Call) -> None:
    code, out, _ = kohort_here("audit", plan, "--shadows", 0)
    assert code == 0
    assert "loss threshold" in out.replace("\n", " ")
    assert "attacks are better than guessing" in out


def test_an_altered_run_is_exit_6(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run")
    model = tmp_path / "run" / "model" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(bytes(content))
    assert kohort_here("audit", tmp_path / "run")[0] == 6


def test_an_unfinished_run_is_exit_6(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    assert kohort_here("audit", tmp_path / "run")[0] == 6


def test_a_run_that_does_not_come_out_again_is_exit_6(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run")
    table = tmp_path / "table.csv"
    table.write_text(table.read_text().replace("20,a,ill", "21,a,ill", 1))
    code, _, err = kohort_here("audit", tmp_path / "run")
    assert code == 6
    assert "other releases than its ledger lists" in err


def test_a_run_without_test_rows_says_so(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    plan.write_text(plan.read_text().replace("test = 0.3", "test = 0.0"))
    kohort_here("run", plan, "--out", tmp_path / "run")
    code, out, _ = kohort_here("audit", tmp_path / "run", "--shadows", 0)
    assert code == 0
    assert "keeps no test rows" in out.replace("\n", " ")


def test_a_run_of_the_operating_systems_randomness_says_why_it_is_not_attacked(
    plan: Path, tmp_path: Path, kohort_here: Call
) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run", "--secure-random")
    code, out, _ = kohort_here("audit", tmp_path / "run", "--json")
    assert code == 0
    assert all(one["verdict"] == "not attacked" for one in json.loads(out)["findings"])
    assert "--secure-random" in out


def test_set_belongs_to_a_plan(plan: Path, tmp_path: Path, kohort_here: Call) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run")
    assert kohort_here("audit", tmp_path / "run", "--set", "train.rounds=1")[0] == 2
    assert kohort_here("audit", plan, plan)[0] == 2


def test_a_folder_that_is_not_there_is_said_in_one_line(tmp_path: Path, kohort_here: Call) -> None:
    code, _, err = kohort_here("audit", tmp_path / "nothing")
    assert code == 2
    assert "there is no run folder or plan" in err.replace("\n", " ")


def test_a_report_with_an_audit_replaces_the_one_of_the_same_run_and_no_other(
    plan: Path, tmp_path: Path, kohort_here: Call
) -> None:
    run, audit = tmp_path / "run", tmp_path / "audit.json"
    kohort_here("run", plan, "--out", run)
    kohort_here("audit", run, "--shadows", 0, "--out", audit)
    assert kohort_here("report", run)[0] == 0
    assert kohort_here("report", run)[0] == 2  # nothing new to say: asks for --force
    assert kohort_here("report", run, "--audit", audit)[0] == 0
    twin = json.loads((run / "report.json").read_text())
    assert twin["runs"][0]["attacks"]
    (run / "report.json").write_text("{}")
    assert kohort_here("report", run, "--audit", audit)[0] == 2
    before = audit.read_bytes()
    code, _, said = kohort_here("report", run, "--audit", audit, "--out", tmp_path / "audit.html", "--force")
    assert code == 2
    assert "would replace the audit" in said
    assert audit.read_bytes() == before


def test_reports_of_two_altered_runs_are_refused_and_an_unknown_signer_is_on_page_one(
    plan: Path, tmp_path: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    kohort_here("run", plan, "--out", tmp_path / "run")
    for name, file, old, new in (
        ("model", "model/README.md", "kohort", "kohrot"),
        ("figures", "run.json", '"accuracy": 0.', '"accuracy": 1.'),
    ):
        copied = tmp_path / name
        shutil.copytree(tmp_path / "run", copied)
        content = (copied / file).read_text()
        assert old in content
        (copied / file).write_text(content.replace(old, new, 1))
        for edition in ([], ["--external"]):
            assert kohort_here("report", copied, *edition)[0] == 6
        assert not (copied / "report.html").exists()
    monkeypatch.setattr("kohort.report.runs.user_pins", lambda: None)
    code, _, err = kohort_here("report", tmp_path / "run", "--external")
    assert code == 0
    assert "signer unknown" in err
    page = (tmp_path / "run" / "report-external.html").read_text()
    assert page.index("is not known here: what left is consistent") < page.index("Summary for data protection")


def test_a_run_that_did_not_finish_says_how_its_folder_is_used_again(
    plan: Path, tmp_path: Path, kohort_here: Call
) -> None:
    refused = ("run", plan, "--out", tmp_path / "run", "--set", "policy.raw=false")
    assert kohort_here(*refused)[0] == 4
    code, _, err = kohort_here("run", plan, "--out", tmp_path / "run")
    assert code == 2
    assert "holds a run that did not finish" in err.replace("\n", " ")
    assert "--force" in err
    assert kohort_here("run", plan, "--out", tmp_path / "run", "--force")[0] == 0
