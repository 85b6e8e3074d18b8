"""Pure epsilon-DP logistic regression: right without noise, and its noise has the promised law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import gamma, kstest

from kohort.errors import ConfigError
from kohort.models.dense.network import Network
from kohort.models.dp_sgd.perturbation import _gamma_ball, _minimise, _unit_rows, fit_perturbed
from kohort.models.rows import Rows

NETWORK = Network(inputs=3, hidden=(), outputs=1, loss="logistic", dtype="float64")


def rows(count: int = 400, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (count, 3))
    y = (x @ [2.0, -1.0, 0.5] + 0.2 + random.normal(0, 0.3, count) > 0).astype(float)
    return Rows.of(x, y, dtype="float64")


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize("kind", ["output", "objective"])
def test_with_a_huge_budget_it_is_the_penalised_minimum(kind: str) -> None:
    from sklearn.linear_model import LogisticRegression

    given = rows()
    z, side = _unit_rows(given)
    penalty = 0.01
    peer = LogisticRegression(C=1 / (penalty * given.count), fit_intercept=False, tol=1e-10, max_iter=5000)
    peer.fit(z, side)
    found = fit_perturbed(NETWORK, given, kind=kind, epsilon=1e9, penalty=penalty, key=key(1))  # type: ignore[arg-type]
    assert np.allclose(found, peer.coef_[0], atol=1e-4)


@pytest.mark.parametrize("kind", ["output", "objective"])
def test_replacing_a_row_moves_the_minimum_no_further_than_the_noise_allows(kind: str) -> None:
    """The sensitivity the noise is made for: 2 / (n penalty), for the worst of many replacements."""
    del kind
    penalty, given = 0.05, rows(30)
    z, side = _unit_rows(given)
    whole = _minimise(z, side, penalty, np.zeros(4))
    worst = 0.0
    for index in range(30):
        other_z, other_side = z.copy(), side.copy()
        other_z[index] = -z[index] / np.linalg.norm(z[index])
        other_side[index] = side[index]
        moved = np.linalg.norm(_minimise(other_z, other_side, penalty, np.zeros(4)) - whole)
        worst = max(worst, float(moved))
    assert 0 < worst <= 2 / (30 * penalty)


def test_the_noise_has_a_gamma_length_and_no_direction() -> None:
    drawn = np.stack([_gamma_ball(key(number), 4, 0.7) for number in range(6000)])
    lengths = np.linalg.norm(drawn, axis=1)
    assert kstest(lengths, gamma(4, scale=0.7).cdf).pvalue > 1e-4
    assert kstest(lengths, gamma(4, scale=0.7 * 2 / 3).cdf).pvalue < 1e-6  # a wrong scale is seen
    assert np.abs((drawn / lengths[:, None]).mean(axis=0)).max() < 0.05


def test_less_budget_is_more_noise() -> None:
    given = rows()
    exact = fit_perturbed(NETWORK, given, kind="objective", epsilon=1e9, penalty=0.01, key=key(3))
    errors = []
    for epsilon in (10.0, 1.0, 0.1):
        found = [
            fit_perturbed(NETWORK, given, kind="objective", epsilon=epsilon, penalty=0.01, key=key(number))
            for number in range(20)
        ]
        errors.append(float(np.mean([np.linalg.norm(item - exact) for item in found])))
    assert errors[0] < errors[1] < errors[2]


def test_what_it_is_not_for_is_refused() -> None:
    deep = Network(inputs=3, hidden=(4,), outputs=1, loss="logistic", dtype="float64")
    with pytest.raises(ConfigError, match="logistic"):
        fit_perturbed(deep, rows(), kind="output", epsilon=1.0, penalty=0.1, key=key(0))
    with pytest.raises(ConfigError, match="penalty"):
        fit_perturbed(NETWORK, rows(), kind="output", epsilon=1.0, penalty=0.0, key=key(0))


@pytest.mark.parametrize("kind", ["output", "objective"])
def test_rows_that_are_declared_beside_those_given_have_no_loss(kind: str) -> None:
    """The mean is over all of them, so it is as if the penalty were as many times as large."""
    given = rows(200)
    options: dict[str, Any] = {"kind": kind, "epsilon": 1e9, "key": key(1)}
    among = fit_perturbed(NETWORK, given, penalty=0.05, declared=400, **options)
    assert np.allclose(among, fit_perturbed(NETWORK, given, penalty=0.1, **options), atol=1e-4)
    assert not np.allclose(among, fit_perturbed(NETWORK, given, penalty=0.05, **options), atol=1e-2)


def test_the_noise_is_that_of_all_declared_rows() -> None:
    given = rows(200)
    noise = [
        np.linalg.norm(
            fit_perturbed(NETWORK, given, kind="output", epsilon=0.1, penalty=penalty, key=key(1), declared=declared)
            - fit_perturbed(NETWORK, given, kind="output", epsilon=1e9, penalty=penalty, key=key(1), declared=declared)
        )
        for penalty, declared in ((0.05, None), (0.05, 400))
    ]
    assert noise[1] == pytest.approx(noise[0] / 2, rel=1e-3)
