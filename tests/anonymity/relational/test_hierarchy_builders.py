"""Hierarchies that look at no row."""

from __future__ import annotations

import datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.relational.hierarchy_builders import (
    data_independent,
    date_hierarchy,
    interval_hierarchy,
    mask_hierarchy,
    suppression_hierarchy,
)
from kohort.anonymity.relational.public_grid import grid_step
from kohort.errors import DataError
from kohort.tables.hierarchy import Hierarchy


def test_ages_climb_by_fives_tens_and_fifties():
    found = interval_hierarchy("age", range(17, 91))
    assert found.chains[0] == ("17", "15 to 20", "10 to 20", "0 to 50", "0 to 100", "*")
    assert len(found.values) == 74


@given(st.lists(st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=40))
def test_intervals_nest_and_hold_their_values(values):
    found = interval_hierarchy("x", values)
    for chain in found.chains:
        for label in chain[1:-1]:
            low, high = map(float, label.split(" to "))
            slack = 1e-6 * (abs(low) + abs(high) + (high - low))
            assert low - slack <= float(chain[0]) <= high + slack


def test_a_value_just_below_a_border_stays_below_it_at_every_level():
    found = interval_hierarchy("x", [-41137.0, 208864.0, -0.0001])
    chain = dict(zip(found.values, found.chains, strict=True))["-0.0001"]
    assert chain[1:] == ("-10000 to 0", "-50000 to 0", "-100000 to 0", "-500000 to 0", "*")


def test_bounds_and_width_can_be_given_and_then_no_row_decides():
    few = interval_hierarchy("x", [3, 4], bounds=(0, 100), width=10)
    many = interval_hierarchy("x", range(101), bounds=(0, 100), width=10)
    assert (
        dict(zip(few.values, few.chains, strict=True)).items()
        <= dict(zip(many.values, many.chains, strict=True)).items()
    )
    with pytest.raises(DataError):
        interval_hierarchy("x", [1], bounds=(5, 1))
    with pytest.raises(DataError):
        interval_hierarchy("x", [1, 2], width=0)


def test_dates_codes_and_the_rest():
    assert date_hierarchy("d", ["2020-01-05"]).chains == (("2020-01-05", "2020-01", "2020-Q1", "2020", "2020s", "*"),)
    assert mask_hierarchy("z", ["11455"]).chains == (("11455", "1145*", "114**", "11***", "1****", "*"),)
    assert mask_hierarchy("z", ["123"], from_left=True).chains == (("123", "*23", "**3", "*"),)
    assert suppression_hierarchy("c", ["x", "y"]).chains == (("x", "*"), ("y", "*"))


def test_the_kind_of_a_column_decides(tmp_path):
    frame = pl.DataFrame(
        {
            "n": [1.5, 2.5, 40.0],
            "d": [datetime.date(2020, 1, 1), datetime.date(2021, 2, 2), None],
            "zip": ["11455", "11453", "90210"],
            "c": ["x", "yy", "x"],
            "none": pl.Series([None, None, None], dtype=pl.String),
        }
    )
    found = data_independent(frame, frame.columns)
    assert {name: hierarchy.levels for name, hierarchy in found.items()} == {
        "n": 5,
        "d": 6,
        "zip": 6,
        "c": 2,
        "none": 2,
    }
    for name, hierarchy in found.items():
        hierarchy.write(tmp_path / f"{name}.csv")
        assert Hierarchy.read(tmp_path / f"{name}.csv") == hierarchy


def test_numbers_so_small_that_their_range_has_no_parts_are_one_interval():
    """The range of the smallest numbers there are, divided, is zero."""
    values = [5e-324 * number for number in range(5)]
    assert {chain[1:] for chain in interval_hierarchy("dose", values).chains} == {("*",)}
    assert grid_step(values, whole=False) == 0.0
