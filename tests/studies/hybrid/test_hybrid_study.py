"""The study of the hybrid federation: its plans, the paper's figures as printed, and all of it on a small table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from kohort.rng import Streams
from kohort.runs.config import Plan, read_plan
from kohort.runs.simulation import populate
from kohort.studies.harness import runs as harness_runs
from kohort.studies.harness.kept import RUNS_FILE
from kohort.studies.harness.runs import Runs, RunSummary, run_group, summarise
from kohort.studies.harness.validation import validation_rows
from kohort.studies.hybrid import rows as hybrid_rows
from kohort.studies.hybrid import study as hybrid
from kohort.studies.hybrid import tuning
from kohort.studies.hybrid.paper import DELTAS, EPSILONS, HYBRID, IMPROVEMENT, NO_DP, SERVER, SHARES
from kohort.studies.hybrid.plans import (
    CASES,
    COVERTYPE,
    DUTCH,
    FL,
    HYBRID_STEPS,
    INCOME,
    LOW_RISK,
    NO_DP_COLUMN,
    ONCE,
    ONE_HOT,
    PEERS_ONLY,
    STEPS,
    HybridCase,
    HybridCell,
    HybridChoice,
    HybridColumn,
    HybridTraining,
    printed,
    published,
)
from kohort.studies.hybrid.plans import HYBRID as BOTH
from kohort.studies.hybrid.rows import ShuffledRows, table_rows
from kohort.studies.hybrid.tables import GRID, accounting, accuracy_table, cells_of, conclusions, grid_table
from kohort.studies.hybrid.tuning import Tuned
from kohort.studies.registry import find_study

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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
    peers=HybridTraining(rounds=2),
    server=HybridTraining(rounds=2),
    steps=HybridTraining(rounds=12, batch=0),
)


def cell(case: HybridCase = SMALL, *, epsilon: float | None = None, void: bool = False) -> HybridCell:
    return HybridCell(case=case, setting=printed(case) if void else published(case), low=0.4, epsilon=epsilon)


def plan_of(column: HybridColumn, at: HybridCell, reach: float = 1.0) -> Plan:
    return column.make(at, HybridChoice(reach), HybridChoice(0.5))


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every named table is the small census; the digits stay what they are."""

    class Opened:
        frame = small_census()

    table_rows.cache_clear()
    monkeypatch.setattr(hybrid_rows, "open_table", lambda name: Opened)
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    monkeypatch.setattr(tuning, "REACHES", (0.5, 4.0))  # fewer runs than the study makes
    monkeypatch.setattr(tuning, "MOST_MOVES", 0)
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
            for number, improvement in enumerate(line):
                server, both = SERVER[name][place][number], HYBRID[name][place][number]
                if improvement is None:
                    continue
                by_server, by_both = both / server - 1, 1 - server / both
                assert min(abs(improvement - by_server), abs(improvement - by_both)) < 0.005
                if abs(by_server - by_both) > 0.02:
                    over_server += abs(improvement - by_server) < abs(improvement - by_both)
                    over_hybrid += abs(improvement - by_server) > abs(improvement - by_both)
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
def test_fl_and_the_hybrid_differ_in_where_they_begin_and_in_nothing_else(case: HybridCase) -> None:
    for one, other in ((FL, BOTH), (STEPS, HYBRID_STEPS)):
        alone, both = (plan_of(way, cell(case, epsilon=0.5)).to_mapping() for way in (one, other))
        peers, *server = both["method"].pop("phases")
        assert peers["kind"] == "peers"
        assert server == alone["method"].pop("phases")
        assert both == alone


def test_printed_and_published_settings() -> None:
    assert [(printed(case).alpha, printed(case).delta) for case in CASES] == [(0.5, 9e-3), (0.5, 1e-2), (0.5, 3e-3)]
    assert [(published(case).alpha, published(case).delta) for case in CASES] == [(5, 1e-5), (5, 1e-5), (1, 1e-5)]


