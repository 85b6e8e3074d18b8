"""A plan that names no method gets an additive model, unless its keys say how a network is trained."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kohort import Federation
from kohort.errors import ConfigError
from kohort.runs.config import load_plan

DATA = {"table": "t.csv", "target": "y"}


@pytest.mark.parametrize(
    ("sections", "method"),
    [
        ({}, "additive"),
        ({"method": {"bins": 8}}, "additive"),
        ({"method": {"dp": {"epsilon": 1.0, "delta": 1e-6}}}, "additive"),
        ({"train": {"class_weights": {"a": 2.0}}}, "additive"),
        ({"model": {"kind": "additive"}}, "additive"),
        ({"train": {"lr": 0.1}}, "fedavg"),
        ({"model": {"kind": "mlp"}}, "fedavg"),
        ({"model": {"hidden": [4]}}, "fedavg"),
    ],
)
def test_keys_decide(sections: dict[str, Any], method: str) -> None:
    plan = load_plan({"data": DATA, **sections})
    assert plan.method == method
    assert any(note.startswith("Method: additive") for note in plan.notes) == (method == "additive")


def test_who_names_a_method_hears_no_reason() -> None:
    assert load_plan({"data": DATA, "method": {"name": "additive"}}).notes == ()


@pytest.mark.parametrize(("count", "scheme"), [(1, "none"), (2, "masks"), (3, "masks"), (500, "masks"), (501, "bfv")])
def test_the_sum_suits_the_number_of_sites(count: int, scheme: str) -> None:
    plan = load_plan({"data": DATA, "sites": {"count": count}})
    assert plan.config.secure.sum == scheme
    frame = pl.DataFrame({"x": range(30), "y": ["a", "b"] * 15})
    assert Federation(frame, target="y", sites=count).plan().config.secure.sum == scheme


def test_python_chooses_alike() -> None:
    federation = Federation(pl.DataFrame({"x": range(30), "y": ["a", "b"] * 15}), target="y", sites=3)
    assert federation.plan().method == "additive"
    assert federation.plan(rounds=5).config.totals == 5
    assert federation.plan(class_weights={"a": 2.0}).train.class_weights == {"a": 2.0}
    assert federation.plan(batch=8).method == "fedavg"
    assert federation.plan(model="logistic").method == "fedavg"


def test_a_short_budget_protects_persons_where_there_are_any() -> None:
    data = {"table": "t.csv", "target": "y", "features": ["x"]}
    for keys, unit in (({}, "row"), ({"identifiers": ["id"]}, "person"), ({"person": "id"}, "person")):
        plan = load_plan({"data": {**data, **keys}, "method": {"name": "additive", "dp": 1.0}})
        assert plan.config.dp.unit == unit


@pytest.mark.parametrize("method", ["trees", "silo", "hybrid"])
def test_a_budget_for_a_method_without_noise_is_refused_by_name(method: str) -> None:
    data = {"table": "t.csv", "target": "y", "quasi": ["x"]}
    with pytest.raises(ConfigError, match="has no privacy budget"):
        load_plan({"data": data, "method": {"name": method, "dp": 1.0}})


def test_a_budget_of_partial_is_for_kept_rows_in_a_sum() -> None:
    data = {"table": "t.csv", "target": "y", "quasi": ["x"]}
    with pytest.raises(ConfigError, match=r'Set method\.kept = "sum"'):
        load_plan({"data": data, "method": {"name": "partial", "dp": 1.0}})
    full = {"batch": 0, "optimizer": "sgd"}
    summed = {"name": "partial", "dp": 1.0, "kept": "sum"}
    with pytest.raises(ConfigError, match="one kept row would decide whether others are kept"):
        load_plan({"data": data, "method": summed, "train": full})
    gate = {"count": "local", "release_l": 1}
    plan = load_plan({"data": data, "method": {**summed, "gate": gate}, "train": full})
    assert plan.config.dp.epsilon == 1.0


def test_a_phase_takes_a_short_budget() -> None:
    data = {"table": "t.csv", "target": "y"}
    phases = [{"kind": "server", "rounds": 2, "dp": 1.0}]
    plan = load_plan({"data": data, "method": {"name": "hybrid", "phases": phases}})
    assert plan.config.phases[0].dp.epsilon == 1.0
