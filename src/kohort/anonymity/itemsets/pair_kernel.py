"""Generalise items class by class for m of 1 or 2, where every person has one row and items form groups.

This is the usual case. The steps are those of `item_kernel`, on smaller state: the items of a class are numbered from
0, and the rows that hold both of two groups are counted in a square. A step visits only the rows that hold the group
that gives way.

Guarantees: node by node the result of `item_kernel`; it depends on the arrays alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner

__all__ = ["generalise_pairs"]

NOWHERE = -1


class ClassGroups(NamedTuple):
    """The groups of one class, by the local number of one item of each; `name` is that item's own number.

    `into`: the group that one joined, itself while it lives, -1 if suppressed. `size`: items in it; `held` and `heavy`:
    occurrences, and what they weigh. `head` and `tail`: its rows, as occurrences that `following` links; `shown` is the
    group an occurrence stands for, -1 where another of its row does already. `both[x * count + y]`: rows that hold x
    and y, those that hold x at all where y is x. `bad`: how many of these are too few.
    """

    name: Any
    into: Any
    size: Any
    held: Any
    heavy: Any
    head: Any
    tail: Any
    bad: Any
    active: Any
    both: Any
    following: Any
    shown: Any
    row_of: Any


@compiled
def generalise_pairs(class_starts, row_starts, leaf, weight, items, width, k, m):
    """Item that names the group of each occurrence, -1 where it is suppressed, and what each loses, times its weight.

    Class c has the rows `class_starts[c]` to `class_starts[c + 1]`, of which none has more than `width` different
    items in all.
    """
    node, lost = np.empty(len(leaf), np.int64), np.empty(len(leaf))
    local = np.full(items, -1)
    row_of = np.empty(len(leaf), np.int64)
    for row in range(len(row_starts) - 1):
        row_of[row_starts[row] : row_starts[row + 1]] = row
    groups = ClassGroups(
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.empty(width * width, np.int32),
        np.empty(len(leaf), np.int64),
        np.empty(len(leaf), np.int64),
        row_of,
    )
    for c in range(len(class_starts) - 1):
        first, last = class_starts[c], class_starts[c + 1]
        start, end = row_starts[first], row_starts[last]
        count = _number_items(start, end, leaf, weight, local, groups)
        _count_pairs(first, last, row_starts, count, groups, k, m)
        _solve(count, row_starts, items, groups, k, m)
        for o in range(start, end):
            x = local[leaf[o]]
            while x != NOWHERE and groups.into[x] != x:
                x = groups.into[x]
            node[o] = NOWHERE if x == NOWHERE else groups.name[x]
            share = 1.0 if x == NOWHERE else _loss(groups.size[x]) / items
            lost[o] = weight[leaf[o]] * share
        for x in range(count):
            local[groups.name[x]] = -1
    return node, lost


@inner
def _number_items(start, end, leaf, weight, local, groups):
    """Number the items of a class as they come, list their rows, and say how many there are."""
    row_of, tail = groups.row_of, groups.tail
    count = 0
    for o in range(start, end):
        x = local[leaf[o]]
        again = False
        if x < 0:
            x = count
            local[leaf[o]] = x
            count += 1
            groups.name[x], groups.into[x], groups.size[x], groups.active[x] = leaf[o], x, 1, x
            groups.held[x], groups.heavy[x] = 0, 0.0
            groups.head[x] = o
        else:
            # An item that two columns of a row hold.
            again = row_of[tail[x]] == row_of[o]
            if not again:
                groups.following[tail[x]] = o
        groups.held[x] += 1
        groups.heavy[x] += weight[leaf[o]]
        groups.shown[o] = NOWHERE if again else x
        if not again:
            tail[x] = o
            groups.following[o] = -1
    return count


@inner
def _count_pairs(first, last, row_starts, count, groups, k, m):
    """Count the rows that hold each pair of items, and for each item the pairs that too few rows hold."""
    both = groups.both
    both[: count * count] = 0
    for row in range(first, last):
        for o in range(row_starts[row], row_starts[row + 1]):
            _count_earlier(o, row_starts[row], count, groups, m)
    for x in range(count):
        few = 0
        for y in range(x * count, x * count + count):
            few += 1 if 0 < both[y] < k else 0
        groups.bad[x] = few


@inlined
def _count_earlier(o, start, count, groups, m):
    """Count an item of a row with itself and, unless m is 1, with each item before it."""
    both, shown = groups.both, groups.shown
    x = shown[o]
    for other in range(start if m > 1 else o, o + 1 if x >= 0 else start):
        y = shown[other]
        if y >= 0:
            both[x * count + y] += 1
            if y != x:
                both[y * count + x] += 1


@inner
def _solve(count, row_starts, items, groups, k, m):
    """Let groups join or go until no pair is held by too few."""
    active, held, bad, both = groups.active, groups.held, groups.bad, groups.both
    actives = count
    while True:
        place = _rarest_bad(actives, groups)
        if place < 0:
            return
        a = active[place]
        actives -= 1
        active[place] = active[actives]
        target = _cheapest(a, actives, items, groups)
        # A group that is gone keeps its counts: nobody looks at them again.
        for y in range(count):
            bad[y] -= 1 if 0 < both[a * count + y] < k else 0
        groups.into[a] = target
        if target != NOWHERE:
            groups.size[target] += groups.size[a]
            held[target] += held[a]
            groups.heavy[target] += groups.heavy[a]
        o = groups.head[a]
        while o >= 0:
            after = groups.following[o]
            row = groups.row_of[o]
            _move(o, target, row_starts[row], row_starts[row + 1], count, groups, k, m)
            o = after


@inlined
def _rarest_bad(actives, groups):
    """Place of the group with the fewest occurrences among those that break the rule; or -1."""
    active, held, bad = groups.active, groups.held, groups.bad
    a, place = np.int64(-1), -1
    for i in range(actives):
        x = active[i]
        if bad[x] == 0 or (a >= 0 and held[x] > held[a]):
            continue
        if a < 0 or held[x] < held[a] or groups.name[x] < groups.name[a]:
            a, place = x, i
    return place


@inner
def _cheapest(a, actives, items, groups):
    """The group that a joins for the least loss, or nowhere; a group of all items says as little as none."""
    size, heavy, active = groups.size, groups.heavy, groups.active
    own = _loss(size[a])
    cost = heavy[a] * (items - own)
    target = NOWHERE
    for i in range(actives):
        b = active[i]
        joint = float(size[a] + size[b])
        joined = heavy[a] * (joint - own) + heavy[b] * (joint - _loss(size[b]))
        if joined > cost or joint >= items:
            continue
        if joined < cost or target < 0 or groups.name[b] < groups.name[target]:
            target, cost = b, joined
    return target


@inner
def _move(o, target, start, end, count, groups, k, m):
    """Let one occurrence stand for the target from now on, unless its row shows that already or there is none."""
    shown, both = groups.shown, groups.both
    shown[o] = NOWHERE
    if target == NOWHERE:
        return
    for other in range(start, end):
        if shown[other] == target:
            return
    shown[o] = target
    groups.following[groups.tail[target]] = o
    groups.following[o] = -1
    groups.tail[target] = o
    for other in range(start, end):
        y = shown[other]
        if y < 0 or (m == 1 and y != target):
            continue
        after = both[target * count + y] + 1
        both[target * count + y] = after
        both[y * count + target] = after
        if after in (1, k):
            change = (1 if after < k else 0) - (1 if after > 1 else 0)
            groups.bad[target] += change
            if y != target:
                groups.bad[y] += change


@inner
def _loss(size):
    """How many items a group stands for; an item by itself loses nothing."""
    return 0.0 if size <= 1 else float(size)
