"""Shadow models: halves of rows, one call for all, and ratios that find who was seen."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reference.one_site import fit_one

from kohort.errors import ConfigError
from kohort.evaluate.attacks.finding import area_interval
from kohort.evaluate.attacks.membership import log_odds
from kohort.evaluate.attacks.shadow import halves, likelihood_ratios, train_shadows
from kohort.models.dense.network import Network
from kohort.models.options import Training
from kohort.models.rows import Rows
from kohort.models.scoring import probabilities

NETWORK = Network(inputs=6, hidden=(16,), outputs=2)
TRAINING = Training(epochs=40, batch=16, optimizer="adam", lr=0.01)


def rows(count: int = 80) -> Rows:
    """Rows whose class is a coin."""
    random = np.random.default_rng(0)
    return Rows.of(random.random((count, 6)), random.integers(0, 2, count))


def test_halves_of_the_rows_are_seen_and_models_are_those_trained_alone() -> None:
    made = rows()
    seen = halves(made.count, 6, seed=1)
    assert (seen.sum(axis=0) == 3).all()
    weights = train_shadows(NETWORK, made, seen, training=TRAINING, seed=1)
    random = np.random.default_rng([1, 1])
    starts = np.stack([NETWORK.start(random) for _ in range(6)])
    keys = random.integers(0, 2**63, 6, dtype=np.uint64)
    own = Rows.of(made.x[seen[4]], made.y[seen[4]])
    alone = fit_one(NETWORK, starts[4], own, training=TRAINING, key=int(keys[4]), round=0)
    assert np.array_equal(alone.weights[0], weights[4])


def test_ratios_find_the_rows_of_a_model_that_learned_them_by_heart() -> None:
    made = rows()
    seen = halves(made.count, 18, seed=2)
    weights = train_shadows(NETWORK, made, seen, training=TRAINING, seed=2)
    codes = made.y.astype(np.int64)
    scores = np.array([log_odds(probabilities(NETWORK, own, made.x)[np.arange(made.count), codes]) for own in weights])
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
        halves(80, count)
