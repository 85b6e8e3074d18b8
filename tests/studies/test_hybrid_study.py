"""The study of the hybrid federation: its plans, the paper's figures as printed, and all of it on a small table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.runs.config import Plan, read_plan
from kohort.studies.harness import runs as harness_runs
from kohort.studies.harness.runs import Runs, RunSummary, run_group, summarise
from kohort.studies.hybrid import rows as hybrid_rows
from kohort.studies.hybrid import study as hybrid
from kohort.studies.hybrid.paper import DELTAS, EPSILONS, HYBRID, IMPROVEMENT, NO_DP, SERVER, SHARES
from kohort.studies.hybrid.plans import (
    CASES,
    COVERTYPE,
    DUTCH,
    INCOME,
    ONE_HOT,
    Case,
    Training,
    low_risk_only,
    no_dp,
    printed,
    published,
    server_only,
    summed,
    tuned,
    tuned_hybrid,
)
from kohort.studies.hybrid.plans import hybrid as hybrid_plan
from kohort.studies.hybrid.rows import ShuffledRows, digits, table_rows
from kohort.studies.hybrid.tables import accounting, accuracy_table, plans_of
from kohort.studies.registry import find_study

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def small_census(rows: int = 4000) -> pl.DataFrame:
    """A table shaped like the Dutch one, with as few columns as a test needs."""
    random = np.random.default_rng(5)
    age, level = random.integers(4, 16, rows), random.integers(0, 6, rows)
    chance = 1 / (1 + np.exp(-(age - 8) / 2 - (level - 2.5)))
    high = random.random(rows) < chance
    return pl.DataFrame({"age": age, "edu_level": level, "occupation": np.where(high, "high", "low")})


SMALL = replace(
    DUTCH,
    clusters=2,
    sites=3,
    least=200,
    peers=Training(rounds=2, lr=0.5),
    server=Training(rounds=2, lr=0.4),
    tuned=Training(rounds=12, batch=0, lr=4.0, clip=0.3, average=0.3),
)


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every named table is the small census; the digits stay what they are."""

    class Opened:
        frame = small_census()

    table_rows.cache_clear()
    monkeypatch.setattr(hybrid_rows, "open_table", lambda name: Opened)
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    yield
    table_rows.cache_clear()


def made(plan: Plan, seed: int = 0) -> RunSummary:
    (found,) = run_group([plan], seed, ShuffledRows(), summarise)
    return found


def small_runs(seeds: tuple[int, ...], processes: int = 1) -> Runs[RunSummary]:
    return Runs(seeds, summarise=summarise, processes=processes, tables=ShuffledRows())


def test_the_paper_s_improvements_follow_from_its_accuracies_under_one_of_two_denominators() -> None:
    """Reading errors would show: every printed improvement is the gain over FL, or over P2P+FL, to within rounding."""
    over_server = over_hybrid = 0
    for name, by_share in IMPROVEMENT.items():
        for place, line in enumerate(by_share):
            for number, told in enumerate(line):
                server, both = SERVER[name][place][number], HYBRID[name][place][number]
                if told is None:
                    continue
                by_server, by_both = both / server - 1, 1 - server / both
                assert min(abs(told - by_server), abs(told - by_both)) < 0.005
                if abs(by_server - by_both) > 0.02:
                    over_server += abs(told - by_server) < abs(told - by_both)
                    over_hybrid += abs(told - by_server) > abs(told - by_both)
    assert over_server > 0
    assert over_hybrid > 0


def test_every_table_is_complete() -> None:
    for case in CASES:
        assert len(EPSILONS[case.name]) == 3
        for figures in (SERVER, HYBRID):
            assert np.shape(figures[case.name]) == (len(SHARES), 3)
        assert len(NO_DP[case.name]) == len(SHARES)
        # Section 4: delta is one over the rows of the smallest client, of which a fifth is for testing here.
        assert case.least_rows * 0.8 >= 1 / DELTAS[case.name]


@pytest.mark.parametrize("case", [DUTCH, INCOME, COVERTYPE, ONE_HOT])
def test_fl_and_the_hybrid_differ_in_where_they_begin_and_in_nothing_else(case: Case) -> None:
    for one, other in ((server_only, hybrid_plan), (tuned, tuned_hybrid)):
        alone = one(case, published(case), 0.4, 0.5).to_mapping()
        both = other(case, published(case), 0.4, 0.5).to_mapping()
        assert both["method"]["phases"][1:] == alone["method"]["phases"]
        assert both["method"]["phases"][0].get("dp") is None
        assert {**both, "method": None} == {**alone, "method": None}


def test_printed_and_published_settings() -> None:
    assert [(printed(case).alpha, printed(case).delta) for case in CASES] == [(0.5, 9e-3), (0.5, 1e-2), (0.5, 3e-3)]
    assert [(published(case).alpha, published(case).delta) for case in CASES] == [(5, 1e-5), (5, 1e-5), (1, 1e-5)]


def test_rows_come_in_an_order_of_no_meaning_and_the_same_every_time(small_table: None) -> None:
    found = table_rows("dutch", 500)
    assert found.height == 500
    assert found.equals(table_rows("dutch", 500))
    assert not found.equals(small_census().head(500))
    assert table_rows("dutch").sort(pl.all()).equals(small_census().sort(pl.all()))


def test_digits_are_pictures() -> None:
    frame = digits()
    assert frame.shape == (1797, 65)
    assert frame["digit"].n_unique() == 10


