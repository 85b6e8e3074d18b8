"""One rule for private training where a plan leaves it open."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort import Federation
from kohort.protocol.plan.phases import DPSection
from kohort.protocol.plan.sections import TrainSection
from kohort.rounds.private_defaults import lowered_rate
from kohort.runs.config import Plan, load_plan


def made(method: dict[str, Any], **sections: Any) -> Plan:
    return load_plan({"data": {"table": "t", "target": "y"}, "method": method, **sections})


BUDGET = {"epsilon": 1.0}
MASKED = {"name": "fedavg", "dp": BUDGET, "secure": {"sum": "masks"}}


def test_a_budget_alone_sets_full_steps_with_momentum_and_an_average() -> None:
    plan = made(MASKED, model={"kind": "logistic"})
    train, dp = plan.train, plan.config.dp
    assert (train.batch, train.local_epochs, train.optimizer, train.rounds, train.lr) == (0, 1, "momentum", 60, 8.0)
    assert (dp.average, dp.lower_rate, dp.clip) == (0.5, True, 1.0)
    assert made(MASKED, model={"kind": "mlp"}).train.lr == 4.0


def test_without_a_sum_the_hub_adds_the_momentum() -> None:
    train = made({"name": "fedavg", "dp": BUDGET}, model={"kind": "logistic"}).train
    assert (train.batch, train.optimizer, train.hub) == (0, "sgd", "momentum")


def test_what_a_plan_gives_stays() -> None:
    plan = made(MASKED, train={"rounds": 7, "lr": 0.5})
    assert (plan.train.rounds, plan.train.lr, plan.config.dp.lower_rate) == (7, 0.5, False)
    untouched = made({"name": "fedavg", "dp": BUDGET}, train={"batch": 64, "optimizer": "adam"})
    assert (untouched.train.rounds, untouched.train.lr, untouched.config.dp.average) == (100, 0.001, None)
    assert made({"name": "fedavg"}, train={"rounds": 3}).train == TrainSection(rounds=3)


@pytest.mark.parametrize("method", [MASKED, {"name": "hybrid"}])
def test_a_plan_that_is_spelt_out_is_the_same_plan(method: dict[str, Any]) -> None:
    """Sites read the plan with every default written."""
    plan = made(method)
    again = load_plan(plan.to_mapping(), complete=True)
    assert again.digest() == plan.digest()
    assert again.train == plan.train
    assert again.config == plan.config


def test_phases_of_a_hybrid_take_the_rule_where_they_say_nothing() -> None:
    peers, server = made({"name": "hybrid"}).config.phases
    assert (peers.rounds, peers.lr) == (None, None)
    assert (server.rounds, server.batch, server.optimizer, server.dp.lower_rate) == (60, 0, "sgd", True)
    own = made({"name": "hybrid", "phases": [{"kind": "server", "batch": 16, "lr": 0.1, "dp": BUDGET}]})
    assert own.config.phases[0].optimizer is None


PHASES = {"name": "hybrid", "phases": [{"kind": "server", "dp": BUDGET}]}


@pytest.mark.parametrize("method", [MASKED, PHASES])
def test_a_share_of_averaged_rounds_that_the_training_section_gives_stays(method: dict[str, Any]) -> None:
    config = made(method, train={"average": 0.25}).config
    budget = config.phases[0].dp if method is PHASES else config.dp
    assert budget.average is None  # what `train.average` says holds


def test_a_rate_that_is_not_to_be_lowered_stays_as_it_is() -> None:
    own = {**BUDGET, "lower_rate": False}
    assert made({**MASKED, "dp": own}).config.dp.lower_rate is False
    phases = made({"name": "hybrid", "phases": [{"kind": "server", "dp": own}, {"kind": "server", "dp": BUDGET}]})
    assert [phase.dp.lower_rate for phase in phases.config.phases] == [False, True]
    assert load_plan(phases.to_mapping(), complete=True).digest() == phases.digest()


def test_the_rate_falls_with_the_noise_and_has_a_limit() -> None:
    train, dp = TrainSection(lr=8.0), DPSection(lower_rate=True)
    common: dict[str, Any] = {"steps": 100, "parameters": 25}
    assert lowered_rate(train, dp, rows=2000, sigma=100.0, **common) == pytest.approx(2.0)
    assert lowered_rate(train, dp, rows=2000, sigma=50.0, **common) == pytest.approx(4.0)
    assert lowered_rate(train, dp, rows=1e9, sigma=100.0, **common) == 8.0
    assert lowered_rate(train, dp, rows=2000, sigma=100.0, rate=0.5, **common) == pytest.approx(1.0)
    assert lowered_rate(train, DPSection(), rows=1, sigma=100.0, **common) == 8.0


def frame(rows: int = 3000) -> pl.DataFrame:
    random = np.random.default_rng(2)
    x = random.uniform(-1, 1, (rows, 3))
    y = np.where(x @ np.array([2.0, -1.0, 0.5]) + random.normal(0, 0.3, rows) > 0, "a", "b")
    return pl.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "x3": x[:, 2], "y": y})


@pytest.mark.parametrize("secure", [{}, {"secure": None}])
def test_a_number_is_a_budget_and_a_small_one_still_learns(secure: dict[str, Any]) -> None:
    declared = {"bounds": dict.fromkeys(("x1", "x2", "x3"), (-1, 1)), "categories": {"y": ["a", "b"]}}
    federation = Federation(frame(), target="y", sites=4, policy={"min_rows": 1}, **declared)
    outcome = federation.run("fedavg", dp=1.0, model="logistic", seed=1, **secure)
    assert outcome.epsilon == pytest.approx(1.0, abs=0.01)
    assert outcome.accuracy > 0.8
    sums = {item.what for item in outcome.disclosed}
    assert ("sum.updates" in sums) == (not secure)
