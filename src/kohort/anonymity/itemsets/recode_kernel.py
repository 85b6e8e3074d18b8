"""Local recoding: an item of a row goes up its hierarchy, in that row alone, until enough persons show what it shows.

Every occurrence of an item stands on a node: the item, a label above it, or nowhere (suppressed). A combination of up
to m nodes that a row shows is rare while fewer than k persons of the class show it. In a sweep every row moves one node
of each of its rare combinations: to the parent, or away where there is none. Labels move before items, so that an item
stays exact while another one gives way; then the node that is in most rare combinations; among these the one whose
parent stands for the most items of the class beside its own, as that is where the row is likeliest to meet others, and
the more so the less a loss there counts; then the first. A node that is rare by itself goes up to the first node with
enough items of the class below it: none before can be shown by enough persons. All rows of a class decide by the same
counts, so rows that share a rare combination move together and meet again above.

Guarantees: afterwards every combination of up to m nodes that a row shows is shown by k persons of its class. A class
depends on its own rows alone, and there is no randomness.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inner

__all__ = ["recode_items"]

NOWHERE = -1
EMPTY = -1
SMALLEST_TABLE = 64
FILLED = 0.6


class RecodeUnits(NamedTuple):
    """Rows `starts[u]` to `starts[u + 1]` belong to unit u, one person of a class; occurrences to rows likewise."""

    starts: Any
    row_starts: Any
    node: Any


class RecodeTree(NamedTuple):
    """What stands above each node (-1: nothing), how many nodes are items, which come first, how much a loss on a node
    counts, and how many occurrences of the class at hand there are at and below it."""

    parent: Any
    items: Any
    weight: Any
    below: Any


class RecodeCounts(NamedTuple):
    """Combinations and how many persons show each; `filled[0]` places are in use, and `fallen[0]` counts combinations
    that became rare."""

    keys: Any
    holders: Any
    filled: Any
    fallen: Any


class RecodeBuffers(NamedTuple):
    """Room for the nodes of a row, what is said against each and where it goes, and for combinations: their numbers,
    and the places of the nodes of the rare ones, `m` each."""

    nodes: Any
    blame: Any
    goes: Any
    keys: Any
    chosen: Any
    rare: Any


@compiled
def recode_items(class_starts, unit_starts, row_starts, leaf, parent, items, weight, k, m, most):
    """Node of each occurrence, -1 where it is suppressed.

    Class c has the units `class_starts[c]` to `class_starts[c + 1]`; `weight[x]` is how much a loss on node x counts,
    above 0, and `most` the largest number of combinations that a unit has.
    """
    units = RecodeUnits(unit_starts, row_starts, leaf.copy())
    tree = RecodeTree(parent, items, weight, np.zeros(len(parent), np.int64))
    longest = np.int64(1)
    for row in range(len(row_starts) - 1):
        longest = max(longest, row_starts[row + 1] - row_starts[row])
    buffers = RecodeBuffers(
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(most + 1, np.int64),
        np.empty(m, np.int64),
        np.empty((most + 1) * m, np.int64),
    )
    target = np.empty(len(leaf), np.int64)
    for c in range(len(class_starts) - 1):
        first, last = class_starts[c], class_starts[c + 1]
        if last > first:
            start, end = row_starts[unit_starts[first]], row_starts[unit_starts[last]]
            _count_below(leaf, start, end, tree, np.int64(1))
            _solve_class(first, last, units, tree, buffers, target, k, m)
            _count_below(leaf, start, end, tree, np.int64(0))
    return units.node


@inner
def _count_below(leaf, start, end, tree, sign):
    """How many occurrences of a class there are at and below each node; with sign 0, forget them."""
    for o in range(start, end):
        x = leaf[o]
        while x >= 0:
            tree.below[x] = (tree.below[x] + 1) * sign
            x = tree.parent[x]


@inner
def _solve_class(first, last, units, tree, buffers, target, k, m):
    """Sweep over one class until no row shows a rare combination."""
    base = np.int64(len(tree.parent) + 1)
    counts = RecodeCounts(
        np.full(SMALLEST_TABLE, EMPTY), np.zeros(SMALLEST_TABLE, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    )
    for unit in range(first, last):
        counts = _count_unit(unit, np.int64(1), units, base, buffers, counts, k, m)
    dirty = np.ones(last - first, np.bool_)
    moved = True
    while moved:
        moved = False
        # Where no combination has become rare, only units that moved can show one.
        everyone = counts.fallen[0] > 0
        counts.fallen[0] = 0
        for unit in range(first, last):
            if everyone or dirty[unit - first]:
                dirty[unit - first] = _choose_unit(unit, units, tree, base, buffers, counts, target, k, m)
        for unit in range(first, last):
            if dirty[unit - first]:
                moved = True
                counts = _count_unit(unit, np.int64(-1), units, base, buffers, counts, k, m)
                for o in range(units.row_starts[units.starts[unit]], units.row_starts[units.starts[unit + 1]]):
                    units.node[o] = target[o]
                counts = _count_unit(unit, np.int64(1), units, base, buffers, counts, k, m)


@inner
def _choose_unit(unit, units, tree, base, buffers, counts, target, k, m):
    """Choose what the rows of a unit move; whether any of them does."""
    moves = False
    for row in range(units.starts[unit], units.starts[unit + 1]):
        moves |= _choose(row, units, tree, base, buffers, counts, target, k, m)
    return moves


@inner
def _choose(row, units, tree, base, buffers, counts, target, k, m):
    """Fill `target` with the nodes that a row's occurrences go to; whether any of them moves."""
    nodes, goes = buffers.nodes, buffers.goes
    shown = _shown(row, units, buffers)
    rare = _list_rare(shown, base, buffers, counts, k, m)
    for i in range(shown):
        goes[i] = nodes[i]
    moves = False
    while _blame(shown, rare, buffers, m):
        moves = True
        best = -1
        for i in range(shown):
            if buffers.blame[i] > 0 and (best < 0 or _rather(i, best, nodes, buffers.blame, tree)):
                best = i
        alone = counts.holders[_place(counts.keys, nodes[best] + 1)]
        goes[best] = _above(nodes[best], alone < k, tree, k)
    for o in range(units.row_starts[row], units.row_starts[row + 1]):
        target[o] = NOWHERE
        for i in range(shown):
            if nodes[i] == units.node[o]:
                target[o] = goes[i]
    return moves


