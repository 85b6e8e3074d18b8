"""Pairs of columns of an additive model: a surface over a coarse grid, none of whose small cells can be worked out.

Each column of a pair is cut into at most `GROUPS` groups of its bins: neighbours of a number, and of a category those
with similar values so far. A cell of the grid has a bin of its own if it holds enough persons. All other cells are one
bin, the rest.

The counts of the columns' own bins are known, too, so the rest must not follow from differences. With the withheld
cells of a table of two columns, the sets whose count follows from the margins are these: for a set T of columns, what
is withheld outside T in the rows that have a withheld cell in T, and whole rows. `withheld_cells` withholds more cells
until every such set holds nobody or enough persons. That is exact for one pair; it says nothing of what several pairs
with a column in common tell together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError

__all__ = [
    "GROUPS",
    "MOST_COLUMNS",
    "Pair",
    "candidates",
    "column_groups",
    "gain_of",
    "groups_for",
    "interaction_of",
    "withheld_cells",
    "without_curves",
]

GROUPS = 12
"""Most groups of a column in a pair, that of missing values besides."""
MOST_COLUMNS = 16
"""Pairs are looked for among so many columns: those that move the score most."""
_SWEEPS = 200
"""How often curves of two columns are taken off in turns."""
Floats = NDArray[np.float64]
Groups = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Pair:
    """The bins of one pair of columns."""

    left: int
    """The number of a column."""
    right: int
    """That of another, which is larger."""
    left_groups: Groups
    """The group of every bin of the left column."""
    right_groups: Groups
    cells: Groups
    """[groups, groups] the bin of every cell of the grid; the rest is the last bin, and there may be none."""

    def __post_init__(self) -> None:
        shape = tuple(int(groups.max()) + 1 if len(groups) else 0 for groups in (self.left_groups, self.right_groups))
        known = self.cells.ndim == 2 and self.cells.shape == shape and self.cells.size > 0
        if not known or not 0 <= self.left < self.right or len(np.unique(self.cells)) != self.size:
            raise IntegrityError("the bins of a pair of columns do not fit together")

    @property
    def size(self) -> int:
        """How many bins it has."""
        return int(self.cells.max()) + 1

    def of_rows(self, left: Groups, right: Groups) -> Groups:
        """The bins of rows, by their bins of the two columns, all counted from 0."""
        return self.cells[self.left_groups[left], self.right_groups[right]]

    def joined(self) -> NDArray[np.bool_]:
        """Whether a bin and the one before it are neighbours in a row of the grid."""
        found, places = np.zeros(self.size, dtype=bool), self.cells
        beside = places[:, 1:] == places[:, :-1] + 1
        found[places[:, 1:][beside]] = True
        if np.count_nonzero(places == self.size - 1) > 1:
            found[self.size - 1] = False
        return found

    def flat(self) -> Groups:
        """All of it in one array, from which `of_flat` makes it again."""
        head = [self.left, self.right, len(self.left_groups), len(self.right_groups), *self.cells.shape]
        parts = [np.asarray(head), self.left_groups, self.right_groups, self.cells.ravel()]
        return np.concatenate(parts).astype(np.int32)

    @classmethod
    def of_flat(cls, flat: Groups) -> tuple[Pair, ...]:
        """The pairs of arrays that `flat` made, one behind the other.

        Raises:
            IntegrityError: The numbers are no pairs.
        """
        found: list[Pair] = []
        place = 0
        while place < len(flat):
            if len(flat) < place + 6 or (flat[place : place + 6] < 0).any():
                raise IntegrityError("the bins of a pair of columns cannot be read")
            left, right, one, two, high, wide = (int(number) for number in flat[place : place + 6])
            ends = np.cumsum([place + 6, one, two, high * wide]).tolist()
            parts = [flat[a:b].astype(np.int32) for a, b in pairwise(ends)]
            if ends[-1] > len(flat) or any((part < 0).any() for part in parts):
                raise IntegrityError("the bins of a pair of columns cannot be read")
            found.append(cls(left, right, parts[0], parts[1], parts[2].reshape(high, wide)))
            place = ends[-1]
        return tuple(found)


def groups_for(rows: float, least: float) -> int:
    """How many groups a column of a pair has: an average cell should hold several times the fewest persons.

    Args:
        rows: How many rows there are.
        least: Fewest persons of a cell.

    Returns:
        From 2 to `GROUPS`.
    """
    return max(2, min(GROUPS, int(sqrt(rows / (4 * max(least, 1.0))))))


def column_groups(counts: Floats, order: Sequence[int], *, most: int, missing: int | None) -> Groups:
    """Cut the bins of a column into groups of about equal weight; a heavy bin stays alone, and none is much too light.

    Args:
        counts: Persons per bin.
        order: The bins in the order in which neighbours may be joined.
        most: How many groups there may be, that of missing values besides.
        missing: The bin of missing values, which stays alone; None where there is none.

    Returns:
        The group of every bin, from 0.
    """
    listed = [place for place in order if place != missing]
    found = np.zeros(len(counts), dtype=np.int32)
    left = float(counts[listed].sum())
    lightest = left / (4 * most)
    group, weight = 0, 0.0
    for place in listed:
        held, goal = float(counts[place]), (left + weight) / (most - group)
        # A bin opens a new group if more of it lies beyond the goal, and what is left makes a group, too.
        if weight >= lightest and left >= lightest and weight + held / 2 > goal and group < most - 1:
            group, weight = group + 1, 0.0
        found[place] = group
        weight, left = weight + held, left - held
    if missing is not None:
        found[missing] = group + 1 if listed else 0
    return found


def candidates(importances: Sequence[float], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of columns that are looked at.

    Args:
        importances: How much each column moves the score so far.
        sizes: How many bins each column has; one with a single bin is in no pair.

    Returns:
        Pairs of column numbers, in order.
    """
    able = [number for number, size in enumerate(sizes) if size > 1]
    ranked = sorted(able, key=lambda number: (-importances[number], number))[:MOST_COLUMNS]
    return list(combinations(sorted(ranked), 2))


