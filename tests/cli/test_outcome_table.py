"""The table people see after a run: one line a kind, recipient and number of rows."""

from __future__ import annotations

from typing import Any

from kohort.cli.tables import audit_lines, outcome_table


def entry(kind: str, rows: int, *, to: str = "hub", what: str = "train") -> dict[str, Any]:
    return {"kind": kind, "recipient": to, "what": what, "rows": rows}


def shown(*entries: dict[str, Any]) -> list[str]:
    run = {
        "method": "fedavg",
        "metrics": {"accuracy": 0.8, "f1": 0.5, "auc": None},
        "disclosed": entries,
        "bytes": {"up": 1_000_000},
        "seconds": {"wall": 1.0},
    }
    table = outcome_table([run])
    [column] = [column for column in table.columns if column.header == "what left the sites"]
    [cell] = column.cells
    return str(cell).split("\n")


def test_the_same_kind_from_as_many_rows_is_shown_once() -> None:
    asked_twice = [entry("k-km", 1200, what="publish"), entry("k-km", 1200, what="anonymise"), entry("k-km", 7)]
    assert shown(*asked_twice) == ["k-km: from 1,200 rows", "k-km: from 7 rows"]


def test_another_recipient_than_the_hub_is_named() -> None:
    given = [entry("aggregate", 30), entry("aggregate", 30, to="peers")]
    assert shown(*given) == ["aggregate: from 30 rows", "aggregate to peers: from 30 rows"]


def test_what_speaks_of_no_rows_is_named_by_its_task_and_public_facts_are_left_out() -> None:
    assert shown(entry("secure-sum", 0, what="count"), entry("public", 9)) == ["secure-sum: count"]
    assert shown(entry("public", 9)) == ["row counts only"]


def test_a_few_bytes_under_a_guarantee_about_rows_are_called_counts() -> None:
    counts = {**entry("k-anonymous", 22_793), "size": 880, "releases": 10}
    assert shown(counts) == ["counts of k-anonymous rows: from 22,793 rows"]
    assert shown({**counts, "size": 22_793}) == ["k-anonymous: from 22,793 rows"]
    classes = {**entry("k-km", 22_793), "size": 14_496, "releases": 10}
    assert shown(classes) == ["classes of k-km rows: from 22,793 rows"]  # few bytes, and yet values of rows
    assert shown({**entry("aggregate", 22_793), "size": 880}) == ["aggregate: from 22,793 rows"]


def test_an_audit_without_an_attack_does_not_sound_like_a_good_result() -> None:
    found = {"attack": "a", "family": "membership", "on": "x", "by": "hub", "note": "why"}
    none = audit_lines({"findings": [{**found, "success": None}]})
    assert none[-1] == "No attack was made: that is no sign of protection."
    made = audit_lines({"findings": [{**found, "success": 0.5, "verdict": "no better than guessing"}]})
    assert made[-1].startswith("0 of 1 attacks are better than guessing")
