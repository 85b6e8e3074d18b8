"""Open new classes: rows of several classes, and rows that were left out, become one where that lowers the loss.

A class that gives rows away keeps k of them, goes altogether, or its other rows go where they cost least. A new class
that lacks rows is filled up by rows that others can spare, at a loss.

Guarantee: every class has at least k rows after every step, and every step lowers the summed loss, rows that are left
out counted at their price; a step that does not is taken back. No more rows are left out than there is room for.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import compiled, inner, zeros
from kohort.anonymity.relational.algorithms.class_state import (
    LEAST,
    NONE,
    added_loss,
    best_home,
    enter,
    link,
    measure,
    scratch,
    state_of,
    tallied,
    unlink,
)

__all__ = ["open_classes"]

UNKNOWN = -1.0


class _Notes(NamedTuple):
    taken: Any
    """How many rows of each class a group could take; those that are left out count as the last class."""
    quota: Any
    """How many of them it does take."""
    elsewhere: Any
    """What each row adds to the loss in the best other class; `UNKNOWN` until somebody asks."""
    offered: Any
    """The group that each row was last offered to."""
    picked: Any
    origin: Any
    """The rows that move, and the classes that they come from."""
    sources: Any


@compiled
def open_classes(codes, private, label, classes, shape, k, requirements, members, starts, costs, price, room):
    """Open classes from groups of rows, what gains most first. Changes `label`; the number of classes opened.

    `classes` counts empty ones, at the end, that may be opened. Rows of negative labels are left out, at `price` each;
    `room` more may be.
    """
    rows, groups = codes.shape[1], len(costs)
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    notes = _Notes(
        zeros(classes + 1), zeros(classes + 1), np.full(rows, UNKNOWN), np.full(rows, NONE), np.empty(rows, np.int64),
        np.empty(rows, np.int64), np.empty(classes, np.int64),
    )  # fmt: skip
    spaces = scratch(private, rows, requirements)
    gains = np.empty(groups)
    for group in range(groups):
        on_offer = members[starts[group] : starts[group + 1]]
        gain, found = _pick(codes, private, shape, state, notes, group, on_offer, costs[group], price, k, requirements,
                            spaces)  # fmt: skip
        gains[group] = gain if found >= k else 0.0
    opened, free = 0, classes
    while free > 0 and state.size[free - 1] == 0:
        free -= 1
    for group in np.argsort(-gains, kind="mergesort"):
        if free == classes or gains[group] <= LEAST:
            break
        on_offer = members[starts[group] : starts[group + 1]]
        gain, found = _pick(codes, private, shape, state, notes, group, on_offer, costs[group], price, k, requirements,
                            spaces)  # fmt: skip
        if found < k or gain <= LEAST:
            continue
        done, used = _open(codes, private, shape, state, notes, free, found, price, room, k, requirements, spaces)
        if done:
            room, free, opened = room - used, free + 1, opened + 1
    return opened


@inner
def _paid(state, i, price):
    """What row i loses now."""
    return price if state.label[i] < 0 else state.unit[state.label[i]]


@inner
def _pick(codes, private, shape, state, notes, group, rows, now, price, k, requirements, spaces):  # noqa: C901
    """Choose the rows of a group that become a class whose rows lose `now`; what that gains about, and how many."""
    taken, quota, last = notes.taken, notes.quota, len(state.size)
    for i in rows:
        notes.offered[i] = group
        if _paid(state, i, price) > now + LEAST:
            taken[state.label[i] if state.label[i] >= 0 else last] += 1
    gain, found = 0.0, 0
    for i in rows:
        saved = _paid(state, i, price) - now
        if saved <= LEAST:
            continue
        a = state.label[i] if state.label[i] >= 0 else last
        if taken[a] > 0:
            quota[a], lost = taken[a], 0.0
            if a < last and taken[a] < state.size[a] and taken[a] > state.size[a] - k:
                more = taken[a] - state.size[a] + k
                lost = _rest_elsewhere(codes, private, shape, state, notes, group, a, saved * more, price, k,
                                       requirements, spaces)  # fmt: skip
                if lost >= saved * more:
                    quota[a], lost = state.size[a] - k, 0.0
            gain, taken[a] = gain - lost, 0
        if quota[a] > 0:
            notes.picked[found] = i
            quota[a], found, gain = quota[a] - 1, found + 1, gain + saved
    while found < k and gain > LEAST:
        i = _filler(state, notes, group, rows, now, price, k)
        if i < 0:
            break
        notes.picked[found], notes.offered[i] = i, NONE
        quota[state.label[i]], found, gain = (
            quota[state.label[i]] + 1,
            found + 1,
            gain + state.unit[state.label[i]] - now,
        )
    for i in rows:
        quota[state.label[i] if state.label[i] >= 0 else last] = 0
    return gain, found


@inner
def _filler(state, notes, group, rows, now, price, k):
    """The row on offer that loses least by `now` among those whose classes can spare one; -1 where there is none."""
    best, chosen = -1.0, NONE
    for i in rows:
        a, paid = state.label[i], _paid(state, i, price)
        if a < 0 or notes.offered[i] != group or state.size[a] - notes.quota[a] <= k:
            continue
        if best < paid <= now + LEAST:
            best, chosen = paid, i
    return chosen


@inner
def _rest_elsewhere(codes, private, shape, state, notes, group, a, bound, price, k, requirements, spaces):
    """What the rows of class a that are not on offer lose more in other classes, about; gives up at `bound`."""
    lost, i = 0.0, state.head[a]
    while i >= 0 and lost < bound:
        if notes.offered[i] != group:
            if notes.elsewhere[i] == UNKNOWN:
                notes.elsewhere[i] = _elsewhere(codes, private, shape, state, i, price, k, requirements, spaces)
            lost += notes.elsewhere[i] - state.unit[a]
        i = state.after[i]
    return lost


@inner
def _elsewhere(codes, private, shape, state, i, price, k, requirements, spaces):
    """What row i adds to the loss in the best other class, or left out."""
    b = best_home(codes, private, shape, state, i, price, k, requirements, spaces[0], spaces[1], spaces[2])
    if b < 0:
        return price
    return state.unit[b] + added_loss(
        codes, i, b, state.size[b] + 1, np.inf, shape.kind, shape.offsets, shape.points, shape.words, shape.begins,
        shape.labels, shape.prices, shape.order, state.low, state.high, state.bits,
    )  # fmt: skip


@inner
def _open(codes, private, shape, state, notes, j, found, price, room, k, requirements, spaces):  # noqa: C901
    """Make class j of the picked rows and find places for rows of classes that are then too small; undone where that
    is no gain. Whether it was done, and how many more rows are left out."""
    gain, used, sources, moved = 0.0, 0, 0, found
    for at in range(found):
        i = notes.picked[at]
        a = notes.origin[at] = state.label[i]
        if a < 0:
            gain, used = gain + price, used - 1
        else:
            if notes.quota[a] == 0:
                gain += state.size[a] * state.unit[a]
                notes.sources[sources], notes.quota[a] = a, 1
                sources += 1
            unlink(state, a, i)
            state.size[a] -= 1
        link(state, j, i)
    measure(codes, shape, state, j)
    gain -= state.size[j] * state.unit[j]
    for at in range(sources):
        a = notes.sources[at]
        notes.quota[a] = 0
        while state.size[a] < k and state.head[a] >= 0:
            i = state.head[a]
            notes.picked[moved], notes.origin[moved] = i, a
            moved += 1
            unlink(state, a, i)
            state.label[i] = NONE
        measure(codes, shape, state, a)
        gain -= state.size[a] * state.unit[a]
    for at in range(found, moved):
        i = notes.picked[at]
        bound = price if used < room else np.inf
        b = best_home(codes, private, shape, state, i, bound, k, requirements, spaces[0], spaces[1], spaces[2])
        if b < 0:
            gain, used = gain - price, used + 1
            continue
        gain += state.size[b] * state.unit[b]
        link(state, b, i)
        enter(codes, shape, state, b, i)
        gain -= state.size[b] * state.unit[b]
    if gain > LEAST and used <= room:
        return True, used
    _undo(codes, shape, state, notes, moved)
    return False, 0


@inner
def _undo(codes, shape, state, notes, moved):
    """Bring moved rows back to the classes that they come from."""
    for at in range(moved):
        i, a = notes.picked[at], notes.origin[at]
        b = state.label[i]
        if b >= 0:
            unlink(state, b, i)
            measure(codes, shape, state, b)
        state.label[i] = NONE
        if a >= 0:
            link(state, a, i)
            measure(codes, shape, state, a)
