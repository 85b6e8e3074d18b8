"""The finest public cells of every column: what encoded rows fall into before bins are made of them.

A number between its bounds falls into one of about 1,024 cells, half of them of equal width and half of equal width on
the scale asinh(10,000 x), which tells small amounts apart where a few are very large. A category is a cell, an item
is there or not, and a missing value is a cell of its own. Cells depend on the schema and the domain alone, so they are
the same at every site.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from kohort.models.options import FloatArray
from kohort.models.soft import MISSING_WIDTH
from kohort.tables.blocks import Block, CategoryBlock, ItemsBlock, NumberBlock
from kohort.tables.domain import OTHER
from kohort.tables.encoder import Encoder

__all__ = ["Column", "codes_of", "columns_of"]

_SMALLEST = 1e4
"""The scale of small amounts: the range of a column, divided by this."""


@cache
def _edges(cells: int) -> NDArray[np.float64]:
    """Where cells of the unit interval end, without the ends of the interval."""
    inner = np.linspace(0.0, 1.0, cells // 2 + 1)[1:-1]
    small = np.sinh(inner * np.arcsinh(_SMALLEST)) / _SMALLEST
    edges: NDArray[np.float64] = np.unique(np.concatenate([inner, small]))
    return edges


@dataclass(frozen=True, kw_only=True)
class Column:
    """The cells of one column, or of one item of a column that holds sets."""

    name: str
    first: int
    """Its first feature among those of the encoder."""
    features: int
    kind: str
    """number | steps (a number with declared bins) | label | onehot | item"""
    cells: int
    """How many cells there are, the one of missing values included."""
    missing: bool
    """Whether the last cell is that of missing values."""
    ordered: bool
    """Whether neighbouring cells, besides missing, are neighbours in value."""
    other: int = -1
    """The cell of categories outside the domain; -1 where there is none."""
    listed: tuple[int, ...] = ()
    """The cells of a category in the order of a code list: by number where all names are numbers, otherwise by name."""

    def codes(self, x: FloatArray) -> NDArray[np.int32]:
        """The cell of every row.

        Args:
            x: Encoded rows [rows, encoder.width].

        Returns:
            Numbers from 0 to `cells` - 1.
        """
        own = x[:, self.first : self.first + self.features]
        if self.kind == "onehot":
            return np.asarray(own.argmax(axis=1), dtype=np.int32)
        values = own[:, 0].astype(np.float64)
        values[np.isnan(values)] = 0.0
        if self.kind == "number":
            found = np.searchsorted(self.edges, values, side="left")
        else:
            steps = self.cells - 1 - (self.missing and self.kind == "steps")
            found = np.rint(np.clip(values, 0.0, 1.0) * steps).astype(np.int64)
        if self.missing and self.features > 1:
            found = np.where(own[:, 1] > 0.5, self.cells - 1, found)
        return found.astype(np.int32)

    @property
    def _grid(self) -> int:
        """The number of cells that the grid was asked for; its edges partly coincide."""
        known = self.cells - self.missing
        return next(size for size in (1024, 128) if len(_edges(size)) + 1 == known)

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """Where cells of a number end, as a share of the range between its bounds; none of a category or an item."""
        if self.kind == "number":
            return _edges(self._grid)
        steps = self.cells - 1 - self.missing if self.kind == "steps" else 0
        return (np.arange(steps) + 0.5) / max(steps, 1)

    @cached_property
    def widths(self) -> NDArray[np.float64]:
        """How much of the column each cell makes up by itself: numbers by width, others alike."""
        if self.kind != "number":
            return np.ones(self.cells)
        widths = np.diff(np.concatenate([[0.0], self.edges, [1.0]]))
        return np.append(widths, MISSING_WIDTH) if self.missing else widths

    def starts(self) -> NDArray[np.float64]:
        """Where each cell of a number begins, as a share of the range between its bounds."""
        return np.concatenate([[0.0], _edges(self._grid)])


def columns_of(encoder: Encoder, *, cells: int = 1024) -> tuple[Column, ...]:
    """The cells of all columns that an encoder reads.

    Args:
        encoder: How tables become features.
        cells: Cells of a number: 1024, or 128 where each of them is to be counted with noise.

    Returns:
        One entry per column, and one per item of a column of sets, in the order of the features.
    """
    found: list[Column] = []
    first = 0
    for block in encoder.blocks:
        found += _columns_of_block(block, first, cells)
        first += len(block.features)
    return tuple(found)


def _columns_of_block(block: Block, first: int, cells: int) -> list[Column]:
    width, missing = len(block.features), block.domain.missing
    if isinstance(block, NumberBlock):
        steps = block.spec.bins is not None
        size = len(block.spec.bins or ()) + 1 if steps else len(_edges(cells)) + 1
        kind = "steps" if steps else "number"
        return [_column(block.name, first, width, kind, size + missing, missing=missing, ordered=True)]
    if isinstance(block, CategoryBlock):
        kind = "label" if block.encoding == "label" else "onehot"
        other = block.categories.index(OTHER) if OTHER in block.categories else -1
        return [
            Column(
                name=block.name,
                first=first,
                features=width,
                kind=kind,
                cells=block.size,
                missing=missing,
                ordered=False,
                other=other,
                listed=_listed(block.categories),
            )
        ]
    assert isinstance(block, ItemsBlock)  # noqa: S101 - there is no fourth kind
    return [
        _column(name, first + place, 1, "item", 2, missing=False, ordered=False)
        for place, name in enumerate(block.features)
    ]


def _column(name: str, first: int, features: int, kind: str, cells: int, *, missing: bool, ordered: bool) -> Column:
    return Column(name=name, first=first, features=features, kind=kind, cells=cells, missing=missing, ordered=ordered)


def _listed(categories: tuple[str, ...]) -> tuple[int, ...]:
    """The codes of categories in the order of a code list: codes that are near are often alike."""
    try:
        keys: list[float] | list[str] = [float(name) for name in categories if name != OTHER]
    except ValueError:
        keys = [name for name in categories if name != OTHER]
    codes = [code for code, name in enumerate(categories) if name != OTHER]
    return tuple(codes[place] for place in sorted(range(len(codes)), key=lambda place: keys[place]))


def codes_of(columns: tuple[Column, ...], x: FloatArray) -> NDArray[np.int32]:
    """The cells of encoded rows.

    Args:
        columns: As `columns_of` made them.
        x: Encoded rows.

    Returns:
        [columns, rows]: each column's cells are contiguous.
    """
    return np.stack([column.codes(x) for column in columns])
