"""Rounding, limits, class means, MDAV: what comes out, and what is refused."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.anonymiser import Anonymiser
from kohort.errors import ConfigError, DataError, RefusedError


def table(rows: int = 200) -> pl.DataFrame:
    random = np.random.default_rng(8)
    return pl.DataFrame(
        {
            "age": random.integers(18, 95, rows),
            "town": random.choice(list("abc"), rows),
            "pay": random.normal(3000, 900, rows),
            "ill": random.choice(["no", "yes"], rows),
        }
    )


def test_numbers_are_rounded_and_limited_before_they_leave() -> None:
    limits = {"rounding": {"pay": 100.0, "age": 5.0}, "top": {"age": 80}, "bottom": {"age": 30}}
    made = anonymise(table(), quasi=["age", "town"], k=5, **limits)
    assert set((made.frame["pay"] % 100).unique()) == {0.0}
    ends = {int(text) for cell in made.frame["age"].unique() for text in cell.strip("[]").split(", ")}
    assert min(ends) >= 30
    assert max(ends) <= 80
    unnamed = "columns without a role are released as they are"
    assert [note.split(":")[0] for note in made.report.notes] == ["column 'age'", "column 'pay'", unnamed]
    assert (
        made.report.ncp > anonymise(table(), quasi=["age", "town"], k=5).report.ncp
    )  # beside the input, not the rounded


def test_a_class_mean_stands_for_its_class() -> None:
    frame = table()
    made = anonymise(frame, quasi=["age", "town"], k=5, means=["age"])
    assert made.frame.schema["age"] == pl.Float64
    shown = pl.DataFrame({"class": made.classes, "age": frame["age"], "shown": made.frame["age"]})
    parts = shown.group_by("class").agg(
        pl.col("age").mean(), pl.col("shown").unique().first(), n=pl.col("shown").n_unique()
    )
    assert parts["n"].max() == 1
    assert (parts["age"] - parts["shown"]).abs().max() <= 0.5 + 1e-9
    assert measure(made.frame, quasi=["age", "town"]).k >= 5
    learner = Anonymiser(quasi=["age", "town"], k=5, means=["age"]).fit(frame)
    learner.transform(frame.head(50))
    assert learner.transformed_.outside == 0


def test_mdav_makes_groups_of_k_of_near_rows() -> None:
    frame = table()
    made = anonymise(frame, quasi=["age", "pay"], k=7, algorithm="mdav", keep_exact=False)
    assert (made.report.algorithm, made.report.classes) == ("mdav", 200 // 7)
    assert made.report.ncp < anonymise(frame, quasi=["age", "pay"], k=7, algorithm="mondrian").report.ncp * 1.1
    diverse = anonymise(frame, quasi=["age", "town"], sensitive=["ill"], k=7, l=2, algorithm="mdav")
    assert diverse.report.l_distinct == 2


def test_suppressed_rows_of_the_fitted_table_show_nothing() -> None:
    frame = table().with_columns(age=pl.when(pl.int_range(pl.len()) % 50 == 3).then(None).otherwise("age")).to_pandas()
    learner = Anonymiser(quasi=["age", "town"], k=5, missing="drop")
    released = learner.fit_transform(frame)
    again = learner.transform(frame)
    gone = again["age"] == "*"
    assert gone.sum() == learner.transformed_.suppressed == 4
    assert again[~gone].index.equals(released.index)
    assert (again.loc[~gone, "town"] == released["town"]).all()
    assert (again.loc[~gone, "age"] == released["age"]).all()
    assert again.loc[gone, ["pay", "ill"]].isna().all().all()
    assert "4 are suppressed" in str(learner.transformed_)


def test_untouched_columns_of_pandas_come_out_as_they_went_in() -> None:
    pandas = pytest.importorskip("pandas")
    frame = table(60).to_pandas()
    frame["kind"] = pandas.Categorical(frame["ill"])
    frame["count"] = pandas.array(range(60), dtype="Int64")
    frame["when"] = pandas.date_range("2020-01-01", periods=60, tz="Europe/Berlin")
    frame.index = [f"row {number}" for number in range(60)]
    made = anonymise(frame, quasi=["age", "town"], k=5, suppression_limit=0.1, keep=["count"]).frame
    assert list(made.columns) == list(frame.columns)
    for name in ("kind", "count", "when", "pay"):
        assert made[name].equals(frame.loc[made.index, name])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rounding": {"age": 0}}, ConfigError),
        ({"rounding": {"nobody": 5}}, DataError),
        ({"top": {"town": 5}}, DataError),
        ({"top": {"age": 20}, "bottom": {"age": 30}}, ConfigError),
        ({"means": ["pay"]}, ConfigError),
        ({"means": ["town"]}, DataError),
        ({"means": ["age"], "hierarchies": "intervals"}, ConfigError),
        ({"presence": (0.0, 0.5)}, ConfigError),
        ({"population": table().select("age", "town"), "presence": (0.5, 0.2)}, ConfigError),
        ({"population": table().select("age", "town"), "presence": (0.0, 0.5)}, RefusedError),
        ({"population": table(5).select("age", "town")}, ConfigError),
        ({"population": table().select("age", "town"), "risk": 0.001}, RefusedError),
        ({"population": table().select("age", "town"), "means": ["age"], "risk": 0.1}, ConfigError),
    ],
)
def test_what_cannot_be_meant_or_met_is_refused(change, error) -> None:
    with pytest.raises(error):
        anonymise(table(), quasi=["age", "town"], k=5, **change)
