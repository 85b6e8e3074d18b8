"""Pairs of columns under a budget: noisy sums over the cells of coarse grids say which of them act together.

A row is in one cell of every pair that is looked at, so its part in the total has a known norm whatever it holds. Noise
protects every cell, so pairs may form cycles, and no cell is withheld.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt

import numpy as np

from kohort.models.additive.bins import Floats
from kohort.models.additive.choice import PairChoice
from kohort.models.additive.design import Design, Whole
from kohort.models.additive.pairs import Pair, without_curves

__all__ = ["COUNT_WEIGHT", "NoisyPairs", "grid_for"]

COUNT_WEIGHT = 0.2
"""What a row counts in its cell of a pair, where its residual counts up to 1: the metric of a step needs counts less
precisely."""
LARGEST_GRID = 6
"""Most groups of a column in a pair."""
SMALLEST_GRID = 5
"""A budget that allows fewer groups pays for no pairs."""
PAIRS_PER_COLUMN = 2
"""Most pairs with a surface, for every column: each of them adds to the noise on all sums."""
NOISES = 2.0
"""A pair must gain more than so many times what noise alone gives."""


def grid_for(rows: float, curvature: float, noise: float) -> int:
    """How many groups a column of a pair has under a budget.

    Args:
        rows: How many rows there are.
        curvature: The mean square of a row's residual, roughly.
        noise: The standard deviation of the noise on the sum of residuals of a cell.

    Returns:
        The most groups, up to `LARGEST_GRID`, at which rows alone make the sum of an average cell vary by half of the
        noise at least; 0 where these are fewer than `SMALLEST_GRID`.
    """
    groups = min(LARGEST_GRID, floor(2.0 * sqrt(max(curvature * rows, 0.0)) / max(noise, 1e-9)))
    return groups if groups >= SMALLEST_GRID else 0


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """The pairs that are looked at. Everybody derives the same ones from noisy counts and values so far."""

    choice: PairChoice

    @property
    def length(self) -> int:
        """How many numbers the total has: counts and sums of residuals of every cell."""
        return 2 * sum(self.choice.sizes)

    def counted(self, design: Design, residuals: Whole, weight: int) -> Whole:
        """What rows add to the total.

        Args:
            design: Their bins.
            residuals: [rows] in units of a grid.
            weight: What a row counts, in the same units.

        Returns:
            Whole numbers, by pair: the counts of its cells, then their sums of residuals.
        """
        choice = self.choice
        own = {
            number: groups[design.places[number] - choice.part(number).start].astype(np.int64)
            for number, groups in choice.groups.items()
        }
        parts = [np.empty(0, dtype=np.int64)]
        for left, right in choice.candidates:
            high, wide = choice.shape((left, right))
            cells = own[left] * wide + own[right]
            parts.append(np.bincount(cells, minlength=high * wide).astype(np.int64) * weight)
            sums = np.bincount(cells, weights=residuals.astype(np.float64), minlength=high * wide)
            parts.append(sums.astype(np.int64))
        return np.concatenate(parts)

    def chosen(self, total: Floats, *, noise: float, curvature: float) -> tuple[tuple[Pair, ...], Floats]:
        """The pairs that gain most beyond noise.

        Args:
            total: What `counted` gave over all sites, with noise, in units of a residual.
            noise: The standard deviation of the noise on each number.
            curvature: How strongly the loss of a row bends.

        Returns:
            The pairs in the order of the columns, each cell a bin, and the counts of their bins: none below the noise
            on it.
        """
        found: list[tuple[float, Pair, Floats]] = []
        place, groups = 0, self.choice.groups
        for left, right in self.choice.candidates:
            high, wide = self.choice.shape((left, right))
            counts, sums = total[place : place + 2 * high * wide].reshape(2, high, wide)
            place += 2 * high * wide
            held = np.maximum(counts, max(noise, COUNT_WEIGHT)) / COUNT_WEIGHT
            gain = _gain(held, sums, noise, curvature)
            if gain > 0:
                cells = np.arange(high * wide, dtype=np.int32).reshape(high, wide)
                found.append((gain, Pair(left, right, groups[left], groups[right], cells), held.ravel()))
        most = PAIRS_PER_COLUMN * len(self.choice.bins.columns)
        best = sorted(found, key=lambda entry: -entry[0])[:most]
        best.sort(key=lambda entry: (entry[1].left, entry[1].right))
        return tuple(pair for _, pair, _ in best), np.concatenate([np.empty(0), *(held for _, _, held in best)])


def _gain(held: Floats, sums: Floats, noise: float, curvature: float) -> float:
    """By how much cells differ beyond curves of the two columns, less what rows and noise give by chance."""
    free = int((held.shape[0] - 1) * (held.shape[1] - 1))
    precision = np.square(curvature * held) / (curvature * held + noise * noise)
    beyond = without_curves(sums / (curvature * held), precision)
    return float(np.sum(precision * beyond * beyond)) - NOISES * free
