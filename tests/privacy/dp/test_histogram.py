"""The threshold of noisy histograms, by a second computation, and what the budget leaves for later releases."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import pytest

from kohort.errors import ConfigError
from kohort.privacy.dp.accounting import calibrate
from kohort.privacy.dp.gaussian import gaussian_delta, gaussian_epsilon
from kohort.privacy.dp.histogram import DomainBudget, release_threshold

BUDGET = DomainBudget(epsilon=1.0, delta=1e-5, share=0.1)


def slip(threshold: float, deviation: float, keys: int) -> float:
    """Probability that any of `keys` counts of 1 exceeds the threshold, by Python's own normal distribution."""
    stays = NormalDist().cdf((threshold - 1) / deviation)
    return 1 - stays**keys


@pytest.mark.parametrize("keys", [1, 2, 7, 40])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("deviation", [0.5, 12.0, 300.0])
def test_what_one_unit_alone_has_is_released_with_the_stated_probability(
    deviation: float, delta: float, keys: int
) -> None:
    threshold = release_threshold(deviation, delta, keys)
    assert slip(threshold, deviation, keys) == pytest.approx(delta, rel=1e-4, abs=1e-13)
    assert slip(threshold - 3 * deviation, deviation, keys) > 20 * delta  # the wrong threshold is noticed
    assert slip(threshold, 2 * deviation, keys) > 2 * delta  # and so is a threshold for half the noise


def test_a_tiny_delta_keeps_its_digits() -> None:
    assert release_threshold(1.0, 1e-30, 1) == pytest.approx(1 + 11.46402469, rel=1e-6)


@pytest.mark.parametrize(("deviation", "delta", "keys"), [(0.0, 1e-6, 1), (1.0, 0.0, 1), (1.0, 1.0, 1), (1.0, 1e-6, 0)])
def test_senseless_parameters_are_refused(deviation: float, delta: float, keys: int) -> None:
    with pytest.raises(ConfigError, match="no threshold"):
        release_threshold(deviation, delta, keys)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-7), (1.0, 1e-5), (8.0, 1e-3)])
def test_counts_and_later_releases_together_keep_the_budget(epsilon: float, delta: float, share: float) -> None:
    budget, steps = DomainBudget(epsilon=epsilon, delta=delta, share=share), 7
    sigma = calibrate(epsilon=epsilon, delta=budget.later_delta, rate=1.0, steps=steps, before=[budget.event])
    mu = sqrt(1 / budget.event.sigma**2 + steps / sigma**2)
    spent = gaussian_delta(mu, epsilon) + budget.threshold_delta
    assert spent <= delta
    assert spent > 0.4 * delta  # nothing is given away beyond the half that judges the counts alone
    alone, its_delta = budget.cost
    assert gaussian_epsilon(1 / budget.event.sigma, its_delta - budget.threshold_delta) == alone < epsilon
    assert its_delta == pytest.approx(share * delta)


def test_half_the_noise_would_break_the_budget() -> None:
    half = 2 / BUDGET.event.sigma
    assert gaussian_delta(half, BUDGET.cost[0]) > BUDGET.noise_delta
    assert gaussian_delta(1 / BUDGET.event.sigma, BUDGET.cost[0]) <= BUDGET.noise_delta


def test_more_counts_per_unit_need_more_noise_and_a_higher_threshold() -> None:
    assert BUDGET.deviation(4) == pytest.approx(2 * BUDGET.deviation(1))
    assert BUDGET.threshold(4) > 2 * (BUDGET.threshold(1) - 1)
