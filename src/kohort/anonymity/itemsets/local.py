"""Local recoding of items: row by row up a hierarchy, to its root, before anything is suppressed.

Two rows of a class may show the same item in different ways: as it is, as a label above it, as the root, which says
that there is an item and no more, or not at all. An item stands on the lowest label that leaves no combination rare;
which item of a rare combination goes up is described in `recode_kernel`.

What that means to an attacker who knows up to m items of a person: a released cell matches the items at and below it.
If some row matches all that is known, then so do all rows that show the same cells, and these are k persons at least.
So what is known is matched by k persons, or by nobody where an item was suppressed.

Guarantees: as `recode_kernel`; nodes only ever go up their tree.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.itemsets.hierarchy import ItemTree
from kohort.anonymity.itemsets.items import ItemRows
from kohort.anonymity.relational.problem import Integers
from kohort.errors import ConfigError

__all__ = ["mean_weights", "node_losses", "recode"]

LARGEST_KEY = 2.0**62
MOST_COMBINATIONS = 500_000_000
"""Combinations of all rows: beyond, memory would not suffice."""


def recode(
    rows: ItemRows,
    tree: ItemTree,
    *,
    order: Integers,
    classes: Integers,
    persons: Integers,
    k: int,
    m: int,
    weights: NDArray[np.float64],
) -> Integers:
    """Recode items row by row, up the tree or to nothing, until every combination is shown by enough persons.

    Args:
        rows: The items of the table.
        tree: The tree over the items.
        order: Rows, those of a class side by side and in it those of a person.
        classes: Class of each of these rows, numbered 0, 1, ... in that order.
        persons: Whom each of these rows is about.
        k: Persons that must show every combination.
        m: Largest size of a combination.
        weights: How much a loss on each node counts (`mean_weights`).

    Returns:
        The node of each occurrence of these rows, in the order given; -1 where it is suppressed.

    Raises:
        ConfigError: There are too many items, or too many combinations of them in the rows.
    """
    if (len(tree.size) + 1.0) ** m > LARGEST_KEY:
        raise ConfigError(f"{len(tree.items):,} items are too many for m = {m}", hint="Ask for a smaller m")
    places, row_starts = rows.places(order)
    new_unit = (np.diff(classes, prepend=-1) != 0) | (np.diff(persons, prepend=persons[0] - 1) != 0)
    first_rows = np.flatnonzero(new_unit)
    class_starts = np.searchsorted(classes[first_rows], np.arange(int(classes[-1]) + 2))
    most = _most_combinations(np.diff(row_starts), first_rows, m)
    from kohort.anonymity.itemsets.recode_kernel import recode_items

    found: Integers = recode_items(
        class_starts, np.append(first_rows, len(order)), row_starts, rows.leaf[places], tree.parent,
        len(tree.items), weights, k, m, most,
    )  # fmt: skip
    return found


def node_losses(tree: ItemTree) -> NDArray[np.float64]:
    """The loss of an item on each node: the share of the table's items that it may then be.

    Args:
        tree: The tree over the items.

    Returns:
        One loss per node, from 0 (an item by itself) to 1, and last the loss of a suppressed item, 1.
    """
    domain = max(len(tree.items), 1)
    return np.append(np.where(tree.size > 1, tree.size / domain, 0.0), 1.0)


def mean_weights(tree: ItemTree, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean weight of the items at and below each node.

    Args:
        tree: The tree over the items.
        weights: Weight of each node, the items first; only those of the items are read.

    Returns:
        One weight per node.
    """
    total = np.concatenate((weights[: len(tree.items)], np.zeros(len(tree.size) - len(tree.items))))
    # Children come before their parents.
    for node, above in enumerate(tree.parent.tolist()):
        if above >= 0:
            total[above] += total[node]
    found: NDArray[np.float64] = total / tree.size
    return found


def _most_combinations(lengths: Integers, first_rows: Integers, m: int) -> int:
    """The largest number of combinations of a unit."""
    by_length = np.array([sum(comb(length, size) for size in range(1, m + 1)) for length in range(lengths.max() + 1)])
    each = by_length[lengths]
    if float(each.sum(dtype=np.float64)) > MOST_COMBINATIONS:
        hint = "Ask for a smaller m, or group the items first"
        raise ConfigError(f"the rows have more than {MOST_COMBINATIONS:,} combinations of up to {m} items", hint=hint)
    return int(np.add.reduceat(each, first_rows).max())
