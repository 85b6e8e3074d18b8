"""Rare combinations of items, taken apart row by row: of what too few persons of a class hold together, every row that
holds it loses an item, and the other rows keep all of theirs.

Counts never rise when items go, so every rare combination has to vanish; what is left to choose is the item that
goes: the one in most rare combinations of its row, and among these the one that most persons of the class hold, which
is missed least and draws no other combination below k with it.

Guarantees: afterwards every combination of up to m nodes that a row shows is shown by k persons of its class, or by
none; nodes do not change otherwise; a class depends on its own rows alone, and there is no randomness.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import Integers

__all__ = ["suppress_rare"]

Members = NDArray[np.int64]
"""Places of the shown nodes that make up a combination, [combinations, size]."""


def suppress_rare(node: Integers, row: Integers, classes: Integers, persons: Integers, *, k: int, m: int) -> Integers:
    """The node of each occurrence, -1 where it must go. `row` is that of each occurrence; `classes` and `persons` are
    those of each row."""
    held = np.flatnonzero(node >= 0)
    width = int(node.max(initial=-1)) + 1
    _, cell = np.unique(classes[row[held]] * width + node[held], return_inverse=True)
    cells = int(cell.max(initial=-1)) + 1
    # A node that two occurrences of a row are on is shown once.
    shown, place = np.unique(row[held] * cells + cell, return_inverse=True)
    of_row, of_cell = np.divmod(shown, max(cells, 1))
    stays = np.ones(len(shown), dtype=np.bool_)
    todo = stays.copy()
    while todo.any():
        here = np.flatnonzero(todo)
        rare, support = _rare(of_row[here], of_cell[here], persons[of_row[here]], k, m)
        gone = here[_dropped(of_row[here], support, rare)]
        stays[gone] = False
        # Only classes that lost something are counted again.
        changed = np.zeros(int(classes.max(initial=-1)) + 1, dtype=np.bool_)
        changed[classes[of_row[gone]]] = True
        todo = stays & changed[classes[of_row]]
    left = node.copy()
    left[held[~stays[place]]] = -1
    return left


def _rare(row: Integers, cell: Integers, person: Integers, k: int, m: int) -> tuple[list[Members], Integers]:
    """Combinations that fewer than k persons hold, and how many hold each cell by itself."""
    cells = int(cell.max(initial=-1)) + 1
    alone = np.arange(len(row))[:, None]
    found: list[Members] = []
    support: Integers = np.zeros(0, dtype=np.int64)
    for size in range(1, m + 1):
        members = alone if size == 1 else _combinations(row, size)
        key = cell[members[:, 0]]
        for place in range(1, size):
            # Numbered anew after each, so that the next product stays small.
            _, key = np.unique(key * cells + cell[members[:, place]], return_inverse=True)
        holders = _persons(key, person[members[:, 0]])
        if size == 1:
            support = holders
        found.append(members[holders < k])
    return found, support


def _combinations(row: Integers, size: int) -> Members:
    """Places of all combinations of `size` within a row; rows stand together."""
    longest = int(np.bincount(row).max(initial=0))
    places = np.arange(len(row))
    found = [np.empty((0, size), dtype=np.int64)]
    if size > longest:
        return found[0]
    for steps in combinations(range(1, longest), size - 1):
        start = places[: len(places) - steps[-1]]
        start = start[row[start] == row[start + steps[-1]]]
        found.append(np.stack([start, *(start + step for step in steps)], axis=1))
    return np.concatenate(found)


def _persons(key: Integers, person: Integers) -> Integers:
    """How many persons hold the combination of each place."""
    people = int(person.max(initial=-1)) + 1
    pairs = np.unique(key * people + person)
    counts = np.bincount(pairs // max(people, 1))
    return counts[key]


def _dropped(row: Integers, support: Integers, rare: list[Members]) -> Integers:
    """What rows lose so that no rare combination is left whole, one item of each row at a time."""
    alive = np.ones(len(row), dtype=np.bool_)
    while True:
        rare = [members[alive[members].all(axis=1)] for members in rare]
        blamed = np.bincount(np.concatenate([members.ravel() for members in rare]), minlength=len(row))
        places = np.flatnonzero(blamed)
        if not len(places):
            return np.flatnonzero(~alive)
        order = places[np.lexsort((places, support[places], blamed[places], row[places]))]
        alive[order[np.flatnonzero(np.diff(row[order], append=-1))]] = False
