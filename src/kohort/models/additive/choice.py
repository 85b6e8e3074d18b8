"""Choosing pairs of columns from one total over all candidates: persons and residuals per cell of coarse grids."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.bins import Bins, Floats
from kohort.models.additive.design import Design, Whole
from kohort.models.additive.pairs import (
    Groups,
    Pair,
    candidates,
    column_groups,
    gain_of,
    groups_for,
    interaction_of,
    withheld_cells,
)

__all__ = ["PairChoice"]

STEPS = 2.0**28
"""Grid of a residual."""
NOISES = 2.0
"""A pair whose columns are in other pairs, too, must gain more than so many times what noise alone gives."""


@dataclass(frozen=True, eq=False)
class PairChoice:
    """The candidates, as they follow from bins, counts and values so far: everybody finds the same ones."""

    bins: Bins
    counts: Floats
    values: Floats
    """[bins, outputs]"""
    least: float
    """Fewest persons of a bin, and of what follows from bins."""
    apart: Collection[str] = ()
    """Columns that are in no pair."""
    among: tuple[tuple[int, int], ...] | None = None
    """The pairs that are looked at, where it is known which; None for all pairs of the columns that matter most."""
    grid: int | None = None
    """Most groups of a column; None for as many as `least` allows."""

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return int(self.values.shape[1])

    @cached_property
    def candidates(self) -> list[tuple[int, int]]:
        """Pairs of column numbers."""
        if self.among is not None:
            return list(self.among)
        sizes = [
            1 if column.name in self.apart else int(size)
            for column, size in zip(self.bins.columns, self.bins.sizes, strict=True)
        ]
        return candidates([self._importance(number) for number in range(len(sizes))], sizes)

    def part(self, number: int) -> slice:
        """Where the bins of a column stand."""
        return slice(int(self.bins.starts[number]), int(self.bins.starts[number + 1]))

    def _importance(self, number: int) -> float:
        held = self.counts[self.part(number)]
        middle = self.centred(number)
        return float(np.sum(held[:, None] * middle * middle))

    def centred(self, number: int) -> Floats:
        """The values of a column's bins, less their mean over the rows."""
        held, values = self.counts[self.part(number)], self.values[self.part(number)]
        return np.asarray(values - (held[:, None] * values).sum(axis=0) / max(float(held.sum()), 1.0))

    @property
    def rows(self) -> float:
        """How many there are."""
        return float(self.counts[self.part(0)].sum())

    @property
    def _most(self) -> int:
        return groups_for(self.rows, self.least) if self.grid is None else self.grid

    @cached_property
    def groups(self) -> dict[int, Groups]:
        """The groups of the bins of every column that is in a candidate."""
        return {
            number: self._groups(number) for number in sorted({place for pair in self.candidates for place in pair})
        }

    def _groups(self, number: int) -> Groups:
        column, part = self.bins.columns[number], self.part(number)
        size = part.stop - part.start
        if column.ordered:
            last = int(self.bins.joined[part].sum())
            absent = last + 1 if last + 1 < size else None
            return column_groups(self.counts[part], range(size), most=self._most, missing=absent)
        return column_groups(self.counts[part], self.order(number), most=self._most, missing=None)

    def order(self, number: int) -> list[int]:
        """The bins of a column so that like ones are neighbours: by number, and categories by their values so far."""
        values, held = self.centred(number), self.counts[self.part(number)]
        if self.bins.columns[number].ordered:
            return list(range(len(values)))
        # Of several classes, that whose values differ most says which categories are alike.
        spread = (held[:, None] * values * values).sum(axis=0)
        return [int(place) for place in np.argsort(values[:, int(spread.argmax())], kind="stable")]

    def shape(self, pair: tuple[int, int]) -> tuple[int, int]:
        """How many groups the two columns of a candidate have."""
        left, right = pair
        return int(self.groups[left].max()) + 1, int(self.groups[right].max()) + 1

    @property
    def sizes(self) -> list[int]:
        """Cells of every candidate."""
        return [high * wide for high, wide in map(self.shape, self.candidates)]

    @property
    def length(self) -> int:
        """How many numbers the total has: persons and sums of residuals of every cell, and the sum of squares."""
        return sum(self.sizes) * (1 + self.outputs) + 1

    def counted(self, design: Design, residuals: Floats, persons: NDArray[np.bool_] | None) -> Whole:
        """What rows add to the total.

        Args:
            design: Their bins.
            residuals: [rows, outputs].
            persons: Which rows count as persons; None for all.

        Returns:
            Whole numbers, by pair: persons of all cells, then the residuals of each output, in units of a grid.
            Behind them the sum of their squares.
        """
        every = np.ones(len(residuals)) if persons is None else persons.astype(np.float64)
        numbers = np.concatenate([every[:, None], np.trunc(residuals * STEPS)], axis=1)
        own = {
            number: groups[design.places[number] - self.part(number).start] for number, groups in self.groups.items()
        }
        parts = [np.empty(0)]
        for left, right in self.candidates:
            high, wide = self.shape((left, right))
            cells = own[left].astype(np.int64) * wide + own[right]
            for weight in numbers.T:
                parts.append(np.bincount(cells, weights=weight, minlength=high * wide).astype(np.float64))
        squares = np.trunc(np.square(residuals) * STEPS).sum()
        return np.concatenate([*parts, [squares]]).astype(np.int64)

    def chosen(self, total: Whole, *, most: int, curvature: float, ridge: float) -> tuple[tuple[Pair, ...], Floats]:
        """The best pairs, none of whose bins holds few persons.

        Args:
            total: What `counted` gave, over all sites.
            most: How many pairs at most.
            curvature: How strongly the loss of a row bends.
            ridge: Pull of every value towards 0.

        Returns:
            The pairs in the order of the columns, and the persons of their bins. A pair that gains nothing over noise
            is not among them.
        """
        found: list[tuple[float, Pair, Floats]] = []
        spread, place = float(total[-1]) / STEPS / max(self.rows * self.outputs, 1.0), 0
        for left, right in self.candidates:
            high, wide = self.shape((left, right))
            size = high * wide * (1 + self.outputs)
            table = total[place : place + size].reshape(1 + self.outputs, high, wide).astype(np.float64)
            place += size
            cells = _cells(withheld_cells(table[0], self.least))
            sums = np.moveaxis(table[1:], 0, -1) / STEPS
            if self.among is None:
                gain = gain_of(table[0], sums, cells, spread=spread, curvature=curvature, ridge=ridge)
            else:
                gain = interaction_of(table[0], sums, cells, spread=spread, curvature=curvature, noises=NOISES)
            if gain > 0 and cells.max() > 0:
                pair = Pair(left, right, self.groups[left], self.groups[right], cells)
                held = np.bincount(cells.ravel(), weights=table[0].ravel()).astype(np.float64)
                found.append((gain, pair, held))
        best = sorted(found, key=lambda entry: -entry[0])[:most]
        best.sort(key=lambda entry: (entry[1].left, entry[1].right))
        return tuple(pair for _, pair, _ in best), np.concatenate([np.empty(0), *(counts for _, _, counts in best)])


def _cells(hidden: NDArray[np.bool_]) -> Groups:
    """The bin of every cell: shown ones in order, and the withheld ones together behind them."""
    found = np.cumsum(~hidden.ravel()).astype(np.int32).reshape(hidden.shape) - 1
    return np.where(hidden, np.int32(int((~hidden).sum())), found).astype(np.int32)
