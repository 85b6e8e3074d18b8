"""A white-box attacker with orthogonal canaries never learns more than the claimed epsilon, and finds missing noise."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.canary_audit import CanaryAudit, audit_training, epsilon_lower_bound

from kohort.models.dense.network import FloatArray, Network
from kohort.models.dense.training import Training
from kohort.models.dp_sgd.fit import PrivateSteps, fit_private
from kohort.models.rows import StackedRows
from kohort.privacy.dp.accounting import calibrate

DELTA = 1e-8  # what delta may hide grows with the canaries, so it is chosen far below one in them
STEPS = 4


def audited(epsilon: float, *, noise: float = 1.0, rate: float = 1.0, canaries: int = 20000) -> CanaryAudit:
    """Audit training whose noise is `noise` times what epsilon needs."""
    sigma = noise * calibrate(epsilon=epsilon, delta=DELTA, rate=rate, steps=STEPS)

    def train(network: Network, start: FloatArray, rows: StackedRows) -> FloatArray:
        private = PrivateSteps(
            clip=1.0,
            sigma=np.full(rows.sites, sigma),
            rate=np.full(rows.sites, rate),
            steps=np.full(rows.sites, STEPS, dtype=np.int64),
            keys=tuple(f"{epsilon} {noise} {rate} {site}".encode().ljust(32, b".")[:32] for site in range(rows.sites)),
        )
        # Steps of one over the rows, so that a weight is the plain sum of its noisy gradients.
        return fit_private(network, start, rows, training=Training(optimizer="sgd", lr=1.0), private=private).weights

    return audit_training(train, canaries=canaries, delta=DELTA, generator=np.random.default_rng(int(8 * epsilon)))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_the_bound_stays_below_the_claim(epsilon: float) -> None:
    found = audited(epsilon)
    assert found.epsilon_lower < epsilon
    assert found.epsilon_lower > 0.1 * epsilon  # an audit that finds nothing at all would prove nothing


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_a_quarter_of_the_noise_is_found_out(epsilon: float) -> None:
    assert audited(epsilon, noise=0.25, canaries=40000 if epsilon > 4 else 20000).epsilon_lower > epsilon


def test_sampled_batches_stay_below_the_claim_too() -> None:
    assert audited(1.0, rate=0.3, canaries=5000).epsilon_lower < 1.0


def test_the_bound_is_that_of_a_biased_coin() -> None:
    """Without delta, 95 % bounds are one-sided Clopper-Pearson bounds of the coin's bias."""
    from scipy.stats import beta

    low = float(beta.ppf(0.05, 730, 1000 - 730 + 1))
    assert epsilon_lower_bound(730, 1000, canaries=1000, delta=0.0) == pytest.approx(np.log(low / (1 - low)), abs=2e-4)
    assert epsilon_lower_bound(500, 1000, canaries=1000, delta=0.0) == 0.0
    with_delta = epsilon_lower_bound(730, 1000, canaries=1000, delta=1e-3)
    assert with_delta < epsilon_lower_bound(730, 1000, canaries=1000, delta=0.0)
