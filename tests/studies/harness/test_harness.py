"""What all studies share: figures beside the paper's, runs made once, parallel jobs, and charts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.errors import ConfigError
from kohort.runs.config import Plan
from kohort.runs.run import Outcome
from kohort.studies.harness import runs as harness_runs
from kohort.studies.harness.charts import (
    curve_points,
    labelled_bars,
    line_chart,
    point,
    range_chart,
    scatter_plot,
    stacked_bars,
)
from kohort.studies.harness.found import Found, Part, ResultTable, confidence_interval
from kohort.studies.harness.parallel import in_parallel, process_count
from kohort.studies.harness.runs import Runs, RunSummary, Tables
from kohort.studies.harness.session import study_result
from kohort.studies.partial.plans import PAPER, paper_gate


def test_a_figure_beside_the_paper_s() -> None:
    assert Found("a", 0.75, 0.5).to_row() == {"setting": "a", "paper": 0.5, "ours": 0.75, "sd": None, "delta": 0.25}
    assert Found("a", 0.75).delta is None
    assert Found("a", "no", "yes").delta is None
    answer = Found("a", False, True)
    assert (answer.to_row()["ours"], answer.to_row()["paper"], answer.delta) == ("no", "yes", None)


def test_a_mean_over_seeds() -> None:
    row = Found.mean("a", [1.0, 2.0, 3.0], 1.0, interval=True).to_row()
    assert (row["ours"], row["sd"], row["delta"]) == (2.0, 1.0, 1.0)
    # Student's t for 2 degrees of freedom, 0.975: 4.302653.
    assert row["interval"] == pytest.approx([2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5])
    assert confidence_interval([1.0]) is None
    single = Found.mean("a", [1.0], interval=True)
    assert single.sd is None
    assert "interval" not in single.to_row()


def test_parts_become_one_object(tmp_path: Path) -> None:
    parts = [
        Part([ResultTable("one", "Table 1", [Found("a", 1)])], [tmp_path / "a.svg"], ["of the part"]),
        Part(notes=["of another"]),
    ]
    made = study_result("it", parts, ["of all"])
    assert list(made) == ["name", "tables", "figures", "notes"]
    assert made["tables"][0]["rows"][0]["setting"] == "a"
    assert made["figures"] == ["a.svg"]
    assert made["notes"] == ["of all", "of the part", "of another"]


def summary(accuracy: float) -> RunSummary:
    return RunSummary(
        accuracy=accuracy, curve=(0.1, accuracy), metrics={}, seconds={}, bytes={}, watt_hours=0.0, epsilon=None,
        void=False, facts={},
    )  # fmt: skip


def never(outcome: Outcome) -> RunSummary:
    raise AssertionError(f"no run of {outcome.plan.method} was asked for")


def test_every_run_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def pretend(plans: list[Plan], seed: int, tables: Tables | None, *_: object) -> list[RunSummary]:
        made.extend((plan.digest(), seed) for plan in plans)
        return [summary(seed / 10) for _ in plans]

    monkeypatch.setattr(harness_runs, "run_group", pretend)
    runs = Runs([1, 3], summarise=never)
    plans = [paper_gate(PAPER, letter, 1, rounds=2) for letter in ("k", "l")]
    runs.prepare([*plans, plans[0]])
    assert runs.accuracies(plans[0]) == [0.1, 0.3]
    assert runs.accuracies(plans[0], after=1) == [0.1, 0.1]
    assert runs.mean(plans[0]) == pytest.approx(0.2)
    assert runs.curve(plans[0]) == [0.1, pytest.approx(0.2)]
    assert runs.values(plans[0], lambda one: 2 * one.accuracy) == [0.2, 0.6]
    assert runs.found("a", plans[0], 0.1).delta == pytest.approx(0.1)
    assert runs.accuracies(plans[1], seeds=[3, 7]) == [0.3, 0.7]
    assert len(made) == len(set(made)) == 5


def test_processes_change_nothing() -> None:
    jobs = [(base, 3) for base in range(5)]
    assert list(in_parallel(pow, jobs, 2)) == list(in_parallel(pow, jobs, 1)) == [0, 1, 8, 27, 64]


@pytest.mark.parametrize("text", ["0", "two", "-1"])
def test_a_wrong_number_of_processes_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KOHORT_PROCESSES", text)
    with pytest.raises(ConfigError, match="KOHORT_PROCESSES"):
        process_count()


def test_charts_are_files_that_name_what_they_show(tmp_path: Path) -> None:
    points = [
        one
        for panel in ("one", "two")
        for name in ("a b", "c d")
        for one in [*curve_points(panel, name, [0.1, 0.2]), point(panel, name, 9, 0.4)]
    ]
    formats = {"one": ".0%", "two": "d"}
    bars = [{"panel": "equal", "bar": "k = 1", "part": part, "value": 2.0} for part in ("server", "slowest client")]
    ranges = [{"panel": "logistic", "bar": "FL", "low": 0.5, "high": 0.6}]
    made = {
        line_chart(tmp_path / "a.svg", title="by epoch", points=points, x="epoch", y="accuracy", dots=True): (
            "one", "two", "a b", "c d", "epoch", "accuracy",
        ),
        line_chart(tmp_path / "b.svg", title="by k", points=points, x="k", y_format=formats, log=True): (
            "by k", "one", "two", "40%",
        ),
        stacked_bars(tmp_path / "c.svg", title="t", rows=bars, bars=None, values="seconds", horizontal=True): (
            "k = 1", "slowest client", "seconds",
        ),
        stacked_bars(tmp_path / "d.svg", title="t", rows=bars, bars="cluster", values="rows"): ("k = 1", "cluster"),
        labelled_bars(tmp_path / "e.svg", title="by column", values={"age": 0.25}, x="association", top=0.3): (
            "age", "0.250", "by column",
        ),
        scatter_plot(tmp_path / "f.svg", title="loss", points=points, x="information loss", y="accuracy"): (
            "a b", "information loss",
        ),
        range_chart(tmp_path / "g.svg", title="ways", rows=ranges, x="macro F1"): ("FL", "macro F1"),
    }  # fmt: skip
    for path, words in made.items():
        text = path.read_text()
        assert text.startswith("<svg")
        assert [word for word in words if word not in text] == []
