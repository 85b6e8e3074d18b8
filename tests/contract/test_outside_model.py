"""A model that is no weight vector, from a package of its own, is a model like any other from the run to the report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.outside_stumps import install, path_with

InTurn = Callable[..., list[tuple[int, str, str]]]
CHOSEN = ["--set", "method.name=stumps", "--set", "method.trees=12", "--seed", "3"]
HERE = Path(__file__).parent
EXPLAIN = """
import json, sys
from pathlib import Path

import kohort
from kohort.tables.frames import read_table

model, rows = kohort.load_model(Path(sys.argv[1])), read_table(sys.argv[2])
print(json.dumps({"told": model.describe(), "matters": model.explain(rows), "type": type(model).__name__,
                  "is_model": isinstance(model, kohort.Model)}))
"""
STOPPED = """
import sys

import kohort_stumps
from kohort.cli.main import main

best = kohort_stumps._best
trees = 0

def stop(sums, *, rate):
    global trees
    trees += 1
    if trees > 5:
        raise KeyboardInterrupt
    return best(sums, rate=rate)

kohort_stumps._best = stop
sys.argv = ["kohort", *sys.argv[1:]]
main()
"""


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    return path_with(install(tmp_path / "site-packages"))


def table(rows: int = 900) -> pl.DataFrame:
    random = np.random.default_rng(7)
    age, dose = random.integers(18, 91, rows), random.normal(5.0, 2.0, rows).round(3)
    ill = age / 90 + dose / 10 + random.normal(0, 0.2, rows) > 1.1
    ward = random.choice(["north", "south", "west"], rows)
    return pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": np.where(ill, "ill", "well")})


def python(code: str, *arguments: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **env},
    )


def files(folder: Path) -> dict[str, bytes]:
    names = (
        "model/model.json",
        "model/model.safetensors",
        "model/README.md",
        "ledger/ledger.jsonl",
        "ledger/head.json",
    )
    return {name: (folder / name).read_bytes() for name in names}


def test_it_runs_resumes_predicts_evaluates_and_reports(
    package: dict[str, str], plan_file: Path, table_file: Path, kohort_in_turn: InTurn, tmp_path: Path
) -> None:
    table().write_csv(table_file)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    stopped = python(STOPPED, "run", plan_file, "--out", cut, *CHOSEN, env=package)
    assert stopped.returncode not in {0, 2}, stopped.stderr
    assert list((cut / "state").glob("checkpoint-*"))
    ended = kohort_in_turn(
        ["run", plan_file, "--out", whole, "--json", *CHOSEN],
        ["run", plan_file, "--out", cut, "--resume", "--json", *CHOSEN],
        ["predict", cut, table_file, "--proba", "--out", tmp_path / "predicted.csv"],
        ["evaluate", cut, table_file, "--by", "ward", "--json"],
        ["report", cut, "--out", tmp_path / "report.html"],
        env=package,
    )
    assert [code for code, _, _ in ended] == [0] * 5, ended
    ran, resumed, _, evaluated, _ = (shown for _, shown, _ in ended)
    described = json.loads(ran)
    assert (described["method"], described["rounds"], len(described["history"])) == ("stumps", 12, 12)
    assert described["metrics"]["accuracy"] > 0.75
    assert files(cut) == files(whole)
    assert json.loads(resumed)["history"] == described["history"]

    written = pl.read_csv(tmp_path / "predicted.csv")
    right = (written["predicted_outcome"] == written["outcome"]).mean()
    assert right > 0.8
    sides = written.select("probability_ill", "probability_well").sum_horizontal()
    assert (sides - 1).abs().max() < 1e-9

    measured = json.loads(evaluated)
    assert measured["metrics"]["accuracy"] == pytest.approx(right)
    assert measured["metrics"]["auc"] > 0.85
    assert set(measured["groups"]) == {"north", "south", "west"}

    assert "stumps" in (tmp_path / "report.html").read_text()
    card = (cut / "model" / "README.md").read_text()
    assert re.search(r"\| kind \| `stumps` \|", card)
    assert re.search(r"\| trees \| `12` \|", card)

    looked = python(EXPLAIN, cut, table_file, env=package)
    assert looked.returncode == 0, looked.stderr
    found = json.loads(looked.stdout)
    assert found["is_model"]
    assert found["told"]["kind"] == "stumps"
    assert found["told"]["classes"] == ["ill", "well"]
    assert set(found["matters"]) == {"age", "dose", "ward"}
    assert min(found["matters"]["age"], found["matters"]["dose"]) > found["matters"]["ward"] + 0.05


def test_without_the_package_the_error_says_which_to_install(
    package: dict[str, str], plan_file: Path, table_file: Path, kohort: Callable[..., Any], tmp_path: Path
) -> None:
    ran = kohort("run", plan_file, "--out", tmp_path / "out", *CHOSEN, env=package)
    assert ran.returncode == 0, ran.stderr
    refused = kohort("predict", tmp_path / "out", table_file, "--out", tmp_path / "predicted.csv")
    assert refused.returncode == 2
    assert "kind 'stumps'" in refused.stderr
    assert "kohort-stumps" in refused.stderr
    assert "1.0" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_method_that_registers_no_kind_is_told_so(
    package: dict[str, str], plan_file: Path, kohort: Callable[..., Any], tmp_path: Path
) -> None:
    points = tmp_path / "site-packages" / "kohort_stumps-1.0.dist-info" / "entry_points.txt"
    points.write_text("[kohort.methods]\nstumps = kohort_stumps:METHOD\n")
    refused = kohort("run", plan_file, "--out", tmp_path / "out", *CHOSEN, env=package)
    assert refused.returncode == 2
    assert "'kohort.models'" in refused.stderr
    assert not (tmp_path / "out" / "run.json").exists()


def test_it_passes_the_same_contract(package: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "stumps", str(HERE / "test_methods.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **package},
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 8
