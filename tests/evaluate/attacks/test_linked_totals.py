"""Sums over large bins in several rounds: they tell small combinations exactly, and without them a guess is left."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding
from kohort.evaluate.attacks.linked_totals import LinkedSums, counts_by_chance, counts_that_follow, linked_finding

SIDE, STEP, ROWS = 6, 2.0**-28, 600
Floats = NDArray[np.float64]


def persons(side: int = SIDE) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two columns and a class; the last combination has one person."""
    random = np.random.default_rng(3)
    codes = random.integers(0, side, (ROWS, 2))
    codes[(codes == side - 1).all(axis=1), 1] = 0
    codes[0] = side - 1
    return codes, random.integers(0, 2, ROWS)


def opened(
    rounds: int, *, side: int = SIDE, step: float = STEP, lie: float = 0.0
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """What follows, what chance gives, and the truth."""
    codes, classes = persons(side)
    random = np.random.default_rng(4)
    left, right = np.divmod(np.arange(side * side), side)
    places = np.stack([left, right + side])
    own = codes[:, 0] * side + codes[:, 1]
    counts = np.bincount(np.concatenate([codes[:, 0], codes[:, 1] + side]), minlength=2 * side).astype(float)
    said = []
    for _ in range(rounds):
        expected = 1 / (1 + np.exp(-(random.normal(0, 1, side)[left] + random.normal(0, 1, side)[right])))
        apart = np.trunc((expected[own] - classes) / step) * step
        sums = sum(np.bincount(codes[:, k] + k * side, weights=apart, minlength=2 * side) for k in (0, 1))
        said.append(LinkedSums(np.asarray(sums)[:, None] + lie * random.normal(0, 1, (2 * side, 1)), expected[:, None]))
    follow = counts_that_follow(said, places, counts, columns=2, step=step)
    return follow, counts_by_chance(places, counts, 2), np.bincount(own, minlength=side * side)


def found(rounds: int, **options: float) -> Finding:
    follow, chance, truth = opened(rounds, **options)  # type: ignore[arg-type]
    return linked_finding(follow, chance, truth, least=20, on="", by="")


def test_all_counts_follow_from_twelve_rounds() -> None:
    follow, _, truth = opened(12)
    assert truth[-1] == 1
    assert np.abs(follow - truth).max() < 1e-2
    one = found(12)
    assert one.success == 1.0
    assert one.exposed
    assert one.details["alone_found"] == one.details["alone"] >= 1.0
    assert one.details["claims_right"] == 1.0


def test_without_a_second_round_the_guess_is_left() -> None:
    follow, chance, _ = opened(1)
    assert np.allclose(follow, chance, atol=1e-4)
    assert not found(1).exposed


def test_fewer_rounds_than_bins_tell_less_and_never_a_count_below_nobody() -> None:
    few, many = found(3, side=12), found(30, side=12)
    assert few.success is not None
    assert many.success == 1.0
    assert few.success < 0.9
    assert opened(3, side=24)[0].min() > -0.1


def test_noise_on_the_sums_hides_the_counts() -> None:
    assert not found(12, lie=20.0, step=1.0).exposed


def test_chance_keeps_the_counts_of_bins() -> None:
    _, chance, truth = opened(1)
    table, real = chance.reshape(SIDE, SIDE), truth.reshape(SIDE, SIDE)
    assert np.allclose(table.sum(axis=0), real.sum(axis=0))
    assert np.allclose(table.sum(axis=1), real.sum(axis=1))


def test_a_finding_counts_small_combinations_alone() -> None:
    truth = np.array([0, 1, 3, 4, 9, 30])
    follow = np.array([0.2, 1.3, 2.9, 7.0, 9.0, 30.0])
    chance = np.array([1.0, 2.0, 3.2, 5.0, 1.0, 30.0])
    one = linked_finding(follow, chance, truth, least=5, on="sums", by="hub")
    assert one.success == pytest.approx(2 / 3)
    assert one.guess == pytest.approx(1 / 3)
    assert one.details == {"combinations": 6, "small": 3, "alone": 1, "alone_found": 1, "claims_right": 1}
    none = linked_finding(follow, chance, truth + 5, least=5, on="sums", by="hub")
    assert none.success is None
    assert "nothing small" in none.note
