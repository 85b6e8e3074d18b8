"""Exponents are those of the costs they were fitted to."""

from __future__ import annotations

import pytest
from bench.growth import fitted

SIZES = (10, 40, 160, 640)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_an_exponent_is_found_beside_the_start_of_a_process(power: float, start: float) -> None:
    costs = [start + 3.0 * (size / SIZES[-1]) ** power for size in SIZES]
    assert fitted(SIZES, costs) == pytest.approx(power, abs=0.02)


def test_a_cost_that_does_not_grow_has_no_exponent() -> None:
    assert fitted(SIZES, [0.50, 0.51, 0.49, 0.52]) == 0


def test_noise_of_a_few_hundredths_moves_an_exponent_little() -> None:
    costs = [(0.4 + 0.01 * size) * noise for size, noise in zip(SIZES, (1.03, 0.97, 1.02, 0.98), strict=True)]
    assert fitted(SIZES, costs) == pytest.approx(1.0, abs=0.15)
