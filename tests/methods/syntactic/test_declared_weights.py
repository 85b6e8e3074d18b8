"""Importances that a plan declares: in forming classes, in the cost of placing rows, and in the saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.syntactic.test_syntactic import plan, tables

from kohort.errors import ConfigError
from kohort.methods.syntactic.importance import declared
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.models.files import load_model
from kohort.runs.run import run

AGE_FIRST = {"age": 1.0, "ward": 0.05, "codes": 0.2}
WARD_FIRST = {"age": 0.05, "ward": 1.0, "codes": 0.2}


def section(weights: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"importance": {"method": "declared", "weights": weights, **more}}


def test_the_declared_order_is_kept_and_no_row_is_looked_at() -> None:
    found = declared(AGE_FIRST, quasi=["ward", "age"], top=1)
    assert (found.kept, found.dropped) == (("age",), ("ward",))
    whole = declared(AGE_FIRST, quasi=["ward", "age"])
    assert whole.kept == ("age", "ward")
    assert whole.dropped == ()
    assert sum(whole.weights.values()) == pytest.approx(1.0)


def test_the_column_that_weighs_more_loses_less() -> None:
    first = run(plan(anonymise=section(AGE_FIRST)), seed=1, tables=tables()).facts
    second = run(plan(anonymise=section(WARD_FIRST)), seed=1, tables=tables()).facts
    assert first["ncp"]["age"] < second["ncp"]["age"]
    assert first["ncp"]["ward"] > second["ncp"]["ward"]
    assert first["dearer_class"] == second["dearer_class"] == 0


def test_rows_are_placed_by_the_declared_weights_in_a_saved_model_too(tmp_path: Path) -> None:
    made = run(plan(anonymise=section(AGE_FIRST)), seed=1, tables=tables(), out=tmp_path / "run").model
    loaded = load_model(tmp_path / "run")
    new = tables(seed=9)["b"]
    for encoder in (made.encoder, loaded.encoder):
        assert isinstance(encoder, MappedEncoder)
        assert encoder.weights == AGE_FIRST
    ours, plain = loaded.encoder.place(new), MappedEncoder.from_mapping(_unweighted(loaded.encoder)).place(new)
    assert (ours.class_of != plain.class_of).any(), "the weights changed no class"
    joint = loaded.encoder.classes_known
    assert _width(joint, ours.class_of) < _width(joint, plain.class_of), "age weighs most and is not narrower"
    assert loaded.encoder.only("b").weights == AGE_FIRST


def _unweighted(encoder: Any) -> dict[str, Any]:
    stored: dict[str, Any] = encoder.to_mapping()
    del stored["mapping weights"]
    return stored


def _width(joint: Any, class_of: np.ndarray[Any, Any]) -> float:
    """Mean width of the ages of the classes that rows were given."""
    cells = pl.Series(joint.cells[0]).str.extract_all(r"\d+").list.eval(pl.element().cast(pl.Float64))
    width = (cells.list.max() - cells.list.min()).to_numpy()
    return float(width[class_of].mean())


@pytest.mark.parametrize(
    ("importance", "says"),
    [
        ({"method": "declared", "weights": {"age": 1.0}}, "lacks: ward, codes"),
        ({"method": "declared", "weights": {**AGE_FIRST, "dose": 0.5}}, "names 'dose'"),
        (
            {"method": "declared", "weights": {"age": 0.0, "ward": 0.0, "codes": 1.0}},
            "no quasi-identifier has a weight",
        ),
        ({"method": "forest", "weights": AGE_FIRST}, "given and not used"),
        ({"method": "none", "top": 1}, r"importance\.top is 1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(importance: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(plan(anonymise={"importance": importance}), seed=1, tables=tables())


def test_a_weight_above_one_is_refused_when_the_plan_is_read() -> None:
    with pytest.raises(ConfigError, match="weights"):
        plan(anonymise=section({**AGE_FIRST, "age": 2.0}))
