"""Sites that bring a table each: which rows carry a low risk is told, and clusters that would deal rows out refused."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.simulation import populate

TABLES = {
    "north": pl.DataFrame({"age": [20, 70, 30, 80], "y": ["a", "b", "a", "b"]}),
    "south": pl.DataFrame({"age": [90, 25], "y": ["b", "a"]}),
}


def plan(**sites: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "files", "target": "y", "features": ["age"], "test": 0},
            "sites": {"split": "files", **sites},
            "model": {"kind": "logistic"},
            "method": {"name": "hybrid", "clusters": "labels:2"},  # which reads what risk a row carries
        }
    )


def test_a_rule_marks_the_rows_below_it_in_every_table() -> None:
    found = populate(plan(low_risk="below:age:40"), Streams.seeded(0), tables=TABLES)
    assert found.low is not None
    assert found.low.tolist() == [2, 1]
    assert found.low_by_row
    # low-risk rows come first, each site's own
    assert found.frame["age"].to_list() == [20, 30, 70, 80, 25, 90]


def test_a_share_marks_that_share_of_every_table() -> None:
    found = populate(plan(low_risk=0.5), Streams.seeded(0), tables=TABLES)
    assert found.low is not None
    assert found.low.tolist() == [2, 1]
    assert not found.low_by_row


def test_nothing_is_marked_unless_asked() -> None:
    assert populate(plan(), Streams.seeded(0), tables=TABLES).low is None


@pytest.mark.parametrize("clusters", [2, "labels", "column:age"])
def test_clusters_that_deal_rows_out_are_refused(clusters: int | str) -> None:
    with pytest.raises(ConfigError, match="have their own rows") as refused:
        populate(plan(clusters=clusters), Streams.seeded(0), tables=TABLES)
    assert "method.clusters" in (refused.value.hint or "")


def test_numbers_written_as_text_get_a_word() -> None:
    frame = pl.DataFrame({"debt": [f"{n * 37 % 991},{n % 10}5" for n in range(120)], "y": ["a", "b"] * 60})
    asked = load_plan({"data": {"table": "memory", "target": "y", "features": "rest"}, "sites": {"count": 3}})
    found = populate(asked, Streams.seeded(0), tables={"": frame})
    assert any("'debt' holds numbers written as text" in note for note in found.notes)
