"""`train.average`: the result is the mean of the models of the last rounds, in every method that trains in rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.protocol.plan.approved import TrainSection
from kohort.rounds.loop import WeightAverage
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run

ROUNDS = 5


def table(rows: int = 240) -> pl.DataFrame:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(rows, 2))
    label = np.where(x[:, 0] + 0.5 * x[:, 1] > 0, "yes", "no")
    # Ages by decade: classes of k = 2 exist whatever the split.
    return pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "age": 10 * generator.integers(2, 6, rows), "y": label})


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "summed": {"name": "fedavg", "secure": {"sum": "masks"}},
    "central": {"name": "central"},
    "silo": {"name": "silo", "anonymise": {"k": 2}},
    "partial": {"name": "partial", "gate": {"k": 2, "release_k": 2}},
    "syntactic": {"name": "syntactic", "anonymise": {"k": 2}},
}


def plan(method: str = "fedavg", *, rounds: int = ROUNDS, **train: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age"], "features": "rest"},
            "sites": {"count": 3},
            "model": {"kind": "perceptron"},
            "train": {"rounds": rounds, "optimizer": "sgd", "lr": 0.2, "batch": 16, **train},
            "policy": {"min_rows": 1, "min_k": 2, "raw": True},
            "method": METHODS[method],
        }
    )


def outcome(made: Plan) -> Outcome:
    return run(made, seed=3, tables={"": table()})


def weights(made: Plan) -> NDArray[np.float64]:
    return np.asarray(outcome(made).model.weights, dtype=np.float64)


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_the_mean_of_the_models_of_the_last_rounds(method: str) -> None:
    # A run that ends after r rounds ends with the model that a longer one has then.
    by_round = [weights(plan(method, rounds=number)) for number in range(3, ROUNDS + 1)]
    averaged = weights(plan(method, average=0.6))
    np.testing.assert_allclose(averaged, np.mean(by_round, axis=0), rtol=1e-6, atol=1e-7)
    assert np.abs(averaged - by_round[-1]).max() > 1e-4


def test_nothing_is_averaged_unless_the_plan_says_so() -> None:
    np.testing.assert_array_equal(weights(plan()), weights(plan(average=0.0)))
    np.testing.assert_array_equal(weights(plan()), weights(plan(average=1 / ROUNDS)))


def test_a_run_that_stops_early_averages_what_it_had_of_the_last_rounds() -> None:
    stop = {"patience": 3, "min_delta": 10.0}  # no loss falls by that much: the fourth round is the last
    ended = outcome(plan(average=0.6, stop=stop))
    assert ended.rounds == 4
    expected = np.mean([weights(plan(rounds=number)) for number in (3, 4)], axis=0)
    np.testing.assert_allclose(ended.model.weights, expected, rtol=1e-6, atol=1e-7)
    before = plan(average=0.2, stop=stop)  # only the fifth would have counted
    np.testing.assert_array_equal(weights(before), weights(plan(rounds=4)))


def test_a_phase_s_own_share_goes_before_the_plan_s() -> None:
    train = TrainSection(rounds=10, average=0.5)
    models = [np.asarray([number], dtype=np.float32) for number in range(10)]

    def mean(average: WeightAverage, first: int = 0) -> float:
        for number, model in enumerate(models):
            average.take(first + number, model)
        return float(average.averaged(models[-1])[0])

    assert mean(WeightAverage.of(train)) == 7.0
    assert mean(WeightAverage.of(train, share=0.2)) == 8.5
    assert mean(WeightAverage.of(train, first=30), first=30) == 7.0


def test_it_belongs_to_what_sites_approve_and_is_a_share() -> None:
    assert plan(average=0.5).digest() != plan().digest()
    for share in (-0.1, 1.5):
        with pytest.raises(ConfigError, match="average"):
            plan(average=share)
