"""Released cells show no person's own value: interval ends on a public grid, dates by calendar, text not as lists."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.anonymiser import Anonymiser
from kohort.anonymity.relational.public_grid import grid_step
from kohort.tables.cells import Interval, parse_cell


def random_table(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    rows = int(random.integers(80, 200))
    scale = 10.0 ** random.integers(-3, 6)
    return pl.DataFrame(
        {
            "amount": random.lognormal(0, 1, rows) * scale,
            "place": random.normal(40, 7, rows),
            "age": random.integers(0, 95, rows),
            "town": random.choice(["a", "b", "c"], rows),
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_interval_ends_are_on_the_public_grid(seed: int) -> None:
    frame = random_table(seed)
    made = anonymise(frame, quasi=frame.columns, k=5)
    for name in ("amount", "place", "age"):
        values = frame[name].to_list()
        step = grid_step([float(value) for value in values], whole=frame[name].dtype.is_integer())
        cells = [parse_cell(text) for text in made.frame[name].unique().to_list()] if made.cells else []
        intervals = [cell for cell in cells if isinstance(cell, Interval)]
        assert intervals
        for cell in intervals:
            for end in (cell.low, cell.high):
                assert end / step == pytest.approx(round(end / step), abs=1e-6)
        if not frame[name].dtype.is_integer():
            ends = {end for cell in intervals for end in (cell.low, cell.high)}
            assert not ends & set(values), "an end of an interval is somebody's own value"
    covered = zip(made.frame["amount"].to_list(), frame["amount"].to_list(), strict=True)
    assert all(_covers(text, value) for text, value in covered)
    assert made.report.k >= 5


@pytest.mark.parametrize("target", [None, "ill"])
@pytest.mark.parametrize("way", [{"hierarchies": "intervals"}, {"algorithm": "lattice"}, {"algorithm": "thesis"}])
def test_labels_of_numbers_end_at_nobodys_own_value(way: dict, target: str | None) -> None:
    for seed in range(3):
        frame = random_table(seed)
        ill = np.random.default_rng(seed).choice(["no", "yes"], frame.height)
        frame = frame.with_columns(pl.Series("ill", ill))
        quasi = ["amount", "place", "age", "town"]
        made = anonymise(frame, quasi=quasi, target=target, k=5, **way)
        for name in ("amount", "place"):
            cells = [parse_cell(text) for text in made.frame[name].cast(pl.String).unique().to_list()]
            ends = {end for cell in cells if isinstance(cell, Interval) for end in (cell.low, cell.high)}
            assert not ends & set(frame[name].to_list()), "an end of an interval is somebody's own value"
        shown = zip(made.frame["amount"].cast(pl.String).to_list(), frame["amount"][made.kept].to_list(), strict=True)
        assert all(_covers(text, value) for text, value in shown if text[0] == "[")


def test_labels_keep_the_ends_they_name() -> None:
    whole = [*range(21, 40), *range(41, 59)]
    frame = pl.DataFrame({"age": whole, "pay": [value + 0.25 for value in whole]})
    made = anonymise(frame, quasi=["age", "pay"], k=5, levels={"age": 2, "pay": 2}, hierarchies="intervals").frame
    assert set(made["age"]) == {"[20, 29]", "[30, 39]", "[40, 49]", "[50, 59]"}
    assert set(made["pay"]) == {"[20, 30]", "[30, 40]", "[40, 50]", "[50, 60]"}


def _covers(text: str, value: float) -> bool:
    cell = parse_cell(text)
    return cell.low <= value <= cell.high if isinstance(cell, Interval) else float(text) == value


def test_dates_are_released_by_the_calendar_and_names_not_as_lists() -> None:
    random = np.random.default_rng(3)
    born = [date(1950, 1, 1) + timedelta(days=int(day)) for day in random.integers(0, 20_000, 300)]
    frame = pl.DataFrame({"born": born, "name": [f"person {number}" for number in range(300)], "sex": ["f", "m"] * 150})
    made = anonymise(frame, quasi=["born", "name", "sex"], k=10)
    assert measure(made.frame, quasi=["born", "name", "sex"]).k >= 10
    texts = made.frame["born"].unique().to_list()
    assert all(len(text) <= 7 and "{" not in text for text in texts)  # 2004-03, 2004-Q1, 2004, 2000s or *
    assert made.frame["name"].unique().to_list() == ["*"]
    assert made.report.suppressed_cells >= 300
    wide = anonymise(frame.drop("born"), quasi=["name", "sex"], k=10, max_set=1000)
    assert "*" not in wide.frame["name"].unique().to_list()


def test_the_fitted_rows_come_out_as_they_were_verified() -> None:
    """`fit(X).transform(X)` once reported k = 10 and returned rows of k = 1."""
    frame = random_table(4).to_pandas().set_index(pl.Series(range(1000, 1000 + random_table(4).height)).to_numpy())
    learner = Anonymiser(quasi=["amount", "place", "age", "town"], k=10)
    released = learner.fit_transform(frame)
    again = learner.transform(frame)
    assert released.equals(again)
    assert list(again.index) == list(frame.index)
    assert measure(again, quasi=list(frame.columns)).k >= 10
    assert learner.transformed_.verified
    other = learner.transform(random_table(5).to_pandas())
    assert not learner.transformed_.verified
    assert learner.transformed_.rows == len(other)
    assert learner.transformed_.outside == (other["age"] == "*").sum()