def test_rows_come_in_an_order_of_no_meaning_and_the_same_every_time(small_table: None) -> None:
    found = table_rows("dutch", 500)
    assert found.height == 500
    assert found.equals(table_rows("dutch", 500))
    assert not found.equals(small_census().head(500))
    assert table_rows("dutch").sort(pl.all()).equals(small_census().sort(pl.all()))


def test_baselines_leave_out_the_noise_and_nothing_else() -> None:
    noisy, bare = (plan_of(way, cell(epsilon=0.5 if way is FL else None)).to_mapping() for way in (FL, NO_DP_COLUMN))
    assert noisy["method"]["phases"][0].pop("dp")
    assert noisy == bare


def test_a_delta_above_the_bound_voids_every_claim(small_table: None) -> None:
    assert made(plan_of(FL, cell(epsilon=0.5, void=True))).void
    honest = made(plan_of(STEPS, cell(epsilon=0.5)))
    assert not honest.void
    assert len(honest.curve) == SMALL.steps.rounds


def test_noise_added_once_costs_less(small_table: None) -> None:
    once, often = (
        np.mean([made(plan_of(way, cell(epsilon=0.2), 2.0), seed).accuracy for seed in range(4)])
        for way in (ONCE, STEPS)
    )
    assert once > often


@pytest.mark.parametrize(("processes", "jobs"), [(1, 2), (3, 6)])
def test_plans_on_the_same_rows_share_them_and_nothing_else(
    small_table: None, monkeypatch: pytest.MonkeyPatch, processes: int, jobs: int
) -> None:
    plans = [plan_of(STEPS, cell(epsilon=0.2)), plan_of(NO_DP_COLUMN, cell()), plan_of(BOTH, cell(epsilon=0.2))]
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


def tuner() -> Tuned:
    return Tuned(Runs((0,), summarise=summarise, tables=ShuffledRows(), change=validation_rows))


def test_validation_rows_are_a_fifth_of_each_part_and_no_test_row(small_table: None) -> None:
    plan = plan_of(BOTH, cell(epsilon=0.5))
    whole = populate(plan, Streams.seeded(0), tables=ShuffledRows()(plan))
    held = validation_rows(whole, Streams.seeded(0))
    assert held.low is not None
    assert whole.low is not None
    assert np.allclose(held.low, 0.8 * whole.low, atol=1)
    assert np.allclose(np.diff(held.starts), 0.8 * np.diff(whole.starts), atol=2)
    assert held.frame.height + held.test.height == whole.frame.height
    together = pl.concat([held.frame, held.test])
    assert together.sort(together.columns).equals(whole.frame.sort(whole.frame.columns))
    assert len(held.test_sites) == held.test.height


class Landscape:
    """Stands in for runs: the accuracy of a plan follows from its settings; remembers what was asked for."""

    def __init__(self, best: HybridChoice) -> None:
        self.best, self.asked = best, set[str]()

    def prepare(self, plans: list[Plan]) -> None:
        self.asked |= {plan.digest() for plan in plans}

    def mean(self, plan: Plan) -> float:
        (phase,) = plan.config.phases
        clip = 1.0 if phase.dp is None else phase.dp.clip
        steps = 1.0 if phase.batch else phase.rounds / SMALL.steps.rounds
        found = np.log2([phase.lr * clip / self.best.reach, clip / self.best.clip, steps / self.best.steps])
        return 0.9 - float(np.abs(found) @ [0.01, 0.013 if phase.dp else 0.0, 0.007])


@pytest.mark.parametrize(
    "best", [HybridChoice(1.0), HybridChoice(16.0, 3.0, 4.0), HybridChoice(32.0, 0.1, 2.0), HybridChoice(1 / 16, 0.3)]
)
def test_tuning_climbs_past_the_reaches_it_begins_with(best: HybridChoice) -> None:
    runs, private = Landscape(best), cell(epsilon=1.0)
    tuned = Tuned(cast("Runs[RunSummary]", runs))
    tuned.tune([(STEPS, private), (FL, private), (NO_DP_COLUMN, cell())])
    assert tuned.chosen[STEPS.name, private] == best
    assert tuned.chosen[FL.name, private] == HybridChoice(best.reach, best.clip), "as many passes as in the paper"
    assert tuned.chosen[NO_DP_COLUMN.name, cell()] == HybridChoice(best.reach)
    few = len(runs.asked)
    assert few < 3 * len(GRID) / 2
    tuned.tune([(STEPS, replace(private, epsilon=0.5))])
    assert tuned.chosen[STEPS.name, replace(private, epsilon=0.5)] == best