@inner
def _list_rare(shown, base, buffers, counts, k, m):
    """List the rare combinations of a row by the places of their nodes; how many there are."""
    chosen, rare = buffers.chosen, buffers.rare
    count = 0
    for size in range(1, min(m, shown) + 1):
        for i in range(size):
            chosen[i] = i
        more = True
        while more:
            if counts.holders[_place(counts.keys, _key(buffers.nodes, chosen, size, base))] < k:
                for i in range(m):
                    rare[count * m + i] = chosen[i] if i < size else -1
                count += 1
            more = _next(chosen, size, shown)
    return count


@inner
def _blame(shown, rare, buffers, m):
    """Count the rare combinations that each node is in, of those that no node leaves; whether there is one."""
    blame, goes, nodes = buffers.blame, buffers.goes, buffers.nodes
    for i in range(shown):
        blame[i] = 0
    found = False
    for at in range(rare):
        whole = True
        for i in range(m):
            place = buffers.rare[at * m + i]
            whole &= place < 0 or goes[place] == nodes[place]
        if whole:
            found = True
            for i in range(m):
                place = buffers.rare[at * m + i]
                if place >= 0:
                    blame[place] += 1
    return found


@inner
def _above(x, rare, tree, k):
    """Where node x goes: to its parent, or if it is rare by itself to the first node with k items below."""
    x = tree.parent[x]
    while rare and x >= 0 and tree.below[x] < k:
        x = tree.parent[x]
    return x


@inner
def _rather(i, j, nodes, blame, tree):
    """Whether the i-th node of a row is rather moved than the j-th, which stands before it."""
    x, y = nodes[i], nodes[j]
    if (x >= tree.items) != (y >= tree.items):
        return x >= tree.items
    if blame[i] != blame[j]:
        return blame[i] > blame[j]
    return _growth(x, tree) > _growth(y, tree)


