"""How many persons of a class hold each combination of up to three items, kept up to date while items move.

A unit is one person's rows in one class. Combinations live in a hash table with open addressing; for every node the
number of combinations it is in that too few hold is kept beside them.

Guarantees: counts are exact after every change; a person counts once for a combination, in however many rows it is.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import inner

__all__ = ["SMALLEST_TABLE", "Buffers", "Counts", "Units", "count_units", "make_room", "most_combinations"]

FILLED = 0.6
SMALLEST_TABLE = 64
EMPTY = -1


class Units(NamedTuple):
    """Rows `starts[u]` to `starts[u + 1]` belong to unit u, which is in class `of_class[u]`; occurrences likewise."""

    starts: Any
    of_class: Any
    row_starts: Any
    node: Any


class Counts(NamedTuple):
    """Combinations and their holders; `filled[0]` places are in use. `bad[c, x]`: combinations of x in class c that too
    few hold; `bad_total[x]`: in all classes together."""

    keys: Any
    holders: Any
    filled: Any
    bad: Any
    bad_total: Any


class Buffers(NamedTuple):
    """Room for the nodes of one unit, and when each node was last seen; `visit[0]` counts rows looked at."""

    nodes: Any
    rest: Any
    ends: Any
    seen: Any
    visit: Any


@inner
def most_combinations(units, listed, count, m):
    """An upper bound of the combinations of some units."""
    starts, row_starts = units.starts, units.row_starts
    total = np.int64(0)
    for i in range(count):
        unit = listed[i]
        for row in range(starts[unit], starts[unit + 1]):
            n = row_starts[row + 1] - row_starts[row]
            total += n
            if m > 1:
                total += n * (n - 1) // 2
            if m > 2:
                total += n * (n - 1) * (n - 2) // 6
    return total


@inner
def make_room(counts, more):
    """The same counts with room for `more` combinations; those that nobody holds are dropped."""
    filled, counts_keys, counts_holders = counts.filled, counts.keys, counts.holders
    if filled[0] + more <= FILLED * len(counts_keys):
        return counts
    live = np.int64(0)
    for i in range(len(counts_keys)):
        live += counts_keys[i] != EMPTY and counts_holders[i] > 0
    capacity = SMALLEST_TABLE
    # Twice what is needed now, so that room is made seldom.
    while FILLED * capacity < 2 * (live + more):
        capacity *= 2
    keys = np.full(capacity, EMPTY)
    holders = np.zeros(capacity, np.int32)
    for i in range(len(counts_keys)):
        if counts_keys[i] != EMPTY and counts_holders[i] > 0:
            place = _place(keys, counts_keys[i])
            keys[place], holders[place] = counts_keys[i], counts_holders[i]
    filled[0] = live
    return Counts(keys, holders, filled, counts.bad, counts.bad_total)


@inner
def count_units(listed, count, sign, first_class, units, marked, buffers, counts, k, m):
    """Count (sign 1) or take back (-1) the combinations of some units that hold a marked node."""
    starts = units.starts
    ends, nodes = buffers.ends, buffers.nodes
    base = np.int64(len(marked) + 1)
    for at in range(count):
        unit = listed[at]
        c = units.of_class[unit] - first_class
        begin = 0
        ends[0] = 0
        for rows in range(starts[unit + 1] - starts[unit]):
            row = starts[unit] + rows
            lead, last = _gather(row, begin, units, marked, buffers)
            for i in range(begin, lead):
                x = nodes[i]
                # From j = i and l = j on: a combination with repeats stands for the smaller one.
                for j in range(i, last if m > 1 else i + 1):
                    y = nodes[j]
                    for l in range(j, last if m > 2 and j > i else j + 1):  # noqa: E741
                        z = nodes[l]
                        if rows == 0 or not _held_before(buffers, rows, x, y, z):
                            _change(x, y, z, sign, c, base, counts, k)
            begin = last
            ends[rows + 1] = last


@inner
def _gather(row, begin, units, marked, buffers):
    """Write the nodes of a row from `begin` on, each once, marked ones first; where those end, and where all do."""
    row_starts = units.row_starts
    buffers_visit, seen, nodes, buffers_rest = buffers.visit, buffers.seen, buffers.nodes, buffers.rest
    buffers_visit[0] += 1
    visit = buffers_visit[0]
    lead, rest = begin, 0
    for o in range(row_starts[row], row_starts[row + 1]):
        x = units.node[o]
        if x < 0 or seen[x] == visit:
            continue
        seen[x] = visit
        if marked[x]:
            nodes[lead] = x
            lead += 1
        else:
            buffers_rest[rest] = x
            rest += 1
    for i in range(rest):
        nodes[lead + i] = buffers_rest[i]
    return lead, lead + rest


@inner
def _held_before(buffers, rows, x, y, z):
    """Whether one of the unit's rows so far holds all three nodes."""
    ends, nodes = buffers.ends, buffers.nodes
    for row in range(rows):
        found_x, found_y, found_z = False, False, False
        for i in range(ends[row], ends[row + 1]):
            found_x = found_x or nodes[i] == x
            found_y = found_y or nodes[i] == y
            found_z = found_z or nodes[i] == z
        if found_x and found_y and found_z:
            return True
    return False


@inner
def _change(x, y, z, sign, c, base, counts, k):
    """One holder more or less of the combination of x, y and z, of which some may be the same node."""
    place = _find(x, y, z, c, base, counts)
    before = counts.holders[place]
    after = before + sign
    counts.holders[place] = after
    change = (1 if 0 < after < k else 0) - (1 if 0 < before < k else 0)
    if change != 0:
        _blame(counts, c, x, change)
        if y != x:
            _blame(counts, c, y, change)
            if z != y:
                _blame(counts, c, z, change)


@inner
def _find(x, y, z, c, base, counts):
    """Where a combination is in the hash table; it is put there if it is new."""
    low, high = min(x, y, z), max(x, y, z)
    middle = x + y + z - low - high
    if y == x:
        low, middle, high = -1, -1, x
    elif z == y:
        low, middle, high = -1, min(x, y), max(x, y)
    key = ((c * base + low + 1) * base + middle + 1) * base + high + 1
    place = _place(counts.keys, key)
    if counts.keys[place] != key:
        counts.keys[place] = key
        counts.filled[0] += 1
    return place


@inner
def _blame(counts, c, x, change):
    counts.bad[c, x] += change
    counts.bad_total[x] += change


@inner
def _place(keys, key):
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    last = len(keys) - 1
    place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(last))
    while keys[place] != EMPTY and keys[place] != key:
        place = (place + 1) & last
    return place
