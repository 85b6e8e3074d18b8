"""A public grid over all numbers, to learn about where a column's values lie without showing one of them.

A number's sign and size put it into one cell at each of eight levels: all numbers of a sign, then intervals of one
decade, halved at every level down to 64 a decade. Zero, and what is nearer to it than 1e-12, has a cell of its own.
Sizes above 1e18 fall into the outermost cell.

Guarantee: the bounds that `grid_bounds` returns are edges of the grid, and so the same for whatever values the cells
hold. A number lies in the cell `grid_cells` says up to the rounding of a logarithm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVELS", "Cell", "cell_edges", "cells_at_level", "grid_bounds", "grid_cells", "passed_over", "with_wider"]

LEVELS = 8
"""0: one cell per sign; 1: one per decade; 7: 64 per decade."""
_FINEST = 64
_LOWEST, _HIGHEST = -12, 18


class Cell(NamedTuple):
    """One cell of the grid."""

    level: int
    sign: int
    """-1, 0 or 1."""
    interval: int
    """Which interval the size is in, counted from a size of 1; 0 at level 0 and for zero."""


def grid_cells(values: NDArray[np.float64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """The cell of every number at each level.

    Args:
        values: Finite numbers.

    Yields:
        The level, and the sign and the interval of every number's cell.
    """
    size = np.abs(values)
    zero = size < 10.0**_LOWEST
    logs = np.log10(np.where(zero, 1.0, size))
    finest = np.floor(np.clip(logs, _LOWEST, _HIGHEST) * _FINEST).astype(np.int64)
    finest = np.where(zero, 0, np.minimum(finest, _HIGHEST * _FINEST - 1))
    sign = np.where(zero, 0, np.sign(values)).astype(np.int64)
    yield 0, sign, np.zeros_like(finest)
    for level in range(1, LEVELS):
        yield level, sign, np.where(zero, 0, finest >> (LEVELS - 1 - level))


@cache
def cells_at_level(level: int) -> tuple[Cell, ...]:
    """All cells of one level, in a fixed order: zero, then the positive ones, then the negative ones.

    Args:
        level: From 1 on.

    Returns:
        The cells.
    """
    per_decade = 1 << (level - 1)
    intervals = range(_LOWEST * per_decade, _HIGHEST * per_decade)
    return (Cell(level, 0, 0), *(Cell(level, sign, interval) for sign in (1, -1) for interval in intervals))


def with_wider(cells: Collection[Cell]) -> set[Cell]:
    """Cells, and those of the levels above that hold them.

    Args:
        cells: Any cells.

    Returns:
        What `grid_bounds` reads the range of the cells from.
    """
    found = set(cells)
    for level, sign, interval in cells:
        found |= {Cell(above, sign, interval >> (level - above) if above else 0) for above in range(level)}
    return found


def grid_bounds(cells: Collection[Cell]) -> tuple[float, float]:
    """The range that frequent cells span: from the outermost sign on, the outermost frequent half of a cell is taken.

    Args:
        cells: Cells that enough persons fall into, of all levels.

    Returns:
        The lower and the upper bound; (0, 0) without any cell.
    """
    if not cells:
        return 0.0, 0.0
    known = frozenset(cells)
    return _outermost(known, -1)[0], _outermost(known, 1)[1]


def passed_over(cells: Collection[Cell]) -> list[Cell]:
    """The cells that would change the bounds if they were frequent: further out, or finer, than those taken.

    Args:
        cells: As for `grid_bounds`.

    Returns:
        Cells that are not among them, in a fixed order, each once. When all of them are rare, no other choice among
        frequent cells gives other bounds.
    """
    known = frozenset(cells)
    found = dict.fromkeys(cell for end in (-1, 1) for cell in _passed_over(known, end))
    return list(found)


def _passed_over(known: frozenset[Cell], end: int) -> Iterator[Cell]:
    path = _path(known, end)
    signs = [sign for sign in (-1, 0, 1) if not path or end * sign > end * path[0].sign]
    yield from (Cell(0, sign, 0) for sign in signs)
    for place, cell in enumerate(path, 1):
        outward, taken = end * cell.sign, path[place] if place < len(path) else None
        for part in _all_parts(cell):
            if taken is None or outward * part.interval > outward * taken.interval:
                yield part


def _outermost(known: frozenset[Cell], end: int) -> tuple[float, float]:
    """The edges of the cell at one end (-1 or 1) of the frequent ones, as fine as it is frequent."""
    path = _path(known, end)
    return cell_edges(path[-1]) if path else (0.0, 0.0)


def _path(known: frozenset[Cell], end: int) -> list[Cell]:
    """From the outermost frequent sign to the outermost frequent cell at one end, level by level."""
    signs = [cell for cell in known if cell.level == 0]
    path = [max(signs, key=lambda cell: end * cell.sign)] if signs else []
    while path:
        outward = end * path[-1].sign  # of negative numbers, the smaller sizes are the larger numbers
        inside = [part for part in _all_parts(path[-1]) if part in known]
        if not inside:
            break
        path.append(max(inside, key=lambda other: outward * other.interval))
    return path


def _all_parts(cell: Cell) -> list[Cell]:
    """The cells that `cell` falls into at the next level; none of zero, and of the finest."""
    if not cell.sign or cell.level == LEVELS - 1:
        return []
    if cell.level == 0:
        return [Cell(1, cell.sign, interval) for interval in range(_LOWEST, _HIGHEST)]
    return [Cell(cell.level + 1, cell.sign, 2 * cell.interval + half) for half in (0, 1)]


def cell_edges(cell: Cell) -> tuple[float, float]:
    """The range of one cell.

    Args:
        cell: The cell.

    Returns:
        The lower and the upper bound.
    """
    if cell.sign == 0:
        return 0.0, 0.0
    if cell.level == 0:
        near, far = 0.0, 10.0**_HIGHEST
    else:
        per_decade = 1 << (cell.level - 1)
        near, far = 10.0 ** (cell.interval / per_decade), 10.0 ** ((cell.interval + 1) / per_decade)
    return (near, far) if cell.sign > 0 else (-far, -near)
