"""What a site says of itself: low-risk rows, told by a mark or by a number, and its cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.protocol.wire import Payload
from kohort.rounds.clusters import _name_in, check_cluster_name
from kohort.runs.config import load_plan
from kohort.tables.schema import Schema
from kohort.tables.splits import assign_sites
from kohort.transport.deployment.declared import LowRisk, cluster_of, low_risk_rule
from kohort.transport.deployment.files import Invitation

SCHEMA = Schema.of(target="y", features=["age"])


@given(st.lists(st.one_of(st.none(), st.integers(-50, 50)), min_size=1, max_size=30), st.integers(-60, 60))
def test_a_number_tells_the_rows_the_plan_would_have_told(ages: list[int | None], limit: int) -> None:
    frame = pl.DataFrame({"age": pl.Series(ages, dtype=pl.Int64), "row": range(len(ages))})
    rule = low_risk_rule(f"below:age:{limit}")
    assert rule == LowRisk("age", float(limit))
    assert rule.by_row
    ordered, low = rule.low_first(frame, SCHEMA)
    split = assign_sites(
        frame, split="iid", count=1, generator=np.random.default_rng(0), low_risk=f"below:age:{limit}"
    ).low_risk
    assert split is not None
    assert ordered["row"].to_list() == [*np.flatnonzero(split), *np.flatnonzero(~split)]
    assert low == split.sum()


@pytest.mark.parametrize("marks", [[1, 0, None, 1], [True, False, None, True]])
def test_a_column_of_marks_tells_them_and_a_missing_mark_is_high(marks: list[int | bool | None]) -> None:
    rule = low_risk_rule("column:calm")
    assert rule is not None
    assert not rule.by_row  # nobody knows how the marks were made
    ordered, low = rule.low_first(pl.DataFrame({"calm": marks, "row": range(4)}), SCHEMA)
    assert (ordered["row"].to_list(), low) == ([0, 3, 1, 2], 2)


@pytest.mark.parametrize("text", ["0.4", "calm", "column:", "below:age", "below::3", "below:age:many", "below:age:inf"])
def test_rules_nobody_can_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read") as refused:
        low_risk_rule(text)
    assert "below:COLUMN:NUMBER" in refused.value.hint


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("column:claim", "no such column"),
        ("column:age", "learned from"),
        ("column:codes", "more than 0 and 1"),
        ("column:words", "more than 0 and 1"),
        ("below:words:3", "not a number"),
    ],
)
def test_columns_that_tell_nothing_are_refused_without_a_cells_value(rule: str, word: str) -> None:
    frame = pl.DataFrame({"age": [0, 1], "codes": [0, 77], "words": ["secret", "0"], "y": [0, 1]})
    found = low_risk_rule(rule)
    assert found is not None
    with pytest.raises(ConfigError, match=word) as refused:
        found.low_first(frame, SCHEMA)
    assert refused.value.hint
    assert not any(cell in f"{refused.value}" for cell in ("77", "secret"))


def test_no_rule_is_no_rule() -> None:
    assert low_risk_rule("") is None


def test_clusters_are_named_or_told_by_a_column_all_rows_share() -> None:
    frame = pl.DataFrame({"state": ["OH"] * 3, "ward": ["a", "b", "a"], "hole": ["x", None, "x"]})
    assert cluster_of("", frame) == ""
    assert cluster_of("north", frame) == "north"
    assert cluster_of("column:state", frame) == "OH"
    for text, word in (
        ("column:ward", "share one value"),
        ("column:hole", "share one value"),
        ("column:st", "no such"),
    ):
        with pytest.raises(ConfigError, match=word):
            cluster_of(text, frame)


@pytest.mark.parametrize("name", ["", " north", "a\nb", "x" * 65, "\x00"])
def test_names_that_are_none_are_refused_at_the_site_and_at_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster's name"):
        check_cluster_name(name)
    if name:
        with pytest.raises(Exception, match="name is malformed"):
            _name_in(Payload(blobs={"cluster": name.encode()}))
    with pytest.raises(Exception, match="name is malformed"):
        _name_in(Payload(blobs={"cluster": b"\xff\xfe"}))


def test_a_sites_start_reads_both_before_it_serves(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from kohort.transport.deployment.hub import HubFolder
    from kohort.transport.deployment.site import SiteFolder

    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)
    pl.DataFrame({"y": ["n", "p"] * 60, "age": range(120), "calm": [0, 1] * 60}).write_csv(tmp_path / "t.csv")
    invitation = Invitation.read(hub.path / "invitation.json")
    site = SiteFolder.init(tmp_path / "north", name="north", table=tmp_path / "t.csv", invitation=invitation)
    text = (site.path / "site.toml").read_text()
    roles = '[data]\ntarget = "y"\nfeatures = "rest"\n'

    def declare(said: str) -> None:
        changed = text.replace("[site]\n", f"[site]\n{said}\n")
        (site.path / "site.toml").write_text(changed.replace("[data]  # what", f"{roles}# what"))

    declare('low_risk = "column:calm"\ncluster = "north"')
    site.site_server().close()
    for said, word in (
        ('low_risk = "calm"', "cannot read"),
        ('low_risk = "column:calms"', "no such column"),
        ('cluster = "column:y"', "share one value"),
        ('cluster = " "', "cluster's name"),
    ):
        declare(said)
        with pytest.raises(ConfigError, match=word):
            site.start(insecure=True, retries=1)


@pytest.mark.parametrize(
    "clusters", ["labels:0", "labels:²", "labels", "column:x", {}, {"a": []}, {"a": ["s"], "b": ["s"]}, {"": ["s"]}]
)
def test_clusters_no_plan_can_mean_are_refused(clusters: str | dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError, match="cluster"):
        load_plan({"data": {"table": "t"}, "method": {"name": "hybrid", "clusters": clusters}})
