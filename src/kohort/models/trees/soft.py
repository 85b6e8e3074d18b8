"""Generalised cells in forests: each tree sees one of the values that a cell could stand for.

A tree of a step draws the value anew, by a public hash of seed, tree, column and row, as likely as the value is in its
column. The trees of a step together so see a cell's values in their shares, while every row stays a whole row of one
node, and counts stay counts of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.models.rows import Rows
from kohort.models.soft import ItemProbability, shares_of
from kohort.models.trees.bins import Bins
from kohort.models.trees.columns import TreeColumn
from kohort.models.trees.kernel import draw
from kohort.tables.blocks import Spread

__all__ = ["SoftCells", "soft_cells"]


@dataclass(frozen=True, eq=False)
class SoftCells:
    """The generalised cells of a site's rows in one column."""

    place: int
    """The column's number."""
    column: TreeColumn
    rows: NDArray[np.int64]
    kinds: NDArray[np.int64]
    """Which of `spreads` each of these rows has."""
    spreads: tuple[Spread | ItemProbability, ...]
    keys: NDArray[np.uint64]
    """A hash of each of these rows and its place."""

    def cells(self, seed: bytes) -> NDArray[np.int64]:
        """A fine cell for each row, before anything is known of the column."""
        shares = shares_of(self.spreads, self.column.edges, self.column.widths)
        return self._drawn(shares, seed, "cells", 1).reshape(-1)

    def codes(self, bins: Bins, marginal: NDArray[np.int64], seed: bytes, step: int, trees: int) -> NDArray[np.uint8]:
        """A code for each tree of a step and each row.

        Args:
            bins: The bins.
            marginal: How many rows each code of the column holds.
            seed: The public seed.
            step: The boosting step.
            trees: How many trees it has.

        Returns:
            [trees, rows].
        """
        used, place_of = np.unique(bins.code_of[self.place], return_inverse=True)
        counts = marginal[used].astype(np.float64)
        shares = shares_of(self.spreads, self.column.edges, self.column.widths, bins=place_of, counts=counts)
        return used[self._drawn(shares, seed, f"codes:{step}", trees)]

    def _drawn(self, shares: NDArray[np.int64], seed: bytes, what: str, trees: int) -> NDArray[np.int64]:
        stream = hashlib.shake_128(seed + f"{what}:{self.place}".encode()).digest(8 * trees)
        out = np.empty((trees, len(self.rows)), dtype=np.int64)
        draw(
            np.cumsum(shares, axis=1), self.kinds, self.keys, np.frombuffer(stream, dtype="<u8").astype(np.uint64), out
        )
        return out


def soft_cells(columns: Sequence[TreeColumn], rows: Rows, keys: NDArray[np.uint64]) -> tuple[SoftCells, ...]:
    """The generalised cells of a site's rows.

    Args:
        columns: The columns of the encoder.
        rows: The rows.
        keys: A hash of each row's content.

    Returns:
        One entry per column that has any.
    """
    place_of = {column.start: place for place, column in enumerate(columns)}
    placed = keys ^ (np.arange(rows.count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    found = []
    for soft in rows.soft:
        place, own = place_of[soft.first], np.flatnonzero(soft.of_row >= 0)
        kinds = soft.of_row[own].astype(np.int64)
        found.append(SoftCells(place, columns[place], own, kinds, soft.spreads, placed[own]))
    return tuple(found)
