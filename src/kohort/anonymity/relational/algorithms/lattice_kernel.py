"""One node of the generalisation lattice: group the remaining rows by label, release the groups that meet the rule.

`flat[base[c, level] + code]` is the number of the label of a code of column c at a level. Groups are found with a hash
table whose hits are compared label by label: no collision can put two different rows into one class.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inlined
from kohort.anonymity.relational.class_kernel import class_meets

__all__ = ["count_groups", "emit_groups"]

FREE = -1


@compiled
def count_groups(codes, flat, base, levels, rows, active, k, held, slots, group, counts):
    """Number of groups of the first `active` rows at a node, and how many rows are in groups of at least k.

    Fills `group` (one number per row) and `counts`; `held` and `slots` are scratch, `slots` a power of two long.
    """
    for i in range(len(slots)):
        slots[i] = FREE
    groups = 0
    for i in range(active):
        place = _find_slot(_label_row(codes, flat, base, levels, rows[i], held, i), held, slots, i)
        first = slots[place]
        if first == FREE:
            slots[place] = i
            group[i] = groups
            counts[groups] = 1
            groups += 1
        else:
            group[i] = group[first]
            counts[group[i]] += 1
    large = 0
    for g in range(groups):
        if counts[g] >= k:
            large += counts[g]
    return groups, large


@inlined
def _label_row(codes, flat, base, levels, row, held, i):
    """Write the labels of a row at a node to `held[i]`, and give their hash."""
    mixed = np.uint64(0)
    for c in range(codes.shape[0]):
        label = flat[base[c, levels[c]] + codes[c, row]]
        held[i, c] = label
        mixed = (mixed ^ np.uint64(label)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


@inlined
def _find_slot(mixed, held, slots, i):
    """The slot of the first row with the labels of row i, or a free one."""
    mask = len(slots) - 1
    place = np.int64(mixed & np.uint64(mask))
    while slots[place] != FREE:
        first = slots[place]
        same = True
        for c in range(held.shape[1]):
            if held[first, c] != held[i, c]:
                same = False
                break
        if same:
            break
        place = (place + 1) & mask
    return place


@compiled
def emit_groups(
    columns, rows, active, groups, group, counts, k, requirements, inside, tally, touched, class_of, classes
):
    """Make a class of every group that meets the rule; rows of the others move to the front of `rows`.

    Returns how many rows are left and how many classes there are now.
    """
    becomes = np.empty(groups, np.int64)
    begin = np.empty(groups + 1, np.int64)
    begin[0] = 0
    for g in range(groups):
        begin[g + 1] = begin[g] + counts[g]
    _sort_values(columns, rows, active, group, begin, requirements, inside)
    for g in range(groups):
        becomes[g] = -1
        met = counts[g] >= k
        if requirements is not None:
            met = met and class_meets(inside, begin[g], begin[g + 1], requirements, tally, touched)
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


@inlined
def _sort_values(columns, rows, active, group, begin, requirements, inside):
    """Write the sensitive values of the rows to `inside`, group by group."""
    if requirements is not None:
        place = begin.copy()
        first = columns.shape[0] - inside.shape[0]
        for i in range(active):
            for s in range(inside.shape[0]):
                inside[s, place[group[i]]] = columns[first + s, rows[i]]
            place[group[i]] += 1
