"""Values of a finished model have no digit that rows do not support."""

from __future__ import annotations

import numpy as np

from kohort.models.additive.precision import rounded_errors, rounded_values


def test_a_value_moves_by_at_most_an_eighth_of_its_error_and_has_few_digits() -> None:
    random = np.random.default_rng(0)
    errors = np.exp(random.normal(0, 2, (400, 2)))
    w = random.normal(0, 3, (400, 2))
    found = rounded_values(w, errors)
    assert (np.abs(found - w) <= errors / 8).all()
    steps = errors / 8  # a step lies between an eighth and a quarter of the error
    assert len(np.unique(found / np.exp2(np.floor(np.log2(errors / 4))) % 1)) == 1
    assert np.abs(found - w).mean() > (steps / 8).mean()


def test_parts_that_are_rounded_alike_stay_in_order() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        w = np.sort(random.normal(0, 1, (12, 1)), axis=0)
        errors = np.exp(random.normal(-1, 2, (12, 1)))
        assert (np.diff(rounded_values(w, errors, [slice(0, 12)]), axis=0) >= 0).all()


def test_errors_are_rounded_up_by_at_most_a_fifth_to_few_values() -> None:
    errors = np.exp(np.random.default_rng(2).normal(0, 1, (1000, 1)))
    found = rounded_errors(errors)
    assert (found >= errors * (1 - 1e-12)).all()
    assert (found <= errors * 2**0.25).all()
    assert len(np.unique(found)) < 40
