"""Intervals equal a plain bootstrap written out, cover the truth as often as they say, and cost a run nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.evaluate.intervals import Blocks, Resampling
from kohort.evaluate.tables import evaluate_table
from kohort.evaluate.utility import classification, regression
from kohort.report.page import render
from kohort.runs.config import load_plan
from kohort.runs.run import run

RESAMPLES = 400


def resampling(seed: int = 0, **options: Any) -> Resampling:
    return Resampling(generator=np.random.default_rng(seed), **{"resamples": RESAMPLES, **options})


def drawn(seed: int, rows: int, classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    random = np.random.default_rng(seed)
    truth = random.integers(0, classes, rows)
    scores = random.normal(size=(rows, classes)).round(1)
    scores[np.arange(rows), truth] += 1.0
    return truth, scores.argmax(axis=1), scores


def slow_intervals(
    measure: Callable[[NDArray[np.int64]], dict[str, Any]], rows: int, seed: int
) -> dict[str, tuple[float, float]]:
    """The bootstrap as a textbook has it: draw row numbers, take the rows, measure, and look at the percentiles."""
    drawn_rows = np.random.default_rng(seed).integers(0, rows, size=(RESAMPLES, rows))
    measured = [measure(chosen) for chosen in drawn_rows]
    found = {}
    for name in measured[0]:
        values = [one[name] for one in measured if isinstance(one[name], float)]
        if values:
            low, high = np.quantile(values, [0.025, 0.975])
            found[name] = (low, high)
    return found


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 4))
def test_rates_equal_the_slow_bootstrap(seed: int, rows: int, classes: int) -> None:
    truth, found, scores = drawn(seed, rows, classes)
    ours = classification(truth, found, scores=scores, classes=classes, resampling=resampling(seed))
    slow = slow_intervals(
        lambda chosen: classification(truth[chosen], found[chosen], scores=None, classes=classes), rows, seed
    )
    for name in ("accuracy", "f1", "f1_macro", "precision", "recall", "specificity"):
        assert ours["intervals"][name] == pytest.approx(slow[name]), name


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_errors_equal_the_slow_bootstrap(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.normal(1e6, 3.0, rows)
    found = truth + random.normal(0, 1.0, rows)
    ours = regression(truth, found, resampling=resampling(seed))
    slow = slow_intervals(lambda chosen: regression(truth[chosen], found[chosen]), rows, seed)
    for name in ("rmse", "mae", "r2"):
        assert ours["intervals"][name] == pytest.approx(slow[name], rel=1e-6), name


@pytest.mark.parametrize("classes", [2, 3])
def test_the_area_s_interval_is_that_of_the_slow_bootstrap_to_first_order(classes: int) -> None:
    truth, found, scores = drawn(5, 300, classes)
    ours = classification(truth, found, scores=scores, classes=classes, resampling=resampling(5))
    slow = slow_intervals(
        lambda chosen: classification(truth[chosen], found[chosen], scores=scores[chosen], classes=classes), 300, 5
    )
    width = slow["auc"][1] - slow["auc"][0]
    assert ours["intervals"]["auc"] == pytest.approx(slow["auc"], abs=0.1 * width)


@pytest.mark.parametrize("blocks", [40, 5000])
def test_persons_are_drawn_with_all_of_their_rows(blocks: int) -> None:
    """Nine copies of a row are no more evidence than one, if they are about one person."""
    truth, found, scores = drawn(2, 150, 2)
    persons = np.repeat(np.arange(150), 9)

    def width(copies: int, who: NDArray[np.int64] | None) -> float:
        parts = [np.repeat(array, copies, axis=0) for array in (truth, found, scores)]
        again = resampling(1, blocks=blocks, persons=who)
        result = classification(parts[0], parts[1], scores=parts[2], classes=2, resampling=again)
        return float(np.ptp(result["intervals"]["accuracy"]))

    once = width(1, None)
    assert width(9, persons) == pytest.approx(once, rel=0.01 if blocks > 150 else 0.3)
    assert width(9, None) < 0.6 * once


def coverage(interval_of: Callable[[float, list[float]], list[float]]) -> float:
    """How often the true accuracy, 0.8, lies in the interval from 200 rows."""
    random = np.random.default_rng(3)
    hits = 0
    for seed in range(300):
        truth = np.zeros(200, dtype=np.int64)
        found = (random.uniform(size=200) > 0.8).astype(np.int64)
        result = classification(truth, found, scores=None, classes=2, resampling=resampling(seed, resamples=200))
        low, high = interval_of(result["accuracy"], result["intervals"]["accuracy"])
        hits += low <= 0.8 <= high
    return hits / 300


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    # 300 intervals that cover with 0.95 cover in 0.91 to 0.985 of the cases but for one time in a thousand.
    assert 0.91 <= coverage(lambda _, interval: interval) <= 0.985

    def half_as_wide(value: float, interval: list[float]) -> list[float]:
        return [value + (end - value) / 2 for end in interval]

    assert coverage(half_as_wide) < 0.8, "the test has to notice intervals that are too narrow"


def widths(rows: int, blocks: int, *, in_order: bool) -> float:
    truth, found, scores = drawn(1, rows, 2)
    order = np.argsort(truth == found, kind="stable") if in_order else np.arange(rows)
    result = classification(
        truth[order], found[order], scores=scores[order], classes=2, resampling=resampling(2, blocks=blocks)
    )
    low, high = result["intervals"]["accuracy"]
    return float(high - low)


@pytest.mark.parametrize("in_order", [False, True])
def test_blocks_of_rows_spread_as_rows_do(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = widths(4000, 4000, in_order=in_order)
    assert widths(4000, 500, in_order=in_order) == pytest.approx(plain, rel=0.2)
    if in_order:
        # Every block a sample of a sorted table in equal parts: a design that hides the spread.
        monkeypatch.setattr(Blocks, "__init__", _in_turns)
        assert widths(4000, 500, in_order=True) < 0.5 * plain, "the test has to notice blocks that are not random"


def _in_turns(self: Any, rows: int, given: Resampling) -> None:
    self.count = min(rows, given.blocks)
    self._of_row = np.arange(rows) % self.count


def test_what_no_resample_defines_has_no_interval() -> None:
    truth, found = np.zeros(30, dtype=np.int64), np.zeros(30, dtype=np.int64)
    scores = np.random.default_rng(0).normal(size=(30, 2))
    result = classification(truth, found, scores=scores, classes=2, resampling=resampling())
    assert result["intervals"]["auc"] is None
    assert result["intervals"]["accuracy"] == [1.0, 1.0]
    constant = regression(np.ones(5), np.ones(5), resampling=resampling())
    assert constant["intervals"]["r2"] == [0.0, 0.0]


def a_plan(**data: Any) -> Any:
    return load_plan(
        {
            "data": {"table": "t", "target": "y", "features": ["x", "group"], **data},
            "sites": {"count": 2},
            "train": {"rounds": 2},
            "policy": {"min_rows": 1},
        }
    )


def a_table(rows: int = 120) -> pl.DataFrame:
    random = np.random.default_rng(4)
    x = random.normal(size=rows)
    return pl.DataFrame({"x": x, "group": random.choice(["a", "b"], rows), "y": np.where(x > 0, "up", "down")})


def test_a_run_gives_intervals_for_all_rows_and_for_every_site() -> None:
    first = run(a_plan(), seed=1, tables={"": a_table()})
    assert first.metrics == run(a_plan(), seed=1, tables={"": a_table()}).metrics
    for measured in (first.metrics, *first.metrics["by_site"].values()):
        low, high = measured["intervals"]["accuracy"]
        assert low <= measured["accuracy"] <= high
    page = render([first.to_mapping()], title="intervals")
    low, high = first.metrics["intervals"]["accuracy"]
    assert f"{low:.3f}–{high:.3f}" in page  # noqa: RUF001 - the en dash of a range


def test_many_test_rows_or_many_sites_have_no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.runs.run.INTERVAL_SITES", 1)
    metrics = run(a_plan(), seed=1, tables={"": a_table()}).metrics
    assert "intervals" in metrics
    assert all("intervals" not in measured for measured in metrics["by_site"].values())
    monkeypatch.setattr("kohort.runs.run.INTERVAL_ROWS", 10)
    assert "intervals" not in run(a_plan(), seed=1, tables={"": a_table()}).metrics


def test_without_test_rows_nothing_is_measured_and_every_row_trains(
    tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    outcome = run(a_plan(test=0), seed=1, tables={"": a_table()}, out=tmp_path / "run")
    assert outcome.metrics == {}
    assert sum(outcome.site_rows.values()) == 120
    assert [set(point) for point in outcome.history] == [{"round"}] * 2
    with pytest.raises(ConfigError, match=r"no test rows.*data\.test"):
        _ = outcome.accuracy
    assert kohort_here("report", tmp_path / "run")[0] == 0
    assert "Not measured" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_groups_of_a_table() -> None:
    model = run(a_plan(test=0), seed=1, tables={"": a_table()}).model
    table = a_table().with_columns(pl.Series("band", [None, "x"] * 60), pl.int_range(120).alias("each"))
    found = evaluate_table(model, table, by="band")
    assert set(found.groups) == {"(missing)", "x"}
    assert sum(group["rows"] for group in found.groups.values()) == found.rows == 120
    part = evaluate_table(model, table.filter(pl.col("band") == "x"))
    assert found.groups["x"]["accuracy"] == part.metrics["accuracy"]
    with pytest.raises(DataError, match="120 values"):
        evaluate_table(model, table, by="each")
    with pytest.raises(DataError, match=r"no column 'bnd'.*'band'"):
        evaluate_table(model, table, by="bnd")