def test_other_cells_begin_where_the_first_ended() -> None:
    runs = Landscape(HybridChoice(16.0, 3.0, 4.0))
    tuned, cells = Tuned(cast("Runs[RunSummary]", runs)), [cell(epsilon=epsilon) for epsilon in (1.0, 0.5, 0.2)]
    tuned.tune([(STEPS, cells[0])])
    alone = len(runs.asked)
    both = Landscape(HybridChoice(16.0, 3.0, 4.0))
    tuned = Tuned(cast("Runs[RunSummary]", both))
    tuned.tune([(STEPS, one) for one in cells])
    assert {tuned.chosen[STEPS.name, one] for one in cells} == {HybridChoice(16.0, 3.0, 4.0)}
    assert len(both.asked) - alone <= 2 * 6, "what was chosen and its neighbours"


def test_tuning_ends_inside_its_bounds() -> None:
    runs, private = Landscape(HybridChoice(1e9, 1e9, 1e9)), cell(epsilon=1.0)
    tuned = Tuned(cast("Runs[RunSummary]", runs))
    tuned.tune([(STEPS, private)])
    assert tuned.chosen[STEPS.name, private] == HybridChoice(tuning.LADDER[-1], 3.0, 4.0)


def test_every_column_is_tuned_by_the_same_procedure(small_table: None) -> None:
    tuned, private = tuner(), cell(epsilon=1.0)
    wanted = [(LOW_RISK, cell()), (STEPS, private), (HYBRID_STEPS, private)]
    tuned.tune(wanted)
    assert {name for name, _ in tuned.chosen} == {"low-risk only", "tuned server", "P2P, then tuned server", "P2P only"}
    for column, at in wanted:
        best = tuned.chosen[column.name, at]
        scores = tuned.score(column, at, [HybridChoice(reach) for reach in tuning.REACHES])
        assert tuned.score(column, at, [best])[0] >= max(scores)
    peers = tuned.plan(HYBRID_STEPS, private).config.phases[0]
    assert peers.lr == tuned.chosen[PEERS_ONLY.name, cell()].lr


def test_the_tables_of_one_setting(small_table: None) -> None:
    runs, tuned, setting = small_runs((0, 1)), tuner(), published(SMALL)
    epsilons = (SMALL.epsilons[0], SMALL.epsilons[-1])
    wanted = cells_of(SMALL, setting, (0.4,), epsilons, baselines=True)
    assert len(wanted) == 3 + 4 * 2
    tuned.tune(wanted)
    table = accuracy_table(runs, tuned, SMALL, setting, (0.4,), epsilons, baselines=True)
    lines: dict[str, dict[str, Any]] = {line["setting"]: line for line in table.to_mapping()["rows"]}
    assert len(lines) == 3 + 2 * 5
    fl, both = lines["40% low, epsilon 0.2: FL"], lines["40% low, epsilon 0.2: P2P+FL"]
    assert (fl["paper"], both["paper"]) == (0.632, 0.815)
    assert lines["40% low, epsilon 0.2: improvement over FL"]["ours"] == pytest.approx(both["ours"] / fl["ours"] - 1)
    assert lines["40% low: no DP"]["paper"] == 0.810
    assert "void" not in table.name
    said = conclusions(runs, tuned, SMALL, setting, (0.4,), epsilons)
    shrinks = next(row for row in said.rows if "shrinks" in row.setting)
    gains = [row.ours for row in said.rows if "gain of P2P+FL over FL" in row.setting]
    assert shrinks.ours == pytest.approx(gains[0] - gains[-1])
    assert shrinks.interval is not None
    assert ("holds" in shrinks.setting) == (shrinks.interval[0] > 0)


