"""Values of a finished model have no digit that rows do not support, and counts of bins are ranges."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.models.additive.precision import rounded_counts, rounded_errors, rounded_values


def test_a_value_moves_by_at_most_a_quarter_of_its_error_and_has_few_digits() -> None:
    random = np.random.default_rng(0)
    errors = np.exp(random.normal(0, 2, (400, 2)))
    w = random.normal(0, 3, (400, 2))
    found = rounded_values(w, errors, classes=False)
    assert (np.abs(found - w) <= errors / 4).all()
    steps = errors / 4  # a step lies between a quarter and half of the error
    assert len(np.unique(found / np.exp2(np.floor(np.log2(errors / 2))) % 1)) == 1
    assert np.abs(found - w).mean() > (steps / 8).mean()


def share_told(*, classes: bool) -> float:
    """Bins of 32 to 63 persons, 2 to 15 of them of a class: of how many what is told fits one number of the class."""
    seen: dict[tuple[float, float], list[int]] = {}
    for persons in range(32, 64):
        for s in range(2, 16):
            score, error = np.array([[np.log(s / (persons - s))]]), np.array([[1 / np.sqrt(s * (1 - s / persons))]])
            told = rounded_errors(error, classes=classes).item()
            assert error.item() <= told <= 2 * error.item()
            seen.setdefault((rounded_values(score, error, classes=classes).item(), told), []).append(s)
    return sum(len(numbers) for numbers in seen.values() if len(set(numbers)) == 1) / (32 * 14)


def test_of_a_class_of_few_rows_values_and_errors_do_not_tell_how_many_they_are() -> None:
    assert share_told(classes=True) < 0.15
    assert share_told(classes=False) > 0.25  # as before: half of a standard error, and quarters of a doubling


def test_a_plan_does_not_make_what_is_told_finer() -> None:
    few = np.array([[0.6]])
    assert rounded_values(np.array([[1.3]]), few).item() in (1.0, 1.5)
    assert rounded_values(np.array([[1.3]]), few, classes=False).item() == 1.25


def test_parts_that_are_rounded_alike_stay_in_order() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        w = np.sort(random.normal(0, 1, (12, 1)), axis=0)
        errors = np.exp(random.normal(-1, 2, (12, 1)))
        assert (np.diff(rounded_values(w, errors, [slice(0, 12)]), axis=0) >= 0).all()


def test_errors_are_rounded_up_by_at_most_a_fifth_to_few_values() -> None:
    errors = np.exp(np.random.default_rng(2).normal(0, 1, (1000, 1)))
    found = rounded_errors(errors, classes=False)
    assert (found >= errors * (1 - 1e-12)).all()
    assert (found <= errors * 2**0.25).all()
    assert len(np.unique(found)) < 40


@pytest.mark.parametrize(("least", "width"), [(1, 1), (7, 8), (10, 16), (20, 32), (32, 32)])
def test_a_count_is_told_as_a_range_at_least_as_wide_as_the_fewest_persons_of_a_bin(least: int, width: int) -> None:
    counts = np.arange(640.0)
    told = rounded_counts(counts, least)
    assert (rounded_counts(told, least) == told).all()  # hub and sites say the same of what was rounded already
    assert told[0] == 0
    assert (told[least:] >= least).all()
    behind = {count: np.flatnonzero(told == count) for count in np.unique(told[least:])}
    assert all(count in those for count, those in behind.items())
    lowest, *others = [those[those >= least] for those in behind.values()]
    assert (lowest[0], lowest[-1]) == (least, 2 * width - 1)
    assert all(np.ptp(those) == width - 1 for those in others)


def test_ranges_of_several_minimums_lie_in_one_another() -> None:
    """Otherwise the ranges of one bin in a few plans would have little in common, and tell its count."""
    counts = np.arange(1000.0)
    starts = [set(np.flatnonzero(np.diff(rounded_counts(counts, least))[least:]) + least) for least in range(10, 70)]
    assert all(later <= starts[0] for later in starts)
