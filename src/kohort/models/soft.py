"""Generalised cells among training rows: all that each could stand for, so that models on bins can spread them.

A cell stands for every value it covers, each as likely as the value is in its column. Before anything is known of the
column, values between two bounds are equally likely.

Guarantee: shares are whole numbers of `GRID` and add up to it, so sums of them are exact in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.models.options import FloatArray
from kohort.tables.blocks import Block, ItemsBlock, Spread, Taxonomy
from kohort.tables.cells import parse_cell
from kohort.tables.encoder import Encoder

__all__ = ["GRID", "MISSING_WIDTH", "ItemProbability", "SoftColumn", "covered", "shares_of", "soft_columns"]

GRID = 2**10
"""What the shares of one cell add up to."""
MISSING_WIDTH = 0.1
"""Beside the numbers of a column, whose cells have width 1 together, a missing one counts so much at first."""
_CHUNK = 512


class ItemProbability(tuple[float, ...]):
    """Known shares of an item that is perhaps in a set: that it is not, and that it is."""


@dataclass(frozen=True, eq=False)
class SoftColumn:
    """The generalised cells of one column, or of one item of a column that holds sets."""

    first: int
    """Its first feature among those of the encoder."""
    of_row: NDArray[np.int32]
    """Which of `spreads` the row has; -1 for an exact value."""
    spreads: tuple[Spread | ItemProbability, ...]

    def part(self, begin: int, end: int) -> SoftColumn:
        """The same for some of the rows."""
        return SoftColumn(self.first, self.of_row[begin:end], self.spreads)


def soft_columns(
    encoder: Encoder, frame: pl.DataFrame, x: FloatArray, taxonomies: Mapping[str, Taxonomy], names: Sequence[str]
) -> tuple[SoftColumn, ...]:
    """The generalised cells of released rows.

    Args:
        encoder: How rows become numbers.
        frame: The rows, with cells in the forms of `kohort.tables.cells`.
        x: The same rows encoded.
        taxonomies: What labels stand for, by column.
        names: The columns that may hold generalised cells.

    Returns:
        One entry per column, or item, that has any.
    """
    found: list[SoftColumn] = []
    start = 0
    for block in encoder.blocks:
        if block.name in names:
            stop = start + len(block.features)
            found += _of_block(block, start, frame[block.name], x[:, start:stop], taxonomies.get(block.name))
        start += len(block.features)
    return tuple(found)


def _of_block(
    block: Block, start: int, column: pl.Series, x: FloatArray, taxonomy: Taxonomy | None
) -> list[SoftColumn]:
    if isinstance(block, ItemsBlock):
        return [made for place in range(x.shape[1]) for made in _of_item(start + place, x[:, place])]
    if column.dtype != pl.String:
        return []
    texts = column.drop_nulls().unique(maintain_order=True)
    codes = column.cast(pl.Enum(texts)).to_physical().cast(pl.Int64).fill_null(len(texts)).to_numpy()
    spreads = [block.spread(parse_cell(text), taxonomy) for text in (*texts, None)]
    kinds = np.full(len(spreads), -1, dtype=np.int32)
    several = [place for place, spread in enumerate(spreads) if spread is not None]
    kinds[several] = np.arange(len(several))
    kept = tuple(spread for spread in spreads if spread is not None)
    return [SoftColumn(start, kinds[codes], kept)] if (kinds[codes] >= 0).any() else []


def _of_item(feature: int, chances: FloatArray) -> list[SoftColumn]:
    """An item of generalised sets: an encoded row says how likely it is in the set."""
    values, place = np.unique(chances, return_inverse=True)
    between = (values > 0) & (values < 1)
    if not between.any():
        return []
    kinds = np.where(between, np.cumsum(between) - 1, -1).astype(np.int32)
    likely = tuple(ItemProbability((1.0 - chance, chance)) for chance in values[between].astype(np.float64).tolist())
    return [SoftColumn(feature, kinds[place.reshape(-1)], likely)]


def covered(spread: Spread | ItemProbability, edges: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """How much of each cell of a column a generalised cell covers.

    Args:
        spread: What it could stand for.
        edges: Where the cells of a number end, without its bounds; none for categories and items.
        cells: How many cells there are; the one of missing numbers is the last.

    Returns:
        1 for every cell it covers; of an item the known shares.
    """
    if isinstance(spread, ItemProbability):
        return np.asarray(spread)
    found = np.zeros(cells)
    found[list(spread.codes)] = 1.0
    if spread.ranges:
        ends = np.searchsorted(edges, np.asarray(spread.ranges), side="left")
        for low, high in ends.tolist():
            found[low : high + 1] = 1.0
        if spread.missing:
            found[-1] = 1.0
    return found


def shares_of(
    spreads: Sequence[Spread | ItemProbability],
    edges: NDArray[np.float64],
    widths: NDArray[np.float64],
    *,
    bins: NDArray[np.integer] | None = None,
    counts: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """What generalised cells add to the cells of a column, or to its bins.

    Args:
        spreads: What each could stand for.
        edges: Where the cells of a number end.
        widths: How much of the column each cell makes up by itself.
        bins: The bin of every cell; None for the cells themselves.
        counts: How many rows each bin holds: the column's marginal. None where nothing is known yet.

    Returns:
        [spreads, cells or bins] whole numbers; those of one generalised cell add up to `GRID`.
    """
    size = len(widths) if bins is None else int(bins.max()) + 1
    of_bins = widths if bins is None else np.bincount(bins, weights=widths, minlength=size)
    marginal = np.ones(size) if counts is None or bins is None else np.maximum(counts, 0.0) / of_bins
    out = np.empty((len(spreads), size), dtype=np.int64)
    for begin in range(0, len(spreads), _CHUNK):
        part = spreads[begin : begin + _CHUNK]
        known = np.asarray([isinstance(spread, ItemProbability) for spread in part])
        whole = np.stack([covered(spread, edges, len(widths)) for spread in part])
        whole[~known] *= widths
        if bins is not None:
            by_bin = np.zeros((len(part), size))
            np.add.at(by_bin.T, bins, whole.T)
            whole = by_bin
            weighted = whole * marginal
            useful = (weighted.sum(axis=1) > 0) & ~known
            whole[useful] = weighted[useful]
        out[begin : begin + len(part)] = _whole_shares(whole / whole.sum(axis=1, keepdims=True))
    return out


def _whole_shares(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Shares that add up to 1, as whole numbers that add up to `GRID`: the largest remainders are rounded up."""
    found = np.floor(shares * GRID).astype(np.int64)
    order = np.argsort(found - shares * GRID, axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(shares.shape[1])[None, :], axis=1)
    found += places < (GRID - found.sum(axis=1))[:, None]
    return found
