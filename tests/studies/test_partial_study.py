"""The study of partially-federated learning: its plans, its arithmetic, and the whole of it on a small table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.runs.config import Plan, load_plan, read_plan
from kohort.runs.run import run
from kohort.studies.harness.lines import interval_of, row, row_of
from kohort.studies.harness.side_by_side import processes_here, spread
from kohort.studies.partial import runs as partial_runs
from kohort.studies.partial import study as partial
from kohort.studies.partial.charts import draw_lines, draw_seconds
from kohort.studies.partial.figures import _share, complete_rows
from kohort.studies.partial.paper import LARGEST, TIMES_EQUAL, TIMES_FASTER_HUB
from kohort.studies.partial.release import release_plan
from kohort.studies.partial.runs import E2_WIDTH, NOBODY, PAPER, TUNED, Found, Runs, gate_for, paper_gate, random_share
from kohort.studies.partial.times import Measured, _rows
from kohort.studies.registry import find_study
from kohort.tables.datasets.catalogue import open_table

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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

    monkeypatch.setattr(partial_runs, "load_plan", on_small_table)
    return path


def test_the_example_is_the_study_s_plan() -> None:
    made = release_plan(PAPER, "generalised", split="interval:age", rounds=60)
    assert read_plan(EXAMPLES / "partial.toml").digest() == made.digest()


@pytest.mark.parametrize(
    ("letter", "threshold", "asked"),
    [("k", 1, 1), ("k", 100, 70), ("k", 500, 350), ("k", 554, NOBODY), ("k", 555, NOBODY), ("l", 300, 210),
     ("l", 402, NOBODY)],
)  # fmt: skip
def test_a_threshold_of_the_paper_is_seven_tenths_of_the_rows(letter: Any, threshold: int, asked: int) -> None:
    gate = gate_for(letter, threshold)
    assert gate[letter] == asked
    assert gate["rule"] == {"k": "k-anonymity", "l": "paper-l"}[letter]


def test_the_gate_shares_what_the_paper_s_thresholds_say() -> None:
    frame = complete_rows()
    assert frame.height == 30_162 == NOBODY - 1  # Section 5.1: 32,561 rows less 2,399 with missing values
    # Section 5.4: nothing is shared from k = 554 and l = 402 on, in its sense of "more than".
    for letter, largest in LARGEST.items():
        assert _share(frame, letter, largest) * frame.height == pytest.approx(largest)
        assert _share(frame, letter, largest, strict=True) == 0
    # Counted on the 30,162 rows.
    shares = {100: 0.8085, 200: 0.6691, 300: 0.4784, 400: 0.3896, 500: 0.1385}
    assert {k: round(_share(frame, "k", k), 4) for k in shares} == shares
    diverse = {100: 0.7292, 200: 0.4539, 300: 0.2235}
    assert {threshold: round(_share(frame, "l", threshold), 4) for threshold in diverse} == diverse


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


def test_lines_of_tables() -> None:
    assert row("a", 0.5, 0.75) == {"setting": "a", "paper": 0.5, "ours": 0.75, "sd": None, "delta": 0.25}
    assert row("a", "yes", "no")["delta"] is None
    assert row("a", None, 0.75)["delta"] is None
    line = row_of("a", 1.0, [1.0, 2.0, 3.0], interval=True)
    assert (line["ours"], line["sd"], line["delta"]) == (2.0, 1.0, 1.0)
    # Student's t for 2 degrees of freedom, 0.975: 4.302653.
    assert line["interval"] == pytest.approx([2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5])
    assert interval_of([1.0]) is None
    assert row_of("a", None, [1.0])["sd"] is None


def test_every_run_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def pretend(plan: Plan, seed: int) -> Found:
        made.append((plan.digest(), seed))
        return Found(accuracy=seed / 10, curve=(0.1, seed / 10), rows=10, shared=4, unique=1, row_bytes=0,
                     seconds={}, plan=plan)  # fmt: skip

    monkeypatch.setattr(partial_runs, "_made", pretend)
    runs = Runs([1, 3])
    plans = [paper_gate(PAPER, letter, 1, rounds=2) for letter in ("k", "l")]
    runs.prepare([*plans, plans[0]])
    assert runs.accuracies(plans[0]) == [0.1, 0.3]
    assert runs.curve(plans[0]) == [0.1, pytest.approx(0.2)]
    assert runs.of(plans[1], seeds=[3, 7])[1].accuracy == 0.7
    assert runs.of(plans[1])[0].share == 0.4
    assert len(made) == len(set(made)) == 5


def test_processes_change_nothing() -> None:
    jobs = [(base, 3) for base in range(5)]
    assert spread(pow, jobs, 2) == spread(pow, jobs, 1) == [0, 1, 8, 27, 64]


@pytest.mark.parametrize("text", ["0", "two", "-1"])
def test_a_wrong_number_of_processes_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KOHORT_PROCESSES", text)
    with pytest.raises(ConfigError, match="KOHORT_PROCESSES"):
        processes_here()


def test_running_times_add_up() -> None:
    central = Measured(server=10.0, client=0.0, rows=1.0, models=5.0)
    shared = Measured(server=4.0, client=2.0, rows=0.5, models=6.0)
    assert shared.total(1) == 6.5
    assert shared.total(10) == 2.9
    lines = {line["setting"]: line for line in _rows({("k", 1): central, ("k", 100): shared}, TIMES_FASTER_HUB, 10)}
    assert lines["k = 100: total"]["ours"] == pytest.approx(2.9)
    assert lines["k = 100: total"]["paper"] == 24.93
    assert lines["k = 100: total, central = 1"]["ours"] == pytest.approx(2.9 / 2.0)
    assert lines["k = 100: total, central = 1"]["paper"] == pytest.approx(24.93 / 13.39)
    assert lines["central: server"]["delta"] == pytest.approx(1.0 - 12.60)


def test_charts_are_files_that_name_what_they_show(tmp_path: Path) -> None:
    rows = [{"panel": panel, "series": name, "x": x, "y": x / 9} for panel in ("one", "two") for name in ("a b", "c d")
            for x in (1, 2)]  # fmt: skip
    lines = draw_lines(tmp_path / "lines.svg", title="by epoch", rows=rows, x="epoch", y="accuracy", dots=True)
    bars = [{"panel": "equal", "setting": "k = 1", "server": 1.0, "slowest client": 2.0, "transfer": 3.0}]
    seconds = draw_seconds(tmp_path / "bars.svg", title="seconds here", rows=bars)
    for path, words in ((lines, ("one", "two", "a b", "c d", "epoch")), (seconds, ("k = 1", "slowest client"))):
        text = path.read_text()
        assert text.startswith("<svg")
        assert all(word in text for word in words)


def _rows_of(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = next(table for table in result["tables"] if table["name"].startswith(name))["rows"]
    return found


def test_the_study_runs_from_end_to_end(tmp_path: Path, small_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = replace(
        partial.QUICK, seeds=(0, 1), rounds=3, ks=(1, 300, 555), tuned_ks=(1, 555), epochs=(1, 2), timed_ks=(1, 555),
        timed_ls=(200,), releases=(("interval:age", PAPER, (2, 3)), ("iid", TUNED, (3,))),
    )  # fmt: skip
    monkeypatch.setattr(partial, "QUICK", depth)
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    out, said = tmp_path / "out", []
    out.mkdir()
    result = find_study("partial").run(out, True, said.append)
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
                     "Generalised, raw", "Who counts")
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
