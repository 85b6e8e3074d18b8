"""Classes or a number; the type of answers; rows with gaps and unknown categories."""

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.tables.answers import as_answer, kind_for, settle_target, task_of
from kohort.tables.domain import learn_domain
from kohort.tables.encoder import Encoder
from kohort.tables.schema import ColumnSpec, Schema

FRAME = pl.DataFrame({"x": [0.0, 10.0, None, 4.0], "c": ["a", "b", "a", None], "y": ["n", "y", "n", "y"]})


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        ([True, False, True], "classification", "truth values"),
        (["a", "b", "c"], "classification", "texts"),
        ([0.0, 1.0, None], "classification", "two values"),
        ([1.5, 2.5, 1.5], "classification", "two values"),
        ([1, 2, 3], "classification", "3 whole numbers"),
        ([1.0, 2.0, 3.0], "classification", "3 whole numbers"),
        ([1.5, 2.0, 3.0], "regression", "numbers with decimals"),
        (list(range(30)), "regression", "many numbers"),
    ],
)
def test_the_rule(values: list, task: str, why: str) -> None:
    found = task_of(pl.Series("y", values), ColumnSpec())
    assert (found.task, found.why) == (task, why)
    assert task_of(pl.Series("y", values), ColumnSpec(), declared="regression").task == "regression"


def test_a_declared_task_that_contradicts_the_kind_is_refused() -> None:
    assert kind_for("classification", None, "y") == "category"
    assert kind_for(None, "number", "y") is None
    with pytest.raises(ConfigError, match="task is"):
        kind_for("classification", "number", "y")


def test_zero_and_one_stored_with_decimals_are_classes() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]})
    settled = settle_target(frame, "y", ColumnSpec())
    assert settled["y"].dtype == pl.Int64
    assert settle_target(frame, "y", ColumnSpec(kind="number"))["y"].dtype == pl.Float64
    many = pl.DataFrame({"y": [0.1, 0.2, 0.3]})
    assert settle_target(many, "y", ColumnSpec())["y"].dtype == pl.Float64


@pytest.mark.parametrize(
    ("answer", "classes", "found"),
    [
        ("boolean", ["true", "false"], [True, False]),
        ("integer", ["3", "1"], [3, 1]),
        ("float", ["0", "1"], [0.0, 1.0]),
        ("text", ["007", "1"], ["007", "1"]),
        ("integer", ["3", "other"], ["3", "other"]),
    ],
)
def test_answers_have_the_type_of_the_target(answer, classes: list[str], found: list) -> None:
    got = as_answer(pl.Series(classes), ColumnSpec(answer=answer), is_number=False).to_list()
    assert got == found
    assert [type(value) for value in got] == [type(value) for value in found]


def encoder(encoding: str = "label", **options) -> Encoder:
    schema = Schema.of(target="y", features=["x", "c"], bounds={"x": [0, 10]}, categories={"c": ["a", "b", "d"]})
    schema = schema.resolve(FRAME.columns)
    clean = FRAME.drop_nulls()
    return Encoder(schema, learn_domain(clean, schema, missing="drop"), encoding=encoding, dtype="float64", **options)


def test_a_missing_number_is_the_middle_of_its_bounds_and_a_category_any() -> None:
    with pytest.raises(DataError, match="missing value"):
        encoder().transform(FRAME)
    found = encoder(impute=True).transform(FRAME)
    assert found[:, 0].tolist() == [0.0, 1.0, 0.5, 0.4]
    assert found[3, 1] == pytest.approx(0.5)
    onehot = encoder("onehot", impute=True).transform(FRAME)
    assert onehot[3, 1:] == pytest.approx([1 / 3] * 3)


def test_the_indicator_of_a_missing_number_is_kept() -> None:
    schema = Schema.of(target="y", features=["x", "c"]).resolve(FRAME.columns)
    made = Encoder(schema, learn_domain(FRAME, schema, missing="impute"), dtype="float64", impute=True)
    assert made.feature_names == ("x", "x?missing", "c")
    assert made.transform(FRAME)[2, :2].tolist() == [0.5, 1.0]
    assert Encoder.from_mapping(made.to_mapping()).impute


@pytest.mark.parametrize("encoding", ["label", "onehot"])
def test_an_unknown_category_stands_for_any_with_a_count_or_is_an_error(encoding: str) -> None:
    rows = pl.DataFrame({"x": [1.0, 2.0, 3.0], "c": ["zz", "a", "zz"], "y": ["n", "y", "n"]})
    found, counts = encoder(encoding).inputs(rows)
    assert counts == {"c": 2}
    assert np.array_equal(found[1], encoder(encoding).transform(rows[1:2])[0])
    mean = np.mean([encoder(encoding).transform(rows[:1].with_columns(c=pl.lit(c)))[0, 1:] for c in "abd"], axis=0)
    assert found[0, 1:] == pytest.approx(mean)
    with pytest.raises(DataError, match="outside its known categories") as caught:
        encoder(encoding, unseen="error").inputs(rows)
    assert "zz" not in str(caught.value)
    assert Encoder.from_mapping(encoder(unseen="error").to_mapping()).unseen == "error"