def gain_of(
    counts: Floats, residuals: Floats, cells: Groups, *, spread: float, curvature: float, ridge: float
) -> float:
    """How much the bins of a pair would lower the loss, less what noise alone would give.

    Args:
        counts: [groups, groups] persons per cell.
        residuals: [groups, groups, outputs] the sums of their residuals.
        cells: [groups, groups] the bin of every cell.
        spread: The mean square of a row's residual.
        curvature: How strongly the loss of a row bends.
        ridge: Pull of every value towards 0.

    Returns:
        Twice the gain of one Newton step, less its mean for residuals that the pair has nothing to do with.
    """
    flat, size = cells.ravel(), int(cells.max()) + 1
    held = np.bincount(flat, weights=counts.ravel(), minlength=size)
    found = 0.0
    for output in range(residuals.shape[-1]):
        sums = np.bincount(flat, weights=residuals[..., output].ravel(), minlength=size)
        found += float(np.sum((sums * sums - spread * held) / (curvature * held + ridge + 1e-9)))
    return found


def interaction_of(
    counts: Floats, residuals: Floats, cells: Groups, *, spread: float, curvature: float, noises: float
) -> float:
    """How much the shown cells of a pair would lower the loss beyond what curves of its two columns could.

    Args:
        counts: [groups, groups] persons per cell.
        residuals: [groups, groups, outputs] the sums of their residuals.
        cells: [groups, groups] the bin of every cell; those that share one are not looked at.
        spread: The mean square of a row's residual.
        curvature: How strongly the loss of a row bends.
        noises: How many times what noise alone gives is taken off: 1 for a mean of 0 where there is nothing, 2 for what
            is to be expected of other rows.

    Returns:
        Twice the gain of one Newton step, less what noise gives. Sums are added in a fixed order, so everybody finds
        the same number.
    """
    alone = np.bincount(cells.ravel())[cells] == 1
    held = np.where(alone, counts, 0.0)
    shape = [int((held.sum(axis=axis) > 0).sum()) for axis in (0, 1)]
    free = int((held > 0).sum()) - sum(shape) + 1
    if free <= 0:
        return 0.0
    found = 0.0
    for output in range(residuals.shape[-1]):
        means = np.where(held > 0, residuals[..., output], 0.0) / np.maximum(held, 1e-9)
        means = without_curves(means, held)
        found += float(np.sum(held * means * means)) / curvature
    return found - noises * spread / curvature * free * int(residuals.shape[-1])


def without_curves(means: Floats, held: Floats) -> Floats:
    """What the cells of a pair have beyond curves of its two columns.

    Args:
        means: [groups, groups] a number per cell.
        held: [groups, groups] how much each cell weighs.

    Returns:
        Numbers whose weighted mean is 0 in every row and column. Sums are added in a fixed order.
    """
    rows, columns = (np.maximum(held.sum(axis=axis), 1e-9) for axis in (1, 0))
    for _ in range(_SWEEPS):
        means = means - ((held * means).sum(axis=1) / rows)[:, None]
        means = means - ((held * means).sum(axis=0) / columns)[None, :]
    return means


def withheld_cells(counts: Floats, least: float) -> NDArray[np.bool_]:
    """Which cells of a table of two columns are withheld, so that no count below `least` is shown or follows.

    Args:
        counts: [rows, columns] persons per cell. The sums of rows and columns are taken to be known.
        least: Fewest persons.

    Returns:
        [rows, columns]: at least all cells below `least`.
    """
    hidden: NDArray[np.bool_] = counts < least
    turned = counts.shape[1] > counts.shape[0]
    table = counts.T if turned else counts
    hidden = hidden.T.copy() if turned else hidden.copy()
    while (more := _to_withhold(table, hidden, least)) is not None:
        hidden[more] = True
    return hidden.T if turned else hidden


def _to_withhold(counts: Floats, hidden: NDArray[np.bool_], least: float) -> tuple[int, int] | None:
    """One more cell to withhold; None where nothing small follows from what is shown."""
    held = np.where(hidden, counts, 0.0)
    rows = held.sum(axis=1)
    few = np.flatnonzero((rows > 0) & (rows < least) & ~hidden.all(axis=1))
    if len(few):
        return _smallest(counts, hidden, rows=np.arange(len(counts)) == few[0], columns=None)
    wide = counts.shape[1]
    sets = (np.arange(1, 2**wide)[:, None] >> np.arange(wide)) & 1  # [sets, columns] whether a column is in T
    touched = (sets @ hidden.T.astype(np.int64)) > 0  # [sets, rows] whether a row has a withheld cell in T
    found = touched @ rows - ((touched @ held) * sets).sum(axis=1)
    small = np.flatnonzero((found > 1e-9) & (found < least))
    if not len(small):
        return None
    if hidden.all():
        return None
    first = int(small[0])
    return _smallest(counts, hidden, rows=touched[first], columns=sets[first] == 0)


def _smallest(
    counts: Floats, hidden: NDArray[np.bool_], *, rows: NDArray[np.bool_], columns: NDArray[np.bool_] | None
) -> tuple[int, int]:
    """The smallest shown cell of these rows and columns; of all cells where none of them is shown."""
    wanted = rows[:, None] & (np.ones(counts.shape[1], dtype=bool) if columns is None else columns)[None, :] & ~hidden
    weights = np.where(wanted if wanted.any() else ~hidden, counts, np.inf)
    place = int(weights.argmin())
    return place // counts.shape[1], place % counts.shape[1]
