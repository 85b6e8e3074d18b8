"""Which bins rows are in: one of each column, or several of them in shares where a cell was generalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.bins import Bins, Floats
from kohort.models.additive.cells import Column, codes_of
from kohort.models.rows import Rows
from kohort.models.soft import GRID, SoftColumn, shares_of

__all__ = ["Design", "count_cells", "design_of"]

Whole = NDArray[np.int64]
BLOCK = 2**16
"""Most cells of several columns that are looked up in one call."""


@dataclass(frozen=True, eq=False)
class _Spread:
    """The generalised cells of one column."""

    rows: NDArray[np.int64]
    kinds: NDArray[np.int32]
    """Which row of `shares` each of them has."""
    shares: Whole
    """[kinds, bins of the column], adding up to `GRID`."""
    start: int
    """The column's first bin."""


@dataclass(frozen=True, eq=False)
class Design:
    """The bins of some rows."""

    places: NDArray[np.int32]
    """[columns, rows] numbered over all columns; the number of bins for a generalised cell."""
    bins: int
    """How many there are."""
    spread: tuple[_Spread, ...] = ()

    @property
    def _blocks(self) -> list[NDArray[np.int32]]:
        """The places of a few columns at a time: few calls for few rows, little memory for many."""
        columns, rows = self.places.shape
        width = max(1, BLOCK // max(rows, 1))
        return [self.places[first : first + width] for first in range(0, columns, width)]

    def scores(self, values: Floats, intercept: Floats) -> Floats:
        """Scores of the rows, added column by column, so that they do not depend on the other rows.

        Args:
            values: [bins, outputs].
            intercept: [outputs].

        Returns:
            [rows, outputs].
        """
        scores = np.repeat(intercept[None, :], self.places.shape[1], axis=0)
        padded = np.vstack([values, np.zeros((1, values.shape[1]))]) if self.spread else values
        for block in self._blocks:
            for added in padded[block]:
                scores += added
        for part in self.spread:
            mixed = np.zeros((len(part.shares), values.shape[1]))
            for place in range(part.shares.shape[1]):
                mixed += (part.shares[:, place, None] / GRID) * values[part.start + place]
            scores[part.rows] += mixed[part.kinds]
        return scores

    def summed(self, numbers: Whole) -> Whole:
        """Whole numbers of rows, added per bin; a generalised cell adds to each of its bins in shares.

        Args:
            numbers: [rows, outputs].

        Returns:
            [bins, outputs]; the same whichever rows stand together.
        """
        total, weights = np.zeros((self.bins + 1, numbers.shape[1])), numbers.astype(np.float64)
        for block in self._blocks:
            for output in range(numbers.shape[1]):
                repeated = np.tile(weights[:, output], len(block))
                total[:, output] += np.bincount(block.ravel(), weights=repeated, minlength=len(total))
        found = total[: self.bins].astype(np.int64)
        for part in self.spread:
            units = np.trunc(weights[part.rows] / GRID)  # so that no norm grows
            for output in range(numbers.shape[1]):
                held = np.bincount(part.kinds, weights=units[:, output], minlength=len(part.shares)).astype(np.int64)
                found[part.start : part.start + part.shares.shape[1], output] += part.shares.T @ held
        return found


def design_of(bins: Bins, counts: Floats, rows: Rows, codes: NDArray[np.int32] | None = None) -> Design:
    """The bins of rows.

    Args:
        bins: The bins.
        counts: How many rows each bin holds: how likely a generalised cell stands for its values.
        rows: The rows.
        codes: Their cells [columns, rows], where they are known already.

    Returns:
        The design.
    """
    places = bins.of_rows(codes_of(bins.columns, rows.x) if codes is None else codes)
    spread = []
    for number, soft in _soft_of(bins.columns, rows.soft):
        own, (start, stop) = np.flatnonzero(soft.of_row >= 0), list(pairwise(bins.starts.tolist()))[number]
        column = bins.columns[number]
        shares = shares_of(
            soft.spreads, column.edges, column.widths, bins=bins.of_cell[number], counts=counts[start:stop]
        )
        places[number, own] = bins.total
        spread.append(_Spread(own, soft.of_row[own], shares, start))
    return Design(places, bins.total, tuple(spread))


def count_cells(
    columns: Sequence[Column], rows: Rows, codes: NDArray[np.int32], chosen: NDArray[np.bool_] | None, *, units: int
) -> list[Whole]:
    """Rows per cell of every column.

    Args:
        columns: The columns.
        rows: The rows.
        codes: Their cells [columns, rows].
        chosen: Which rows count; None for all.
        units: What an exact row counts; `GRID` where cells may be generalised, whose shares count.

    Returns:
        Whole numbers, by column.

    Raises:
        ValueError: Cells are generalised, and `units` has no room for shares.
    """
    soft = dict(_soft_of(columns, rows.soft))
    if soft and units != GRID:
        raise ValueError("generalised cells are counted in shares")
    every = np.ones(rows.count, dtype=bool) if chosen is None else chosen
    found = []
    for number, (column, own) in enumerate(zip(columns, codes, strict=True)):
        exact = every if number not in soft else every & (soft[number].of_row < 0)
        counts = np.bincount(own[exact], minlength=column.cells).astype(np.int64) * units
        if number in soft:
            part = soft[number]
            held = np.bincount(part.of_row[every & (part.of_row >= 0)], minlength=len(part.spreads)).astype(np.int64)
            counts += held @ shares_of(part.spreads, column.edges, column.widths)
        found.append(counts)
    return found


def _soft_of(columns: Sequence[Column], soft: Sequence[SoftColumn]) -> list[tuple[int, SoftColumn]]:
    """The numbers of the columns with generalised cells."""
    number_of = {column.first: number for number, column in enumerate(columns)}
    return [(number_of[own.first], own) for own in soft]