def test_the_tuned_server_stands_beside_a_grid_of_60(small_table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(GRID) == len(set(GRID)) == 60
    monkeypatch.setattr("kohort.studies.hybrid.tables.GRID", GRID[::15])
    tuned, at = tuner(), cell(epsilon=1.0)
    tuned.tune([(STEPS, at)])
    rows = grid_table(small_runs((0,)), tuned, at).rows
    assert [isinstance(row.ours, float) for row in rows] == [True, True, True]


def test_accountants() -> None:
    """Golden, by dp-accounting: PLD 1.17, RDP 1.28 for (8, 0.1, 600); PLD 1.82, added up 2.83 for both phases."""
    found: list[Any] = [row.ours for row in accounting().rows]
    assert found[:2] == pytest.approx([1.17, 1.28], abs=0.01)
    assert (found[2], found[4]) == pytest.approx((1.82, 2.83), abs=0.01)
    assert found[2] < found[3] < found[4]


def test_the_whole_study_on_a_small_table(small_table: None, tmp_path: Path) -> None:
    depth = replace(hybrid.QUICK, seeds=(0,), shares={"dutch": (0.4,)}, shifted=(), rows={}, grid=())
    said: list[str] = []
    found = hybrid.run_study(tmp_path, True, said.append, depth=depth, cases=(SMALL,))
    assert found["name"] == "hybrid"
    assert sorted([*found["figures"], RUNS_FILE]) == sorted(path.name for path in tmp_path.iterdir())
    assert {"figure-2-dutch.svg", "figure-3-published.svg"} == set(found["figures"])
    names = [table["name"] for table in found["tables"]]
    assert "Settings chosen on validation rows" in names
    assert any("conclusions" in name for name in names)
    for table in found["tables"]:
        assert all(set(line) >= {"setting", "paper", "ours", "sd", "delta"} for line in table["rows"])
    assert said
    again = hybrid.run_study(tmp_path, True, said.append, depth=depth, cases=(SMALL,), resume=True)
    assert again == found
    assert any("California" in note for note in found["notes"])


def test_the_quick_study_takes_few_regions_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the regions with most rows, so that every region has enough for its sites; the title names them."""

    class Opened:
        frame = pl.DataFrame({"ST": np.repeat(np.arange(20), np.arange(1, 21) * 50)}).with_columns(x=pl.col("ST") * 2)

    table_rows.cache_clear()
    monkeypatch.setattr(hybrid_rows, "open_table", lambda name: Opened)
    income = hybrid.QUICK.case(INCOME)
    plan = plan_of(FL, HybridCell(case=income, setting=published(income), low=0.4, epsilon=1.0))
    found = ShuffledRows({"acs_income": 2000}, hybrid.QUICK.regions)(plan)["rows"]
    table_rows.cache_clear()
    assert sorted(found["ST"].unique()) == list(range(10, 20))
    assert found.height == 2000
    assert income.title.startswith("Income (the 10 largest of 50 regions")
    assert income.title.endswith(", 40,000 rows drawn")
    assert hybrid.QUICK.case(DUTCH).title == "Dutch, 20,000 rows drawn"
    assert hybrid.FULL.case(DUTCH) is DUTCH
    assert hybrid.FULL.case(INCOME).title == f"{INCOME.title}, 320,000 rows drawn"


def test_the_study_is_registered() -> None:
    assert find_study("hybrid") is hybrid.STUDY


def test_the_example_states_the_budget_its_policy_allows() -> None:
    plan: Plan = read_plan(EXAMPLES / "hybrid.toml")
    (peers, server) = plan.config.phases
    assert (peers.kind, peers.dp, server.kind) == ("peers", None, "server")
    assert (server.dp.epsilon, server.dp.delta) == (0.5, 1e-5)
    assert plan.policy.epsilon == 0.5
    assert (plan.sites.clusters, plan.sites.count, plan.sites.low_risk) == (5, 15, 0.4)
