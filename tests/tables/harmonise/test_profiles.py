"""Profiles tell what enough persons share, and nothing that one person could change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.tables.harmonise.profiles import ColumnProfile, TableProfile, profile_table, size_class


def column(values: Any, *, least: int = 10, p: list[int] | None = None) -> ColumnProfile:
    frame = pl.DataFrame({"x": values} if p is None else {"x": values, "p": p})
    return profile_table(frame, site="s", least=least, person=None if p is None else "p").columns["x"]


def test_values_of_fewer_persons_are_not_told() -> None:
    found = column(["a"] * 10 + ["b"] * 9)
    assert found.values == ("a",)
    assert not found.more  # nine persons would be told of
    assert column(["a"] * 10 + ["b"] * 9 + ["c"]).more


def test_rows_of_one_person_count_once() -> None:
    found = column(["a"] * 12 + ["b"] * 12, p=[1] * 12 + list(range(2, 14)))
    assert found.values == ("b",)
    assert not found.more
    numbers = np.full(40, 7.0)
    assert column(numbers, p=[1] * 40).quantiles is None
    assert column(numbers, p=list(range(40))).quantiles is not None
    ages = [*range(20, 60), *[-999] * 12]
    assert column(ages, p=[*range(40), *[40] * 12]).codes == ()
    assert column(ages, p=list(range(52))).codes == ("-999",)


def test_shares_of_missing_values_are_classes() -> None:
    def share(missing: int, of: int = 200) -> str:
        return column([None] * missing + list(range(of - missing))).missing

    assert [share(n) for n in (0, 9, 10, 41, 101, 191, 200)] == [
        "none", "none", "5 to 20 %", "20 to 50 %", "over 50 %", "all", "all",
    ]  # fmt: skip
    assert share(12, 1000) == "under 5 %"
    assert column(["unknown"] * 50 + ["a"] * 150).missing == "20 to 50 %"


def test_quantiles_are_cells_of_a_public_grid() -> None:
    numbers = np.random.default_rng(1).normal(70, 10, 2000)
    found = column(numbers).quantiles
    assert found is not None
    for profiled, exact in zip(found, np.quantile(numbers, (0.1, 0.5, 0.9)), strict=True):
        assert profiled == pytest.approx(exact, rel=0.08)
    # The same cells for other numbers in them: the exact values are not told.
    assert column(numbers * 1.0001).quantiles == found


def test_a_quantile_that_too_few_persons_share_is_a_coarser_cell_or_nothing() -> None:
    spread = np.geomspace(1e-6, 1e6, 30)  # fewer than three in a decade
    assert column(spread).quantiles is None
    assert column(spread, least=2).quantiles is not None


def test_what_one_person_has_is_not_told() -> None:
    """A cell of each column is replaced by something strange: quantiles stay within a cell, all else stays."""
    random = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "n": random.normal(50, 9, 400).round(2),
            "w": random.choice(["a", "b"], 400),
            "t": ["12 kg", "15 kg", "15 kg", "18 kg"] * 100,
        }
    )
    expected = profile_table(frame, site="s", least=10).columns
    for name, strange in (
        ("n", 1e9),
        ("n", -999.0),
        ("n", None),
        ("w", "canary"),
        ("w", None),
        ("t", "12,5"),
        ("t", ""),
    ):
        for row in (0, 7, 399):
            here = pl.int_range(400) == row
            changed = frame.with_columns(pl.when(here).then(pl.lit(strange)).otherwise(pl.col(name)).alias(name))
            found = profile_table(changed, site="s", least=10).columns
            for profiled, usual in zip(found.values(), expected.values(), strict=True):
                assert replace(profiled, quantiles=usual.quantiles) == usual
                assert (profiled.quantiles or ()) == pytest.approx(usual.quantiles or (), rel=0.08)


def test_codes_for_missing_values_are_found_far_from_the_numbers() -> None:
    ages = list(range(20, 80)) * 3
    assert column(ages + [-999] * 10).codes == ("-999",)
    assert column(ages + [999] * 10).codes == ("999",)
    assert column(ages + [-999] * 9).codes == ()
    assert column(list(range(-2000, 2000, 7)) + [-999] * 20).codes == ()
    assert column([-9.0] * 10 + [float(v) for v in range(-30, 30)] * 3).codes == ()


def test_texts_that_are_numbers_or_dates_are_called_so() -> None:
    assert column([f"{age} years" for age in range(20, 60)]).reads_as == "number"
    commas = column([f"{age},5" for age in range(20, 60)])
    assert (commas.reads_as, commas.decimal) == ("number", ",")
    assert column([f"2020-01-{day:02d}" for day in range(1, 29)]).reads_as == "date"
    assert column(["north", "south"] * 20).reads_as is None
    assert column(["old"] * 20 + [str(age) for age in range(60)]).reads_as is None


def test_kinds() -> None:
    assert column([True, False] * 10).kind == "boolean"
    assert column([["a"], ["a", "b"]] * 10).values == ("a", "b")
    assert column(pl.Series([None] * 20, dtype=pl.String)).kind == "empty"
    assert column(pl.Series(["2020-01-01"] * 20).str.to_date()).kind == "date"
    assert column([0, 1] * 20).values == ("0", "1")
    assert column(list(range(40))).values is None


def test_sizes_are_classes() -> None:
    assert [size_class(n) for n in (3, 99, 100, 1000, 54_321)] == [
        "fewer than 100", "fewer than 100", "100 to 999", "1,000 to 9,999", "10,000 to 99,999",
    ]  # fmt: skip


def test_a_profile_reads_back_and_anything_else_is_refused() -> None:
    frame = pl.DataFrame({"a": [1.5] * 20, "b": ["x"] * 20, "c": [["i"]] * 20, "d": [True] * 20})
    profile = profile_table(frame, site="s")
    assert TableProfile.from_plain(json.loads(json.dumps(profile.to_plain()))) == profile
    strange = [{**profile.to_plain(), "columns": {"a": odd}} for odd in ({"kind": "odd"}, {"kind": "number", "x": 1})]
    for bad in (None, {}, *strange):
        with pytest.raises(ConfigError, match="not the profile"):
            TableProfile.from_plain(bad)
