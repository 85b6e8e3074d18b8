"""Arithmetic modulo 2^61 - 1, against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.crypto.sums.modular import P61, multiply, total


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 70_000])
def test_a_total_of_residues_is_exact(count: int) -> None:
    numbers = np.random.default_rng(count).integers(0, P61, count, dtype=np.uint64)
    assert total(numbers) == sum(numbers.tolist()) % P61


def test_the_largest_residues_do_not_overflow() -> None:
    numbers = np.full(100_000, P61 - 1, dtype=np.uint64)
    assert total(numbers) == 100_000 * (P61 - 1) % P61


def test_products_are_exact() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, P61, (2, 2000), dtype=np.uint64)
    left[:2], right[:2] = P61 - 1, (P61 - 1, 1)
    expected = [one * other % P61 for one, other in zip(left.tolist(), right.tolist(), strict=True)]
    assert multiply(left, right).tolist() == expected
