"""Join groups of rows, the nearest pair first, until every group has k.

A group is described column by column: for a number the lowest and highest code, for a category the set of its values,
for a column with a hierarchy the lowest level on which all its values share a label. The distance of two groups is
what joining them adds to the loss of all their rows, for each row among them that still lacks company: two small groups
that help each other come before one that spoils a cluster.

Guarantees: every group ends with at least k, if all together have; the result depends on the arrays alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.kernels.compiled import compiled
from kohort.anonymity.kernels.item_counts import inner

__all__ = ["CATEGORY", "LADDER", "NUMBER", "WORD", "Shape", "agglomerate"]

CATEGORY, NUMBER, LADDER = 0, 1, 2
WORD = 64


class Shape(NamedTuple):
    """The columns: kind, number of values, weight; where each begins in `points` (numbers), in the words of a set
    (categories) and in `labels` and `costs` (hierarchies: level by level, one entry a value), and how many levels."""

    kind: Any
    distinct: Any
    weight: Any
    offsets: Any
    points: Any
    words: Any
    ladder: Any
    levels: Any
    labels: Any
    costs: Any


class Groups(NamedTuple):
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
    return Groups(
        size.astype(np.float64),
        low,
        low.copy(),
        np.zeros((count, columns), np.int64),
        bits,
        np.zeros(count),
    )


@inner
def _union_loss(a, b, groups, shape):
    """What one row loses in the union of two groups: the weighted sum over the columns."""
    total = 0.0
    for c in range(len(shape.kind)):
        if shape.distinct[c] == 1:
            continue
        if shape.kind[c] == NUMBER:
            base = shape.offsets[c]
            below, top = min(groups.low[a, c], groups.low[b, c]), max(groups.high[a, c], groups.high[b, c])
            lost = min(shape.points[base + top] - shape.points[base + below], 1.0)
        elif shape.kind[c] == CATEGORY:
            found = np.int64(0)
            for w in range(shape.words[c], shape.words[c + 1]):
                found += _ones(groups.bits[a, w] | groups.bits[b, w])
            lost = found / shape.distinct[c] if found > 1 else 0.0
        else:
            lost = shape.costs[_label(a, b, c, groups, shape)]
        total += shape.weight[c] * lost
    return total


@inner
def _join_groups(a, b, groups, shape):
    """Let group a be the union of both."""
    groups.loss[a] = _union_loss(a, b, groups, shape)
    for c in range(len(shape.kind)):
        if shape.kind[c] == LADDER:
            at = _label(a, b, c, groups, shape)
            groups.level[a, c] = (at - shape.ladder[c]) // shape.distinct[c]
        groups.low[a, c] = min(groups.low[a, c], groups.low[b, c])
        groups.high[a, c] = max(groups.high[a, c], groups.high[b, c])
        for w in range(shape.words[c], shape.words[c + 1]):
            groups.bits[a, w] |= groups.bits[b, w]
    groups.size[a] += groups.size[b]


@compiled
def agglomerate(codes, size, owner, k, shape):
    """Group of each combination of values, numbered by one of its members.

    `owner` says which are together from the start, and by whom they go; `size` of that one is the size of them all.
    """
    count = codes.shape[1]
    groups = _make_groups(codes, size, shape)
    owner = owner.copy()
    alive = np.empty(count, np.int64)
    living = 0
    for i in range(count):
        if owner[i] == i:
            alive[living] = i
            living += 1
        else:
            _join_groups(owner[i], i, groups, shape)
    groups.size[:] = size
    near = np.full(count, -1)
    gap = np.full(count, np.inf)
    for i in range(living):
        if groups.size[alive[i]] < k:
            _find_nearest(alive[i], alive, living, near, gap, k, groups, shape)
    while living > 1:
        a = -1
        for i in range(living):
            x = alive[i]
            if groups.size[x] < k and (a < 0 or gap[x] < gap[a]):
                a = x
        if a < 0:
            break
        b = near[a]
        _join_groups(a, b, groups, shape)
        owner[b] = a
        kept = 0
        for i in range(living):
            if alive[i] != b:
                alive[kept] = alive[i]
                kept += 1
        living = kept
        gap[a], near[a] = np.inf, -1
        for i in range(living):
            x = alive[i]
            if x == a or groups.size[x] >= k:
                continue
            if near[x] == a or near[x] == b:
                _find_nearest(x, alive, living, near, gap, k, groups, shape)
            else:
                found = _gap(x, a, k, groups, shape)
                if found < gap[x]:
                    near[x], gap[x] = a, found
        if groups.size[a] < k:
            _find_nearest(a, alive, living, near, gap, k, groups, shape)
    for i in range(count):
        top = i
        while owner[top] != top:
            top = owner[top]
        owner[i] = top
    return owner


@inner
def _find_nearest(x, alive, living, near, gap, k, groups, shape):
    near[x], gap[x] = -1, np.inf
    for i in range(living):
        if alive[i] != x:
            found = _gap(x, alive[i], k, groups, shape)
            if near[x] < 0 or found < gap[x]:
                near[x], gap[x] = alive[i], found


@inner
def _gap(a, b, k, groups, shape):
    """Distance of a group that lacks company from another."""
    together = (groups.size[a] + groups.size[b]) * _union_loss(a, b, groups, shape)
    added = together - groups.size[a] * groups.loss[a] - groups.size[b] * groups.loss[b]
    return added / (groups.size[a] + (groups.size[b] if groups.size[b] < k else 0.0))


@inner
def _label(a, b, c, groups, shape):
    """Where the lowest label above both groups stands in `labels` and `costs`."""
    distinct = shape.distinct[c]
    level = max(groups.level[a, c], groups.level[b, c])
    at = shape.ladder[c] + level * distinct
    while level < shape.levels[c] - 1 and shape.labels[at + groups.low[a, c]] != shape.labels[at + groups.low[b, c]]:
        level += 1
        at += distinct
    return at + groups.low[a, c]


@inner
def _ones(word):
    """Bits that are set."""
    found = np.int64(0)
    while word != np.uint64(0):
        word &= word - np.uint64(1)
        found += 1
    return found
