"""Bins of categories: frequent ones alone, rare ones with rare neighbours of the code list.

Codes that stand together are often alike, which one bin for all rare categories would lose. Bins are numbered in the
order of the code list, so that the fit can pull neighbouring bins towards each other.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.cells import Column

__all__ = ["NOISES_PER_BIN", "category_bins", "chained_bins"]

Floats = NDArray[np.float64]

NOISES_PER_BIN = 3.0
"""A bin holds at least so many standard deviations of the noise on its count."""
NOISES_PER_CATEGORY = 6.0
"""A category has a bin of its own if its noisy count is at least so many standard deviations of the noise."""


def category_bins(column: Column, counts: Floats, least: float, noise: float = 0.0) -> NDArray[np.int32]:
    """Frequent categories alone; of the others, neighbours of the code list together until a bin holds enough.

    Args:
        column: A column of categories, or an item.
        counts: How many persons each cell holds; noisy ones may be negative.
        least: Fewest persons of a bin.
        noise: The standard deviation of the noise on a count. Noise on a sum of residuals is the same for a bin of one
            category and of many, so bins need not be fewer than the counts ask for.

    Returns:
        The bin of every cell, numbered in the order of the code list; bins of values that are on no list come last.
        What is left at the end of the list is joined with the nearest bin.
    """
    frequent = counts >= max(least, NOISES_PER_CATEGORY * noise)
    if column.other >= 0:
        frequent[column.other] = False
    order = _order(column)
    alone = [[cell] for cell in order if frequent[cell]]
    joined, left = _joined([cell for cell in order if not frequent[cell]], counts, least, noise)
    place = {cell: number for number, cell in enumerate(order)}
    groups = [*alone, *joined]
    if left and groups:
        min(groups, key=lambda group: abs(_middle(group, place) - place[left[0]])).extend(left)
    elif left:
        groups.append(left)
    groups.sort(key=lambda group: _middle(group, place))
    found = np.empty(column.cells, dtype=np.int32)
    for number, group in enumerate(groups):
        found[group] = number
    return found


def _middle(group: list[int], place: dict[int, int]) -> int:
    """Where a group stands in the code list."""
    return sorted(place[cell] for cell in group)[len(group) // 2]


def _order(column: Column) -> list[int]:
    """The cells in the order of the code list; other and missing values behind it."""
    listed = set(column.listed)
    return [*column.listed, *(cell for cell in range(column.cells) if cell not in listed)]


def _joined(cells: list[int], counts: Floats, least: float, noise: float) -> tuple[list[list[int]], list[int]]:
    """Neighbours together, each group as small as its noise allows; and what is left at the end."""
    groups: list[list[int]] = []
    current: list[int] = []
    for cell in cells:
        current.append(cell)
        if counts[current].sum() >= max(least, NOISES_PER_BIN * noise * sqrt(len(current))):
            groups.append(current)
            current = []
    return groups, current


def chained_bins(column: Column, bins: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether a bin of categories and the one before it are neighbours of the code list.

    Args:
        column: The column.
        bins: The bin of each of its cells.

    Returns:
        By bin. None of an ordered column, an item or a column of two bins; nor of a bin that holds nothing of the list,
        which stands behind the others.
    """
    size = int(bins.max()) + 1
    found = np.zeros(size, dtype=bool)
    if not column.ordered and column.listed and size > 2:
        found[1:] = np.isin(np.arange(1, size), bins[list(column.listed)])
    return found
