"""Settings on one chart: figures from the runs themselves, labels from the comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_report_page import Reader
from tests.support.run_reports import disclosure, finished

from kohort.errors import IntegrityError
from kohort.report.page import render
from kohort.report.trade_off import label_offsets, points_of, read_settings, trade_off_chart


def run_of(name: str, accuracy: float, lead: float, **changes: Any) -> dict[str, Any]:
    found = [
        {"attack": "membership: loss threshold", "family": "membership", "on": "the model", "by": "anyone",
         "success": 0.5 + lead, "guess": 0.5, "verdict": "", "interval": [0.48 + lead, 0.52 + lead]},
        {"attack": "attribute", "family": "attribute", "on": "rows", "by": "hub", "success": 0.5, "guess": 0.5,
         "verdict": ""},
    ]  # fmt: skip
    made = finished(name=name, attacks=found, **changes)
    made["metrics"]["accuracy"] = accuracy
    return made


SETTINGS = [
    {"label": "silo, k = 5", "protection": "k", "folders": ["run-1", "run-2"]},
    {"label": "fedavg, masks", "protection": "masks", "folders": ["run-3"]},
    {"label": "lost", "protection": "l", "folders": ["run-9"]},
]
SUMS = disclosure("secure-sum", "secure-sum(sites=10, threshold=7)", size=1_000)
RUNS = [run_of("run-1", 0.7, 0.1), run_of("run-2", 0.8, 0.2), run_of("run-3", 0.85, 0.0, disclosed=[SUMS])]


def test_points_are_means_over_seeds_with_intervals_and_the_front_is_marked() -> None:
    first, second = points_of(SETTINGS, RUNS)
    assert first.score == pytest.approx(0.75)
    assert first.low < 0.7
    assert first.attack == pytest.approx(0.15)
    assert first.protection == "k-anonymity"
    assert second.readable == 100
    assert (first.on_front, second.on_front) == (False, True)


def test_the_chart_and_its_table_are_on_the_page_and_name_the_front() -> None:
    page = render(RUNS, title="x", settings=SETTINGS)
    text = Reader(page).text
    for expected in ("Settings compared", "silo, k = 5", "k-anonymity", "masks", "best attack above a guess"):
        assert expected in text
    assert "On the front: fedavg, masks" in page
    assert "Settings compared" not in Reader(render(RUNS, title="x")).text
    assert trade_off_chart([], score="accuracy", attack="") is None


def test_runs_of_a_comparison_are_called_by_their_setting_and_judged_once() -> None:
    page = render(RUNS, title="x", settings=SETTINGS)
    first = page[: page.index('id="settings"')]
    assert "silo, k = 5, run 1" in first
    assert "fedavg, masks" in first
    assert "silo, k = 5, run 2" not in first
    assert "One run of each setting" in first
    assert "silo, k = 5, run 2" in page
    assert "run-2" not in page
    lost = [{"method": "silo", "name": "run-1", "error": "too few rows"}, *RUNS[1:]]
    assert "silo, k = 5, run 2" in render(lost, title="x", settings=SETTINGS).split('id="settings"')[0]
    assert "run-1" in render(RUNS, title="x")


def test_a_comparison_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == []
    line = {"set": {"method": "silo", "protection": "k = 5"}, "protection": "k", "runs": [1]}
    (tmp_path / "compare.json").write_text(json.dumps({"folders": ["a", "b"], "settings": [line]}))
    assert read_settings(tmp_path) == [{"label": "silo, k = 5", "protection": "k", "folders": ["b"]}]
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(IntegrityError, match="not a comparison"):
        read_settings(tmp_path)


def test_numbers_of_near_dots_stand_below_each_other_in_the_order_of_their_scores() -> None:
    rows = [
        {"score": score, "low": 0.7, "high": 0.9, "on_front": front, "attack": attack, "readable": readable}
        for score, front, attack, readable in (
            (0.852, True, 0.0, 1e3),
            (0.853, True, 0.0, 1e6),
            (0.851, False, 0.0, 1e3),
            (0.854, True, 0.1, 1e3),
        )
    ]
    beside = label_offsets(rows, "attack", width=400)
    tall = 340 / 0.2
    first, second = (-rows[place]["score"] * tall + beside[place] for place in (1, 0))
    assert second - first == pytest.approx(11)  # the second dot's number is below the first's, and does not cover it
    assert beside[1:] == [0.0, 0.0, 0.0]
    assert label_offsets(rows, "readable", width=400)[1] == 0.0  # far from the others by bytes
