"""Groups of rows that share a label in every column, each column on a level of its own, found depth first.

A column at a time, its level rising, the rows that are left are split by their labels. A part goes on while it has k
rows and while what its rows would save by these labels outweighs what rows that come along at a loss would lose.
Groups whose rows share a lower label in some column are left out: with that label the same rows cost less.

Guarantee: every group has at least k rows, each of which costs more now or can be spared; no group is found twice.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner, zeros
from kohort.anonymity.relational.algorithms.class_state import LEAST

__all__ = ["claim_groups", "label_groups"]


class _Walk(NamedTuple):
    held: Any
    """The rows at each depth, and how many: those of one part of the depth above."""
    many: Any
    parts: Any
    """The same rows label after label, where each part starts, how many parts there are, and which one is next."""
    starts: Any
    count: Any
    part: Any
    level: Any
    paid: Any
    """What the labels of the columns above cost."""
    tally: Any
    seen: Any


@compiled
def label_groups(codes, shape, levels, order, cost, spare, rows, k, least, work):
    """All groups of at least k of some rows whose labels save more than `least`.

    `cost` is what each row loses now, `spare` whether it may come along where it then loses more, `levels` the number
    of levels of each column, `order` the columns, `work` how many rows may be looked at.

    Returns the rows of all groups, where each group starts, what a row of it loses, and the work that is left: 0 or
    less where not all groups were found.
    """
    depth, columns = 0, len(order)
    widest = 0
    for c in range(columns):
        values = shape.offsets[c + 1] - shape.offsets[c]
        widest = values if values > widest else widest
    walk = _Walk(
        np.empty((columns + 1, len(rows)), np.int64), zeros(columns + 1), np.empty((columns, len(rows)), np.int64),
        np.empty((columns, widest + 1), np.int64), zeros(columns), zeros(columns), zeros(columns),
        np.zeros(columns + 1), zeros(widest), zeros(widest),
    )  # fmt: skip
    members, starts, costs, found = np.empty(1024, np.int64), zeros(1024), np.empty(1024), 0
    for at in range(len(rows)):
        walk.held[0, at] = rows[at]
    walk.many[0], walk.level[0] = len(rows), -1
    while depth >= 0 and work > 0:
        if walk.part[depth] == walk.count[depth]:
            walk.level[depth] += 1
            if walk.level[depth] == levels[order[depth]]:
                depth -= 1
            else:
                work -= walk.many[depth]
                _split(codes, shape, order[depth], depth, walk)
            continue
        kept = _next_part(codes, shape, order, depth, walk, cost, spare, k, least)
        if kept == 0:
            continue
        depth += 1
        if depth < columns:
            walk.level[depth], walk.count[depth], walk.part[depth] = -1, 0, 0
            continue
        depth -= 1
        end = starts[found] + kept
        members = _longer(members, end)
        costs, starts = _longer(costs, found + 1), _longer(starts, found + 2)
        members[starts[found] : end], costs[found], starts[found + 1] = (
            walk.held[columns, :kept],
            walk.paid[columns],
            end,
        )
        found += 1
    return members[: starts[found]], starts[: found + 1], costs[:found], work


@inner
def _longer(values, least):
    """The same values, with room for at least `least`."""
    if least <= len(values):
        return values
    found = np.empty(2 * least, values.dtype)
    found[: len(values)] = values
    return found


@inlined
def _split(codes, shape, c, depth, walk):
    """Put the rows of a depth into the order of their labels at its level."""
    line, labels, held, parts = codes[c], shape.labels, walk.held[depth], walk.parts[depth]
    base, many = shape.begins[c] + walk.level[depth] * (shape.offsets[c + 1] - shape.offsets[c]), walk.many[depth]
    tally, seen, found = walk.tally, walk.seen, 0
    for at in range(many):
        label = labels[base + line[held[at]]]
        if tally[label] == 0:
            seen[found] = label
            found += 1
        tally[label] += 1
    start = 0
    for part in range(found):
        walk.starts[depth, part] = start
        size = tally[seen[part]]
        tally[seen[part]] = start
        start += size
    walk.starts[depth, found] = start
    for at in range(many):
        label = labels[base + line[held[at]]]
        parts[tally[label]] = held[at]
        tally[label] += 1
    for part in range(found):
        tally[seen[part]] = 0
    walk.count[depth], walk.part[depth] = found, 0


@inlined
def _next_part(codes, shape, order, depth, walk, cost, spare, k, least):
    """Keep the rows of the next part that could use its labels, a depth below; how many, 0 where none of it pays."""
    part = walk.part[depth]
    walk.part[depth] += 1
    first, end = walk.starts[depth, part], walk.starts[depth, part + 1]
    if end - first < k:
        return 0
    c, parts, held = order[depth], walk.parts[depth], walk.held[depth + 1]
    base = shape.begins[c] + walk.level[depth] * (shape.offsets[c + 1] - shape.offsets[c])
    now = walk.paid[depth] + shape.prices[base + codes[c, parts[first]]]
    kept, gaining, saved, dearest = 0, 0, 0.0, -np.inf
    for at in range(first, end):
        row = parts[at]
        if cost[row] > now + LEAST:
            saved += cost[row] - now
            gaining += 1
        elif spare[row]:
            dearest = cost[row] if cost[row] > dearest else dearest
        else:
            continue
        held[kept] = row
        kept += 1
    lacking = k - gaining if gaining < k else 0
    if kept < k or gaining == 0 or (lacking > 0 and saved - lacking * (now - dearest) <= least) or saved <= least:
        return 0
    for above in range(depth + 1):
        if walk.level[above] > 0 and _share_lower(codes, shape, order[above], walk.level[above] - 1, held, kept):
            return 0
    walk.many[depth + 1], walk.paid[depth + 1] = kept, now
    return kept


@inner
def _share_lower(codes, shape, c, level, rows, many):
    """Whether rows share a label of column c at a level."""
    base = shape.begins[c] + level * (shape.offsets[c + 1] - shape.offsets[c])
    one = shape.labels[base + codes[c, rows[0]]]
    at = 1
    while at < many and shape.labels[base + codes[c, rows[at]]] == one:
        at += 1
    return at >= many


@compiled
def claim_groups(label, classes, members, starts, order, k):
    """Make a class of the rows of each group that have none, one group after another, where these are at least k.

    Changes `label`, which is negative for rows without a class; the number of classes then.
    """
    for group in order:
        free = 0
        for at in range(starts[group], starts[group + 1]):
            free += label[members[at]] < 0
        if free < k:
            continue
        for at in range(starts[group], starts[group + 1]):
            if label[members[at]] < 0:
                label[members[at]] = classes
        classes += 1
    return classes
