"""Bins: cells merged until each holds enough persons, of about equal weight.

A cell that weighs as much as a bin should stays alone, but for few persons just before it. Ordered cells are merged
with neighbours, rare categories with rare neighbours of the code list. Missing values have a bin of their own where
they are frequent enough. Everything follows from counts by integer arithmetic and comparisons, so all sites make the
same bins. Where a bin ends follows from counts: its last cell holds somebody, unless a heavy cell comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.models.additive.categories import category_bins, chained_bins
from kohort.models.additive.cells import Column
from kohort.models.additive.pairs import Pair

__all__ = ["Bins", "isotonic", "make_bins"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bins:
    """Which bin every cell of every column belongs to."""

    columns: tuple[Column, ...]
    of_cell: tuple[NDArray[np.int32], ...]
    """The bin of each cell, by column, counted from 0 in every column."""
    pairs: tuple[Pair, ...] = ()
    """Pairs of columns; their bins stand behind those of the columns."""

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.of_cell):
            raise IntegrityError("bins and columns do not fit together")
        for column, bins in zip(self.columns, self.of_cell, strict=True):
            inside = len(bins) == column.cells and bins.min() >= 0 and bins.max() < column.cells
            if not inside or len(np.unique(bins)) != bins.max() + 1:
                raise IntegrityError(f"the bins of column {column.name!r} do not fit its cells")
        for pair in self.pairs:
            known = (len(pair.left_groups), len(pair.right_groups))
            if pair.right >= len(self.columns) or known != (self._size(pair.left), self._size(pair.right)):
                raise IntegrityError("the bins of a pair of columns do not fit those of its columns")

    def _size(self, number: int) -> int:
        return int(self.of_cell[number].max()) + 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many bins each column has, and then each pair."""
        own = [self._size(number) for number in range(len(self.of_cell))]
        return np.asarray([*own, *(pair.size for pair in self.pairs)], dtype=np.int64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What columns and pairs are called."""
        columns = [column.name for column in self.columns]
        return (*columns, *(f"{columns[pair.left]} x {columns[pair.right]}" for pair in self.pairs))

    @cached_property
    def alone(self) -> Bins:
        """The bins of the columns without the pairs."""
        return Bins(self.columns, self.of_cell) if self.pairs else self

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each column begins in a vector over all bins; the last entry is its length."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def total(self) -> int:
        """How many bins there are in all."""
        return int(self.starts[-1])

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """Whether a bin and the one before it are neighbours in value, over all bins."""
        found = np.zeros(self.total, dtype=bool)
        for column, bins, start in zip(self.columns, self.of_cell, self.starts, strict=False):
            if column.ordered:
                last = int(bins[: column.cells - column.missing].max())
                found[start + 1 : start + last + 1] = True
        for pair, start in zip(self.pairs, self.starts[len(self.columns) :], strict=False):
            found[start : start + pair.size] = pair.joined()
        return found

    @cached_property
    def chained(self) -> NDArray[np.bool_]:
        """Whether a bin of categories and the one before it are neighbours of the code list, over all bins."""
        own = [chained_bins(column, bins) for column, bins in zip(self.columns, self.of_cell, strict=True)]
        return np.concatenate([*own, np.zeros(self.total - self.alone.total, dtype=bool)])

    def of_rows(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The bins of rows, by their cells [columns, rows]; numbered over all columns."""
        own = [bins[cells] for bins, cells in zip(self.of_cell, codes, strict=True)]
        own += [pair.of_rows(own[pair.left], own[pair.right]) for pair in self.pairs]
        parts = [bins + np.int32(start) for bins, start in zip(own, self.starts[:-1], strict=True)]
        return np.stack(parts).astype(np.int32)

    def diversity(self, counts: Floats) -> float:
        """How many columns there are, each counted by the chance that two of its rows are in different bins.

        Args:
            counts: How many persons each bin holds.

        Returns:
            At most the number of columns; little for columns in which nearly all rows are alike, such as rare items.
        """
        found = 0.0
        for begin, end in pairwise(self.starts.tolist()):
            shares = counts[begin:end] / max(float(counts[begin:end].sum()), 1.0)
            found += 1.0 - float(np.sum(shares * shares))
        return found

    def flat(self) -> NDArray[np.int32]:
        """All bins of cells in one array, from which `of_flat` makes the same bins again, but for pairs."""
        return np.concatenate(self.of_cell).astype(np.int32)

    def flat_pairs(self) -> NDArray[np.int32]:
        """The bins of all pairs in one array."""
        return np.concatenate([np.empty(0, dtype=np.int32), *(pair.flat() for pair in self.pairs)]).astype(np.int32)

    @classmethod
    def of_flat(
        cls, columns: tuple[Column, ...], flat: NDArray[np.int32], pairs: NDArray[np.int32] | None = None
    ) -> Bins:
        """The inverse of `flat` and `flat_pairs`.

        Raises:
            IntegrityError: The numbers are no bins of these columns.
        """
        ends = np.cumsum([column.cells for column in columns])
        if flat.ndim != 1 or len(flat) != ends[-1]:
            raise IntegrityError("bins do not fit the columns")
        own = tuple(part.astype(np.int32) for part in np.split(flat, ends[:-1]))
        return cls(columns, own, () if pairs is None else Pair.of_flat(pairs))


def make_bins(columns: tuple[Column, ...], counts: Sequence[Floats], *, bins: int, least: float) -> Bins:
    """Merge cells into bins.

    Args:
        columns: The columns.
        counts: How many persons each cell of each column holds.
        bins: Most bins of a number.
        least: Fewest persons of a bin.

    Returns:
        The bins. A column with fewer persons than two bins need has one bin.
    """
    return Bins(
        columns,
        tuple(
            _ordered_bins(column, own, bins, least) if column.ordered else category_bins(column, own, least)
            for column, own in zip(columns, counts, strict=True)
        ),
    )


def _ordered_bins(column: Column, counts: Floats, bins: int, least: float) -> NDArray[np.int32]:
    values = counts[: column.cells - column.missing]
    places = _greedy(values, bins, least)
    if not column.missing:
        return places.astype(np.int32)
    sizes = np.bincount(places, weights=values)
    absent = len(sizes) if counts[-1] >= least else int(sizes.argmax())
    return np.append(places, absent).astype(np.int32)


def _greedy(counts: Floats, bins: int, least: float) -> NDArray[np.int64]:
    """Go through ordered cells and close a bin when it is heavy enough; a heavy cell stays alone.

    Light cells that come to fewer than `least` persons are joined with the heavy cell behind them, or at the end with
    the bin before them, whether they hold anybody or not: so no edge says whether few persons or none are between two
    heavy cells.
    """
    heavy = counts >= max(counts.sum() / bins, least)
    light = float(counts[~heavy].sum())
    goal = max(light / max(bins - int(heavy.sum()), 1), least)
    places = np.empty(len(counts), dtype=np.int64)
    place, weight = 0, 0.0
    for cell, (count, alone) in enumerate(zip(counts.tolist(), heavy.tolist(), strict=True)):
        if alone and weight >= least:
            place, weight = place + 1, 0.0
        places[cell] = place
        weight += count
        if alone or weight >= goal:
            place, weight = place + 1, 0.0
    # Behind the last bin that was closed there may be cells of too few persons.
    return places if weight >= least else np.minimum(places, max(place - 1, 0))


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The nearest values that never fall, by pooling neighbours (Ayer et al. 1955).

    Args:
        values: Numbers in order.
        weights: How much each counts; above 0.

    Returns:
        Numbers that never fall.
    """
    means: list[float] = []
    sums: list[tuple[float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while means and means[-1] > mean:
            before, (heavy, long) = means.pop(), sums.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, size = total + heavy, size + long
        means.append(mean)
        sums.append((total, size))
    return np.repeat(np.asarray(means), [size for _, size in sums])
