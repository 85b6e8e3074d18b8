"""What sums over large bins tell together: with few columns all small combinations; many columns are not solved for."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.evaluate.attacks.finding import Finding
from kohort.evaluate.attacks.linked_totals import ATTACK
from kohort.runs.auditing import on_linked
from kohort.runs.auditing.audit import attack_replay
from kohort.runs.auditing.on_linked import linked_findings
from kohort.runs.auditing.replay import Replay, repeat
from kohort.runs.config import load_plan

ALONE = {"sum": "none"}


def people(columns: int, *, values: int = 6, rows: int = 600, classes: int = 2, together: float = 0.0) -> pl.DataFrame:
    """Rows whose outcome depends on columns; one person alone has the last value of all of them."""
    random = np.random.default_rng(0)
    codes = random.integers(0, values, (rows, columns))
    codes[(codes[:, :2] == values - 1).all(axis=1), 0] = 0
    codes[0] = values - 1
    effects = random.normal(0, 1, (columns, values))
    score = effects[np.arange(columns), codes].sum(axis=1) + random.logistic(0, 1, rows)
    score += together * (codes[:, 0] % 2 == codes[:, 1] % 2)
    ranks = np.argsort(np.argsort(score)) / rows
    named = {f"c{column}": [f"v{code}" for code in codes[:, column]] for column in range(columns)}
    outcome = [f"o{int(rank * classes)}" for rank in ranks] if classes else ranks.round(4)
    return pl.DataFrame({**named, "outcome": outcome})


def replayed(table: pl.DataFrame, method: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Replay:
    named = {name: table[name].unique().sort().to_list() for name in table.columns if table.schema[name] == pl.String}
    bounds = {} if "outcome" in named else {"bounds": {"outcome": [0, 1]}}
    plan = load_plan(
        {
            "data": {
                "table": "memory", "target": "outcome", "features": "rest", "test": 0.0, "categories": named, **bounds,
                **sections.pop("data", {}),
            },
            "sites": {"count": 3},
            "method": {"name": "additive", "secure": ALONE, **(method or {})},
            "policy": {"min_cell": 1, "min_rows": 1},
            **sections,
        }
    )  # fmt: skip
    return repeat(plan, seed=0, tasks=frozenset(), tables={"": table})


def attacked(replay: Replay) -> Finding:
    """What the strongest attacker finds: the hub where sums are in clear, else the hub with a site on its side."""
    return linked_findings(replay)[-1]


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_small_combinations_of_two_columns_follow_from_sums_over_large_bins(classes: int) -> None:
    one = attacked(replayed(people(2, classes=classes)))
    assert one.exposed
    assert one.success == 1.0
    assert one.guess is not None
    assert one.guess < 0.5
    assert one.details["alone"] >= 1.0  # every bin holds 20 persons or more, and yet
    assert one.details["alone_found"] == one.details["alone"]


def test_what_is_solved_holds_of_the_rows_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[tuple[Any, Any, Any]] = []
    solve = on_linked.counts_that_follow

    def listened(opened: Any, places: Any, counts: Any, **options: Any) -> Any:
        solved.append((opened, places, counts))
        return solve(opened, places, counts, **options)

    monkeypatch.setattr(on_linked, "counts_that_follow", listened)
    table = people(3, values=4, rows=900, together=4.0)
    replay = replayed(table, {"pairs": 2, "secure": {"sum": "masks"}})
    hub, one = linked_findings(replay)
    assert (hub.verdict, hub.by, one.by) == ("not attacked", "hub", "hub and a site")
    assert "sites alone read the sums" in hub.note
    assert one.success == 1.0  # three columns and two surfaces, by masks
    ((opened, places, counts),) = solved
    assert len(opened) == 11  # all totals but the first, the one that chose pairs included
    own = np.stack([table[f"c{column}"].str.slice(1).cast(pl.Int64).to_numpy() for column in range(3)])
    truth = np.bincount(np.ravel_multi_index(tuple(own), (4, 4, 4)), minlength=64)
    assert len(opened[-1].sums) == len(counts) > len(opened[0].sums) == 12  # bins of pairs joined in
    totals = [np.zeros((len(counts), 1)) for _ in opened]
    for row in places:
        for total, sums in zip(totals, opened, strict=True):
            np.add.at(total, row, truth[:, None] * sums.expected)
    same = [total[: len(sums.sums)] - sums.sums for total, sums in zip(totals, opened, strict=True)]
    targets = same[-1]
    for one_round in same:  # what is left is how many of a bin have the class: the same in every round
        assert np.abs(one_round - targets[: len(one_round)]).max() < 1e-5
    assert np.abs(targets - np.rint(targets)).max() < 1e-5


def test_six_columns_are_not_solved_for_and_that_is_said() -> None:
    one = attacked(replayed(people(6)))
    assert one.verdict == "not attacked"
    assert "6 columns have more than 1,500 combinations" in one.note


def test_one_round_of_sums_tells_no_more_than_the_guess() -> None:
    one = attacked(replayed(people(2), {"rounds": 2}))
    assert one.success == one.guess
    assert not one.exposed


def test_where_nothing_is_small_there_is_nothing_to_find() -> None:
    random = np.random.default_rng(0)
    table = pl.DataFrame({"c0": ["a", "b"] * 200, "outcome": random.choice(["o0", "o1"], 400)})
    assert "nothing small to find" in attacked(replayed(table)).note


def test_an_audit_has_it_and_says_where_it_does_not_apply() -> None:
    table = people(2)
    found = attack_replay(replayed(table), shadows=0)
    assert [one.success for one in found if one.attack == ATTACK] == [1.0]
    private = {"dp": {"epsilon": 1.0, "delta": 1e-5, "unit": "row"}, "secure": {"sum": "masks"}}
    assert "noise" in attacked(replayed(table, private)).note
    assert "weighted" in attacked(replayed(table, train={"class_weights": {"o0": 2.0, "o1": 1.0}})).note
    several = table.with_columns(who=pl.int_range(pl.len()) // 2)
    assert "several rows" in attacked(replayed(several, data={"person": "who"})).note
    assert linked_findings(replayed(table, {"name": "fedavg"})) == []
