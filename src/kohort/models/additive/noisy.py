"""Fitting an additive model from noisy sums: bins from noisy counts, and damped, smoothed, shrunk steps.

Everything here is post-processing of releases that are private already.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np

from kohort.models.additive.bins import Bins, Floats, isotonic, make_bins
from kohort.models.additive.categories import NOISES_PER_BIN, category_bins
from kohort.models.additive.cells import Column
from kohort.models.additive.descent import Metric
from kohort.models.additive.pairs import Pair, without_curves

__all__ = ["bins_of_noisy", "noisy_step"]

RATE = 0.4
MOMENTUM = 0.3
"""How much of the step before is taken again: correlated columns need many small steps in one direction."""
RIDGE = 5.0
SMOOTH = 5.0
CHAIN = 0.2
"""How much of the pull of neighbouring bins of a number holds for neighbours of a code list."""
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
        own if column.ordered or not column.listed else category_bins(column, count, least, noise)
        for column, own, count in zip(columns, made.of_cell, counts, strict=True)
    )
    found = Bins(columns, places)
    sizes = [
        np.bincount(own, weights=count, minlength=int(size))
        for own, count, size in zip(found.of_cell, smoothed, found.sizes, strict=True)
    ]
    return found, np.maximum(np.concatenate(sizes), 1.0)


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
        bins: The bins; each cell of a pair has its own.
        counts: Their noisy counts.
        w: Values and intercepts, [bins + 1, outputs].
        before: Those before the last step.
        gradient: Noisy sums of residuals per bin, [bins, outputs].
        link: What scores stand for.
        noise: The standard deviation of the noise on each sum.
        mu: The Gaussian privacy parameter of the whole plan; smaller means smoother curves.

    Returns:
        The next values and intercepts. A column or pair whose sums are mostly noise hardly moves, and a surface
        holds what curves of its two columns cannot say.
    """
    columns = len(bins.columns)
    parts = [slice(int(begin), int(end)) for begin, end in pairwise(bins.starts)]
    rows = float(np.median([counts[part].sum() for part in parts[:columns]]))
    sums = np.stack([gradient[part].sum(axis=0) for part in parts])
    trust = 1.0 / bins.sizes
    overall = (sums * trust[:, None]).sum(axis=0) / trust.sum()
    own = [_centred(gradient[part], counts[part]) for part in parts[:columns]]
    free = [*bins.sizes[:columns].tolist(), *(_freedom(pair) for pair in bins.pairs)]
    own += [_beyond(gradient[part], counts[part], pair) for part, pair in zip(parts[columns:], bins.pairs, strict=True)]
    shrunk = [_shrunk(one, noise * noise * size) for one, size in zip(own, free, strict=True)]
    smooth = SMOOTH * sqrt(columns) / mu
    metric = Metric(bins, counts, rows, CURVATURE[link], RIDGE, smooth, CHAIN * smooth, pair_ridge=0.0)
    step = metric.solve(np.vstack([*shrunk, overall[None, :]]))
    moved: Floats = w - RATE * step + MOMENTUM * (w - before)
    return moved


def _centred(gradient: Floats, counts: Floats) -> Floats:
    """The sums of a column's bins, less what all rows have in common."""
    share = counts / counts.sum()
    return np.asarray(gradient - share[:, None] * gradient.sum(axis=0))


def _beyond(gradient: Floats, counts: Floats, pair: Pair) -> Floats:
    """The sums of a pair's cells, less what curves of its two columns have: these are steps of the curves."""
    held = counts.reshape(pair.cells.shape)
    found = [
        (held * without_curves(one.reshape(held.shape) / held, held)).ravel()
        for one in gradient.T  # one output after the other
    ]
    return np.stack(found, axis=1)


def _freedom(pair: Pair) -> int:
    """How many cells of a pair are free when its two columns have curves."""
    high, wide = pair.cells.shape
    return int((high - 1) * (wide - 1))


def _shrunk(sums: Floats, noise_power: float) -> Floats:
    """Sums that are mostly noise become small ones."""
    seen, expected = float(np.sum(sums * sums)), noise_power * sums.shape[1]
    return np.asarray(sums * (max(0.0, 1.0 - expected / seen) if seen > 0 else 0.0))
