"""A phase that no sum can carry is refused by whoever derives the contract: also by a site whose hub does not ask."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.tables.schema import Schema

SITES = ("a", "b", "c")
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def plan(method: dict[str, Any], train: dict[str, Any] | None = None) -> Plan:
    data = {"table": "memory", "target": "y", "bounds": {"x": [-1, 1]}, "categories": {"y": ["a", "b"]}}
    return load_plan(
        {"data": data, "sites": {"low_risk": 0.5, "clusters": 2}, "method": method, "train": train or {}}
        if method["name"] == "hybrid"
        else {"data": data, "method": method, "train": train or {}}
    )


def server(**dp: Any) -> dict[str, Any]:
    phase = {"kind": "server", "dp": {**BUDGET, **dp}, "rounds": 3, "batch": 0, "lr": 0.1, "optimizer": "sgd"}
    return {"name": "hybrid", "phases": [phase], "secure": {"sum": "masks"}}


def fedavg(**dp: Any) -> dict[str, Any]:
    return {"name": "fedavg", "dp": {**BUDGET, **dp}, "secure": {"sum": "masks"}}


@pytest.mark.parametrize(
    ("method", "train", "named"),
    [
        # The account would speak of sampled batches, and a sum takes every row.
        (fedavg(), {"batch": 32}, "full step"),
        ({**server(), "phases": [{**server()["phases"][0], "batch": 32}]}, None, "full step"),
        # Two updates of norm `clip` differ by twice that, and shares of the noise are for one clip.
        (fedavg(mechanism="after"), None, "each site's own"),
        (server(mechanism="after"), None, "each site's own"),
        (fedavg(mechanism="ftrl"), None, "correlated"),
        (server(quantile=0.5), None, "dp.normalise"),
    ],
)
def test_a_sum_that_the_account_does_not_speak_of_is_in_no_contract(
    method: dict[str, Any], train: dict[str, Any] | None, named: str
) -> None:
    asked = plan(method, train)
    with pytest.raises(ConfigError) as caught:
        approved_plan_for(asked, schema=Schema(), run="run", sites=SITES)
    assert named in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("method", [fedavg(), fedavg(normalise=True), server(), fedavg(mechanism="hub", unit="site")])
def test_what_a_sum_carries_has_a_contract(method: dict[str, Any]) -> None:
    approved = approved_plan_for(plan(method), schema=Schema(), run="run", sites=SITES)
    assert any(step.task == "sum.updates" for step in approved.contract)
