"""Rows of a block by their kind: rows with the same codes raise the loss of a cluster alike, so one stands for all.

The rows that are left have places, which decide between equal losses; a row that is taken out leaves its place to the
last one. The kinds of which rows are left have slots, likewise.

Guarantee: two rows share a kind if and only if all their codes are equal.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from collections import namedtuple

import numpy as np

from kohort.anonymity.compiled import inlined, inner, zeros

__all__ = ["Left", "first_place", "kinds_of", "rows_by_kind", "take_out"]

MULTIPLIER = 0x9E3779B97F4A7C1  # any large odd number: it spreads codes over 64 bits

Left = namedtuple(
    "Left",
    [
        "row",  # of each place
        "place",  # of each row
        "kind",  # of each row
        "members",  # rows by kind: of kind j the first counts[j] from begin[j] on are left
        "begin",
        "counts",
        "slot",  # of each kind
        "held",  # the kind in each slot
        "front",  # the first place of a row of the kind in each slot
    ],
)


@inner
def kinds_of(columns, quasi):
    """The kind of each row, the first row of each kind, and how many kinds there are: by a hash table."""
    rows = columns.shape[1]
    key = zeros(rows)
    for c in range(quasi):
        for i in range(rows):
            key[i] = (key[i] ^ columns[c, i]) * MULTIPLIER
    size = 16
    while size < 2 * rows:
        size *= 2
    table = zeros(size)  # 1 + the kind
    kind = np.empty(rows, np.int64)
    first = np.empty(rows, np.int64)
    kinds = np.int64(0)
    for i in range(rows):
        at = (key[i] ^ (key[i] >> 32)) & (size - 1)
        while table[at] > 0 and not _agree(columns, quasi, first[table[at] - 1], i):
            at = (at + 1) & (size - 1)
        if table[at] == 0:
            first[kinds] = i
            kinds += 1
            table[at] = kinds
        kind[i] = table[at] - 1
    return kind, first, kinds


@inlined
def _agree(columns, quasi, a, b):
    same = True
    for c in range(quasi):
        if columns[c, a] != columns[c, b]:
            same = False
            break
    return same


@inner
def rows_by_kind(kind, kinds):
    """All rows, in their order."""
    rows = len(kind)
    row = np.empty(rows, np.int64)
    place = np.empty(rows, np.int64)
    members = np.empty(rows, np.int64)
    begin = zeros(kinds + 1)
    counts = zeros(kinds)
    slot = np.empty(kinds, np.int64)
    held = np.empty(kinds, np.int64)
    front = np.empty(kinds, np.int64)
    for i in range(rows):
        begin[kind[i] + 1] += 1
    for j in range(kinds):
        begin[j + 1] += begin[j]
        slot[j] = j
        held[j] = j
    for i in range(rows):
        row[i] = i
        place[i] = i
        members[begin[kind[i]] + counts[kind[i]]] = i
        counts[kind[i]] += 1
    for j in range(kinds):
        front[j] = members[begin[j]]
    return Left(row, place, kind, members, begin, counts, slot, held, front)


@inner
def take_out(left, chosen, last):
    """Take out the row at a place, `last` being the last place. Whether it was the last row of its kind."""
    row, moved = left.row[chosen], left.row[last]
    left.row[chosen] = moved
    left.place[moved] = chosen
    slot = left.slot[left.kind[moved]]
    left.front[slot] = chosen if chosen < left.front[slot] else left.front[slot]
    kind = left.kind[row]
    left.counts[kind] -= 1
    begin, end = left.begin[kind], left.begin[kind] + left.counts[kind]
    at = begin
    while left.members[at] != row:
        at += 1
    left.members[at] = left.members[end]
    front = last
    for at in range(begin, end):
        front = left.place[left.members[at]] if left.place[left.members[at]] < front else front
    left.front[left.slot[kind]] = front
    return end == begin


@inner
def first_place(left, loss, slots, wanted):
    """The first place of a row whose kind has this loss; -1 where there is none."""
    found = np.int64(len(left.row))
    for s in range(slots):
        if loss[s] == wanted and left.front[s] < found:
            found = left.front[s]
    return found if found < len(left.row) else np.int64(-1)
