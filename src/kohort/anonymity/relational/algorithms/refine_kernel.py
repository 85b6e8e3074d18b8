"""Local search over classes: rows move to where they cost less, and those that cost most may be left out.

Guarantee: a class that meets the rule still does after every move, and every move lowers the summed loss.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inner
from kohort.anonymity.relational.algorithms.class_state import (
    LEAST,
    NONE,
    UNKNOWN,
    added_loss,
    best_home,
    count_values,
    enter,
    holds,
    link,
    measure,
    scratch,
    state_of,
    take,
    tallied,
    unit_without,
    unlink,
)

__all__ = ["admit_rows", "best_drops", "dissolve_classes", "move_rows", "replace_rows"]

# A pass that moves no more than this part of the rows is the last.
FEW = 20


@compiled
def move_rows(codes, private, label, classes, shape, k, requirements, passes):
    """Move rows to classes where they cost less, until a pass moves few. Changes `label`; the number of moves."""
    rows = codes.shape[1]
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    inside, counts, touched = scratch(private, rows, requirements)
    moved = 0
    for _ in range(passes):
        before = moved
        for i in range(rows):
            a = label[i]
            if a < 0 or state.size[a] <= k or state.unit[a] == 0.0:
                continue
            if not holds(private, state, a, np.int64(i), NONE, k, requirements, inside, counts, touched):
                continue
            without = unit_without(codes, shape, state, a, i)
            saved = state.size[a] * state.unit[a] - (state.size[a] - 1) * without - LEAST
            b = best_home(codes, private, shape, state, i, saved, k, requirements, inside, counts, touched)
            if b >= 0:
                take(codes, private, shape, state, i, b, without, requirements)
                moved += 1
        if moved - before <= rows // FEW:
            break
    return moved


@compiled
def dissolve_classes(codes, private, label, classes, shape, k, requirements, pairs):
    """Share out the rows of whole classes where that lowers the loss. Changes `label`; the number of classes gone.

    Those that lose most per row come first. Each row goes to the class that it then costs least; where the sum is no
    gain, all of them come back. At most `pairs` of a row and a class are compared.
    """
    rows = codes.shape[1]
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    inside, counts, touched = scratch(private, rows, requirements)
    going, gone = np.empty(rows, np.int64), 0
    order = np.argsort(state.unit)
    for at in range(classes - 1, -1, -1):
        j = np.int64(order[at])
        if state.unit[j] == 0.0 or pairs <= 0:
            break
        size, before, found = state.size[j], state.size[j] * state.unit[j], np.int64(0)
        i = state.head[j]
        while i >= 0:
            going[found] = i
            found += 1
            i = state.after[i]
        added, moved = 0.0, np.int64(0)
        while moved < size:
            i, pairs = going[moved], pairs - classes
            b = best_home(codes, private, shape, state, i, before - added - LEAST, k, requirements, inside, counts,
                           touched)  # fmt: skip
            if b < 0:
                break
            added -= state.size[b] * state.unit[b]
            take(codes, private, shape, state, i, b, state.unit[j], requirements)
            added += state.size[b] * state.unit[b]
            moved += 1
        if moved == size:
            gone += 1
            continue
        for step in range(moved - 1, -1, -1):
            take(codes, private, shape, state, going[step], np.int64(j), -1.0, requirements)
    return gone


@compiled
def replace_rows(codes, private, label, classes, shape, k, requirements):
    """Move rows out of classes that have no row to spare, each replaced by a row of a class that has. Changes `label`.

    For rules about k rows alone. The number of rows replaced.
    """
    rows = codes.shape[1]
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    inside, counts, touched = scratch(private, rows, requirements)
    replaced = 0
    for i in range(rows):
        a = label[i]
        if a < 0 or state.size[a] != k or state.unit[a] == 0.0:
            continue
        before = k * state.unit[a]
        saved = before - k * unit_without(codes, shape, state, a, i) - LEAST
        if saved <= 0.0:
            continue
        unlink(state, a, i)
        measure(codes, shape, state, a)
        state.label[i] = a
        r = _best_refill(codes, shape, state, a, before - LEAST, k)
        done = False
        if r >= 0:
            c, size = label[r], state.size[label[r]]
            rest = unit_without(codes, shape, state, c, r)
            gain = before + size * state.unit[c] - (size - 1) * rest
            take(codes, private, shape, state, r, a, rest, requirements)
            gain -= k * state.unit[a] + LEAST
            b = NONE
            if gain > 0.0:
                b = best_home(codes, private, shape, state, i, gain, k, requirements, inside, counts, touched)
            if b >= 0:
                link(state, b, i)
                enter(codes, shape, state, b, i)
                replaced += 1
                done = True
            else:
                take(codes, private, shape, state, r, c, -1.0, requirements)
        if not done:
            link(state, a, i)
            enter(codes, shape, state, a, i)
    return replaced


@inner
def _best_refill(codes, shape, state, a, bound, k):
    """The row of a class of more than k rows that costs class a, which lacks one, least."""
    kind, offsets, points, words, begins = shape.kind, shape.offsets, shape.points, shape.words, shape.begins
    best, chosen = bound, NONE
    base = k * state.unit[a]
    for r in range(codes.shape[1]):
        c = state.label[r]
        if c < 0 or c == a or state.size[c] <= k:
            continue
        lacking, at_least, step = shape.marks[r] & ~state.marks[a], base - state.unit[c], k * shape.least
        while lacking and at_least < best:
            lacking &= lacking - np.uint64(1)
            at_least += step
        if at_least >= best:
            continue
        found = base - state.unit[c] + added_loss(
            codes, r, a, k, best - base + state.unit[c], kind, offsets, points, words, begins, shape.labels,
            shape.prices, shape.order, state.low, state.high, state.bits,
        )  # fmt: skip
        if found < best:
            best, chosen = found, np.int64(r)
    return chosen


@compiled
def admit_rows(codes, private, label, classes, shape, k, requirements, rows, most):
    """Let rows that were left out into the classes that they cost least, where that is less than `most`."""
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    inside, counts, touched = scratch(private, codes.shape[1], requirements)
    for i in rows:
        b = best_home(codes, private, shape, state, i, most, k, requirements, inside, counts, touched)
        if b < 0:
            continue
        if state.tally.shape[1] > 0:
            count_values(private, state.tally, b, i, requirements, 1)
        for value in range(state.takes.shape[1]):
            state.takes[b, value] = UNKNOWN
        link(state, b, i)
        enter(codes, shape, state, b, i)


@compiled
def best_drops(codes, private, label, classes, shape, k, requirements, dirty, unit, gain, row):
    """For each class marked in `dirty`: the row that saves most if it is left out, or -1 for the class as a whole.

    `unit` is what a row of the class loses, `gain` what is saved per row left out. Rows of negative labels are left out
    already.
    """
    state = state_of(codes, private, label, classes, shape, tallied(private, label, classes, requirements))
    inside, counts, touched = scratch(private, codes.shape[1], requirements)
    for j in range(classes):
        if not dirty[j]:
            continue
        unit[j], gain[j], row[j] = state.unit[j], state.unit[j], NONE
        i = state.head[j] if state.size[j] > k and state.unit[j] > 0.0 else NONE
        while i >= 0:
            without = unit_without(codes, shape, state, np.int64(j), i)
            saved = state.size[j] * state.unit[j] - (state.size[j] - 1) * without
            if saved > gain[j] + LEAST and holds(private, state, np.int64(j), i, NONE, k, requirements, inside, counts,
                                                  touched):  # fmt: skip
                gain[j], row[j] = saved, i
            i = state.after[i]
