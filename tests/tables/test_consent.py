"""Per-row consent: what words mean, who takes part, and that the door lets no row out without it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError, KohortError
from kohort.methods import central
from kohort.methods.partial import tasks
from kohort.methods.registry import Method
from kohort.runs.config import load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.tables.consent import SHARE, TRAIN, consent_levels, consenting_rows
from kohort.tables.schema import Schema
from kohort.transport.deployment import site_run

ROWS = 600


def test_words_and_nothing_else() -> None:
    said = pl.Series("c", ["share", "YES", " true ", "1", "train", "none", "no", "False", "0", "", None])
    assert consent_levels(said).tolist() == [SHARE] * 4 + [TRAIN] + [0] * 6
    assert consent_levels(pl.Series("c", [True, False, None])).tolist() == [SHARE, 0, 0]
    assert consent_levels(pl.Series("c", [1, 0])).tolist() == [SHARE, 0]
    with pytest.raises(DataError, match="column 'c' says about 2 rows") as caught:
        consent_levels(pl.Series("c", ["share", "perhaps", "zebra"]))
    assert "zebra" not in str(caught.value)
    frame = pl.DataFrame({"c": ["yes", "no", "train"], "x": [1, 2, 3]})
    assert consenting_rows(frame, "c")["x"].to_list() == [1, 3]
    assert consenting_rows(frame, None).height == 3


def table() -> pl.DataFrame:
    generator = np.random.default_rng(5)
    age, x = generator.integers(20, 24, ROWS), generator.normal(size=ROWS).round(6)
    consent = np.array(["share", "train", "none"])[np.arange(ROWS) % 3]
    return pl.DataFrame({"age": age, "x": x, "consent": consent, "y": np.where(x + age / 30 > 0.8, "a", "b")})


def outcome(method: str, own: dict[str, Any] | None = None, *, frame: pl.DataFrame | None = None) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age"], "features": ["x"], "consent": "consent",
                     "test": 0.0, "bounds": {"age": [20, 90], "x": [-4, 4]}, "categories": {"y": ["a", "b"]}},
            "sites": {"count": 3},
            "model": {"kind": "logistic"},
            "train": {"rounds": 2, "lr": 0.1, "optimizer": "sgd"},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, "min_k": 2},
            "method": {"name": method, **(own or {})},
        }
    )  # fmt: skip
    return run(plan, seed=2, tables={"": table() if frame is None else frame})


GATE = {"gate": {"k": 10, "released": "raw", "count": "secure"}}


def values(frame: pl.DataFrame | None) -> set[float]:
    return set() if frame is None else set(frame["x"].to_list())


def test_rows_without_consent_take_no_part_and_are_counted() -> None:
    found = outcome("fedavg")
    assert sum(found.site_rows.values()) == 2 * ROWS // 3
    (entry,) = [one for one in found.left_out if "consent" in one.why]
    assert entry.count == ROWS // 3
    without = outcome("fedavg", frame=table().filter(pl.col("consent") != "none"))
    assert sum(without.site_rows.values()) == 2 * ROWS // 3


@pytest.mark.parametrize(("method", "own"), [("partial", GATE), ("central", {})])
def test_only_who_agreed_to_share_leaves(method: str, own: dict[str, Any]) -> None:
    found, rows = outcome(method, own), table()
    sent = values(found.received)
    assert sent
    assert sent <= values(rows.filter(pl.col("consent") == "share"))
    if method == "partial":
        assert found.received is not None
        assert found.received.height < sum(found.site_rows.values())


@pytest.mark.parametrize(
    ("rule", "targets", "consents"),
    [
        ({}, ["a"] * 10, ["share"] + ["train"] * 9),
        ({"count": "local"}, ["a"] * 10, ["share"] + ["train"] * 9),
        ({"rule": "l-diversity", "l": 2}, ["a"] * 9 + ["b"], ["share"] * 9 + ["train"]),
    ],
)
def test_rows_that_stay_hide_nobody_who_leaves(rule: dict[str, Any], targets: list[str], consents: list[str]) -> None:
    """Ten rows of a rare key, of which some may only train: the others are too few, or of one value."""
    rare = pl.DataFrame({"age": [77] * 10, "x": [0.5] * 10, "consent": consents, "y": targets})
    own = {"gate": {**GATE["gate"], **rule}}
    found = outcome("partial", own, frame=pl.concat([table(), rare], how="vertical_relaxed"))
    assert found.received is not None
    assert found.received.height > 0
    assert found.received.filter(pl.col("age") == 77).is_empty()


def test_a_real_site_counts_rows_with_consent_only() -> None:
    """Of 100 rows of low risk, 90 take no part: no row of high risk may move into their place."""
    low, high = ["none"] * 90 + ["train"] * 10, ["train"] * 100
    frame = pl.DataFrame({"x": [0.0] * 100 + [1.0] * 100, "y": ["a", "b"] * 100, "ok": low + high})
    data = {"target": "y", "features": ["x"], "consent": "ok", "bounds": {"x": [0, 1]}, "categories": {"y": ["a", "b"]}}
    plan = load_plan({"data": {"table": "memory", **data}, "sites": {"count": 3}, "method": {"name": "fedavg"}})
    schema = Schema.of(target="y", features=["x"], consent="ok", bounds={"x": (0, 1)}, categories={"y": ["a", "b"]})
    resources: Any = SimpleNamespace(frame=frame, low=100, low_by_row=True)
    rows = site_run._table(resources, schema, plan)
    assert rows.low == 10
    assert rows.rows().head(10)["x"].to_list() == [0.0] * 10
    unanswered = frame.with_columns(y=pl.when(pl.int_range(200) < 12).then(None).otherwise(pl.col("y")))
    assert site_run._unused(unanswered, schema, plan)["target"].rows == 0


def test_the_door_refuses_rows_that_a_task_would_send_without_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate is patched not to look at consents, and then to hide which rows it sends."""
    plain = tasks.SHARE.one

    def blind(site: Any, request: Any) -> Any:
        monkeypatch.setattr(type(site), "may_leave", lambda _: None)
        site.state(tasks.GateState).keys = None
        try:
            return plain(site, request)
        finally:
            monkeypatch.undo()
            monkeypatch.setitem(vars(tasks.SHARE), "one", blind)

    monkeypatch.setitem(vars(tasks.SHARE), "one", blind)
    with pytest.raises(KohortError, match="without their persons' consent"):
        outcome("partial", GATE)
    monkeypatch.undo()
    silent = lambda site, request: replace(plain(site, request), sent=None)  # noqa: E731
    monkeypatch.setitem(vars(tasks.SHARE), "one", silent)
    with pytest.raises(KohortError, match="does not say which rows it holds"):
        outcome("partial", GATE)


