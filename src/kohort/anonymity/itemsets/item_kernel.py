"""Generalise the items of rows until every combination of up to m of them is held by k persons of a class, or by none.

A scope is a range of units that share one way to generalise: a class by itself, or the whole table. Every occurrence
of an item stands on a node: the item, a node above it, or nowhere (suppressed). While some combination is held by too
few, the rarest node in one of them gives way: it goes up to its parent together with its siblings, or (without a tree)
joins the group that makes it cost least, or is suppressed in the classes where it breaks the rule: whichever loses
least. A step touches the counts of the combinations whose nodes it moves, and no others.

Guarantees: no combination is left with between 1 and k - 1 holders in its class; the result depends on the arrays
alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner
from kohort.anonymity.itemsets.count_kernel import (
    SMALLEST_TABLE,
    Buffers,
    Counts,
    Units,
    count_units,
    make_room,
    most_combinations,
)

__all__ = ["generalise_items"]

NOWHERE = -1


class Tree(NamedTuple):
    """Parent of each node (-1: none), items below each node, and number of items.

    `above` says whether there is a tree: without one, sizes change as groups join.
    """

    parent: Any
    size: Any
    domain: Any
    above: Any


class Lists(NamedTuple):
    """The occurrences on each node, as linked lists: how many, and what they weigh. `below` and `below_loss` sum weight
    and weighted loss over a node and all below it."""

    leaf: Any
    unit: Any
    weight: Any
    following: Any
    head: Any
    tail: Any
    held: Any
    heavy: Any
    below: Any
    below_loss: Any


@compiled
def generalise_items(scopes, of_class, unit_starts, row_starts, leaf, weight, parent, sizes, domain, k, m, above):
    """Node of each occurrence, -1 where it is suppressed, and what each loses, times its weight.

    Scope s has the units `scopes[s]` to `scopes[s + 1]`; the classes of its units are numbered without gaps and rising.
    Without a tree (`above`) a group goes by the number of one of its items.
    """
    nodes = len(sizes)
    units = Units(unit_starts, of_class, row_starts, leaf.copy())
    tree = Tree(parent, sizes.copy(), domain, above)
    lists = _no_lists(units, leaf, weight, nodes)
    longest = np.int64(1)
    for unit in range(len(of_class)):
        longest = max(longest, row_starts[unit_starts[unit + 1]] - row_starts[unit_starts[unit]] + 1)
        longest = max(longest, unit_starts[unit + 1] - unit_starts[unit] + 1)
    buffers = Buffers(
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest + 1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
    )
    lost = np.empty(len(leaf))
    for s in range(len(scopes) - 1):
        start, end = scopes[s], scopes[s + 1]
        if end > start:
            classes = of_class[end - 1] - of_class[start] + 1
            bad = np.zeros((classes, nodes), np.int32)
            keys, holders = np.full(SMALLEST_TABLE, -1), np.zeros(SMALLEST_TABLE, np.int32)
            counts = Counts(keys, holders, np.zeros(1, np.int64), bad, np.zeros(nodes, np.int64))
            _solve_scope(np.arange(start, end), units, tree, lists, buffers, counts, k, m)
            for o in range(row_starts[unit_starts[start]], row_starts[unit_starts[end]]):
                x = units.node[o]
                lost[o] = weight[leaf[o]] * (1.0 if x == NOWHERE else _loss(tree.size[x]) / domain)
            for o in range(row_starts[unit_starts[start]], row_starts[unit_starts[end]]):
                tree.size[leaf[o]] = sizes[leaf[o]]
    return units.node, lost


@inner
def _no_lists(units, leaf, weight, nodes):
    row_starts, starts = units.row_starts, units.starts
    unit_of = np.empty(len(leaf), np.int64)
    for unit in range(len(units.of_class)):
        for o in range(row_starts[starts[unit]], row_starts[starts[unit + 1]]):
            unit_of[o] = unit
    return Lists(
        leaf,
        unit_of,
        weight,
        np.full(len(leaf), -1),
        np.full(nodes, -1),
        np.full(nodes, -1),
        np.zeros(nodes, np.int64),
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(nodes),
    )


@inner
def _solve_scope(members, units, tree, lists, buffers, counts, k, m):
    """Move the nodes of one scope until no combination is held by too few."""
    of_class, row_starts, starts = units.of_class, units.row_starts, units.starts
    size = tree.size
    held = lists.held
    first_class = of_class[members[0]]
    start = row_starts[starts[members[0]]]
    end = row_starts[starts[members[-1] + 1]]
    active = np.empty(min(end - start, len(size)) + 1, np.int64)
    actives = _list_occurrences(start, end, lists, active)
    marked = np.zeros(len(size), np.bool_)
    for i in range(actives):
        marked[active[i]] = True
        _add_up(tree, lists, active[i], 1.0)
    counts = make_room(counts, most_combinations(units, members, np.int64(len(members)), m))
    count_units(members, np.int64(len(members)), np.int64(1), first_class, units, marked, buffers, counts, k, m)
    marked[:] = False
    moving = np.empty(len(active), np.int64)
    touched = np.empty(len(members), np.int64)
    step_of_unit = np.full(len(members), -1)
    step = 0
    while True:
        actives, a = _rarest_bad(active, actives, lists, counts)
        if a < 0:
            break
        target = _choose(a, active, actives, tree, lists, counts, units, first_class)
        movers = _movers(a, target, active, actives, tree, moving)
        step += 1
        # The group that a joins keeps its number, so units that hold only that group stay as they are.
        listed = movers if tree.above else np.int64(1)
        count = _touch_units(a, target, moving, listed, step, members[0], first_class, units, lists, counts, touched,
                             step_of_unit)  # fmt: skip
        for i in range(movers):
            marked[moving[i]] = True
        count_units(touched, count, np.int64(-1), first_class, units, marked, buffers, counts, k, m)
        for i in range(movers):
            marked[moving[i]] = False
            _add_up(tree, lists, moving[i], -1.0)
        if target == NOWHERE:
            _suppress(a, step, members[0], step_of_unit, units, lists)
            _add_up(tree, lists, a, 1.0)
            continue
        if held[target] == 0:
            active[actives] = target
            actives += 1
        _join(target, moving, movers, units, tree, lists)
        _add_up(tree, lists, target, 1.0)
        marked[target] = True
        counts = make_room(counts, most_combinations(units, touched, count, m))
        count_units(touched, count, np.int64(1), first_class, units, marked, buffers, counts, k, m)
        marked[target] = False
    _clear_lists(start, end, active, actives, tree, lists)


@inlined
def _list_occurrences(start, end, lists, active):
    """Put every occurrence on the list of its item; the items go to `active`, and their number is returned."""
    leaf, held, head, following, tail = lists.leaf, lists.held, lists.head, lists.following, lists.tail
    actives = np.int64(0)
    for o in range(start, end):
        x = leaf[o]
        if held[x] == 0:
            active[actives] = x
            actives += 1
            head[x] = o
        else:
            following[tail[x]] = o
        tail[x] = o
        following[o] = -1
        held[x] += 1
        lists.heavy[x] += lists.weight[x]
    return actives


@inlined
def _touch_units(a, target, moving, listed, step, first_unit, first_class, units, lists, counts, touched, step_of_unit):
    """List the units that this step changes, each once, and say how many there are."""
    one_class = counts.bad.shape[0] == 1
    count = np.int64(0)
    for i in range(listed):
        o = lists.head[moving[i]]
        while o >= 0:
            unit = lists.unit[o]
            leaves = target != NOWHERE or one_class or counts.bad[units.of_class[unit] - first_class, a] > 0
            if leaves and step_of_unit[unit - first_unit] != step:
                step_of_unit[unit - first_unit] = step
                touched[count] = unit
                count += 1
            o = lists.following[o]
    return count


@inlined
def _clear_lists(start, end, active, actives, tree, lists):
    """Empty the lists and sums of a finished scope."""
    for i in range(actives):
        x = active[i]
        lists.head[x], lists.tail[x], lists.held[x], lists.heavy[x] = -1, -1, 0, 0.0
    if tree.above:
        for o in range(start, end):
            x = lists.leaf[o]
            while x >= 0:
                lists.below[x], lists.below_loss[x] = 0.0, 0.0
                x = tree.parent[x]


@inner
def _rarest_bad(active, actives, lists, counts):
    """Drop the empty nodes, and find the one with the fewest occurrences among those that break the rule; or -1."""
    held = lists.held
    found, kept = -1, 0
    for i in range(actives):
        x = active[i]
        if held[x] == 0:
            continue
        active[kept] = x
        kept += 1
        if counts.bad_total[x] > 0 and (found < 0 or held[x] < held[found] or (held[x] == held[found] and x < found)):
            found = x
    return kept, found


@inlined
def _choose(a, active, actives, tree, lists, counts, units, first_class):
    """Where node a goes for the least loss: to its parent, into another group, or nowhere (suppressed).

    A node that stands for every item says as little as a suppressed one, so no node goes there.
    """
    cost = _suppression_cost(a, tree, lists, counts, units, first_class)
    if not tree.above:
        return _cheapest_group(a, active, actives, tree, lists, cost)
    p = tree.parent[a]
    if p >= 0 and tree.size[p] < tree.domain:
        raised = lists.below[p] * _loss(tree.size[p]) - lists.below_loss[p]
        if raised <= cost:
            return p
    return NOWHERE


@inlined
def _suppression_cost(a, tree, lists, counts, units, first_class):
    """What suppressing node a costs in the classes where it breaks the rule."""
    own = _loss(tree.size[a])
    if counts.bad.shape[0] == 1:
        return lists.heavy[a] * (tree.domain - own)
    cost = 0.0
    o = lists.head[a]
    while o >= 0:
        if counts.bad[units.of_class[lists.unit[o]] - first_class, a] > 0:
            cost += lists.weight[lists.leaf[o]] * (tree.domain - own)
        o = lists.following[o]
    return cost


@inlined
def _cheapest_group(a, active, actives, tree, lists, cost):
    """The group that a joins at the least cost below the given one, or nowhere."""
    tree_size, heavy = tree.size, lists.heavy
    own = _loss(tree_size[a])
    target = NOWHERE
    for i in range(actives):
        b = active[i]
        size = tree_size[a] + tree_size[b]
        if b == a or size >= tree.domain:
            continue
        joint = _loss(size)
        joined = heavy[a] * (joint - own) + heavy[b] * (joint - _loss(tree_size[b]))
        if joined < cost or (joined == cost and (target < 0 or b < target)):
            target, cost = b, joined
    return target


@inner
def _movers(a, target, active, actives, tree, moving):
    """List the nodes whose occurrences change, and say how many."""
    if target == NOWHERE or not tree.above:
        moving[0] = a
        moving[1] = target
        return 1 if target == NOWHERE else 2
    movers = 0
    for i in range(actives):
        up = active[i]
        while up >= 0 and up != target:
            up = tree.parent[up]
        if up == target:
            moving[movers] = active[i]
            movers += 1
    return movers


@inner
def _suppress(a, step, first_unit, step_of_unit, units, lists):
    """Take the occurrences of a out of the units of this step."""
    head, following, held, heavy = lists.head, lists.following, lists.held, lists.heavy
    last = -1
    o = head[a]
    while o >= 0:
        after = following[o]
        if step_of_unit[lists.unit[o] - first_unit] == step:
            units.node[o] = NOWHERE
            held[a] -= 1
            heavy[a] -= lists.weight[lists.leaf[o]]
            if last < 0:
                head[a] = after
            else:
                following[last] = after
        else:
            last = o
        o = after
    lists.tail[a] = last
    if held[a] == 0:
        head[a] = -1
        heavy[a] = 0.0


@inner
def _join(target, moving, movers, units, tree, lists):
    """Put the occurrences of the moving nodes onto the target."""
    size = tree.size
    head, following, tail, held, heavy = lists.head, lists.following, lists.tail, lists.held, lists.heavy
    for i in range(movers):
        x = moving[i]
        if x == target:
            continue
        if not tree.above:
            size[target] += size[x]
        o = head[x]
        while o >= 0:
            units.node[o] = target
            o = following[o]
        if head[target] < 0:
            head[target] = head[x]
        else:
            following[tail[target]] = head[x]
        tail[target] = tail[x]
        held[target] += held[x]
        heavy[target] += heavy[x]
        head[x], tail[x], held[x], heavy[x] = -1, -1, 0, 0.0


@inner
def _add_up(tree, lists, x, sign):
    """Add a node's weight and loss to the sums of all above it (or take them away)."""
    if not tree.above:
        return
    heavy = sign * lists.heavy[x]
    loss = heavy * _loss(tree.size[x])
    while x >= 0:
        lists.below[x] += heavy
        lists.below_loss[x] += loss
        x = tree.parent[x]


@inner
def _loss(size):
    """How many items a node stands for; an item itself loses nothing.

    Not divided by the number of items: sums of whole numbers are exact, so equal costs are found equal.
    """
    return 0.0 if size <= 1 else float(size)
