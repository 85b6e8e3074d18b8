"""Which pairs of columns act together, from sums over all rows: no cell of a pair is counted for it.

Each column has up to four smooth curves over the ranks of its rows: a line, a parabola and so on. For two columns the
sum over all rows of residual x curve of one x curve of the other is near 0 unless the columns act together (a score
test). There are many candidates with columns in common, so no cell of a pair may follow from these sums:

- A pair has at most one sum for every `CELLS_PER_SUM` cells of its bins.
- Every row counts once or twice, by a hash of all its bins. So the sums of residuals per bin, which open as well,
  cannot be subtracted from them.
- No row weighs more than `LARGEST` standard deviations of a curve.

The pairs that are looked at further form no cycle. What is opened of such pairs tells together no more than what each
of them tells alone (docs/methods/additive.md says why).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import log2

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.bins import Bins
from kohort.models.additive.choice import PairChoice
from kohort.models.additive.design import Design, Whole
from kohort.models.additive.pairs import MOST_COLUMNS

__all__ = ["CELLS_PER_SUM", "LARGEST", "PairMoments", "acyclic", "most_sums", "rank_curves", "times_counted"]

DEGREES = 4
LARGEST = 3.7
"""A curve with a larger value is left out: few rows would decide its sums."""
CELLS_PER_SUM = 4
LEAST_KINDS = 4.9
"""Rows of one cell must be able to differ in other columns, in at least 2 to the power of this ways: about 30.
Otherwise the hash would say hardly more than the cell."""
CURVE_STEPS = 64
"""Grid of a curve. Curves are whole numbers, so that sums do not depend on who holds which row."""
RESIDUAL_STEPS = 2.0**16
NOISES = 2.0
"""Sums gain if they exceed so many times what noise alone gives: half of that would be lost on other rows."""
Floats = NDArray[np.float64]


def rank_curves(counts: Floats, order: list[int]) -> Whole:
    """Curves of degree 1 to 4 over the ranks of rows, orthogonal, with variance 1, on the grid of `CURVE_STEPS`.

    Args:
        counts: Persons per bin.
        order: The bins, so that like ones are neighbours.

    Returns:
        [curves, bins]; fewer than four where there are few bins, and without those that go beyond `LARGEST`.
    """
    held = counts[order]
    share = held / max(float(held.sum()), 1.0)
    middle = 2.0 * (np.cumsum(share) - share / 2) - 1.0
    basis, found = [np.ones(len(held))], []
    for _ in range(min(DEGREES, len(held) - 1)):
        curve = middle * basis[-1]
        for known in basis:
            curve = curve - known * float(np.sum(share * known * curve))
        norm = float(np.sqrt(np.sum(share * curve * curve)))
        if norm < 1e-3:
            break
        basis.append(curve / norm)
        if float(np.abs(basis[-1]).max()) <= LARGEST:
            found.append(np.rint(basis[-1] * CURVE_STEPS))
    placed = np.zeros((len(found), len(held)), dtype=np.int64)
    placed[:, order] = np.asarray(found).reshape(placed.shape)
    return placed


def times_counted(places: NDArray[np.int32]) -> NDArray[np.int64]:
    """How often each row counts: once or twice, by its bins alone, so that it is the same wherever the row lies.

    Args:
        places: [columns, rows] the bins of rows.

    Returns:
        1 or 2, each for about half of the rows (the mixing of splitmix64, Steele et al. 2014).
    """
    mixed = np.zeros(places.shape[1], dtype=np.uint64)
    for own in places:
        mixed = (mixed ^ own.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(40)) & np.uint64(1)).astype(np.int64) + 1


def acyclic(gains: Mapping[tuple[int, int], float]) -> tuple[tuple[int, int], ...]:
    """The pairs of largest gain in all that form no cycle (Kruskal 1956).

    Args:
        gains: By pair of column numbers; those that are not positive are left out.

    Returns:
        Pairs, in order.
    """
    root: dict[int, int] = {}

    def top(column: int) -> int:
        while root.get(column, column) != column:
            column = root[column]
        return column

    found = []
    for gain, pair in sorted((-gain, pair) for pair, gain in gains.items()):
        one, other = top(pair[0]), top(pair[1])
        if gain < 0 and one != other:
            root[one] = other
            found.append(pair)
    return tuple(sorted(found))


def most_sums(bins: Bins, apart: Collection[str], outputs: int) -> int:
    """How many numbers `PairMoments.counted` has at most, whatever the values are: a hub does not know them.

    Args:
        bins: The bins of the columns.
        apart: Columns that are in no pair.
        outputs: Scores per row.

    Returns:
        A bound that follows from the bins alone.
    """
    sizes = [int(size) for column, size in zip(bins.columns, bins.sizes, strict=True) if column.name not in apart]
    rooms = [min(DEGREES, one - 1) * min(DEGREES, two - 1) for one, two in combinations([s for s in sizes if s > 1], 2)]
    return sum(sorted(rooms, reverse=True)[: MOST_COLUMNS * (MOST_COLUMNS - 1) // 2]) * outputs + 1


@dataclass(frozen=True, eq=False)
class PairMoments:
    """The sums of all candidates. Everybody derives the same curves from counts and values so far."""

    choice: PairChoice

    @cached_property
    def _curves(self) -> dict[int, Whole]:
        columns = sorted({place for pair in self.choice.candidates for place in pair})
        return {
            number: rank_curves(self.choice.counts[self.choice.part(number)], self.choice.order(number))
            for number in columns
        }

    @cached_property
    def _kinds(self) -> float:
        """How many different rows there could be, as a power of 2."""
        return float(np.sum(np.log2(self.choice.bins.sizes)))

    @cached_property
    def curves(self) -> dict[tuple[int, int], tuple[Whole, Whole]]:
        """The curves of both columns of every candidate; without candidates that have too few cells."""
        found = {}
        for left, right in self.choice.candidates:
            one, two = self._curves[left], self._curves[right]
            cells = one.shape[1] * two.shape[1]
            most = cells // CELLS_PER_SUM if self._kinds - log2(cells) >= LEAST_KINDS else 0
            sizes = [
                (high, wide)
                for high in range(1, len(one) + 1)
                for wide in range(1, len(two) + 1)
                if high * wide <= most
            ]
            if sizes:
                high, wide = max(sizes, key=lambda size: (size[0] * size[1], size[0]))
                found[left, right] = one[:high], two[:wide]
        return found

    @property
    def length(self) -> int:
        """How many sums there are, and one of squared residuals."""
        return sum(len(one) * len(two) for one, two in self.curves.values()) * self.choice.outputs + 1

    def counted(self, design: Design, residuals: Floats) -> Whole:
        """What rows add.

        Args:
            design: Their bins.
            residuals: [rows, outputs].

        Returns:
            Whole numbers: by pair, output and curves; behind them the sum of squared residuals.
        """
        units = np.trunc(residuals * RESIDUAL_STEPS) * times_counted(design.places)[:, None]
        step = _exact_rows(float(np.abs(units).max(initial=0.0)))
        products = np.zeros((self.choice.outputs, self._high, self._high), dtype=np.int64)
        for first in range(0, len(units), step):
            rows = slice(first, first + step)
            values = self._values(design.places[:, rows])
            for output, unit in enumerate(units[rows].T):
                products[output] += ((values * unit) @ values.T).astype(np.int64)
        squares = np.trunc(np.square(residuals) * RESIDUAL_STEPS).sum()
        return np.append(products.ravel()[self._wanted], np.int64(squares))

    @cached_property
    def _first(self) -> dict[int, int]:
        """The place of each column's first curve among the curves of all columns."""
        ends = np.cumsum([0, *(len(curves) for curves in self._curves.values())]).tolist()
        return dict(zip(self._curves, ends, strict=False))

    @property
    def _high(self) -> int:
        """How many curves all columns have."""
        return sum(len(curves) for curves in self._curves.values())

    def _values(self, places: NDArray[np.int32]) -> Floats:
        """All curves at the bins of rows, [curves, rows]."""
        parts = [curves[:, places[number] - self.choice.part(number).start] for number, curves in self._curves.items()]
        return np.concatenate([np.empty((0, places.shape[1])), *parts])

    @cached_property
    def _wanted(self) -> Whole:
        """The places of the sums among the products of all curves with all: by pair, output and curves."""
        size, outputs = self._high, np.arange(self.choice.outputs)[:, None, None]
        parts = [
            ((outputs * size + self._first[left] + np.arange(len(one))[:, None]) * size)
            + self._first[right]
            + np.arange(len(two))
            for (left, right), (one, two) in self.curves.items()
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *(part.ravel() for part in parts)])

    def gains(self, total: Whole, *, curvature: float) -> dict[tuple[int, int], float]:
        """By how much more than noise each candidate would lower the loss.

        Args:
            total: What `counted` gave, over all sites.
            curvature: How strongly the loss of a row bends.

        Returns:
            Twice the gain of one Newton step along the curves, less `NOISES` times what noise gives.
        """
        # A row counts 1.5 times in the mean, and its square 2.5 times.
        rows, place, found = max(self.choice.rows, 1.0), 0, {}
        noise = 2.5 / 1.5**2 * float(total[-1]) / RESIDUAL_STEPS / (rows * self.choice.outputs * curvature)
        for pair, (one, two) in self.curves.items():
            size = len(one) * len(two) * self.choice.outputs
            sums = total[place : place + size] / (1.5 * RESIDUAL_STEPS * CURVE_STEPS * CURVE_STEPS)
            place += size
            found[pair] = float(np.sum(sums * sums)) / (curvature * rows) - NOISES * noise * size
        return found

    def looked_at(self, total: Whole, *, curvature: float) -> tuple[tuple[int, int], ...]:
        """The pairs of the largest gain that form no cycle; see `gains`."""
        return acyclic(self.gains(total, curvature=curvature))


def _exact_rows(largest: float) -> int:
    """How many rows can be added in floating point at once: no sum reaches 2^53, so that none is rounded."""
    return int(min(max(2.0**53 // (max(largest, 1.0) * (LARGEST * CURVE_STEPS + 1.0) ** 2), 1.0), 2.0**15))
