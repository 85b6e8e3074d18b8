"""Measures of single classes at the ends of what they take."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.anonymity.checker.sensitive import Spread, recursive_ratio
from kohort.errors import ConfigError


def two_classes() -> Spread:
    """Counts 3, 2, 1 of three values, and 4 of one value."""
    return Spread(
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
