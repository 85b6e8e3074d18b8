"""How exactly counts of bins and the values of a finished model are told.

A fitted value solves an equation over all rows of its bin. With all its digits, whole numbers that no total shows could
be solved for: how many rows have which combination of bins. So a value is rounded to a step of at most half of its
standard error, which adds about two percent to its variance at most, and a standard error is rounded up to one of four
steps per doubling. In a bin with few rows of a class, half of a standard error is less than what one row moves the
value by; there the step is what one or two rows move it by.

Two columns that say nearly the same have nested bins, and the difference of two exact counts could be one person. So
counts are told as ranges that are wider than the fewest persons of a bin.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log2, sqrt

import numpy as np

from kohort.models.additive.bins import Floats
from kohort.models.rounding import rounded_to, steps_within

__all__ = ["rounded_counts", "rounded_errors", "rounded_mean", "rounded_values"]

SHARE = 0.5
"""The largest step, in standard errors."""
PERSONS = 2.0
"""Of a class's score, how many rows of the class the largest step stands for where that is more: one row of the class
moves the score of a bin by about the square of its standard error."""
MOST_OF_PERSONS = 0.5
"""That step is no larger: bins with hardly a row of a class keep apart what differs by a factor of 1.6 in the odds."""
STEPS_PER_DOUBLING = 4
FEW_ROWS = 2.0**-1.5
"""The error of a score in a bin with about eight rows of the class: with fewer, a quarter of a doubling tells their
number."""


def rounded_counts(counts: Floats, least: int) -> Floats:
    """Counts as ranges, so that the difference of two of them tells no small number of persons.

    Ranges are as wide as the next power of two from `least` on, and the lowest is twice as wide. So the ranges of any
    two minimums lie in one another: plans with several minimums tell no more than the one with the smallest.

    Args:
        counts: Persons per bin.
        least: The fewest persons of a bin.

    Returns:
        A number in the range of each count, the same for all of it. With 20 ranges are 32 wide: 32 stands for 20 to 63,
        80 for 64 to 95. None is below `least`, 0 stays 0, and what was rounded already stays as it is.
    """
    step = 2 ** ceil(log2(max(least, 1)))
    shown = np.where(counts < 2 * step, float(step), np.floor(counts / step) * step + step // 2)
    return np.asarray(np.where(counts > 0, shown, 0.0))


def rounded_values(w: Floats, errors: Floats, alike: Iterable[slice] = (), *, classes: bool = True) -> Floats:
    """Values without the digits that rows do not support.

    Args:
        w: Values, [bins + 1, outputs].
        errors: Their standard errors, of the same shape; all above 0.
        alike: Parts that are rounded to one step, the finest of the part: a curve that rises still rises then.
        classes: Whether they are scores of classes.

    Returns:
        Multiples of a power of two, which is more than a quarter and at most half of the standard error; of a class of
        which a bin has few rows, more than what one row moves the value by.
    """
    largest = SHARE * errors
    if classes:
        largest = np.maximum(largest, np.minimum(PERSONS * np.square(errors), MOST_OF_PERSONS))
    steps = steps_within(largest)
    for part in alike:
        steps[part] = steps[part].min(axis=0)
    return rounded_to(w, steps)


def rounded_mean(total: float, rows: float) -> Floats:
    """The mean of a target from 0 to 1, without the digits of a single row and without how many rows there are.

    Args:
        total: The sum.
        rows: How many rows it is over; sites declare their rows, and fewer may lie within the domain.

    Returns:
        The rounded mean as the sum of one row, and 1. Its step is half of the largest standard error that the mean of
        so many rows can have, at most; a row moves the mean by less, from 64 rows on.
    """
    most = max(rows, 1.0)
    step = 2.0 ** floor(log2(SHARE * 0.5 / sqrt(most)))
    return np.asarray([round(total / most / step) * step, 1.0])


def rounded_errors(errors: Floats, *, classes: bool = True) -> Floats:
    """Standard errors, rounded up: intervals are up to a fifth wider, and never narrower.

    The error of a class's score says about how many rows of the class a bin has. Where these are few, intervals are up
    to twice as wide.

    Args:
        errors: Above 0.
        classes: Whether they are errors of scores of classes.

    Returns:
        Powers of two to the quarters; powers of two from `FEW_ROWS` on.
    """
    doublings = np.log2(errors)
    rounded = np.exp2(np.ceil(STEPS_PER_DOUBLING * doublings) / STEPS_PER_DOUBLING)
    return np.asarray(np.where(errors > FEW_ROWS, np.exp2(np.ceil(doublings)), rounded) if classes else rounded)
