"""One node of the generalisation lattice: group the rows that are left by their labels, let out the groups that may go.

`flat[base[c, level] + code]` is the number of the label of a code of column c at a level. Groups are found with a hash
table whose hits are compared label by label: no collision can put two different rows into one class.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled
from kohort.anonymity.relational.algorithms.rule_kernel import class_meets

__all__ = ["count_groups", "emit_groups"]

FREE = -1


@compiled
def count_groups(codes, flat, base, levels, rows, active, k, held, slots, group, counts):
    """Number of groups of the first `active` rows at a node, and how many rows are in groups of at least k.

    Fills `group` (one number a row) and `counts`; `held` and `slots` are scratch, `slots` a power of two long.
    """
    quasi = codes.shape[0]
    mask = len(slots) - 1
    for i in range(len(slots)):
        slots[i] = FREE
    groups = 0
    for i in range(active):
        row = rows[i]
        mixed = np.uint64(0)
        for c in range(quasi):
            label = flat[base[c, levels[c]] + codes[c, row]]
            held[i, c] = label
            mixed = (mixed ^ np.uint64(label)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        place = np.int64(mixed & np.uint64(mask))
        while True:
            first = slots[place]
            if first == FREE:
                slots[place] = i
                group[i] = groups
                counts[groups] = 1
                groups += 1
                break
            same = True
            for c in range(quasi):
                if held[first, c] != held[i, c]:
                    same = False
                    break
            if same:
                group[i] = group[first]
                counts[group[i]] += 1
                break
            place = (place + 1) & mask
    large = 0
    for g in range(groups):
        if counts[g] >= k:
            large += counts[g]
    return groups, large


@compiled
def emit_groups(columns, rows, active, groups, group, counts, k, demands, inside, tally, touched, class_of, classes):
    """Make a class of every group that meets the rule; rows of the others move to the front of `rows`.

    Returns how many rows are left and how many classes there are now.
    """
    becomes = np.empty(groups, np.int64)
    begin = np.empty(groups + 1, np.int64)
    begin[0] = 0
    for g in range(groups):
        begin[g + 1] = begin[g] + counts[g]
    if demands is not None:
        place = begin.copy()
        sensitive = len(demands.offsets) - 1
        first = columns.shape[0] - sensitive
        for i in range(active):
            for s in range(sensitive):
                inside[s, place[group[i]]] = columns[first + s, rows[i]]
            place[group[i]] += 1
    for g in range(groups):
        becomes[g] = -1
        met = counts[g] >= k
        if demands is not None:
            met = met and class_meets(inside, begin[g], begin[g + 1], demands, tally, touched)
        if met:
            becomes[g] = classes
            classes += 1
    left = 0
    for i in range(active):
        row = rows[i]
        if becomes[group[i]] >= 0:
            class_of[row] = becomes[group[i]]
        else:
            rows[left] = row
            left += 1
    return left, classes
