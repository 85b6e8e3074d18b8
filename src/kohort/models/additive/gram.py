"""Counts of pairs of bins: the Gram matrix of an additive model, as the metric of its descent or for a closed form.

The Gram matrix says how columns go together, which the counts of single bins do not. Small counts of pairs may have
been rounded at random to 0 or to `least` before they were opened; the matrix is then off by about as much as `shift_of`
says, and as much is added to its diagonal. Everything is 64-bit NumPy in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import sqrt

import numpy as np

from kohort.models.additive.bins import Bins, Floats
from kohort.models.additive.descent import Metric
from kohort.models.additive.design import Design, Whole

__all__ = ["MOST_BINS", "GramMetric", "count_pairs", "gram_of", "pair_cells", "shift_of"]

MOST_BINS = 1200
"""More bins than this have too many pairs for one total, and too large a matrix."""


def pair_cells(bins: Bins) -> int:
    """How many pairs of bins of two different columns there are.

    Args:
        bins: The bins.

    Returns:
        The length of what `count_pairs` gives.
    """
    sizes = bins.sizes
    return int((sizes.sum() ** 2 - np.sum(sizes**2)) // 2)


def count_pairs(bins: Bins, design: Design, chosen: np.ndarray | None = None) -> Whole:
    """Rows per pair of bins, for all pairs of columns in their order.

    Args:
        bins: The bins.
        design: The rows' bins. A row whose cell of a column was generalised counts in no pair of that column.
        chosen: Which rows count; None for all.

    Returns:
        Counts; those of the first and second column come first, row by row of that table.
    """
    places = design.places if chosen is None else design.places[:, chosen]
    found = [np.empty(0, dtype=np.int64)]
    for one, two in combinations(range(len(places)), 2):
        left, right = places[one] - int(bins.starts[one]), places[two] - int(bins.starts[two])
        exact = (places[one] < bins.total) & (places[two] < bins.total)
        cells = (left.astype(np.int64) * int(bins.sizes[two]) + right)[exact]
        found.append(np.bincount(cells, minlength=int(bins.sizes[one] * bins.sizes[two])))
    return np.concatenate(found).astype(np.int64)


def gram_of(bins: Bins, counts: Floats, pairs: Floats) -> Floats:
    """The Gram matrix of all bins and, at the end, the intercept.

    Args:
        bins: The bins.
        counts: How many persons each holds.
        pairs: As `count_pairs` gives them.

    Returns:
        [bins + 1, bins + 1].
    """
    size = bins.total
    gram = np.zeros((size + 1, size + 1))
    place, spans = 0, list(pairwise(bins.starts.tolist()))
    for (a, b), (c, d) in combinations(spans, 2):
        block = pairs[place : place + (b - a) * (d - c)].reshape(b - a, d - c)
        gram[a:b, c:d], gram[c:d, a:b] = block, block.T
        place += block.size
    gram[np.arange(size), np.arange(size)] = counts
    gram[size, :size] = gram[:size, size] = counts
    gram[size, size] = float(counts[: spans[0][1]].sum())
    return gram


def shift_of(pairs: Floats, least: float, size: int) -> float:
    """About how far rounding moved the eigenvalues of a Gram matrix.

    A count that was rounded to 0 or to `least` is off by half of `least` at most, in standard deviation, and about as
    many became 0 as `least`.

    Args:
        pairs: The counts of pairs.
        least: What small counts were rounded to; 1 where none was.
        size: Rows of the matrix.

    Returns:
        What to add to its diagonal.
    """
    if least <= 1 or not len(pairs):
        return 0.0
    share = min(1.0, 2.0 * float(np.mean(pairs == least)))
    return least / 2 * sqrt(share * size)


@dataclass(frozen=True, eq=False)
class GramMetric(Metric):
    """`curvature` times the Gram matrix, plus the penalty."""

    gram: Floats
    shift: float = 0.0
    """What rounding asks for on the diagonal of the Gram matrix."""

    @cached_property
    def _lower(self) -> Floats:
        full = self.curvature * self.gram + self.penalty_times(np.eye(len(self.gram)))
        places = np.arange(len(full))
        full[places, places] += self.curvature * self.shift + 1e-9
        more = max(self.ridge, 1.0)
        while (found := _cholesky(full)) is None:  # rounding made it indefinite
            full[places, places] += more
            more *= 2.0
        return found

    def solve(self, g: Floats) -> Floats:
        """The vector that the metric turns into `g` [bins + 1, outputs]."""
        lower, found = self._lower, g.copy()
        for place in range(len(found)):
            found[place] /= lower[place, place]
            found[place + 1 :] -= lower[place + 1 :, place, None] * found[place]
        for place in range(len(found) - 1, -1, -1):
            found[place] -= np.sum(lower[place + 1 :, place, None] * found[place + 1 :], axis=0)
            found[place] /= lower[place, place]
        return found


def _cholesky(matrix: Floats) -> Floats | None:
    """The lower factor of a symmetric matrix; None if it is not positive definite. No library changes its bits."""
    rest, least = matrix.copy(), 1e-12 * float(np.abs(matrix).max())
    for place in range(len(rest)):
        if rest[place, place] <= least:
            return None
        rest[place, place] = sqrt(rest[place, place])
        column = rest[place + 1 :, place] = rest[place + 1 :, place] / rest[place, place]
        rest[place + 1 :, place + 1 :] -= column[:, None] * column[None, :]
    return np.tril(rest)
