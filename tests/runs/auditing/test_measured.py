"""Risk before and after is counted by hand; calibration and groups hold no small cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.runs.auditing.audit import audit_plan
from kohort.runs.auditing.measured import calibration_of, groups_of, risk_of
from kohort.runs.config import load_plan
from kohort.runs.simulation import Population
from kohort.tables.schema import Schema


def population(frame: pl.DataFrame, starts: list[int], *, test: pl.DataFrame | None = None) -> Population:
    schema = Schema.of(target="y", quasi=[name for name in frame.columns if name != "y"])
    names = tuple(f"s{place}" for place in range(len(starts) - 1))
    outside = frame.clear() if test is None else test
    return Population(schema=schema, frame=frame, names=names, starts=np.array(starts), test=outside, test_sites=None)


def test_the_risk_before_is_counted_within_each_site_and_after_among_rows_received() -> None:
    frame = pl.DataFrame({"age": [1, 1, 2, 1, 2, 2], "y": ["a"] * 6})
    found = risk_of(population(frame, [0, 3, 6]), None)
    # Site 0: ages 1, 1, 2; site 1: ages 1, 2, 2. One unique row in each, two classes in each.
    assert found["before"] == {"rows": 6, "largest": 1.0, "mean": pytest.approx(4 / 6), "unique": pytest.approx(2 / 6)}
    assert found["after"] is None
    sent = pl.DataFrame({"age": ["[1, 2]"] * 5, "sender": ["s0", "s0", "s0", "s1", "s1"]})
    after = risk_of(population(frame, [0, 3, 6]), sent)["after"]
    assert after == {"rows": 5, "largest": 0.5, "mean": pytest.approx(2 / 5), "unique": 0.0}


def test_without_quasi_identifiers_nothing_is_counted_and_that_is_said() -> None:
    frame = pl.DataFrame({"y": ["a", "b"]})
    found = risk_of(population(frame, [0, 2]), None)
    assert found["before"] is None
    assert "no quasi-identifiers" in found["why"]


class Judge:
    """A model of two classes that says what it is told to."""

    task = "classification"
    classes = ("no", "yes")

    def __init__(self, said: list[float]) -> None:
        self.said = np.array(said)

    @property
    def encoder(self) -> Any:
        return self

    def probabilities(self, x: Any) -> Any:
        del x
        return np.stack([1 - self.said, self.said], axis=1)


def test_calibration_is_the_distance_of_what_is_said_and_what_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.array([0, 0, 0, 1] * 50 + [1, 1, 1, 0] * 50)

    class Encoded:
        x, y = truth, truth

    monkeypatch.setattr("kohort.runs.auditing.measured.encode_test_rows", lambda *_: Encoded)
    said = [0.25] * 200 + [0.9] * 200
    found = calibration_of(Judge(said), pl.DataFrame({"y": truth}), least=40)  # type: ignore[arg-type]
    assert found is not None
    assert found["bins"] == [[pytest.approx(0.25), 0.25, 200], [pytest.approx(0.9), 0.75, 200]]
    assert found["gap"] == pytest.approx(0.075)
    assert calibration_of(Judge(said), pl.DataFrame({"y": truth}), least=60) is None  # type: ignore[arg-type]


def test_small_groups_are_neither_named_nor_told_by_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"common": 60, "second": 30, "third": 25, "rare": 3}
    test = pl.DataFrame({"ward": [name for name, size in sizes.items() for _ in range(size)]}).with_columns(
        y=pl.lit("a")
    )
    by = {name: {"rows": size, "accuracy": 0.5} for name, size in sizes.items()}
    monkeypatch.setattr("kohort.runs.auditing.measured.evaluate_groups", lambda *_: {"ward": by})
    (found,) = groups_of(Judge([]), test, population(test, [0, 118]), least=10)  # type: ignore[arg-type]
    assert [one["name"] for one in found["groups"]] == ["common", "second"]
    assert found["unnamed"] == 28
    (whole,) = groups_of(Judge([]), test.filter(pl.col("ward") != "rare"), population(test, [0, 118]), least=10)  # type: ignore[arg-type]
    assert "rare" not in str(whole)


def test_a_group_that_is_rare_among_training_rows_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    test = pl.DataFrame({"ward": ["a"] * 50 + ["b"] * 50 + ["c"] * 50, "y": ["a"] * 150})
    frame = pl.DataFrame({"ward": ["a"] * 50 + ["b"] * 50 + ["c"] * 2, "y": ["a"] * 102})
    by = {name: {"rows": 50, "accuracy": 0.5} for name in "abc"}
    monkeypatch.setattr("kohort.runs.auditing.measured.evaluate_groups", lambda *_: {"ward": by})
    (found,) = groups_of(Judge([]), test, population(frame, [0, 102]), least=10)  # type: ignore[arg-type]
    assert [one["name"] for one in found["groups"]] == ["a", "b"]


@pytest.mark.parametrize(("method", "rows_leave"), [("central", True), ("fedavg", False)])
def test_an_audit_tells_the_risk_of_what_left(method: str, rows_leave: bool) -> None:
    random = np.random.default_rng(0)
    count = 900
    table = pl.DataFrame(
        {
            "age": random.integers(20, 60, count),
            "sex": random.choice(["f", "m"], count),
            "y": random.choice(["no", "yes"], count),
        }
    )
    raw: dict[str, Any] = {
        "data": {"table": "memory", "target": "y", "quasi": ["age", "sex"]},
        "sites": {"count": 3},
        "train": {"rounds": 1, "batch": 0, "optimizer": "sgd"},
        "method": {"name": method},
        "policy": {"raw": True},
    }
    if method == "fedavg":
        raw["method"]["secure"] = {"sum": "masks"}
    found = audit_plan(load_plan(raw), shadows=0, tables={"memory": table}).to_mapping()
    assert found["risk"]["rows"] == 630
    assert 0 < found["risk"]["before"]["unique"] < 1
    assert (found["risk"]["after"] is not None) is rows_leave
    assert [one["column"] for one in found["groups"]] == ["sex"]
    if rows_leave:  # the same rows, of the same sites
        assert found["risk"]["after"] == found["risk"]["before"]
