"""The exact curve of the Gaussian mechanism, at its ends and between them."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from kohort.privacy.dp.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu


def by_formula(mu: float, epsilon: float) -> float:
    """Theorem 8 of Balle and Wang (2018)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_delta_is_that_of_the_theorem(mu: float, epsilon: float) -> None:
    assert gaussian_delta(mu, epsilon) == pytest.approx(by_formula(mu, epsilon), rel=1e-9, abs=1e-15)


def test_tables_that_do_not_differ_cost_nothing() -> None:
    assert gaussian_delta(0.0, 0.0) == gaussian_delta(0.0, 3.0) == 0.0
    assert gaussian_epsilon(0.0, 0.0) == gaussian_epsilon(0.0, 1e-9) == 0.0


def test_epsilon_is_none_where_delta_alone_covers_it_and_infinite_without_delta() -> None:
    assert gaussian_epsilon(1.0, gaussian_delta(1.0, 0.0)) == 0.0
    assert gaussian_epsilon(1.0, gaussian_delta(1.0, 0.0) * 0.999) > 0.0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(1e-3, 0.0) == math.inf


@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_is_the_smallest_and_rounded_up(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert epsilon == 0 or gaussian_delta(mu, epsilon * (1 - 1e-9)) > delta


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_mu_is_the_largest_and_rounded_down(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * (1 + 1e-9), epsilon) > delta
