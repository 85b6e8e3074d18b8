"""Random Fourier units draw the Gaussian kernel, and a layer that is drawn wrongly does not pass for one that is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kohort.methods.oneshot.random_features import RandomFeatures

SIZE, INPUTS, SCALE = 20_000, 4, 2.0
ROWS = np.random.default_rng(7).uniform(-1, 1, (24, INPUTS))
# A product of two units has variance at most 1/2 about its mean; doubled and averaged over SIZE of them the deviation
# is at most sqrt(2 / SIZE) = 0.01. The largest of 300 such errors is beyond 4.5 deviations with probability 0.002; the
# layer is drawn from a fixed seed, so the test passes always or never.
TOLERANCE = 4.5 * np.sqrt(2 / SIZE)


def error(weights: NDArray[np.float64], offsets: NDArray[np.float64]) -> float:
    """Largest distance of the products of all pairs of rows from exp(-|x - y|^2 (scale^2 / inputs) / 2)."""
    units = np.cos(ROWS @ weights + offsets)
    found = 2 * units @ units.T / SIZE
    apart = ((ROWS[:, None] - ROWS[None]) ** 2).sum(axis=2)
    return float(np.abs(found - np.exp(-apart * SCALE**2 / INPUTS / 2)).max())


@pytest.mark.parametrize("seed", [b"one", b"two", b"three"])
def test_products_of_units_are_the_gaussian_kernel_and_bugs_are_not(seed: bytes) -> None:
    layer = RandomFeatures(kind="fourier", size=SIZE, seed=seed, inputs=INPUTS, scale=SCALE)
    weights, offsets = layer.drawn
    np.testing.assert_allclose(layer.transform(ROWS), np.cos(ROWS @ weights + offsets), atol=1e-12)
    assert error(weights, offsets) < TOLERANCE
    wrong = {
        "no phase": (weights, np.zeros_like(offsets)),
        "phases of an eighth of a turn": (weights, offsets / 8),
        "another width": (weights * 1.1, offsets),
        "uniform rather than normal": (np.sign(weights) * SCALE / np.sqrt(INPUTS), offsets),
        "one sign": (np.abs(weights), offsets),
    }
    for name, drawn in wrong.items():
        assert error(*drawn) > TOLERANCE, name


def test_units_are_drawn_by_themselves() -> None:
    """Units that share their phase or their direction would not average out."""
    layer = RandomFeatures(kind="fourier", size=SIZE, seed=b"one", inputs=INPUTS, scale=SCALE)
    weights, offsets = layer.drawn
    drawn = np.vstack([weights * np.sqrt(INPUTS) / SCALE, offsets / np.pi - 1])
    # Correlations of independent columns have deviation 1 / sqrt(SIZE) = 0.007.
    lagged = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in drawn]
    between = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    assert np.abs([*lagged, *between]).max() < 4.5 / np.sqrt(SIZE)
    assert np.allclose(weights.std(axis=1) * np.sqrt(INPUTS) / SCALE, 1, atol=0.03)
    assert (offsets >= 0).all()
    assert (offsets < 2 * np.pi).all()
