"""Join groups of rows, the nearest pair first, until every group has k.

A group is described column by column: for a number the lowest and highest code, for a category the set of its values,
for a column with a hierarchy the lowest level on which all its values share a label. The distance of two groups is
what joining them adds to the loss of all their rows, divided by the rows that are in groups of fewer than k: joining
two small groups is preferred to joining a small one to a finished cluster.

Guarantees: every group ends with at least k, if all together have; the result depends on the arrays alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner

__all__ = ["CATEGORY", "HIERARCHY", "NUMBER", "WORD", "Shape", "agglomerate"]

CATEGORY, NUMBER, HIERARCHY = 0, 1, 2
WORD = 64


class Shape(NamedTuple):
    """The columns: kind, number of values, weight; where each begins in `points` (numbers), in the words of a set
    (categories) and in `labels` and `costs` (hierarchies: level by level, one entry per value), and how many levels."""

    kind: Any
    distinct: Any
    weight: Any
    offsets: Any
    points: Any
    words: Any
    level_starts: Any
    levels: Any
    labels: Any
    costs: Any


class GroupState(NamedTuple):
    """State of the groups: rows (or persons) in each, codes, levels, sets, loss of one row."""

    size: Any
    low: Any
    high: Any
    level: Any
    bits: Any
    loss: Any


@inner
def _make_groups(codes, size, shape):
    """One group for each column of `codes`, a combination of values."""
    columns, count = codes.shape
    low = np.empty((count, columns), np.int64)
    bits = np.zeros((count, max(shape.words[columns], 1)), np.uint64)
    for i in range(count):
        for c in range(columns):
            low[i, c] = codes[c, i]
            if shape.kind[c] == CATEGORY:
                bits[i, shape.words[c] + low[i, c] // WORD] |= np.uint64(1) << np.uint64(low[i, c] % WORD)
    return GroupState(
        size.astype(np.float64),
        low,
        low.copy(),
        np.zeros((count, columns), np.int64),
        bits,
        np.zeros(count),
    )


@inner
def _union_losses(a, others, count, total, groups, shape):
    """What one row loses in the union of a with each of the others: the weighted sum over the columns."""
    for i in range(count):
        total[i] = 0.0
    for c in range(len(shape.kind)):
        if shape.distinct[c] == 1:
            continue
        if shape.kind[c] == NUMBER:
            _add_number_losses(a, others, count, total, groups.low, groups.high, shape.points, shape.offsets[c],
                               shape.weight[c], c)  # fmt: skip
        elif shape.kind[c] == CATEGORY:
            _add_category_losses(a, others, count, total, groups.bits, shape.words[c], shape.words[c + 1],
                                 shape.weight[c], shape.distinct[c])  # fmt: skip
        else:
            _add_label_losses(a, others, count, total, groups.low, groups.level, shape.labels, shape.costs,
                              shape.level_starts[c], shape.levels[c], shape.weight[c], shape.distinct[c],
                              c)  # fmt: skip


@inlined
def _add_number_losses(a, others, count, total, low, high, points, base, weight, c):
    """Add the range that each union covers in a number column."""
    for i in range(count):
        b = others[i]
        below, top = min(low[a, c], low[b, c]), max(high[a, c], high[b, c])
        total[i] += weight * min(points[base + top] - points[base + below], 1.0)


@inlined
def _add_category_losses(a, others, count, total, bits, first_word, last_word, weight, distinct):
    """Add the share of the values that each union holds in a category column."""
    for i in range(count):
        found = np.int64(0)
        for w in range(first_word, last_word):
            found += _ones(bits[a, w] | bits[others[i], w])
        total[i] += weight * found / distinct if found > 1 else 0.0


@inlined
def _add_label_losses(a, others, count, total, low, level, labels, costs, begin, levels, weight, distinct, c):
    """Add the cost of the lowest label above each union in a column with a hierarchy."""
    for i in range(count):
        b = others[i]
        height = max(level[a, c], level[b, c])
        height = _level(labels, begin, distinct, levels, height, low[a, c], low[b, c])
        total[i] += weight * costs[begin + height * distinct + low[a, c]]


@inner
def _join_groups(a, b, loss, groups, shape):
    """Let group a be the union of both, in which one row has this loss."""
    low, high, level = groups.low, groups.high, groups.level
    groups.loss[a] = loss
    for c in range(len(shape.kind)):
        if shape.kind[c] == HIERARCHY:
            height = max(level[a, c], level[b, c])
            level[a, c] = _level(
                shape.labels, shape.level_starts[c], shape.distinct[c], shape.levels[c], height, low[a, c], low[b, c]
            )
        low[a, c] = min(low[a, c], low[b, c])
        high[a, c] = max(high[a, c], high[b, c])
        for w in range(shape.words[c], shape.words[c + 1]):
            groups.bits[a, w] |= groups.bits[b, w]
    groups.size[a] += groups.size[b]


@compiled
def agglomerate(codes, size, owner, k, shape):
    """Group of each combination of values, numbered by one of its members.

    `owner` says which are together from the start, by the number of one of them; its `size` is that of them all.
    """
    count = codes.shape[1]
    groups = _make_groups(codes, size, shape)
    owner = owner.copy()
    alive = np.empty(count, np.int64)
    losses = np.empty(count)
    other = np.empty(1, np.int64)
    living = _start_groups(size, owner, alive, losses, other, groups, shape)
    # Groups of fewer than k know how near another one is, or (near is -1) that none is nearer than gap.
    near = np.full(count, -1)
    gap = np.full(count, -1.0)
    while living > 1:
        a = _nearest_small(alive, living, groups.size, gap, k)
        if a < 0:
            break
        b = near[a]
        if b >= 0:
            other[0] = b
            _union_losses(a, other, np.int64(1), losses, groups, shape)
            _join_groups(a, b, losses[0], groups, shape)
            owner[b] = a
            living = _without(b, alive, living)
        near[a], gap[a] = -1, np.inf
        _union_losses(a, alive, living, losses, groups, shape)
        _update_nearest(a, b, alive, living, losses, groups.size, groups.loss, near, gap, k)
    for i in range(count):
        top = i
        while owner[top] != top:
            top = owner[top]
        owner[i] = top
    return owner


@inlined
def _start_groups(size, owner, alive, losses, other, groups, shape):
    """Join what is together from the start and find the loss of each group; how many groups there are."""
    # Numbers that are passed on have their type from the start: a constant would be compiled for by itself.
    living = np.int64(0)
    for i in range(len(owner)):
        if owner[i] == i:
            alive[living] = i
            living += 1
        else:
            _join_groups(owner[i], i, 0.0, groups, shape)
    for i in range(living):
        other[0] = alive[i]
        _union_losses(alive[i], other, np.int64(1), losses, groups, shape)
        groups.loss[alive[i]] = losses[0]
    for i in range(len(owner)):
        groups.size[i] = size[i]
    return living


@inlined
def _nearest_small(alive, living, sizes, gap, k):
    """The group of fewer than k rows that is nearest to another one; or -1."""
    a = np.int64(-1)
    for i in range(living):
        x = alive[i]
        if sizes[x] < k and (a < 0 or gap[x] < gap[a]):
            a = x
    return a


@inlined
def _update_nearest(a, b, alive, living, losses, sizes, own_loss, near, gap, k):
    """Find the group nearest to a, and tell the small groups about a after it joined b (if b is not -1)."""
    for i in range(living):
        x = alive[i]
        if x == a:
            continue
        added = (sizes[x] + sizes[a]) * losses[i] - sizes[x] * own_loss[x] - sizes[a] * own_loss[a]
        if sizes[a] < k:
            found = added / (sizes[a] + (sizes[x] if sizes[x] < k else 0.0))
            if found < gap[a] or near[a] < 0:
                near[a], gap[a] = x, found
        if b >= 0 and sizes[x] < k:
            found = added / (sizes[x] + (sizes[a] if sizes[a] < k else 0.0))
            if found < gap[x]:
                near[x], gap[x] = a, found
            elif near[x] == a or near[x] == b:
                # Its nearest group changed, and no other is nearer than that was: searched again at its turn.
                near[x] = a if found == gap[x] else -1


@inner
def _without(b, alive, living):
    """Take one out of the list of the living, whose order stays, and say how many are left."""
    kept = np.int64(0)
    for i in range(living):
        if alive[i] != b:
            alive[kept] = alive[i]
            kept += 1
    return kept


@inner
def _level(labels, begin, distinct, levels, level, one, other):
    """The lowest level from this one on where two codes share a label."""
    at = begin + level * distinct
    while level < levels - 1 and labels[at + one] != labels[at + other]:
        level += 1
        at += distinct
    return level


@inner
def _ones(word):
    """Bits that are set: summed in pairs, fours, eights, then all eights by one multiplication."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
