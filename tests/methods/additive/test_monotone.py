"""Monotone curves: swept over a grid, no prediction goes the wrong way, and other columns take up what is forbidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.methods.additive.learner import AdditiveLearner
from kohort.models.additive.bins import isotonic
from kohort.models.additive.model import AdditiveModel
from kohort.models.rows import encode_rows
from kohort.runs.config import load_plan
from kohort.runs.run import run

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "allow_large_delta": True, "clip": 1.0}


def table(rows: int = 1200) -> pl.DataFrame:
    """A bent effect of age; weight goes with age, and is missing at times."""
    random = np.random.default_rng(8)
    age = random.uniform(20, 80, rows)
    weight = age + random.normal(0, 8, rows)
    score = np.abs(age - 50) / 6 - 2.5
    return pl.DataFrame(
        {
            "age": [None if gone else value for gone, value in zip(random.random(rows) < 0.1, age, strict=True)],
            "weight": weight,
            "sick": np.where(random.random(rows) < 1 / (1 + np.exp(-score)), "ill", "well"),
            "cost": np.exp(score / 3) + random.random(rows) / 10,
        }
    )


def fitted(target: str, **own: Any) -> AdditiveModel:
    bounds = {"age": [0, 100], "weight": [0, 120]} | ({"cost": [0, 10]} if target == "cost" else {})
    plan = load_plan(
        {
            "data": {
                "table": "made",
                "target": target,
                "features": ["age", "weight"],
                "drop": ["cost" if target == "sick" else "sick"],
                "bounds": bounds,
                "categories": {"sick": ["well", "ill"]} if target == "sick" else {},
                "nullable": ["age"],
                "missing": "category",
                "test": 0,
            },
            "sites": {"count": 3},
            "method": {"name": "additive", "rounds": 10, **own},
            "policy": {"min_rows": 1},
        }
    )
    model = run(plan, seed=3, tables={"made": table()}).model
    assert isinstance(model, AdditiveModel)
    return model


def swept(model: AdditiveModel, column: str) -> np.ndarray[Any, Any]:
    """Scores on a fine grid of one column, for three values of the other one."""
    grid = np.linspace(0, 120, 600)
    other = "weight" if column == "age" else "age"
    found = []
    for value in (25.0, 50.0, 75.0):
        frame = pl.DataFrame({column: np.minimum(grid, 100.0), other: np.full(600, value)})
        found.append(model.scores(model.encoder.transform(frame))[:, 0])
    return np.asarray(found)


@pytest.mark.parametrize("keys", [{}, {"dp": BUDGET}], ids=["exact", "private"])
@pytest.mark.parametrize(("target", "link"), [("sick", "identity"), ("cost", "identity"), ("cost", "log")])
def test_no_score_goes_the_wrong_way(target: str, link: str, keys: dict[str, Any]) -> None:
    model = fitted(target, link=link, monotone={"age": "up", "weight": "down"}, **keys)
    assert (np.diff(swept(model, "age"), axis=1) >= -1e-12).all()
    assert (np.diff(swept(model, "weight"), axis=1) <= 1e-12).all()
    assert np.ptp(swept(model, "age")) > 0 or np.ptp(swept(model, "weight")) > 0


def test_without_the_constraint_it_does() -> None:
    assert (np.diff(swept(fitted("sick"), "age"), axis=1) < 0).any()


def test_without_the_projection_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdditiveLearner, "_constrained", lambda self, w: w)
    assert (np.diff(swept(fitted("sick", monotone={"age": "up"}), "age"), axis=1) < 0).any()


def loss(model: AdditiveModel) -> float:
    rows = encode_rows(model.encoder, table())
    ill = model.probabilities(rows.x)[np.arange(rows.count), rows.y.astype(int)]
    return float(-np.log(ill).mean())


def test_the_other_column_takes_up_what_a_constraint_of_the_fit_forbids() -> None:
    free, constrained = fitted("sick", rounds=20), fitted("sick", rounds=20, monotone={"age": "up"})
    part = slice(0, int(free.bins.joined[: free.bins.starts[1]].sum()) + 1)
    values = free.values.copy()
    values[part, 0] = isotonic(values[part, 0], free.counts[part])
    afterwards = replace(free, values=values)
    assert loss(free) < loss(constrained) < loss(afterwards) - 0.005


def test_a_bin_of_missing_values_is_free() -> None:
    model = fitted("sick", monotone={"age": "up"})
    assert model.curves()["age"]["bins"][-1] == "missing"
    assert not model.bins.joined[int(model.bins.starts[1]) - 1]
