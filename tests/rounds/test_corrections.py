"""FedProx and SCAFFOLD through the whole engine equal slow references written from their pseudo-code."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.options import Training
from kohort.rounds.training import TrainingState, _changed_controls
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.encoder import Encoder

Vector = NDArray[np.float64]
SITES, ROWS, STEPS, ROUNDS, LR = 4, 30, 3, 5, 0.7


def tables() -> dict[str, pl.DataFrame]:
    generator = np.random.default_rng(11)
    made = {}
    for site in range(SITES):
        x = generator.normal(loc=site - 1.5, size=(ROWS, 2))  # sites differ, so that clients drift
        label = np.where(generator.random(ROWS) < 1 / (1 + np.exp(-x[:, 0] + site)), "yes", "no")
        made[f"s{site}"] = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": label})
    return made


def outcome(**train: Any) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest", "test": 0.2},
            "sites": {"split": "files"},
            "model": {"kind": "logistic", "dtype": "float64"},
            "train": {"rounds": ROUNDS, "local_epochs": STEPS, "batch": 0, "optimizer": "sgd", "lr": LR, **train},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=2, tables=tables())


def sites_of(found: Outcome) -> list[tuple[Vector, Vector]]:
    """What each site trained on, encoded: the same split of training and test rows as the run's."""
    from kohort.models.rows import encode_rows
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    population = populate(found.plan, Streams.seeded(2), tables=tables())
    encoder: Encoder = found.model.encoder
    rows = encode_rows(encoder, population.frame)
    bounds = population.starts
    return [(rows.x[low:high].astype(float), rows.y[low:high].astype(float)) for low, high in pairwise(bounds)]


def gradient(weights: Vector, x: Vector, y: Vector) -> Vector:
    """Of the mean logistic loss; weights are [w, b]."""
    error = 1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1]))) - y
    return np.append(x.T @ error, error.sum()) / len(y)


def start(found: Outcome) -> Vector:
    from kohort.rng import Streams

    hub = Streams(Streams.seeded(2).bytes("hub"), 2)
    return found.model.network.start(hub.generator("start")).astype(float)


def test_fedprox_equals_its_pseudo_code() -> None:
    mu = 0.4
    found = outcome(correction=f"fedprox:{mu}")
    sites, weights = sites_of(found), start(found)
    share = np.array([len(y) for _, y in sites]) / sum(len(y) for _, y in sites)
    for _ in range(ROUNDS):
        local = []
        for x, y in sites:
            own = weights.copy()
            for _ in range(STEPS):
                own -= LR * (gradient(own, x, y) + mu * (own - weights))
            local.append(own)
        weights = share @ np.stack(local)
    np.testing.assert_allclose(found.model.weights, weights, rtol=1e-9, atol=1e-12)
    assert not np.allclose(found.model.weights, outcome().model.weights)


def test_scaffold_equals_its_pseudo_code() -> None:
    """Karimireddy et al. 2020, Algorithm 1, option II; means weighted by rows, which equal ones leave unchanged."""
    found = outcome(correction="scaffold")
    sites, weights = sites_of(found), start(found)
    share = np.array([len(y) for _, y in sites]) / sum(len(y) for _, y in sites)
    control, controls = np.zeros_like(weights), [np.zeros_like(weights) for _ in sites]
    for _ in range(ROUNDS):
        local, changes = [], []
        for index, (x, y) in enumerate(sites):
            own = weights.copy()
            for _ in range(STEPS):
                own -= LR * (gradient(own, x, y) - controls[index] + control)
            renewed = controls[index] - control + (weights - own) / (STEPS * LR)
            local.append(own)
            changes.append(renewed - controls[index])
            controls[index] = renewed
        weights = share @ np.stack(local)
        control = control + share @ np.stack(changes)
    np.testing.assert_allclose(found.model.weights, weights, rtol=1e-9, atol=1e-12)
    assert not np.allclose(found.model.weights, outcome().model.weights)


def test_scaffold_tells_the_ledger_what_else_leaves() -> None:
    found = outcome(correction="scaffold")
    assert {item.what for item in found.disclosed} >= {"train.scaffold"}
    sent = next(item.size for item in found.disclosed if item.what == "train.scaffold")
    plain = next(item.size for item in outcome().disclosed if item.what == "train")
    assert sent > plain


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"correction": "scafold"}, "Did you mean 'scaffold'"),
        ({"correction": "scaffold", "optimizer": "adam"}, "plain SGD"),
        ({"correction": "fedprox:0"}, "not positive"),
        ({"reject": 3.0}, "data.validation"),
    ],
)
def test_what_cannot_work_is_refused(train: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        outcome(**train)


def test_scaffold_counts_a_short_last_batch_by_its_rows() -> None:
    """25 rows in batches of 10 are 2.5 steps: under one constant gradient, that gradient is the new control."""
    state = TrainingState()
    site = SimpleNamespace(state=lambda _: state)
    training = Training(batch=10, epochs=2, optimizer="sgd", lr=0.1)
    group = SimpleNamespace(training=training, reported_counts=np.array([25]))
    gradient = np.array([1.0, -2.0])
    trained = -0.1 * gradient * (2 * 2.5)
    sent = {"weights": np.zeros(2), "control": np.zeros(2)}
    _changed_controls([site], sent, trained[None], group)  # type: ignore[arg-type, list-item] # what it reads of them
    np.testing.assert_allclose(state.control, gradient)
