"""Bins of few codes per column, from one sum over all sites: counts of fine cells, and of the target per category.

Numbers get up to 254 cut points with about the same number of rows between them; a cell that alone has as many stays
alone. Each tree joins them to the few bins of a plan in a way of its own (`joined_codes`), so histograms stay small and
the trees together still see fine cuts. Categories keep a code of their own, but those with few rows share one. For each
output of the model they are ordered by the target, so that a split of a category is a cut in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.trees.columns import TreeColumn, cells_of
from kohort.models.trees.options import SCALE

__all__ = ["ABSENT", "MOST_CODES", "Bins", "count_cells", "joined_codes", "summary_length"]

MOST_CODES = 255
ABSENT = 255
"""The code of a missing number: each split says itself where such rows go."""
_PRIOR = 10.0
"""How many rows of the overall mean are added to those of a category before it is ranked."""

Codes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Bins:
    """The code of every fine cell, and the place of every code in the order of splits."""

    code_of: tuple[NDArray[np.uint8], ...]
    """For each column, the code of every cell."""
    sizes: NDArray[np.int64]
    """How many codes each column has, without that of missing numbers."""
    missing: NDArray[np.bool_]
    """Which columns have missing numbers."""
    ordered: NDArray[np.bool_]
    """Which columns are numbers, whose codes are in order by themselves."""
    rank: NDArray[np.uint8]
    """[outputs, columns, 256]: the place of every code; `ABSENT` of a missing number."""
    other: NDArray[np.uint8]
    """For each column, the code of a category that nobody had: that of rare ones, or `ABSENT` where none or few rows
    are rare."""

    def codes(self, columns: Sequence[TreeColumn], x: NDArray[Any]) -> Codes:
        """The codes of encoded rows, [rows, columns].

        Args:
            columns: Of the encoder that made the rows.
            x: Encoded rows.

        Returns:
            One code per column.
        """
        out = np.empty((len(x), len(columns)), dtype=np.uint8)
        for place, column in enumerate(columns):
            of_cell = self.code_of[place]
            if column.kind == "category":
                of_cell = np.append(of_cell, self.other[place])
            out[:, place] = of_cell[cells_of(column, x)]
        return out

    def held(self, columns: Sequence[TreeColumn], total: NDArray[np.int64], outputs: int) -> NDArray[np.int64]:
        """How many rows each code holds, [columns, 256].

        Args:
            columns: The columns of the encoder.
            total: The total that the bins were made of.
            outputs: How many the model has.

        Returns:
            The marginal of every column.
        """
        found, at = np.zeros((len(columns), 256), dtype=np.int64), 1 + outputs
        for place, column in enumerate(columns):
            np.add.at(found[place], self.code_of[place], total[at : at + column.all_cells])
            at += column.all_cells + _targets_of(column, outputs)
        return found

    def cuts(self, place: int) -> NDArray[np.int64]:
        """The last cell of every code of a number but the highest one's."""
        codes = self.code_of[place][: len(self.code_of[place]) - bool(self.missing[place])]
        return np.flatnonzero(np.diff(codes.astype(np.int64)) > 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The bins as arrays by name."""
        return {
            "bins.codes": np.concatenate(self.code_of),
            "bins.cells": np.asarray([len(codes) for codes in self.code_of], dtype=np.int64),
            "bins.sizes": self.sizes,
            "bins.missing": self.missing.astype(np.uint8),
            "bins.ordered": self.ordered.astype(np.uint8),
            "bins.rank": self.rank,
            "bins.other": self.other,
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Bins:
        """The inverse of `arrays`.

        Raises:
            ValueError: The arrays do not fit together.
        """
        cells, sizes = arrays["bins.cells"].astype(np.int64), arrays["bins.sizes"].astype(np.int64)
        flat, rank = arrays["bins.codes"], arrays["bins.rank"]
        missing, ordered = arrays["bins.missing"].astype(bool), arrays["bins.ordered"].astype(bool)
        if rank.ndim != 3 or rank.shape[1:] != (len(cells), 256) or flat.dtype != np.uint8 or rank.dtype != np.uint8:
            raise ValueError("bins of other shapes or types")
        other = arrays.get("bins.other", np.full(len(cells), ABSENT, dtype=np.uint8))
        if other.dtype != np.uint8:
            raise ValueError("bins of other types")
        if (
            {len(sizes), len(missing), len(ordered), len(other)} != {len(cells)}
            or cells.min() < 1
            or cells.sum() != len(flat)
        ):
            raise ValueError("bins of other columns")
        parts = tuple(np.split(flat, np.cumsum(cells)[:-1]))
        return cls(parts, sizes, missing, ordered, np.ascontiguousarray(rank), other)

    @classmethod
    def learned(cls, columns: Sequence[TreeColumn], total: NDArray[np.int64], *, outputs: int, least: int) -> Bins:
        """Bins from the total of `count_cells` over all sites.

        Args:
            columns: The columns of the encoder.
            total: The total.
            outputs: How many the model has.
            least: Fewest rows of a bin, and of a category with a code of its own.

        Returns:
            The bins, the same wherever they are computed.
        """
        rows, sums = int(total[0]), total[1 : 1 + outputs] / SCALE
        means = sums / max(rows, 1)
        rank = np.zeros((outputs, len(columns), 256), dtype=np.uint8)
        other = np.full(len(columns), ABSENT, dtype=np.uint8)
        codes: list[NDArray[np.uint8]] = []
        sizes, at = [], 1 + outputs
        for place, column in enumerate(columns):
            counts = total[at : at + column.all_cells]
            at += column.all_cells
            rank[:, place] = np.arange(256)
            if column.kind == "category":
                targets = total[at : at + column.cells * outputs].reshape(outputs, column.cells)
                at += column.cells * outputs
                found, size, rare = _grouped(counts, least)
                other[place] = rare
                rank[:, place, :size] = _order(found, size, counts, targets / SCALE, means, least)
            elif column.kind == "flag":
                found, size = np.arange(2, dtype=np.uint8), 2
            else:
                found, size = _cut(counts[: column.cells], MOST_CODES, least)
                if column.missing:
                    found = np.append(found, np.uint8(ABSENT))
            codes.append(found)
            sizes.append(size)
        missing = np.asarray([column.missing for column in columns], dtype=bool)
        ordered = np.asarray([column.kind == "number" for column in columns], dtype=bool)
        return cls(tuple(codes), np.asarray(sizes, dtype=np.int64), missing, ordered, rank, other)


def summary_length(columns: Sequence[TreeColumn], outputs: int) -> int:
    """How many numbers a site adds to the sum that bins are made of.

    Args:
        columns: The columns of the encoder.
        outputs: How many outputs the model has.

    Returns:
        The length of what `count_cells` gives.
    """
    return 1 + outputs + sum(column.all_cells + _targets_of(column, outputs) for column in columns)


def count_cells(
    columns: Sequence[TreeColumn],
    x: NDArray[Any],
    targets: NDArray[np.int64],
    drawn: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None,
) -> NDArray[np.int64]:
    """What a site adds to the sum that bins are made of.

    Args:
        columns: The columns of the encoder.
        x: Encoded rows.
        targets: [outputs, rows] the target of every row in units of the grid.
        drawn: By a column's number, rows with generalised cells and the fine cell that each stands for.

    Returns:
        Rows, sums of the target; for each column the count of every cell and, of categories, sums of the target.
    """
    parts = [np.asarray([len(x)], dtype=np.int64), targets.sum(axis=1)]
    for place, column in enumerate(columns):
        cells = cells_of(column, x)
        if drawn and place in drawn:
            rows, own = drawn[place]
            cells[rows] = own
        parts.append(np.bincount(cells, minlength=column.all_cells).astype(np.int64))
        if column.kind == "category":
            sums = np.zeros((len(targets), column.cells), dtype=np.int64)
            for output, values in enumerate(targets):
                np.add.at(sums[output], cells, values)
            parts.append(sums.reshape(-1))
    return np.concatenate(parts)


def joined_codes(size: int, most: int, shift: float) -> NDArray[np.uint8]:
    """The bin of every code of a number in the histograms of one tree.

    Args:
        size: How many codes there are.
        most: How many bins there may be.
        shift: From 0 to 1: where the first bin begins.

    Returns:
        Consecutive numbers from 0, non-decreasing; the codes themselves where they are few enough.
    """
    if size <= most:
        return np.arange(size, dtype=np.uint8)
    share = size / (most - 1)
    found = np.floor((np.arange(size) + shift * share) / share).astype(np.int64)
    joined: NDArray[np.uint8] = (found - found[0]).astype(np.uint8)
    return joined


def _targets_of(column: TreeColumn, outputs: int) -> int:
    return column.cells * outputs if column.kind == "category" else 0


def _grouped(counts: NDArray[np.int64], least: int) -> tuple[NDArray[np.uint8], int, int]:
    """A code for each category of `least` rows or more, as far as there are codes; one for all others, given last."""
    common = np.argsort(-counts, kind="stable")[: MOST_CODES - 1]
    common = np.sort(common[counts[common] >= least])
    some_rare = len(common) < len(counts)
    found = np.full(len(counts), len(common), dtype=np.uint8)
    found[common] = np.arange(len(common), dtype=np.uint8)
    # A code that no row had says nothing; nor may one say whether few rows had it.
    known = bool(some_rare and counts[found == len(common)].sum() >= least)
    return found, len(common) + some_rare, len(common) if known else ABSENT


def _order(
    codes: NDArray[np.uint8],
    size: int,
    counts: NDArray[np.int64],
    targets: NDArray[np.float64],
    means: NDArray[np.float64],
    least: int,
) -> NDArray[np.uint8]:
    """The place of every code by the mean target of its rows, for each output; of few rows, by that of all rows."""
    out = np.empty((len(means), size), dtype=np.uint8)
    held = np.bincount(codes, weights=counts, minlength=size)
    enough = held >= least
    held = np.where(enough, held, 0.0)
    for output, mean in enumerate(means):
        sums = np.where(enough, np.bincount(codes, weights=targets[output], minlength=size), 0.0)
        places = np.argsort((sums + _PRIOR * mean) / (held + _PRIOR), kind="stable")
        out[output, places] = np.arange(size, dtype=np.uint8)
    return out


def _cut(counts: NDArray[np.int64], most: int, least: int) -> tuple[NDArray[np.uint8], int]:
    """The code of every cell of a number: about the same number of rows per code."""
    filled = np.flatnonzero(counts)
    out = np.zeros(len(counts), dtype=np.uint8)
    if len(filled) < 2:
        return out, 1
    left, bins = int(counts.sum()), most
    held = code = 0
    for this, following in zip(filled[:-1].tolist(), filled[1:].tolist(), strict=True):
        held += int(counts[this])
        wanted = max(left / max(bins, 1), least)
        heavy = int(counts[following]) >= wanted and held >= least
        rest = left - held
        if bins > 1 and (held >= wanted or heavy) and rest >= least:
            # Behind a cell of the full bin: the next filled cell, which may hold one row, is not told.
            out[this + 1 :] += 1
            left, held, bins, code = rest, 0, bins - 1, code + 1
    return out, code + 1
