"""Domains learned by a secure count: what enough persons share becomes known, what few have is nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import DataError, IntegrityError, RefusedError
from kohort.privacy.ledger.ledger import LEDGER_FILE
from kohort.rounds.domains.counted import _HEAD, _domain_of
from kohort.rounds.domains.names import LIMBS, NAME_BYTES, limbs, names_in
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import Domain
from kohort.tables.schema import Schema

RARE_WARD, RARE_CLASS, EXTREME = "ward-of-one-patient", "class-of-one-patient", 987_654_321.25
CANARIES = (RARE_WARD, RARE_CLASS, "987654321", "9.8765")
FEDAVG: dict[str, Any] = {"train": {"rounds": 3, "lr": 0.1}, "model": {"kind": "logistic"}}


def table(rows: int = 700) -> pl.DataFrame:
    """A table with a category, a class and a number that one person has."""
    random = np.random.default_rng(4)
    age, ward = random.integers(20, 80, rows), random.choice(["north", "south", "west"], rows)
    outcome = np.where(random.random(rows) < 1 / (1 + np.exp(-(age - 50) / 8)), "ill", "well").astype(object)
    ward = ward.astype(object)
    ward[3:9], outcome[13:19] = RARE_WARD, RARE_CLASS  # some of one patient's rows are test rows
    dose = random.normal(4.0, 1.5, rows).round(2)
    dose[23:29] = EXTREME
    person = [f"p{row // 10}" for row in range(rows)]
    return pl.DataFrame({"person": person, "age": age, "dose": dose, "ward": ward, "outcome": outcome})


def outcome(out: Path | None = None, frame: pl.DataFrame | None = None, **parts: Any) -> Outcome:
    method = parts.pop("method", {"name": "fedavg", "secure": {"sum": "masks"}})
    data = parts.pop("data", {})
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "outcome", "features": ["age", "dose", "ward"], "drop": ["person"],
                     "encoding": "onehot", "test": 0.2, **data},
            "sites": {"count": 4},
            **(FEDAVG if method["name"] == "fedavg" else {}),
            "policy": {"min_rows": 1, "pairs": "open", **parts.pop("policy", {})},
            "method": method,
            **parts,
        }
    )  # fmt: skip
    return run(plan, seed=3, out=out, tables={"": table() if frame is None else frame})


def small() -> dict[str, Any]:
    return {"data": {"table": "memory", "target": "y"}, "method": {"name": "fedavg", "secure": {"sum": "masks"}}}


def domain(found: Outcome) -> Domain:
    return found.model.encoder.domain


def test_what_one_person_has_is_in_no_file_of_a_run(tmp_path: Path, kohort_here: Any) -> None:
    found = outcome(tmp_path / "run")
    assert kohort_here("report", tmp_path / "run")[0] == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"model.json", "run.json", LEDGER_FILE, "report.html"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [canary for canary in CANARIES if canary.encode() in content], path.name
    assert "north" in (tmp_path / "run" / "model" / "model.json").read_text()  # the search finds what is there
    columns = domain(found).columns
    assert columns["ward"].categories == ("north", "south", "west", "other")
    assert columns["outcome"].categories == ("ill", "well")
    assert columns["age"].bounds == pytest.approx((20, 80), rel=0.1)
    low, high = columns["dose"].bounds or (0.0, 0.0)
    assert 0 <= low < 3 < 6 < high < 12
    assert found.accuracy > 0.6
    assert any("secure count" in note for note in found.notes)
    assert any("rows with a class of outcome" in note for note in found.notes)
    assert "domain" not in {item.kind for item in found.disclosed}


def test_in_clear_the_same_search_finds_them(tmp_path: Path) -> None:
    """The search must be able to fail: without a secure sum, domains are described, and every canary is written."""
    found = outcome(tmp_path / "run", method={"name": "fedavg"})
    content = (tmp_path / "run" / "model" / "model.json").read_text()
    assert RARE_WARD in content
    assert RARE_CLASS in content
    assert domain(found).columns["dose"].bounds == (pytest.approx(-1, abs=2), EXTREME)


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
def test_every_scheme_learns_the_same_domain(scheme: str) -> None:
    masked = domain(outcome())
    assert domain(outcome(method={"name": "oneshot", "secure": {"sum": scheme}})) == masked


def test_persons_are_counted_not_rows() -> None:
    row = pl.int_range(pl.len())
    busy = row < 400  # 400 rows of 5 persons; all other rows are about a person of their own
    frame = table().with_columns(
        ward=pl.when(busy).then(pl.lit("busy")).otherwise("ward"), person=pl.when(busy).then(row // 80).otherwise(row)
    )
    by_rows = outcome(frame=frame, policy={"min_cell": 20})
    assert "busy" in (domain(by_rows).columns["ward"].categories or ())
    data = {"drop": ["dose"], "identifiers": ["person"], "features": ["age", "ward"], "bounds": {"age": (0, 99)},
            "categories": {"outcome": ["ill", "well", RARE_CLASS]}}  # fmt: skip
    by_persons = outcome(frame=frame, policy={"min_cell": 20}, data=data)
    found = domain(by_persons).columns["ward"].categories or ()
    assert "north" in found
    assert "busy" not in found


def test_declared_columns_keep_what_is_declared() -> None:
    found = domain(
        outcome(data={"categories": {"ward": ["west", "north"]}, "other": ["ward"], "bounds": {"age": (0, 99)}})
    )
    assert found.columns["ward"].categories == ("west", "north", "other")
    assert found.columns["age"].bounds == (0, 99)
    assert found.learned == ("dose", "outcome")


def test_missing_values_and_item_sets_have_a_place() -> None:
    codes = pl.Series("codes", ["a;b", "b", None, "c"] * 175)
    frame = table().with_columns(codes, dose=pl.when(pl.col("age") > 78).then(None).otherwise("dose"))
    found = outcome(frame=frame, data={"missing": "category", "items": ["codes"]})
    columns = domain(found).columns
    assert columns["codes"].categories == ("a", "b", "c", "other")
    assert columns["dose"].missing
    assert columns["ward"].missing
    assert not columns["outcome"].missing


@pytest.mark.parametrize(("classes", "task"), [(3, "classification"), (500, "regression")])
def test_an_integer_target_is_classes_or_a_number(classes: int, task: str) -> None:
    frame = table().with_columns(outcome=pl.Series(np.arange(700) % classes))
    encoder = outcome(frame=frame, model={"kind": "logistic" if classes == 3 else "linear"}).model.encoder
    assert encoder.task == task
    assert encoder.classes == (("0", "1", "2") if classes == 3 else None)


def test_a_numeric_target_is_clipped() -> None:
    frame = table().with_columns(outcome=pl.col("dose") * 2.5)
    found = outcome(frame=frame, model={"kind": "linear"})
    low, high = domain(found).columns["outcome"].bounds or (0.0, 0.0)
    assert high < 30
    values = found.model.encoder.target(frame)
    assert values.max() == pytest.approx(high)
    assert values.min() == pytest.approx(low)


def test_two_sites_are_too_few_to_learn_a_domain() -> None:
    with pytest.raises(RefusedError, match="needs three sites, and 2 take part"):
        outcome(sites={"count": 2})


def test_a_column_that_hardly_anybody_has_is_named() -> None:
    frame = table().with_columns(dose=pl.when(pl.int_range(pl.len()) < 5).then("dose"))
    with pytest.raises(DataError, match="fewer than 10 persons have a value in dose"):
        outcome(frame=frame, data={"missing": "category"})


def test_sites_that_read_a_column_differently_are_told() -> None:
    approved = approved_plan_for(load_plan(small()), schema=Schema.of(target="y", features=["x"]), run="00")
    keys = [_HEAD.pack(b"k", 0) + kind for kind in (b"number", b"category")]
    with pytest.raises(DataError, match="sites disagree whether column 'x' is a number or a category"):
        _domain_of(approved, keys)


def test_names_travel_in_limbs() -> None:
    keys = [b"", b"x", "größe".encode(), bytes(range(NAME_BYTES))]
    for holders in (1, 2, 7):
        rows = limbs(keys).tolist()
        total = np.asarray([[holders, *(holders * limb % (2**61 - 1) for limb in row), 5] for row in rows])
        assert names_in(total.astype(np.uint64).reshape(-1), 7) == keys
    mixed = np.asarray([2, *limbs([b"one", b"other"]).sum(axis=0).tolist(), 0], dtype=np.uint64)
    with pytest.raises(IntegrityError, match="cannot be read"):
        names_in(mixed + np.asarray([0, 1, *[0] * LIMBS], dtype=np.uint64), 7)
    with pytest.raises(IntegrityError, match="cannot be read"):
        names_in(np.zeros(2 + LIMBS, dtype=np.uint64), 7)


def test_a_counted_domain_reads_back(tmp_path: Path) -> None:
    found = outcome(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    text = json.dumps(stored)
    assert '"counted": true' in text
    assert Domain.from_mapping(domain(found).to_mapping()) == domain(found)


def test_under_a_budget_what_one_person_has_is_in_no_file_and_rows_outside_take_no_part(
    tmp_path: Path, kohort_here: Any
) -> None:
    """Declared domains, masks and epsilon 1: a ward, a class and a dose of one patient leave no trace."""
    found = outcome(
        tmp_path / "run",
        method={"name": "fedavg", "secure": {"sum": "masks"}, "dp": {"epsilon": 1.0, "delta": 1e-5}},
        train={"rounds": 3, "lr": 0.1, "batch": 0, "optimizer": "sgd"},
        data={
            "categories": {"ward": ["north", "south", "west"], "outcome": ["ill", "well"]},
            "other": ["ward"],
            "bounds": {"age": [0, 120], "dose": [-5, 20]},
        },
    )
    assert kohort_here("report", tmp_path / "run")[0] == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        assert not [canary for canary in CANARIES if canary.encode() in content], path.name
    assert any("outside the declared categories and took no part" in note for note in found.notes)
    assert found.refused == {}
    assert found.dropped == {}
