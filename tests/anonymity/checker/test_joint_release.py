"""Two releases of the same rows leave a smaller crowd than each by itself."""

from __future__ import annotations

import polars as pl
import pytest

from kohort.anonymity.checker.joint_release import JointRelease, joint_release
from kohort.errors import DataError


def ages(*labels: str) -> pl.DataFrame:
    return pl.DataFrame({"age": labels})


FIRST = ages("20-29", "20-29", "20-29", "30-39", "30-39", "30-39")


def test_rows_in_crossing_classes_are_counted() -> None:
    crossing = ages("20-25", "20-25", "26-39", "26-39", "26-39", "26-39")
    found = joint_release(FIRST, crossing, quasi=["age"])
    assert found == JointRelease(k=1, promised=2, isolated=1, rows=6)  # the third row alone is in "20-29" and "26-39"
    assert joint_release(crossing, FIRST, quasi=["age"]) == found
    assert joint_release(FIRST, crossing, quasi=["age"], promised=3).isolated == 3
    assert joint_release(FIRST, crossing, quasi=["age"], promised=1).isolated == 0


def test_a_release_isolates_nobody_beside_itself_or_a_coarser_one() -> None:
    for other in (FIRST, ages(*["20-39"] * 6)):
        assert joint_release(FIRST, other, quasi=["age"]) == JointRelease(k=3, promised=3, isolated=0, rows=6)


def test_each_release_may_lack_columns_but_not_all() -> None:
    region = pl.DataFrame({"region": ["n", "n", "s", "s", "s", "n"]})
    found = joint_release(FIRST, region, quasi=["age", "region"])
    assert (found.k, found.promised, found.isolated) == (1, 3, 6)
    for tables in ((FIRST, region), (region, FIRST)):
        with pytest.raises(DataError, match="none of the quasi-identifiers"):
            joint_release(*tables, quasi=["age"])


def test_releases_of_different_rows_are_not_compared() -> None:
    with pytest.raises(DataError, match="one release has 6 rows, the other 5"):
        joint_release(FIRST, FIRST.head(5), quasi=["age"])