def test_an_account_is_told_as_void_where_delta_is_too_large(small_table: None) -> None:
    spent = made(server_only(SMALL, replace(printed(SMALL), alpha=5.0), 0.4, 0.5))
    assert spent.void
    assert spent.epsilon is not None
    assert 0.45 < spent.epsilon <= 0.5
    honest = made(tuned(SMALL, published(SMALL), 0.4, 0.5))
    assert not honest.void
    assert len(honest.curve) == SMALL.tuned.rounds


def test_noise_added_once_protects_all_rows_and_costs_less(small_table: None) -> None:
    setting = published(SMALL)
    once, often = (
        np.mean([made(way(SMALL, setting, 0.4, 0.2), seed).accuracy for seed in range(8)]) for way in (summed, tuned)
    )
    assert once > often


@pytest.mark.parametrize(("processes", "jobs"), [(1, 4), (3, 6)])
def test_plans_on_the_same_rows_share_them_and_nothing_else(
    small_table: None, monkeypatch: pytest.MonkeyPatch, processes: int, jobs: int
) -> None:
    setting = published(SMALL)
    plans = [tuned(SMALL, setting, 0.4, 0.2), no_dp(SMALL, setting, 0.3), hybrid_plan(SMALL, setting, 0.4, 0.2)]
    one_by_one: list[int] = []
    monkeypatch.setattr(
        harness_runs,
        "in_parallel",
        lambda function, jobs, processes: (one_by_one.append(len(jobs)), [function(*job) for job in jobs])[1],
    )
    runs = small_runs((0, 1), processes)
    runs.prepare(plans)
    assert one_by_one == [jobs]
    for plan in plans:
        alone = [made(plan, seed) for seed in (0, 1)]
        found = runs.of(plan)
        assert [one.accuracy for one in found] == [one.accuracy for one in alone]
        assert [one.curve for one in found] == [one.curve for one in alone]
        assert [one.epsilon for one in found] == [one.epsilon for one in alone]


def test_the_table_of_one_setting(small_table: None) -> None:
    runs = small_runs((0,))
    plans = plans_of(SMALL, published(SMALL), (0.4,), baselines=True)
    assert len({plan.digest() for plan in plans}) == len(plans) == 3 + 4 * 3
    table = accuracy_table(runs, SMALL, published(SMALL), (0.4,), baselines=True)
    lines: dict[str, dict[str, Any]] = {line["setting"]: line for line in table.to_mapping()["rows"]}
    assert len(lines) == 3 + 3 * 5
    fl, both = lines["40% low, epsilon 0.2: FL"], lines["40% low, epsilon 0.2: P2P+FL"]
    assert (fl["paper"], both["paper"]) == (0.632, 0.815)
    assert lines["40% low, epsilon 0.2: improvement over FL"]["ours"] == pytest.approx(both["ours"] / fl["ours"] - 1)
    assert lines["40% low: no DP"]["paper"] == 0.810
    assert "void" not in table.name
    low = runs.accuracies(low_risk_only(SMALL, published(SMALL), 0.4))
    assert lines["40% low: low-risk only"]["ours"] == pytest.approx(np.mean(low))


def test_accountants() -> None:
    """Golden, by dp-accounting: PLD 1.17, RDP 1.28 for (8, 0.1, 600); PLD 1.82, added up 2.83 for both phases."""
    found: list[Any] = [row.ours for row in accounting().rows]
    assert found[:2] == pytest.approx([1.17, 1.28], abs=0.01)
    assert (found[2], found[4]) == pytest.approx((1.82, 2.83), abs=0.01)
    assert found[2] < found[3] < found[4]


def test_the_whole_study_on_a_small_table(small_table: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = replace(hybrid.QUICK, shares={"dutch": (0.4,)}, rows={})
    monkeypatch.setattr(hybrid, "ONE_HOT", SMALL)
    # Their own tables and plans are too large for a test; each is one call of the same functions.
    monkeypatch.setattr(hybrid, "shifted_table", lambda runs, epsilons: accounting())
    monkeypatch.setattr(hybrid, "digits_table", lambda runs: accounting())
    told: list[str] = []
    found = hybrid.run_study(tmp_path, True, told.append, depth=depth, cases=(SMALL,))
    assert found["name"] == "hybrid"
    assert sorted(found["figures"]) == sorted(path.name for path in tmp_path.iterdir())
    assert {"figure-2-dutch.svg", "figure-3-published.svg", "figure-3-printed.svg"} == set(found["figures"])
    names = [table["name"] for table in found["tables"]]
    assert any("void" in name for name in names)
    assert "P2P+FL against the baselines" in names
    for table in found["tables"]:
        assert all(set(line) >= {"setting", "paper", "ours", "sd", "delta"} for line in table["rows"])
    assert told
    assert any("California" in note for note in found["notes"])


def test_the_study_is_registered() -> None:
    assert find_study("hybrid") is hybrid.STUDY


def test_the_example_states_the_budget_its_policy_allows() -> None:
    plan: Plan = read_plan(EXAMPLES / "hybrid.toml")
    (peers, server) = plan.config.phases
    assert (peers.kind, peers.dp, server.kind) == ("peers", None, "server")
    assert (server.dp.epsilon, server.dp.delta) == (0.5, 1e-5)
    assert plan.policy.epsilon == 0.5
    assert (plan.sites.clusters, plan.sites.count, plan.sites.low_risk) == (5, 15, 0.4)