def test_rows_that_leave_are_looked_at_site_by_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a task could answer for all sites in one call."""
    monkeypatch.setitem(vars(central.SHIP), "many", lambda *_: pytest.fail("nobody looked at consents"))
    assert outcome("central").received is not None


@pytest.mark.parametrize("share", ["hub", "peers"])
def test_methods_that_cannot_tell_which_rows_leave_are_refused(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the door, too, where nobody looked at the plan."""
    monkeypatch.setattr(Method, "require_consent", lambda *_: None)
    with pytest.raises(KohortError, match="does not say which rows it holds"):
        outcome("syntactic", {"anonymise": {"k": 5}, "share": share})


def plan_of(method: dict[str, Any], kind: str = "logistic") -> dict[str, Any]:
    data = {"table": "memory", "target": "y", "quasi": ["age"], "features": ["x"], "consent": "consent"}
    return {"data": data, "model": {"kind": kind}, "method": method}


@pytest.mark.parametrize("share", ["hub", "peers"])
def test_classes_of_rows_that_may_not_leave_are_refused_when_the_plan_is_read(share: str) -> None:
    with pytest.raises(ConfigError, match=r"'syntactic' does not respect data\.consent: the classes"):
        load_plan(plan_of({"name": "syntactic", "share": share}))
    assert load_plan(plan_of({"name": "syntactic"}, kind="trees")).data.consent == "consent"
    assert load_plan(plan_of({"name": "fedavg"})).data.consent == "consent"


def test_the_explanation_of_a_plan_tells_what_consent_allows() -> None:
    asked = explain_plan(load_plan(plan_of({"name": "fedavg"})))
    assert asked.to_mapping()["consent"] == "consent"
    assert "Consent per row" in asked.text
    assert '"train": the row is learned from at your site' in " ".join(asked.text.split())
    plan = plan_of({"name": "fedavg"})
    del plan["data"]["consent"]
    assert "Consent" not in explain_plan(load_plan(plan)).text
