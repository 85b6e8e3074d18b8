"""Measures of single classes at the ends of what they take."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.sensitive import ValueFrequencies, recursive_ratio, value_codes
from kohort.errors import ConfigError, DataError


def two_classes() -> ValueFrequencies:
    """Counts 3, 2, 1 of three values, and 4 of one value."""
    return ValueFrequencies(
        value=np.array([0, 1, 2, 1]),
        count=np.array([2, 3, 1, 4]),
        first=np.array([0, 3]),
        sizes=np.array([6, 4]),
        table=np.array([2, 7, 1]),
        ordered=False,
    )


@pytest.mark.parametrize(
    ("least", "ratios"), [(1, [3 / 6, 4 / 4]), (2, [3 / 3, np.inf]), (3, [3 / 1, np.inf]), (4, [np.inf, np.inf])]
)
def test_the_most_frequent_value_against_the_rare_ones(least: int, ratios: list[float]) -> None:
    assert recursive_ratio(two_classes(), l=least).tolist() == ratios


@pytest.mark.parametrize("least", [0, -1])
def test_recursive_diversity_of_fewer_than_one_value_is_none(least: int) -> None:
    with pytest.raises(ConfigError, match=f"l of at least 1, not {least}"):
        recursive_ratio(two_classes(), l=least)


def test_values_are_ranked_with_null_first_and_lists_are_none() -> None:
    codes, count = value_codes(pl.Series(["b", None, "a", "b"]))
    assert (codes.tolist(), count) == ([2, 0, 1, 2], 3)
    codes, count = value_codes(pl.Series([5, 3, 5]))
    assert (codes.tolist(), count) == ([1, 0, 1], 2)
    codes, count = value_codes(pl.Series([True, False, None]))
    assert (codes.tolist(), count) == ([2, 1, 0], 3)
    with pytest.raises(DataError, match="column 's' holds lists"):
        value_codes(pl.Series("s", [["a"], ["b"]]))
