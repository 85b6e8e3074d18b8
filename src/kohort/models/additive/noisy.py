"""Fitting an additive model from noisy sums: bins from noisy counts, and damped, smoothed, shrunk steps.

Everything here is post-processing of releases that are private already.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.bins import Bins, Floats, isotonic, make_bins
from kohort.models.additive.cells import Column
from kohort.models.additive.descent import Metric

__all__ = ["NOISES_PER_BIN", "bins_of_noisy", "noisy_step"]

NOISES_PER_BIN = 3.0
"""A bin holds at least so many standard deviations of the noise on its count."""
NOISES_PER_CATEGORY = 6.0
"""A category has a bin of its own if its noisy count is at least so many standard deviations of the noise."""
RATE = 0.4
MOMENTUM = 0.3
"""How much of the step before is taken again: correlated columns need many small steps in one direction."""
RIDGE = 5.0
SMOOTH = 5.0
CURVATURE = {"logit": 0.15, "softmax": 0.1, "identity": 1.0, "log": 1.0}


def bins_of_noisy(
    columns: tuple[Column, ...], counts: list[Floats], *, bins: int, least: float, noise: float
) -> tuple[Bins, Floats]:
    """Bins from noisy counts.

    Args:
        columns: The columns.
        counts: The noisy count of every cell, by column.
        bins: Most bins of a number.
        least: Fewest persons of a bin, were the counts exact.
        noise: The standard deviation of the noise on a count.

    Returns:
        The bins, and the count of each, not below 1. Counts of ordered cells are made to add up to cumulative counts
        that never fall. Rare categories are joined with rare neighbours of the code list, as far as the noise needs it.
    """
    smoothed = [_steady(column, own) for column, own in zip(columns, counts, strict=True)]
    made = make_bins(columns, smoothed, bins=bins, least=max(least, NOISES_PER_BIN * noise))
    places = tuple(
        own if column.ordered or not column.listed else _joined_categories(column, count, least, noise)
        for column, own, count in zip(columns, made.of_cell, counts, strict=True)
    )
    found = Bins(columns, places)
    sizes = [
        np.bincount(own, weights=count, minlength=int(size))
        for own, count, size in zip(found.of_cell, smoothed, found.sizes, strict=True)
    ]
    return found, np.maximum(np.concatenate(sizes), 1.0)


def _joined_categories(column: Column, counts: Floats, least: float, noise: float) -> NDArray[np.int32]:
    """Frequent categories alone; of the others, neighbours of the code list together until they outweigh the noise.

    Noise on a sum of residuals is the same for a bin of one category and of many, so bins need not be fewer than the
    counts ask for; and codes that stand together are often alike, which one bin for all of them would lose.
    """
    frequent = counts >= max(least, NOISES_PER_CATEGORY * noise)
    if column.other >= 0:
        frequent[column.other] = False
    alone = [[cell] for cell in np.flatnonzero(frequent).tolist()]
    last = [cell for cell in range(column.cells) if cell not in column.listed]
    rare = [cell for cell in (*column.listed, *last) if not frequent[cell]]
    joined, left = _joined(rare, counts, least, noise)
    if left and joined:
        joined[-1] += left
    elif left and alone and counts[left].sum() < least:
        alone[int(np.argmin(counts[frequent]))] += left
    elif left:
        joined.append(left)
    groups = [*alone, *joined]
    found = np.empty(column.cells, dtype=np.int32)
    for number, group in enumerate(groups):
        found[group] = number
    return found


def _joined(cells: list[int], counts: Floats, least: float, noise: float) -> tuple[list[list[int]], list[int]]:
    """Neighbours together, each group as small as its noise allows; and what is left at the end."""
    groups: list[list[int]] = []
    current: list[int] = []
    for cell in cells:
        current.append(cell)
        if counts[current].sum() >= max(least, NOISES_PER_BIN * noise * sqrt(len(current))):
            groups.append(current)
            current = []
    return groups, current


def _steady(column: Column, counts: Floats) -> Floats:
    """Counts without negative ones; ordered cells by their cumulative counts."""
    if not column.ordered:
        return np.maximum(counts, 0.0)
    values = counts[: column.cells - column.missing]
    sums = isotonic(np.cumsum(values), np.ones(len(values)))
    rising = np.diff(np.maximum(sums, 0.0), prepend=0.0)
    return np.append(rising, np.maximum(counts[-1], 0.0)) if column.missing else rising


def noisy_step(
    bins: Bins, counts: Floats, w: Floats, before: Floats, gradient: Floats, *, link: str, noise: float, mu: float
) -> Floats:
    """One damped step from noisy sums of residuals.

    Args:
        bins: The bins.
        counts: Their noisy counts.
        w: Values and intercepts, [bins + 1, outputs].
        before: Those before the last step.
        gradient: Noisy sums of residuals per bin, [bins, outputs].
        link: What scores stand for.
        noise: The standard deviation of the noise on each sum.
        mu: The Gaussian privacy parameter of the whole plan; smaller means smoother curves.

    Returns:
        The next values and intercepts. A column whose sums are mostly noise hardly moves.
    """
    columns, outputs = len(bins.columns), gradient.shape[1]
    rows = float(np.median([counts[a:b].sum() for a, b in zip(bins.starts[:-1], bins.starts[1:], strict=True)]))
    sums = np.stack([gradient[a:b].sum(axis=0) for a, b in zip(bins.starts[:-1], bins.starts[1:], strict=True)])
    trust = 1.0 / bins.sizes
    overall = (sums * trust[:, None]).sum(axis=0) / trust.sum()
    centred = np.empty_like(gradient)
    for number, (begin, end) in enumerate(zip(bins.starts[:-1], bins.starts[1:], strict=True)):
        share = counts[begin:end] / counts[begin:end].sum()
        own = gradient[begin:end] - share[:, None] * sums[number]
        seen = float(np.sum(own * own))
        expected = noise * noise * (end - begin) * outputs
        centred[begin:end] = own * (max(0.0, 1.0 - expected / seen) if seen > 0 else 0.0)
    metric = Metric(bins, counts, rows, CURVATURE[link], RIDGE, SMOOTH * sqrt(columns) / mu)
    step = metric.solve(np.vstack([centred, overall[None, :]]))
    moved: Floats = w - RATE * step + MOMENTUM * (w - before)
    return moved
