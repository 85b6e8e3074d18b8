"""A hub chooses when sessions begin, what runs are called, who joins and who is left out; books of openings must hold.

Every total is asked of servers that outlive the runs, as those of real sites do. Whatever is opened, no combination of
totals may show the numbers of fewer than three sites.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.lasting_sites import LastingSites, isolated

from kohort.privacy import openings
from kohort.privacy.openings import OpeningBook
from kohort.rounds import books
from kohort.runs.config import Plan, load_plan

SEVEN = tuple(f"s{number}" for number in range(1, 8))
FIRST, SECOND, VICTIM = SEVEN[:3], SEVEN[3:6], SEVEN[6]


def rows(name: str) -> pl.DataFrame:
    random = np.random.default_rng(int(name[1:]))
    age = random.integers(20, 80, 20)
    answer = np.where(age + random.normal(0, 9, 20) > 50, "yes", "no")
    return pl.DataFrame({"age": age, "agreed": ["train"] * 20, "y": answer})


def plan(**oneshot: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": ["age"], "test": 0, "consent": "agreed",
                     "bounds": {"age": (0, 99)}, "categories": {"y": ["no", "yes"]}},
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "secure": {"sum": "masks"}, "oneshot": {"min_cell": 1, **oneshot}},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )  # fmt: skip


@pytest.fixture
def sites() -> LastingSites:
    made = LastingSites({name: rows(name) for name in SEVEN})
    made.begin(plan())
    return made


def three_totals(sites: LastingSites, before: tuple[str, int] = ("oneshot.statistics", 0)) -> list[Any]:
    """The books of all seven are exchanged first; then two parts of them open, then all."""
    found: list[Any] = []

    def parts() -> None:
        found.extend([sites.open(plan(), FIRST), sites.open(plan(), SECOND)])

    every = sites.open(plan(), SEVEN, while_waiting=parts, before=before)
    return [every, *found]


def same_name(sites: LastingSites) -> list[Any]:
    """Two plans that differ in one key, and all runs have one name."""
    found = [sites.open(plan(), part, name="ab" * 16) for part in (FIRST, SECOND)]
    return [sites.open(plan(min_cell=2), SEVEN, name="ab" * 16), *found]


def of_victim() -> float:
    """What the victim adds to the total of ages, which are scaled to -1 to 1."""
    return float((2 * rows(VICTIM)["age"] / 99 - 1).sum())


def test_books_that_are_on_their_way_are_compared_with_what_was_told(sites: LastingSites) -> None:
    """Two parts open after all seven told their books, and before they hear those of the others."""
    every, *parts = three_totals(sites, ("sum.setup", 1))
    assert every is None
    assert all(part is not None for part in parts)


@pytest.mark.parametrize("attack", [three_totals, same_name])
def test_runs_that_know_nothing_of_each_other_isolate_nobody(
    attack: Callable[[LastingSites], list[Any]], sites: LastingSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, *parts = attack(sites)
    assert every is None
    assert all(part is not None for part in parts), "honest runs open"
    assert not isolated([members for members, _ in sites.opened])
    monkeypatch.setattr(OpeningBook, "_refuse_unannounced", lambda *_: None)
    monkeypatch.setattr(openings, "_run", lambda name: name.removeprefix("heard:").partition(":")[0])
    monkeypatch.setattr(books, "_run_of", lambda site: site.plan.run)
    weak = LastingSites({name: rows(name) for name in SEVEN})
    weak.begin(plan())
    every, *parts = attack(weak)
    assert isolated([members for members, _ in weak.opened]) == {VICTIM}
    shown = every - parts[0] - parts[1]
    assert shown.ravel()[:2].tolist() == pytest.approx([20, of_victim()], abs=1e-3), "its rows, and the sum of its ages"


def test_two_runs_over_the_same_sites_go_on_side_by_side(sites: LastingSites) -> None:
    inner: list[Any] = []
    outer = sites.open(plan(), SEVEN, while_waiting=lambda: inner.append(sites.open(plan(), SEVEN)))
    assert outer is not None
    assert inner[0] is not None


@pytest.mark.parametrize("seed", [1])
def test_whatever_joins_leaves_and_waits_no_combination_shows_two_sites(seed: int, sites: LastingSites) -> None:
    """A hub that lets sites join and leave as it likes: drawn sets of sites, some while other sessions wait."""
    random = np.random.default_rng(seed)
    drawn = [SEVEN[:5], *(tuple(np.sort(random.choice(SEVEN, random.integers(3, 8), replace=False))) for _ in range(5))]

    def go(left: list[tuple[str, ...]]) -> None:
        while left:
            now = tuple(map(str, left.pop(0)))
            sites.open(plan(), now, while_waiting=(lambda: go(left)) if random.random() < 0.4 else None)

    go(list(drawn))
    opened = [members for members, _ in sites.opened]
    assert opened
    assert sites.refused, "such a hub is refused something"
    assert not isolated(opened)


def test_a_withdrawn_consent_is_not_the_difference_of_two_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person takes no part any more: two totals over the same sites would differ by that row."""
    tables = {name: rows(name) for name in SEVEN}
    first = LastingSites(tables, folder=tmp_path).open(plan(), SEVEN)
    agreed = pl.when(pl.int_range(20) == 4).then(pl.lit("none")).otherwise(pl.col("agreed"))
    later = LastingSites({**tables, VICTIM: tables[VICTIM].with_columns(agreed=agreed)}, folder=tmp_path)
    assert first is not None
    assert later.open(plan(), SEVEN) is None
    assert not later.opened
    monkeypatch.setattr(OpeningBook, "admit", lambda *_, **__: None)
    person = (first - later.open(plan(), SEVEN)).ravel()
    assert person[0] == 1
    centred = 2 * tables[VICTIM]["age"][4] / 99 - 1
    assert person[1] == pytest.approx(centred, abs=1e-3), "the age of the person who withdrew"
