"""Noise that is correlated over rounds: the norm of C against its definition, and C^-1 against C."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.errors import ConfigError
from kohort.privacy.dp.factorisation import column_norm, noise_weights


def roots(rounds: int) -> np.ndarray:
    """C, the square root of the matrix that adds up rounds: Toeplitz, with the series of (1 - x)^(-1/2)."""
    series = [1.0]
    for step in range(1, rounds):
        series.append(series[-1] * (2 * step - 1) / (2 * step))
    return np.asarray([[series[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])


@pytest.mark.parametrize("rounds", [1, 2, 3, 17])
def test_the_norm_is_that_of_the_first_column_and_never_less(rounds: int) -> None:
    square = roots(rounds)
    assert np.allclose(square @ square, np.tril(np.ones((rounds, rounds))))
    wanted = np.linalg.norm(square[:, 0])
    assert wanted <= column_norm(rounds) < wanted * 1.000001


def test_no_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 rounds"):
        column_norm(0)


@pytest.mark.parametrize("passed", [0, 1, 5])
def test_the_weights_are_a_row_of_the_inverse(passed: int) -> None:
    assert np.allclose(noise_weights(passed), np.linalg.inv(roots(passed + 1))[passed])
