"""How exactly a forest tells what sites read in sealed totals.

The hub holds the splits and values of every node, and each value is an equation in the counts of combinations of
columns. With all its digits, many nodes together have one solution: the count of every combination, of single persons
among them. So values are rounded before anything else follows from them, the same wherever they are computed, to steps
of about their own standard error. Boosting goes on from the rounded values and mends what rounding moved: on
validation rows of five tables the accuracy was the same with and without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kohort.models.rounding import rounded_to, steps_within

__all__ = ["rounded_gains", "rounded_loss", "rounded_scores", "rounded_values"]

Floats = NDArray[np.float64]

CLASSES, NUMBERS = 2.0, 0.5
"""The largest step of a value times the root of its curvature: two standard errors of a class's score; one standard
error of the mean of numbers from 0 to 1 that differ as much as they can."""
GAIN_STEPS = 4
"""Steps of a gain per doubling."""
LOSS_SHARE = 0.5
"""The largest step of a loss, in standard errors; the losses of rows differ about as much as they are large."""


def rounded_values(values: Floats, curvature: Floats, *, classes: int) -> Floats:
    """Newton steps without digits from which counts follow.

    Args:
        values: The steps.
        curvature: The curvature of each, of rows that weigh at most 1, and the penalty.
        classes: How many classes the target has; 0 for a number.

    Returns:
        Multiples of a power of two each.
    """
    return _to_grid(values, (CLASSES if classes else NUMBERS) / np.sqrt(curvature))


def rounded_scores(scores: Floats, shares: Floats, rows: int, *, classes: int) -> Floats:
    """The scores that all rows begin with, without digits from which the number of rows of a class follows.

    Args:
        scores: One per output.
        shares: The share of the rows of each output's class; of a number, its mean.
        rows: Over all sites.
        classes: How many classes the target has; 0 for a number.

    Returns:
        Multiples of a power of two each.
    """
    curvature = shares * (1.0 - shares) if classes else np.ones(len(scores))
    return rounded_values(scores, np.maximum(curvature * rows, 1.0), classes=classes)


def rounded_gains(gains: Floats) -> Floats:
    """Gains to a quarter of themselves: enough for the importance of columns, which adds up many.

    Args:
        gains: What splits lower the loss by.

    Returns:
        Multiples of a power of two each, `GAIN_STEPS` steps per doubling at most.
    """
    return _to_grid(gains, np.maximum(np.abs(gains), np.finfo(np.float64).tiny) * (2.0 / GAIN_STEPS))


def rounded_loss(loss: float, rows: int) -> float:
    """The mean loss of held-out rows without the digits of a single one.

    Args:
        loss: The mean loss.
        rows: How many rows it is of.

    Returns:
        A multiple of a power of two.
    """
    spread = max(abs(loss), np.finfo(np.float64).tiny) * LOSS_SHARE / np.sqrt(rows)
    return float(_to_grid(np.asarray(loss), np.asarray(spread)))


def _to_grid(values: Floats, largest: Floats) -> Floats:
    """The nearest multiples of the largest power of two that is not above `largest`."""
    return rounded_to(values, steps_within(largest))
