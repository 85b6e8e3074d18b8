"""The method of docs/extend.md, in a package of its own, gets the command line and the contract like any other."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import small_table

import kohort
from kohort.errors import ConfigError
from kohort.models.files import save_model
from kohort.testing import CHECKS, plan_of, tables

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
METHOD_CODE, KIND_CODE, TEST_CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
POINTS, KIND_POINTS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MODULE = "kohort_sign_vote"


def install(place: Path, code: str = METHOD_CODE, target: str = f"{MODULE}:METHOD") -> dict[str, str]:
    """Leave a package as an installer does: the module, and its dist-info with the entry point. The environment."""
    info = place / f"{MODULE}-1.0.dist-info"
    info.mkdir(parents=True)
    (place / f"{MODULE}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kohort.methods]\nsign-vote = {target}\n")
    (info / "RECORD").write_text("")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))}


def test_the_page_names_the_entry_point_that_is_installed_here() -> None:
    assert f'[project.entry-points."kohort.methods"]\nsign-vote = "{MODULE}:METHOD"\n' == POINTS
    assert len([line for line in METHOD_CODE.splitlines() if line.strip()]) <= 70


def test_it_appears_and_runs_like_any_other(
    plan_file: Path, kohort_in_turn: Callable[..., list[tuple[int, str, str]]], tmp_path: Path
) -> None:
    table = small_table(1500)
    table.write_csv(tmp_path / "table.csv")
    chosen = ["--set", "method.name=sign-vote", "--set", "train.rounds=30"]
    schema, ran, predicted, wrong = kohort_in_turn(
        ["schema"],
        ["run", plan_file, "--out", tmp_path / "out", "--json", *chosen, "--set", "method.step=0.05"],
        ["predict", tmp_path / "out", tmp_path / "table.csv", "--out", tmp_path / "predicted.csv"],
        ["run", plan_file, "--out", tmp_path / "no", *chosen, "--set", "method.stp=1"],
        env=install(tmp_path / "site-packages"),
    )
    variants = json.loads(schema[1])["properties"]["method"]["anyOf"]
    assert {"sign-vote", "fedavg"} <= {variant["properties"]["name"]["const"] for variant in variants}
    assert ran[0] == 0, ran[2]
    result = json.loads(ran[1])
    assert (result["method"], result["rounds"]) == ("sign-vote", 30)
    votes = {item["guarantee"] for item in result["disclosed"] if item["what"] == "sign-vote.vote"}
    assert all(vote.startswith("aggregate(") for vote in votes)
    assert votes
    assert result["history"][-1]["accuracy"] > 0.7  # the larger class has 0.55 of the rows
    assert predicted[0] == 0, predicted[2]
    assert (tmp_path / "predicted.csv").is_file()
    assert wrong[0] == 2
    assert "'step'" in wrong[2]


def test_it_passes_the_contract(tmp_path: Path) -> None:
    env = install(tmp_path / "site-packages")
    (tmp_path / "test_contract.py").write_text(TEST_CODE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_contract.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **env},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "check_trust(" in TEST_CODE
    assert f"{len(CHECKS) + 1} passed" in done.stdout  # the laws one by one, and liars


IMPORTS = """
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.models.base import Model, SavedModel
from kohort.models.registry import ModelKind
from kohort.tables.encoder import Encoder
"""


@pytest.fixture
def majority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the kind of model of the page, installed with its entry point."""
    place = tmp_path / "site-packages"
    install(place, IMPORTS + KIND_CODE)
    points = KIND_POINTS.replace("project.entry-points.", "").replace('"', "")
    (place / f"{MODULE}-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(place))
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


def test_the_kind_of_model_of_the_page_is_saved_found_and_predicts(majority: Any, tmp_path: Path) -> None:
    outcome = kohort.run(plan_of("fedavg"), seed=1, tables=tables())
    encoder, rows = outcome.model.encoder, tables()["b-large"]
    made = majority.Majority(encoder, np.array([0.3, 0.7]))
    save_model(made, tmp_path / "model")
    again = kohort.load_model(tmp_path / "model")
    assert type(again) is majority.Majority
    assert set(again.predict(rows)) == {encoder.classes[1]}
    assert again.describe()["largest share"] == 0.7
    assert len([line for line in KIND_CODE.splitlines() if line.strip()]) <= 18


@pytest.mark.parametrize("member", ["kind", "codes", "probabilities", "save"])
def test_a_kind_of_model_that_lacks_a_member_is_refused_by_name(majority: Any, member: str) -> None:
    members = {name: value for name, value in vars(majority.Majority).items() if name not in (member, "__init__")}
    lacking = type("Lacking", (kohort.Model,), {**members, "__module__": MODULE})
    with pytest.raises(ConfigError, match=rf"{MODULE}\.Lacking lacks {member}\. Define it there"):
        lacking(None, np.array([1.0]))


def test_a_kind_of_model_without_an_encoder_is_refused_by_name(majority: Any) -> None:
    lacking = type("Lacking", (majority.Majority,), {"__init__": lambda self: None})
    with pytest.raises(ConfigError, match="lacks encoder"):
        lacking().describe()
    assert not hasattr(lacking(), "anything_else")


@pytest.mark.parametrize(
    ("code", "target", "named"),
    [
        (METHOD_CODE, f"{MODULE}:SignVote", "'sign-vote'"),
        (METHOD_CODE.replace('name="sign-vote"', 'name="fedavg"'), f"{MODULE}:METHOD", "'fedavg'"),
    ],
    ids=["something else", "a name that is taken"],
)
def test_an_entry_point_that_cannot_be_registered_is_refused(
    code: str, target: str, named: str, kohort: Callable[..., Any], tmp_path: Path
) -> None:
    refused = kohort("methods", env=install(tmp_path / "site-packages", code, target))
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert named in refused.stderr
