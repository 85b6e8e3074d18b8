"""The study of partially-federated learning: its plans, its arithmetic, and the whole of it on a small table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kohort.runs.config import Plan, load_plan, read_plan
from kohort.runs.run import run
from kohort.studies.partial import plans as partial_plans
from kohort.studies.partial import study as partial
from kohort.studies.partial.figures import complete_rows, gate_share, random_share
from kohort.studies.partial.paper import LARGEST, TIMES_EQUAL, TIMES_FASTER_HUB
from kohort.studies.partial.plans import (
    E2_WIDTH,
    PAPER,
    TUNED,
    UNREACHABLE,
    gate_for,
    paper_gate,
    release_plan,
    summarise_partial,
)
from kohort.studies.partial.times import MeasuredTimes, time_rows
from kohort.studies.registry import find_study
from kohort.tables.datasets.catalogue import open_table

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every plan of the study on 1,500 rows of Adult with ages in decades, over three sites."""
    path = tmp_path / "small.parquet"
    rows = open_table("adult:train").frame.drop_nulls().head(1500)
    rows.with_columns(pl.col("age") // 10 * 10).drop("fnlwgt", "education").write_parquet(path)

    def on_small_table(raw: Mapping[str, Any]) -> Plan:
        data = {**raw["data"]}
        if data["table"] == "adult:train":
            data |= {"table": str(path), "features": "rest", "drop": []}
        return load_plan({**raw, "data": data, "sites": {**raw["sites"], "count": 3}})

    monkeypatch.setattr(partial_plans, "load_plan", on_small_table)
    return path


def test_the_example_is_the_study_s_plan() -> None:
    made = release_plan(PAPER, "generalised", split="interval:age", rounds=60)
    assert read_plan(EXAMPLES / "partial.toml").digest() == made.digest()


@pytest.mark.parametrize(
    ("letter", "threshold", "asked"),
    [("k", 1, 1), ("k", 100, 70), ("k", 500, 350), ("k", 554, UNREACHABLE), ("k", 555, UNREACHABLE), ("l", 300, 210),
     ("l", 402, UNREACHABLE)],
)  # fmt: skip
def test_a_threshold_of_the_paper_is_seven_tenths_of_the_rows(letter: Any, threshold: int, asked: int) -> None:
    gate = gate_for(letter, threshold)
    assert gate[letter] == asked
    assert gate["rule"] == {"k": "k-anonymity", "l": "paper-l"}[letter]


def test_the_gate_shares_what_the_paper_s_thresholds_say() -> None:
    frame = complete_rows()
    assert frame.height == 30_162 == UNREACHABLE - 1  # Section 5.1: 32,561 rows less 2,399 with missing values
    # Section 5.4: nothing is shared from k = 554 and l = 402 on, in its sense of "more than".
    for letter, largest in LARGEST.items():
        assert gate_share(frame, letter, largest) * frame.height == pytest.approx(largest)
        assert gate_share(frame, letter, largest, strict=True) == 0
    # Counted on the 30,162 rows.
    shares = {100: 0.8085, 200: 0.6691, 300: 0.4784, 400: 0.3896, 500: 0.1385}
    assert {k: round(gate_share(frame, "k", k), 4) for k in shares} == shares
    diverse = {100: 0.7292, 200: 0.4539, 300: 0.2235}
    assert {threshold: round(gate_share(frame, "l", threshold), 4) for threshold in diverse} == diverse


def test_the_hidden_layer_is_as_wide_as_the_input() -> None:
    for encoding, width in (("label", 12), ("onehot", E2_WIDTH)):
        found = run(paper_gate(PAPER, "k", 1, rounds=1, encoding=encoding), seed=0)
        assert found.model.encoder.width == width
        assert found.plan.model.hidden == (width,)


def test_the_printed_tables_are_read_right() -> None:
    for equal, faster in ((TIMES_EQUAL[letter], TIMES_FASTER_HUB[letter]) for letter in ("k", "l")):
        for threshold, (server, client, transfer, total) in equal.items():
            assert server + client + transfer == pytest.approx(total, abs=0.02)
            assert faster[threshold][0] == pytest.approx(server / 10, abs=0.006)
            assert faster[threshold][1:3] == (client, transfer)
            assert sum(faster[threshold][:3]) == pytest.approx(faster[threshold][3], abs=0.02)


def test_no_rows_at_random_is_federated_averaging_exactly_and_all_of_them_is_another_model(small_table: Path) -> None:
    plan = paper_gate(TUNED, "l", LARGEST["l"], rounds=3)
    assert random_share(plan, 0, 4) == run(plan, seed=4).accuracy
    assert random_share(plan, 1050, 4) > 0.5
    assert random_share(plan, 500, 4) == random_share(plan, 500, 4)


def test_a_summary_counts_the_rows_that_were_sent(small_table: Path) -> None:
    outcome = run(paper_gate(PAPER, "k", 100, rounds=1), seed=0)
    found = summarise_partial(outcome)
    assert outcome.received is not None
    assert (found.rows, found.shared) == (1050, outcome.received.height)
    assert found.share == found.shared / 1050
    assert 0 < found.unique <= found.shared
    nothing = summarise_partial(run(paper_gate(PAPER, "k", 555, rounds=1), seed=0))
    assert (nothing.shared, nothing.unique, nothing.row_bytes) == (0, 0, 0)


def test_running_times_add_up() -> None:
    central = MeasuredTimes(server=10.0, client=0.0, rows=1.0, models=5.0)
    shared = MeasuredTimes(server=4.0, client=2.0, rows=0.5, models=6.0)
    assert shared.total(1) == 6.5
    assert shared.total(10) == 2.9
    rows = {row.setting: row for row in time_rows({("k", 1): central, ("k", 100): shared}, TIMES_FASTER_HUB, 10)}
    assert rows["k = 100: total"].ours == pytest.approx(2.9)
    assert rows["k = 100: total"].paper == 24.93
    assert rows["k = 100: total, central = 1"].ours == pytest.approx(2.9 / 2.0)
    assert rows["k = 100: total, central = 1"].paper == pytest.approx(24.93 / 13.39)
    assert rows["central: server"].delta == pytest.approx(1.0 - 12.60)


def _rows_of(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = next(table for table in result["tables"] if table["name"].startswith(name))["rows"]
    return found


def test_the_study_runs_from_end_to_end(tmp_path: Path, small_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = replace(
        partial.QUICK, seeds=(0,), rounds=3, ks=(1, 300, 555), ls=(1, 300, 402), tuned_ks=(1, 555), tuned_ls=(1, 402),
        component_ls=(1, 402), epochs=(1, 2), timed_ks=(1, 555), timed_ls=(200,),
        releases=(("interval:age", PAPER, (2, 3)), ("iid", TUNED, (3,))),
    )  # fmt: skip
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    out, said = tmp_path / "out", []
    out.mkdir()
    result = partial.run_study(out, True, said.append, depth=depth)
    assert find_study("partial").run is partial.run_study
    assert set(result) == {"name", "tables", "figures", "notes"}
    assert sorted(path.name for path in out.iterdir()) == sorted(result["figures"])
    assert {f"figure-{number}.svg" for number in range(3, 9)} | {"tables-1-2.svg"} == set(result["figures"])
    names = [table["name"] for table in result["tables"]]
    assert len(set(names)) == len(names)
    sources = {table["source"] for table in result["tables"]}
    assert {"Figure 3", "Figure 4", "Figure 5", "Figures 6 and 7", "Figure 8", "Table 1", "Table 2"} <= sources
    for table in result["tables"]:
        for line in table["rows"]:
            assert {"setting", "paper", "ours", "sd", "delta"} <= set(line)
            if line["delta"] is not None:
                assert line["delta"] == pytest.approx(line["ours"] - line["paper"])
    by_k, by_l, parts, checked, shipped, counted = (
        {line["setting"]: line["ours"] for line in _rows_of(result, name)}
        for name in ("Accuracy by k, paper's", "Accuracy by l, paper's", "The two components", "What the hub received",
                     "Generalised, raw", "Rows that pass by way of counting")
    )  # fmt: skip
    assert by_k["k = 1, 3 rounds"] == by_l["l = 1, 3 rounds"]
    assert by_k["k = 555, 3 rounds"] == by_l["l = 402, 3 rounds"]
    assert parts["l = 402: component 1"] == pytest.approx(by_k["k = 1, 3 rounds"] - by_k["k = 555, 3 rounds"])
    assert parts["l = 402: component 2"] == 0
    assert checked["k on every shipped column, sender and batch"] >= 10
    assert checked["l of income"] >= 2
    assert shipped["generalised: shipped rows unique on the shipped columns but the target"] == 0
    assert shipped["raw: shipped rows unique on the shipped columns but the target"] > 0.5
    assert counted["secure and global let the same rows through"] == "yes"
    assert any("Quick" in note for note in result["notes"])
    assert said
