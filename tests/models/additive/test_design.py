"""Scores and sums per bin are the same however many columns are looked up in one call."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.models.additive import design as module
from kohort.models.additive.design import Design


@pytest.mark.parametrize("block", [1, 250, 2**16])
@pytest.mark.parametrize("rows", [0, 1, 100])
def test_columns_are_added_one_after_the_other(monkeypatch: pytest.MonkeyPatch, block: int, rows: int) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    random = np.random.default_rng(rows)
    places = (random.integers(0, 4, (9, rows)) + 4 * np.arange(9)[:, None]).astype(np.int32)
    values, intercept = random.normal(0, 1, (36, 2)), random.normal(0, 1, 2)
    numbers = random.integers(-(2**40), 2**40, (rows, 2))
    design = Design(places, 36)
    scores = np.repeat(intercept[None, :], rows, axis=0)
    for own in places:
        scores = scores + values[own]
    assert (design.scores(values, intercept) == scores).all()
    summed = np.zeros((36, 2), dtype=np.int64)
    for own in places:
        np.add.at(summed, own, numbers)
    assert (design.summed(numbers) == summed).all()
