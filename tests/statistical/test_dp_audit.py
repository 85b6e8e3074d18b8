"""`kohort audit --epsilon` exposes halved noise, and honest noise stays below its claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.evaluate.gaussian_audit import audit_scores
from kohort.models.dp_sgd import fit
from kohort.privacy.dp.gaussian import gaussian_mu
from kohort.runs.auditing.epsilon import audit_epsilon
from kohort.runs.config import load_plan


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine hundred rows that a logistic regression can learn from."""
    random = np.random.default_rng(11)
    numbers = random.normal(size=(900, 3))
    shape = random.choice(["round", "oval", "irregular"], 900)
    score = numbers @ [1.0, -0.5, 0.0] + (shape == "irregular") + 0.5 * random.normal(size=900)
    place = tmp_path_factory.mktemp("audited") / "rows.csv"
    columns = {name: numbers[:, number] for number, name in enumerate(("age", "size", "density"))}
    pl.DataFrame({**columns, "shape": shape, "severity": np.where(score > 0.3, "high", "low")}).write_csv(place)
    return str(place)


BOUNDS = {name: [-4.0, 4.0] for name in ("age", "size", "density")}
CATEGORIES = {"shape": ["irregular", "oval", "round"], "severity": ["high", "low"]}


def plan(table: str, epsilon: float, **more: Any) -> Any:
    return load_plan(
        {
            "data": {
                "table": table,
                "target": "severity",
                "features": "rest",
                "bounds": BOUNDS,
                "categories": CATEGORIES,
            },
            "sites": {"count": 6},
            "model": {"kind": "logistic"},
            "train": {"rounds": 3, "batch": 0, "optimizer": "sgd", "lr": 1.0},
            "method": {"name": "fedavg", "dp": {"epsilon": epsilon, "delta": 1e-5}, **more},
        }
    )


@contextmanager
def noise(factor: float) -> Iterator[None]:
    """All noise of gradients times a factor."""
    private, gaussian = fit.fit_private, fit.gaussian

    def trained(*args: Any, private: Any, _of: Any = private, **more: Any) -> Any:
        return _of(*args, private=dataclasses.replace(private, sigma=private.sigma * factor), **more)

    with (
        mock.patch.object(fit, "fit_private", trained),
        mock.patch.object(fit, "gaussian", lambda *args, **more: factor * gaussian(*args, **more)),
    ):
        yield


def test_dp_honest_noise_stays_below_its_claim_and_halved_noise_does_not(table: str) -> None:
    honest = audit_epsilon(plan(table, 4.0), canaries=500)
    assert not honest.exposed
    assert honest.epsilon_lower > 2.0  # an audit that finds nothing at all would prove nothing
    with noise(0.5):
        assert audit_epsilon(plan(table, 4.0), canaries=500).exposed


def test_dp_totals_are_audited_too(table: str) -> None:
    shares = {"secure": {"sum": "none"}}
    honest = audit_epsilon(plan(table, 4.0, **shares), canaries=300)
    assert not honest.exposed
    assert honest.epsilon_lower > 1.0
    with noise(0.5):
        assert audit_epsilon(plan(table, 4.0, **shares), canaries=300).exposed


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_dp_ideal_scores_expose_halved_noise_19_times_out_of_20(epsilon: float) -> None:
    mu, exposed = gaussian_mu(epsilon, 1e-5), {1.0: 0, 0.5: 0}
    for factor in exposed:
        for seed in range(100):
            generator = np.random.default_rng([seed, int(10 * factor)])
            coins = generator.random(4000) < 0.5
            scores = coins * mu / factor + generator.normal(size=4000)
            exposed[factor] += audit_scores(scores, coins, epsilon=epsilon, delta=1e-5).exposed
    assert exposed[0.5] >= 95
    assert exposed[1.0] <= 5


def test_dp_a_plan_without_noise_on_gradients_is_not_audited(table: str) -> None:
    with pytest.raises(ConfigError, match="noise of clipped gradients"):
        audit_epsilon(
            load_plan(
                {"data": {"table": table, "target": "severity", "features": "rest"}, "method": {"name": "fedavg"}}
            )
        )