@inner
def _growth(x, tree):
    """How many times more occurrences of the class there are below the parent of a node, by its weight; 0 where there
    is none."""
    p = tree.parent[x]
    return tree.below[p] / tree.below[x] / tree.weight[x] if p >= 0 else 0.0


@inner
def _shown(row, units, buffers):
    """The distinct nodes of a row, rising, go to the buffer; how many there are."""
    nodes = buffers.nodes
    shown = 0
    for o in range(units.row_starts[row], units.row_starts[row + 1]):
        x = units.node[o]
        at = shown
        while at > 0 and nodes[at - 1] > x:
            at -= 1
        if x != NOWHERE and (at == 0 or nodes[at - 1] != x):
            for i in range(shown, at, -1):
                nodes[i] = nodes[i - 1]
            nodes[at] = x
            shown += 1
    return shown


@inner
def _key(nodes, chosen, size, base):
    """One number for a combination; 0 is no node, so that combinations of all sizes differ."""
    key = np.int64(0)
    for i in range(size):
        key = key * base + nodes[chosen[i]] + 1
    return key


@inner
def _next(chosen, size, shown):
    """The next combination of places; whether there is one."""
    i = size - 1
    while i >= 0 and chosen[i] == shown - size + i:
        i -= 1
    if i < 0:
        return False
    chosen[i] += 1
    for j in range(i + 1, size):
        chosen[j] = chosen[j - 1] + 1
    return True


@inner
def _count_unit(unit, sign, units, base, buffers, counts, k, m):
    """Count (sign 1) or take back (-1) the combinations of a unit, each once in however many rows it is."""
    keys = buffers.keys
    found = 0
    for row in range(units.starts[unit], units.starts[unit + 1]):
        found = _list_keys(row, found, units, base, buffers, m)
    if units.starts[unit + 1] - units.starts[unit] > 1:
        keys[:found].sort()
    return _add_keys(found, sign, keys, counts, k)


@inner
def _add_keys(found, sign, keys, counts, k):
    """Count combinations, of which equal ones stand side by side and count once."""
    counts = _make_room(counts, found)
    for i in range(found):
        if i == 0 or keys[i] != keys[i - 1]:
            place = _place(counts.keys, keys[i])
            if counts.keys[place] == EMPTY:
                counts.keys[place] = keys[i]
                counts.filled[0] += 1
            counts.fallen[0] += sign < 0 and counts.holders[place] == k
            counts.holders[place] += sign
    return counts


@inner
def _list_keys(row, found, units, base, buffers, m):
    """Append the combinations of a row to those found; how many there are then."""
    chosen = buffers.chosen
    shown = _shown(row, units, buffers)
    for size in range(1, min(m, shown) + 1):
        for i in range(size):
            chosen[i] = i
        more = True
        while more:
            buffers.keys[found] = _key(buffers.nodes, chosen, size, base)
            found += 1
            more = _next(chosen, size, shown)
    return found


@inner
def _make_room(counts, more):
    """The same counts with room for `more` combinations; those that nobody shows are dropped."""
    if counts.filled[0] + more <= FILLED * len(counts.keys):
        return counts
    live = np.int64(0)
    for i in range(len(counts.keys)):
        live += counts.holders[i] > 0
    capacity = SMALLEST_TABLE
    while FILLED * capacity < 2 * (live + more):
        capacity *= 2
    keys, holders = np.full(capacity, EMPTY), np.zeros(capacity, np.int64)
    for i in range(len(counts.keys)):
        if counts.holders[i] > 0:
            place = _place(keys, counts.keys[i])
            keys[place], holders[place] = counts.keys[i], counts.holders[i]
    counts.filled[0] = live
    return RecodeCounts(keys, holders, counts.filled, counts.fallen)


@inner
def _place(keys, key):
    """Where a combination is, or where there is room for it."""
    mask = len(keys) - 1
    hashed = key * np.int64(-7046029254386353131)
    place = (hashed ^ (hashed >> np.int64(32))) & mask
    while keys[place] != EMPTY and keys[place] != key:
        place = (place + 1) & mask
    return place
