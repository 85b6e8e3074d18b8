"""Fit on one table, transform another: the same cells, and a rule for rows outside every class."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from tests.support.anonymity_tables import QUASI, tables
from tests.support.examples import examples

from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.anonymiser import Anonymiser
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text, parse_cell
from kohort.tables.hierarchy import Hierarchy


def covers(cell, value, hierarchy):
    if cell is SUPPRESSED:
        return True
    if isinstance(cell, Interval):
        return cell.missing if value is None else cell.low <= value <= cell.high
    text = None if value is None else canonical_text(value)
    if isinstance(cell, ValueSet):
        return text in cell.values
    if isinstance(cell, Label):
        return text in hierarchy.leaves(cell.text)
    return cell == text


@examples(25, 50)
@given(first=tables(least=6), second=tables(), hierarchies=st.sampled_from(["auto", "intervals"]))
def test_new_rows_get_cells_that_cover_them_and_no_class_of_their_own(first, second, hierarchies):
    fitted = Anonymiser(quasi=QUASI, k=3, hierarchies=hierarchies).fit(first)
    known = set(
        Anonymiser(quasi=QUASI, k=3, hierarchies=hierarchies)
        .fit_transform(first)
        .with_columns(pl.all().cast(pl.String))
        .select(QUASI)
        .iter_rows()
    )
    released = fitted.transform(second)
    assert released.drop(QUASI).equals(second.drop(QUASI))
    outside = 0
    for before, after in zip(second.select(QUASI).iter_rows(), released.select(QUASI).iter_rows(), strict=True):
        if after == ("*",) * len(QUASI):
            outside += 1
            continue
        assert after in known
        for name, value, text in zip(QUASI, before, after, strict=True):
            assert covers(parse_cell(text), value, fitted.hierarchies_.get(name))
    assert outside >= fitted.outside_rows_


def test_the_fitted_rows_find_their_way_back():
    frame = pl.DataFrame({"a": [i * 13 % 40 for i in range(100)], "b": ["xyz"[i % 3] for i in range(100)]})
    fitted = Anonymiser(quasi=["a", "b"], k=5)
    released = fitted.fit_transform(frame)
    again = fitted.transform(frame)
    assert fitted.outside_rows_ == 0
    assert fitted.report_.verified
    assert set(again.iter_rows()) <= set(released.iter_rows())


def test_rows_outside_every_class_are_suppressed_or_sent_to_the_nearest():
    frame = pl.DataFrame({"a": [1, 2, 8, 9], "b": ["x", "x", "y", "y"]})
    strange = pl.DataFrame({"a": [50, 9], "b": ["x", "q"]})
    fitted = Anonymiser(quasi=["a", "b"], k=2).fit(frame)
    assert fitted.transform(strange).rows() == [("*", "*"), ("*", "*")]
    assert fitted.outside_rows_ == 2
    nearest = Anonymiser(quasi=["a", "b"], k=2, outside="nearest").fit(frame)
    assert nearest.transform(strange).rows() == [("[1, 2]", "x"), ("[8, 9]", "y")]


def test_it_is_a_scikit_learn_transformer():
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": ["x", "y", "x", "y"]})
    step = Anonymiser(quasi=["a"], k=2)
    assert clone(step).get_params()["k"] == 2
    out = make_pipeline(step).fit_transform(frame)
    assert isinstance(out, pd.DataFrame)
    assert list(step.get_feature_names_out()) == ["a", "b"]
    with pytest.raises(NotFittedError):
        Anonymiser(quasi=["a"], k=2).transform(frame)
    with pytest.raises(DataError, match="lacks columns: a"):
        step.transform(frame[["b"]])
    with pytest.raises(ConfigError, match="outside"):
        Anonymiser(quasi=["a"], k=2, outside="guess").fit(frame)


def test_labels_are_found_by_their_hierarchy():
    levels = Hierarchy.of("c", {"x": ("xy", "*"), "y": ("xy", "*"), "z": ("zw", "*"), "w": ("zw", "*")})
    frame = pl.DataFrame({"c": ["x", "y", "z"] * 2 + ["z"]})
    fitted = Anonymiser(quasi=["c"], k=4, hierarchies={"c": levels}, algorithm="lattice").fit(frame)
    assert fitted.transform(pl.DataFrame({"c": ["y", "w"]}))["c"].to_list() in (["<xy>", "*"], ["*", "*"])


def test_what_looks_like_an_identifier_is_not_released_unless_it_is_kept() -> None:
    rows = 60
    frame = pl.DataFrame(
        {
            "sex": ["f", "m"] * (rows // 2),
            "patient_id": [1000 + row // 2 for row in range(rows)],
            "Bemerkung": [f"the patient said sentence number {row} and then went home again" for row in range(rows)],
            "bmi": [20.0 + row % 7 for row in range(rows)],
        }
    )
    with pytest.raises(ConfigError, match=r"'patient_id' is named like .*'Bemerkung' holds free text"):
        Anonymiser(quasi=["sex"], k=5).fit_transform(frame)
    with pytest.raises(ConfigError, match="patient_id"):
        anonymise(frame, quasi=["sex"], k=5, keep=["Bemerkung"])
    with pytest.raises(DataError, match="no column 'patient'"):
        anonymise(frame, quasi=["sex"], k=5, keep=["patient"])
    learner = Anonymiser(quasi=["sex"], k=5, person="patient_id", keep=["Bemerkung"])
    assert learner.fit_transform(frame).columns == ["sex", "Bemerkung", "bmi"]
    assert "columns without a role are released as they are: bmi" in learner.report_.notes
    plain = Anonymiser(quasi=["sex"], k=5, sensitive=["bmi"]).fit(frame.select("sex", "bmi"))
    assert plain.report_.notes == ()
    with pytest.raises(ConfigError, match="patient_id"):
        plain.transform(frame.head(30))
