"""The first hour with an ordinary CSV: an id, dates, truth values, gaps. It works, and no id is in any output."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kohort
from kohort.runs.config import read_plan
from kohort.runs.suggest import suggest_plan

Call = Callable[..., tuple[int, str, str]]
ROWS = 600
CANARY = "ZQX"


@pytest.fixture(scope="module")
def patients() -> str:
    """An ordinary CSV, as text."""
    random = np.random.default_rng(5)
    age = random.integers(20, 90, ROWS)
    lines = ["patient_id;admitted;age;sex;bmi;smoker;+code;died"]
    for row in range(ROWS):
        bmi = "" if row % 9 == 0 else f"{random.normal(27, 4):.2f}".replace(".", ",")
        died = "" if row % 50 == 49 else str(float(age[row] + random.normal(0, 8) > 60))
        date = f"{1 + row % 28:02d}.{1 + row % 12:02d}.2021"
        sex = "fm"[row % 2] if row % 40 else "NA"
        smoker = "TRUE" if row % 3 else "FALSE"
        cells = (f"{CANARY}{row * 7919:07d}", date, age[row], sex, bmi, smoker, f"+49{row % 5}", died)
        lines.append(";".join(str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


@pytest.fixture
def table(tmp_path: Path, patients: str) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(patients)
    return path


def outputs(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_init_run_predict_report(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    code, _, said = kohort_here("init", table, "--target", "died", "--out", plan)
    assert code == 0, said
    assert 'identifiers = ["patient_id"]' in plan.read_text()
    short = ("--set", "train.rounds=3") if 'name = "fedavg"' in plan.read_text() else ()
    code, shown, said = kohort_here("run", plan, "--out", out, *short, "--json")
    assert code == 0, said
    result = json.loads(shown)
    assert result["task"] == {"kind": "classification", "why": "two values", "positive": "1"}
    assert {"what": "rows", "why": "the target died is missing", "count": 12} in result["left_out"]
    assert {"majority", "best_site", "pooled"} <= result["baselines"].keys()
    assert any("semicolons" in note for note in result["notes"])
    assert any("dates in: admitted" in note for note in result["notes"])
    code, shown, said = kohort_here("predict", out, table, "--out", tmp_path / "predicted.csv", "--json")
    assert code == 0, said
    predicted = pl.read_csv(tmp_path / "predicted.csv", separator=",", infer_schema=False)
    assert set(predicted["predicted_died"]) <= {"0.0", "1.0"}  # the target's own type
    assert predicted["+code"][1] == "+491"  # untouched columns come back exactly
    assert predicted["smoker"][1] == "TRUE"
    assert kohort_here("report", out)[0] == 0
    assert CANARY.encode() not in outputs(out)


def test_the_python_way(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table, sep=";", decimal=",")
    frame["died"] = frame["died"].map({"0.0": False, "1.0": True})
    frame = frame.dropna(subset=["died"]).astype({"died": bool})
    federation = kohort.Federation(frame, target="died", sites=3, policy={"min_rows": 1})
    outcome = federation.run("fedavg", rounds=2, out=tmp_path / "out")
    assert any("patient_id" in note and "left out" in note for note in outcome.notes)
    found = outcome.model.predict(frame.assign(sex="elsewhere").head(20))
    assert found.dtype == bool
    assert CANARY.encode() not in outputs(tmp_path / "out")


def test_a_release_names_every_column_and_no_identifier(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "released.csv"
    asked = ["anonymize", table, "--quasi", "age,sex", "--sensitive", "died", "--k", 5, "--out", out]
    code, _, said = kohort_here(*asked)
    assert code == 2
    assert all(name in said for name in ("admitted", "bmi", "smoker", "patient_id", "--keep", "--drop"))
    assert CANARY not in said
    code, _, said = kohort_here(*asked, "--identifiers", "patient_id", "--keep", "+code,smoker", "--drop", "rest")
    assert code == 0, said
    released = pl.read_csv(out, infer_schema=False)
    assert set(released.columns) == {"age", "sex", "+code", "smoker", "died"}
    assert CANARY not in out.read_text()
    source = pl.read_csv(table, separator=";", infer_schema=False)
    assert sorted(released["+code"]) == sorted(source["+code"])
    assert set(released["smoker"]) == {"TRUE", "FALSE"}


def test_a_gate_shares_no_suspected_identifier(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared.csv"
    asked = ["gate", table, "--quasi", "sex,smoker", "--rule", "k-anonymity", "--k", 10, "--out-shared", out, "--json"]
    code, shown, said = kohort_here(*asked)
    assert code == 0, said
    assert "patient_id" not in json.loads(shown)["shared_columns"]
    assert json.loads(shown)["left_out"]
    assert CANARY not in out.read_text()
    assert "+490" in out.read_text()
    code, shown, _ = kohort_here(*asked, "--keep", "patient_id", "--force")
    assert "patient_id" in json.loads(shown)["shared_columns"]


def test_a_schema_file_says_it_for_every_command(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'quasi = ["age", "sex"]\nsensitive = ["died"]\nidentifiers = ["patient_id"]\ndrop = ["rest"]\n'
        "[reading]\nnull_values = {age = [33]}\n"
    )
    code, shown, said = kohort_here("check", table, "--schema", schema, "--json")
    assert code == 0, said
    assert json.loads(shown)["rows"] == ROWS
    code, _, said = kohort_here("anonymize", table, "--schema", schema, "--k", 5, "--out", tmp_path / "o.parquet")
    assert code == 0, said
    assert set(pl.read_parquet(tmp_path / "o.parquet").columns) == {"age", "sex", "died"}


def test_two_identifiers_need_a_person(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    code, _, said = kohort_here("check", table, "--quasi", "age", "--identifiers", "patient_id,admitted")
    assert code == 2
    assert "--person" in said


@pytest.mark.parametrize("goal", ["predict", "release"])
def test_a_suggested_plan_is_one_that_is_read(goal, table: Path, tmp_path: Path) -> None:
    made = suggest_plan([str(table)], goal=goal)
    (tmp_path / "plan.toml").write_text(made.text)
    plan = read_plan(tmp_path / "plan.toml")
    assert plan.data.target == "died"
    assert plan.data.identifiers == ("patient_id",)


def test_a_model_that_says_one_thing_is_warned_about() -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"x": random.normal(size=400), "y": ["rare" if n % 12 == 0 else "usual" for n in range(400)]})
    federation = kohort.Federation(frame, target="y", sites=3, policy={"min_rows": 1})
    outcome = federation.run("fedavg", rounds=20, lr=0.01)
    assert any("predicts one class" in warning for warning in outcome.warnings)
    assert outcome.to_mapping()["warnings"] == list(outcome.warnings)
    assert set(outcome.warnings) <= set(outcome.notes)


def test_small_counts_are_not_told_and_none_under_a_budget() -> None:
    from kohort.runs.left_out import LeftOut, public_counts

    entries = [
        LeftOut(what="rows", why="w", count=3),
        LeftOut(what="rows", why="v", count=30),
        LeftOut(what="sites", why="u", count=1, of_rows=False),
        LeftOut(what="rows", why="t", count=0),
    ]
    public = public_counts(entries, min_cell=10, has_budget=False)
    assert [entry.count for entry in public] == ["<10", 30, 1]
    assert [entry.what for entry in public_counts(entries, min_cell=10, has_budget=True)] == ["sites"]
