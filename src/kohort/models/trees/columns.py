"""The columns a forest splits on, as the encoder makes them, and the fine cells their values fall into.

Cells are public: they depend on the domain alone. A number's cells are a uniform grid of its range joined with one that
is uniform in asinh, fine at the low end, so that skewed columns get enough of them. Categories are their own cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.models.soft import MISSING_WIDTH
from kohort.tables.blocks import CategoryBlock, NumberBlock
from kohort.tables.encoder import Encoder

__all__ = ["TreeColumn", "cells_of", "grid_edges", "tree_columns"]

ColumnKind = Literal["number", "category", "flag"]
_HALF, _FINEST = 512, 1e4


@dataclass(frozen=True)
class TreeColumn:
    """One column that trees split on."""

    name: str
    kind: ColumnKind
    start: int
    """Its first feature in an encoded row."""
    width: int
    """How many features it has."""
    cells: int
    """How many fine cells there are, without that of missing numbers."""
    missing: bool = False
    """Whether a number may be missing; it then has one more cell, the last."""

    @property
    def all_cells(self) -> int:
        """How many cells there are."""
        return self.cells + self.missing

    @property
    def edges(self) -> NDArray[np.float64]:
        """Where its fine cells end; none of a category or an item."""
        return grid_edges() if self.kind == "number" else np.zeros(0)

    @property
    def widths(self) -> NDArray[np.float64]:
        """How much of the column each cell makes up by itself: numbers by width, others alike."""
        if self.kind != "number":
            return np.ones(self.all_cells)
        widths = np.diff(np.concatenate([[0.0], grid_edges(), [1.0]]))
        return np.append(widths, MISSING_WIDTH) if self.missing else widths


@cache
def grid_edges() -> NDArray[np.float64]:
    """The inner edges of a number's cells on its scale from 0 to 1; a value on an edge belongs to the cell below."""
    steps = np.arange(1, _HALF) / _HALF
    skewed = np.sinh(steps * np.arcsinh(_FINEST)) / _FINEST
    return np.unique(np.round(np.concatenate([steps, skewed]), 12))


def tree_columns(encoder: Encoder) -> tuple[TreeColumn, ...]:
    """The columns of an encoder.

    Args:
        encoder: How tables become rows of numbers.

    Returns:
        One column per category or number, and one per item of a set.
    """
    found: list[TreeColumn] = []
    start = 0
    for block in encoder.blocks:
        width = len(block.features)
        if isinstance(block, NumberBlock):
            cells = len(grid_edges()) + 1
            found.append(TreeColumn(block.name, "number", start, width, cells, block.domain.missing))
        elif isinstance(block, CategoryBlock):
            found.append(TreeColumn(block.name, "category", start, width, max(block.size, 1)))
        else:
            found += [TreeColumn(name, "flag", start + place, 1, 2) for place, name in enumerate(block.features)]
        start += width
    return tuple(found)


def cells_of(column: TreeColumn, x: NDArray[Any]) -> NDArray[np.int64]:
    """The fine cell of every row.

    Args:
        column: The column.
        x: Encoded rows.

    Returns:
        Numbers from 0 to `column.all_cells - 1`; `column.cells` for a category that is none of the known ones.
    """
    first = x[:, column.start].astype(np.float64)
    if column.kind == "number":
        found = np.searchsorted(grid_edges(), first, side="left").astype(np.int64)
        return np.where(x[:, column.start + 1] > 0.5, column.cells, found) if column.missing else found
    if column.kind == "flag":
        return (first > 0.5).astype(np.int64)
    unknown = np.isnan(first)
    if column.width > 1:
        codes = np.argmax(x[:, column.start : column.start + column.width], axis=1).astype(np.int64)
    else:
        codes = np.clip(np.rint(np.nan_to_num(first) * (column.cells - 1)), 0, column.cells - 1).astype(np.int64)
    return np.where(unknown, column.cells, codes)
