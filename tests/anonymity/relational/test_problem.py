"""A table as the algorithms see it."""

from __future__ import annotations

import warnings

import polars as pl
import pytest

from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.problem import code_table
from kohort.errors import DataError


def test_numbers_whose_distance_is_no_number_are_refused_by_the_name_of_their_column() -> None:
    """Their places in the range would be no numbers, and a search for the best cut would not end."""
    table = pl.DataFrame({"dose": [1e308, -1e308] * 10, "age": [*range(20)]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="column 'dose' are too far apart"):
            code_table(table, ["age", "dose"])
        with pytest.raises(DataError, match="column 'dose' are too far apart"):
            anonymise(table, quasi=["age", "dose"], k=2)


@pytest.mark.parametrize("algorithm", ["auto", "lattice", "mdav"])
def test_the_smallest_numbers_there_are_can_be_anonymised(algorithm: str) -> None:
    table = pl.DataFrame({"dose": [5e-324 * (row % 5) for row in range(40)], "age": [row % 4 for row in range(40)]})
    made = anonymise(table, quasi=["dose", "age"], k=4, algorithm=algorithm)
    assert made.report.verified
    assert made.report.k >= 4


@pytest.mark.parametrize("zone", [None, "Europe/Vienna"])
def test_different_times_within_a_microsecond_are_refused(zone: str | None) -> None:
    """Labels count microseconds: two finer times of a class stayed two values, and the checker refused the release."""
    kind, start = pl.Datetime("ns", zone), 1_600_000_000_000_000_000
    close = pl.Series("at", [start, start + 7, start + 5_000, None] * 3).cast(kind)
    with pytest.raises(DataError, match="'at' has different times within a microsecond"):
        code_table(close.to_frame(), ["at"])
    apart = pl.Series("at", [start, start + 1_007, start + 5_000, None] * 3).cast(kind)
    assert code_table(apart.to_frame(), ["at"]).columns[0].distinct == 4  # missing is one
