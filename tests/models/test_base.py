"""What every model can: describe itself, explain itself on rows, and say when training made it useless."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kohort
from kohort.errors import ConfigError, DataError
from kohort.models.network_model import NetworkModel
from kohort.runs.config import load_plan
from kohort.runs.results.observer import require_finite
from kohort.runs.results.outcome import Outcome
from kohort.runs.run import run


def table(rows: int = 400) -> pl.DataFrame:
    random = np.random.default_rng(4)
    x, noise = random.normal(size=rows), random.normal(size=rows)
    group = random.choice(["a", "b"], rows)
    score = 2 * x + (group == "a")
    return pl.DataFrame({"x": x, "noise": noise, "group": group, "y": np.where(score > 0.5, "up", "down"), "z": score})


@cache
def outcome(target: str) -> Outcome:
    plan = load_plan(
        {
            "data": {
                "table": "in-memory table",
                "target": target,
                "features": ["x", "noise", "group"],
                "drop": ["z" if target == "y" else "y"],
            },
            "sites": {"count": 2},
            "train": {"rounds": 40, "lr": 0.05},
            "model": {"hidden": [4]},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=3, tables={"": table()})


@pytest.mark.parametrize("target", ["y", "z"])
def test_what_decides_the_target_matters_most(target: str) -> None:
    model = outcome(target).model
    found = model.explain(table())
    assert next(iter(found)) == "x"
    assert found["x"] > 3 * found["group"] > 0
    assert abs(found["noise"]) < found["group"] / 2
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_an_explanation_is_the_same_for_the_same_seed() -> None:
    model = outcome("y").model
    assert model.explain(table(), seed=1) == model.explain(table(), seed=1)
    assert model.explain(table(), seed=1) != model.explain(table(), seed=2)
    assert model.explain(pd.DataFrame(table().to_dict(as_series=False)), seed=1) == model.explain(table(), seed=1)


def test_an_importance_is_what_shuffling_adds_to_the_error() -> None:
    """A column that holds one value cannot be shuffled, and one that decides alone costs what guessing costs."""
    model = outcome("y").model
    same = table().with_columns(noise=pl.lit(0.0), group=pl.lit("a"))
    found = model.explain(same)
    assert found["noise"] == found["group"] == 0.0
    predicted = model.predict(same)
    wrong = float((predicted != same["y"]).mean())
    up, really = float((predicted == "up").mean()), float((same["y"] == "up").mean())
    guessing = up * (1 - really) + really * (1 - up)
    assert found["x"] == pytest.approx(guessing - wrong, abs=0.04)


def test_no_rows_explain_nothing() -> None:
    with pytest.raises(DataError, match="no rows"):
        outcome("y").model.explain(table().head(0))


def test_a_model_describes_itself_in_plain_values() -> None:
    described = outcome("y").model.describe()
    assert (described["kind"], described["task"], described["target"]) == ("dense", "classification", "y")
    assert described["classes"] == ["down", "up"]
    assert sorted(described["columns"]) == ["group", "noise", "x"]
    assert described["network"]["hidden"] == (4,)
    assert described["parameters"] == outcome("y").model.weights.size  # type: ignore[attr-defined]
    json.dumps(described)
    assert "classes" not in outcome("z").model.describe()


def test_the_card_says_what_the_model_says(tmp_path: Path) -> None:
    run(outcome("y").plan, seed=3, tables={"": table()}, out=tmp_path / "run")
    page = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "| kind | `dense` |" in page
    assert "| parameters | `26` |" in page


def test_every_model_of_a_run_is_one() -> None:
    assert isinstance(outcome("y").model, kohort.Model)


def test_weights_that_are_not_finite_are_refused_with_the_round_and_the_rate() -> None:
    model = outcome("y").model
    assert isinstance(model, NetworkModel)
    require_finite(model, round=3, lr=3.0)
    broken = NetworkModel(model.network, np.full_like(model.weights, np.nan), model.encoder)
    with pytest.raises(ConfigError, match=r"Training diverged in round 3: the weights are not finite") as caught:
        require_finite(broken, round=3, lr=3.0)
    assert caught.value.hint == "Lower train.lr (now 3)"
