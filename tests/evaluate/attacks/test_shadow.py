"""Shadow models: halves of rows, one call for all, and ratios that find who was seen."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.errors import ConfigError
from kohort.evaluate.attacks.finding import area_interval
from kohort.evaluate.attacks.shadow import likelihood_ratios, shadow_scores, train_shadows
from kohort.models.dense.network import Network
from kohort.models.dense.training import fit_one
from kohort.models.options import Training
from kohort.models.rows import Rows

NETWORK = Network(inputs=6, hidden=(16,), outputs=2)
TRAINING = Training(epochs=40, batch=16, optimizer="adam", lr=0.01)


def rows(count: int = 80) -> Rows:
    """Rows whose class is a coin."""
    random = np.random.default_rng(0)
    return Rows.of(random.random((count, 6)), random.integers(0, 2, count))


def test_halves_of_the_rows_are_seen_and_models_are_those_trained_alone() -> None:
    made = rows()
    weights, seen = train_shadows(NETWORK, made, training=TRAINING, shadows=6, seed=1)
    assert (seen.sum(axis=0) == 3).all()  # halves
    random = np.random.default_rng(1)
    random.random((6, made.count), dtype=np.float32)
    starts = np.stack([NETWORK.start(random) for _ in range(6)])
    keys = random.integers(0, 2**63, 6, dtype=np.uint64)
    own = Rows.of(made.x[seen[4]], made.y[seen[4]])
    alone = fit_one(NETWORK, starts[4], own, training=TRAINING, key=int(keys[4]), round=0)
    assert np.array_equal(alone.weights[0], weights[4])


def test_ratios_find_the_rows_of_a_model_that_learned_them_by_heart() -> None:
    made = rows()
    weights, seen = train_shadows(NETWORK, made, training=TRAINING, shadows=18, seed=2)
    scores = shadow_scores(NETWORK, weights, made)
    ratio = likelihood_ratios(scores[0], scores[1:], seen[1:])
    area, (low, _) = area_interval(ratio[seen[0]], ratio[~seen[0]])
    assert area > 0.6
    assert low > 0.5
    shuffled = np.random.default_rng(0).permutation(scores[0])
    blind = likelihood_ratios(shuffled, scores[1:], seen[1:])
    assert area_interval(blind[seen[0]], blind[~seen[0]])[1][0] < 0.5


@pytest.mark.parametrize("count", [2, 5])
def test_too_few_or_an_odd_number_of_models_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="shadow models"):
        train_shadows(NETWORK, rows(), training=TRAINING, shadows=count)
