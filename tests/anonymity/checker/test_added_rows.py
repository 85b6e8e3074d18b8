"""Rows that were added to a class are judged as a class of their own, by persons, values, items and distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.added_rows import added_rows_meet


def table(added: list[str], persons: list[int] | None = None) -> tuple[pl.DataFrame, np.ndarray]:
    """Forty earlier rows, half of them ill of each illness, and those that were added."""
    ill = ["flu", "cold"] * 20 + added
    who = [*range(40), *(persons or range(100, 100 + len(added)))]
    codes = [["a", "b"]] * 40 + [["a", "b"]] * (len(added) - 1) + [["c"]]
    return pl.DataFrame({"ill": ill, "who": who, "codes": codes}), np.arange(40, len(ill))


@pytest.mark.parametrize(
    ("added", "persons", "rule", "meets"),
    [
        (["flu"] * 4, None, {"k": 5}, False),
        (["flu"] * 5, None, {"k": 5}, True),
        (["flu"] * 5, [7, 7, 7, 7, 8], {"k": 5, "persons": "who"}, False),
        (["flu"] * 5, None, {"k": 5, "l": 2}, False),
        (["flu", "cold"] * 3, None, {"k": 5, "l": 2}, True),
        (["flu"] * 6, None, {"k": 5, "t": 0.2}, False),
        (["flu", "cold"] * 3, None, {"k": 5, "t": 0.2}, True),
        (["flu", "cold"] * 5, None, {"k": 5, "m": 1, "items": ["codes"]}, False),  # one row alone has c
    ],
)
def test_added_rows_are_judged_by_themselves(
    added: list[str], persons: list[int] | None, rule: dict[str, Any], meets: bool
) -> None:
    frame, places = table(added, persons)
    sensitive = {} if "items" in rule else {"sensitive": ["ill"]}
    assert added_rows_meet(frame, places, **sensitive, **rule) is meets
