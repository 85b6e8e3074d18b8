"""A mapping is applied at home: names, types, spellings, units. Nothing else changes, and what is lost is counted."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, DataError
from kohort.tables.harmonise.mapping import TableMapping
from kohort.tables.harmonise.toml import mapping_text


def applied(plain: dict[str, Any], site: str | None = None, **columns: Any) -> tuple[pl.DataFrame, tuple[str, ...]]:
    return TableMapping.from_plain(plain).apply(pl.DataFrame(columns), site=site)


def test_a_column_is_known_by_its_names_at_home() -> None:
    found, _ = applied({"columns": {"age": {"from": ["Age", "alter"]}}}, b=[1], alter=[7])
    assert found.columns == ["b", "age"]


def test_two_columns_for_one_name_are_an_error() -> None:
    with pytest.raises(DataError, match="columns age, Age of one table all mean 'age'"):
        applied({"columns": {"age": {"from": ["Age"]}}}, age=[1], Age=[2])


def test_ages_as_text_become_whole_numbers_and_the_unreadable_are_counted() -> None:
    plain = {"columns": {"age": {"type": "number", "missing": ["unknown"]}}}
    found, notes = applied(plain, "south", age=["45 years", " 7", "90+", "unknown", None, "old"])
    assert found["age"].to_list() == [45, 7, 90, None, None, None]
    assert found.schema["age"] == pl.Int64
    assert notes == ("1 cells of age of site 'south' are no number and count as missing",)


def test_a_decimal_comma_is_for_one_site() -> None:
    plain = {"columns": {"x": {"type": "number"}}, "sites": {"b": {"columns": {"x": {"decimal": ","}}}}}
    assert applied(plain, "b", x=["1.234,5", "7"])[0]["x"].to_list() == [1234.5, 7.0]
    assert applied(plain, "a", x=["1,234.5", "7"])[0]["x"].to_list() == [1234.5, 7.0]


def test_spellings_become_the_agreed_value_whatever_their_type() -> None:
    plain = {"values": {"smoker": {"yes": ["true", "1", "Y"], "no": ["false", "0"]}}}
    assert applied(plain, smoker=[True, False, None])[0]["smoker"].to_list() == ["yes", "no", None]
    assert applied(plain, smoker=[1, 0])[0]["smoker"].to_list() == ["yes", "no"]
    assert applied(plain, smoker=[1.0, 0.0])[0]["smoker"].to_list() == ["yes", "no"]
    assert applied(plain, smoker=["Y ", "no", "maybe"])[0]["smoker"].to_list() == ["yes", "no", "maybe"]


def test_items_are_spelt_anew_one_by_one() -> None:
    found, _ = applied({"values": {"codes": {"E11.9": ["E119"]}}}, codes=[["E119", "I10"], []])
    assert found["codes"].to_list() == [["E11.9", "I10"], []]


def test_types() -> None:
    plain = {"columns": {"ok": {"type": "boolean"}, "day": {"type": "date"}, "code": {"type": "category"}}}
    found, notes = applied(
        plain, ok=["Ja", "0", "?"], day=["2020-02-29", "2020-02-29T10:00", "x"], code=[1.0, 2.5, None]
    )
    assert found["ok"].to_list() == [True, False, None]
    assert found["day"].to_list() == [date(2020, 2, 29), date(2020, 2, 29), None]
    assert found["code"].to_list() == ["1", "2.5", None]
    assert len(notes) == 2


@given(st.integers(0, 10**9))
def test_a_thousandth_is_rounded_once(grams: int) -> None:
    plain = {"columns": {"weight": {"factor": 0.001}}}
    assert applied(plain, weight=[grams])[0]["weight"][0] == grams / 1000


def test_factor_and_offset_are_for_the_site_they_name() -> None:
    plain = {"sites": {"south": {"columns": {"temp": {"factor": 5 / 9, "offset": -160 / 9}}}}}
    assert applied(plain, "south", temp=[98.6])[0]["temp"][0] == pytest.approx(37.0)
    assert applied(plain, "north", temp=[37.0])[0]["temp"][0] == 37.0
    assert applied(plain, None, temp=[37.0])[0]["temp"][0] == 37.0


def test_markers_leave_other_numbers_as_they_are() -> None:
    found, notes = applied({"columns": {"x": {"missing": ["-999"]}}}, x=[1, -999, None])
    assert found["x"].to_list() == [1, None, None]
    assert found.schema["x"] == pl.Int64
    assert notes == ()


def test_a_sites_own_rules_go_before_those_for_all() -> None:
    plain = {
        "columns": {"x": {"from": ["X"], "missing": ["?"]}},
        "values": {"x": {"a": ["1"], "b": ["2"]}},
        "sites": {"s": {"columns": {"x": {"missing": ["-"]}}, "values": {"x": {"b": ["1"]}}}},
    }
    assert applied(plain, "s", X=["1", "2", "?", "-"])[0]["x"].to_list() == ["b", "b", None, None]
    assert applied(plain, "t", X=["1", "2", "?", "-"])[0]["x"].to_list() == ["a", "b", None, "-"]


def test_an_empty_mapping_changes_nothing() -> None:
    frame = pl.DataFrame({"a": [1, None], "b": ["x", " y "]})
    found, notes = TableMapping().apply(frame, site="s")
    assert found.equals(frame)
    assert notes == ()
    assert TableMapping().is_empty


@pytest.mark.parametrize(
    ("plain", "part"),
    [
        ({"column": {}}, "Did you mean 'columns'"),
        ({"columns": {"age": {"form": ["Age"]}}}, "Did you mean 'from'"),
        ({"columns": {"age": {"type": "numbr"}}}, "Did you mean 'number'"),
        ({"columns": {"age": {"decimal": ";"}}}, "neither . nor ,"),
        ({"columns": {"age": {"factor": 0}}}, "other than 0"),
        ({"columns": {"age": {"factor": True}}}, "not a finite number"),
        ({"columns": {"age": {"offset": float("inf")}}}, "not a finite number"),
        ({"columns": {"age": {"from": "Age"}}}, "is not a list"),
        ({"columns": {"age": "Age"}}, "is not a section"),
        ({"values": {"sex": {"F": [1]}}}, "in quotes"),
        ({"values": {"sex": {"F": ["f"], "M": ["f"]}}}, "two meanings"),
        ({"sites": {"s": {"sites": {}}}}, "unknown key 'sites'"),
        ([], "is not a section"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(plain: Any, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        TableMapping.from_plain(plain)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(
    st.dictionaries(TEXT, st.lists(TEXT, max_size=3, unique=True), max_size=1), TEXT, TEXT, st.lists(TEXT, max_size=2)
)
def test_what_is_written_as_toml_reads_back(
    spelt: dict[str, list[str]], column: str, site: str, comments: list[str]
) -> None:
    import tomllib

    plain = {"columns": {column: {"from": [site], "factor": 0.1}}, "sites": {site: {"values": {column: spelt}}}}
    mapping = TableMapping.from_plain(plain)
    read = TableMapping.from_plain(tomllib.loads(mapping_text(mapping, about=comments, suggestions=comments)))
    assert read.general == mapping.general
    assert read.sites.get(site, mapping.sites[site]) == mapping.sites[site]


def test_a_file_that_is_no_mapping_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("x = = 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        TableMapping.load(tmp_path / "bad.toml")
    (tmp_path / "other.toml").write_text("[data]\ntable = 'x'\n")
    with pytest.raises(ConfigError, match="unknown key 'data'"):
        TableMapping.load(tmp_path / "other.toml")
