"""Classes as the local search keeps them, and its single steps: what a row costs a class, and taking it there.

A class is kept as what its cells depend on: of a number its lowest and highest code, of a category the set of its codes
as bits and how many they are, of a hierarchy one of its codes and the level at which all its rows share a label.

Guarantee: what is kept of a class is what its rows say, after every step.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kohort.anonymity.compiled import inlined, inner, zeros
from kohort.anonymity.relational.class_kernel import class_meets, number_loss, values_meet

__all__ = [
    "CATEGORY",
    "HIERARCHY",
    "LEAST",
    "NONE",
    "NUMBER",
    "UNKNOWN",
    "WORD",
    "CellShape",
    "added_loss",
    "best_home",
    "count_values",
    "enter",
    "holds",
    "link",
    "measure",
    "scratch",
    "state_of",
    "take",
    "tallied",
    "unit_without",
    "unlink",
]

CATEGORY, NUMBER, HIERARCHY = 0, 1, 2
WORD = 64
# Classes that may refuse a row before it stays where it is.
REFUSALS = 64
NONE = np.int64(-1)
UNKNOWN, YES, NO = 0, 1, 2
# A step must save more than rounding.
LEAST = 1e-9
LARGEST_TALLY = 64_000_000


class CellShape(NamedTuple):
    """What cells cost. Entry `begins[c] + n` of `prices` is the loss of a category with n values; of a hierarchy entry
    `begins[c] + level * values + code` is that of a code's label, whose number is at the same place of `labels`; of a
    number the first entry is its weight."""

    kind: Any
    offsets: Any
    points: Any
    words: Any
    begins: Any
    labels: Any
    prices: Any
    order: Any
    """The columns, those first that tell most classes apart."""
    marks: Any
    """Per row, one bit in each of the marked columns: for its value, or for its label at the marked level."""
    covers: Any
    """Of a hierarchy: at the place of a label, the bits of the rows under it."""
    least: Any
    """The least that one more bit costs in any of the marked columns."""
    least_by_bit: Any
    """The same of each bit, where all columns are labels; empty elsewhere."""


class _State(NamedTuple):
    label: Any
    low: Any
    high: Any
    bits: Any
    size: Any
    unit: Any
    head: Any
    after: Any
    before: Any
    marks: Any
    tally: Any
    """How often each sensitive value occurs in each class; empty where classes are judged row by row."""
    takes: Any
    """Whether a class, as it is, takes one more row of a sensitive value; empty where there is not one such column."""


@inner
def state_of(codes, private, label, classes, shape, tally):
    """The classes of labelled rows."""
    rows, quasi = codes.shape[1], codes.shape[0]
    state = _State(
        label, np.empty((classes, quasi), np.int64), np.empty((classes, quasi), np.int64),
        np.empty((classes, shape.words[quasi] + 1), np.uint64), zeros(classes), np.empty(classes),
        np.full(classes, NONE), np.full(rows, NONE), np.full(rows, NONE), np.zeros(classes, np.uint64), tally,
        np.zeros((classes, tally.shape[1] if private.shape[0] == 1 else 0), np.int64),
    )  # fmt: skip
    for i in range(rows - 1, -1, -1):
        if label[i] >= 0:
            link(state, label[i], i)
    for j in range(classes):
        measure(codes, shape, state, j)
    return state


@inner
def link(state, j, i):
    """Put row i at the head of class j's chain."""
    state.label[i] = j
    state.after[i], state.before[i] = state.head[j], NONE
    if state.head[j] >= 0:
        state.before[state.head[j]] = i
    state.head[j] = i


@inner
def unlink(state, j, i):
    """Take row i out of class j's chain."""
    if state.before[i] >= 0:
        state.after[state.before[i]] = state.after[i]
    else:
        state.head[j] = state.after[i]
    if state.after[i] >= 0:
        state.before[state.after[i]] = state.before[i]


@inner
def measure(codes, shape, state, j):
    """What class j covers, from its rows."""
    state.size[j], state.unit[j], state.marks[j] = 0, 0.0, np.uint64(0)
    i = state.head[j]
    while i >= 0:
        enter(codes, shape, state, j, i)
        i = state.after[i]


@inner
def enter(codes, shape, state, j, i):
    """Let class j cover row i."""
    if state.size[j] == 0:
        for word in range(state.bits.shape[1]):
            state.bits[j, word] = np.uint64(0)
    total = 0.0
    for c in range(codes.shape[0]):
        code = np.int64(codes[c, i])
        if state.size[j] == 0:
            state.low[j, c], state.high[j, c] = code, code if shape.kind[c] == NUMBER else np.int64(0)
        if shape.kind[c] == CATEGORY:
            word, bit = shape.words[c] + code // WORD, np.uint64(1) << np.uint64(code % WORD)
            if state.bits[j, word] & bit == 0:
                state.bits[j, word] |= bit
                state.high[j, c] += 1
        elif shape.kind[c] == NUMBER:
            state.low[j, c] = code if code < state.low[j, c] else state.low[j, c]
            state.high[j, c] = code if code > state.high[j, c] else state.high[j, c]
        else:
            state.high[j, c] = _shared_level(shape, c, state.high[j, c], state.low[j, c], code)
            values = shape.offsets[c + 1] - shape.offsets[c]
            state.marks[j] |= shape.covers[shape.begins[c] + state.high[j, c] * values + state.low[j, c]]
        total += _price(shape, c, state.low[j, c], state.high[j, c])
    state.size[j] += 1
    state.unit[j] = total
    state.marks[j] |= shape.marks[i]


@inner
def _shared_level(shape, c, level, one, other):
    """The lowest level, from `level` on, at which two codes share a label."""
    values = shape.offsets[c + 1] - shape.offsets[c]
    at = shape.begins[c] + level * values
    while shape.labels[at + one] != shape.labels[at + other]:
        level += 1
        at += values
    return level


@inner
def _price(shape, c, low, high):
    """Loss of column c of a class that is kept as `low` and `high`."""
    if shape.kind[c] == CATEGORY:
        return shape.prices[shape.begins[c] + high]
    if shape.kind[c] == NUMBER:
        return number_loss(shape.points, shape.offsets[c], low, high) * shape.prices[shape.begins[c]]
    return shape.prices[shape.begins[c] + high * (shape.offsets[c + 1] - shape.offsets[c]) + low]


@inlined
def added_loss(codes, i, j, more, bound, kind, offsets, points, words, begins, labels, prices, order, low, high, bits):  # noqa: C901
    """What class j, then of `more` rows, loses more with row i covered; gives up where it reaches `bound`."""
    total = 0.0
    for at in range(len(order)):
        c = order[at]
        code = np.int64(codes[c, i])
        a, b = low[j, c], high[j, c]
        if kind[c] == CATEGORY:
            if bits[j, words[c] + code // WORD] >> np.uint64(code % WORD) & np.uint64(1) == 0:
                total += more * (prices[begins[c] + b + 1] - prices[begins[c] + b])
        elif kind[c] == NUMBER:
            if code < a or code > b:
                wider = number_loss(points, offsets[c], code if code < a else a, code if code > b else b)
                total += more * (wider - number_loss(points, offsets[c], a, b)) * prices[begins[c]]
        else:
            values = offsets[c + 1] - offsets[c]
            place = begins[c] + b * values
            if labels[place + a] != labels[place + code]:
                now = prices[place + a]
                while labels[place + a] != labels[place + code]:
                    place += values
                total += more * (prices[place + a] - now)
        if total >= bound:
            break
    return total


@inner
def unit_without(codes, shape, state, j, i):  # noqa: C901
    """Loss per row of class j without row i."""
    total = 0.0
    for c in range(codes.shape[0]):
        now = _price(shape, c, state.low[j, c], state.high[j, c])
        if now == 0.0:
            continue
        own, low, high, line, m = codes[c, i], state.low[j, c], state.high[j, c], codes[c], state.head[j]
        if shape.kind[c] == CATEGORY:
            while m >= 0 and (m == i or line[m] != own):
                m = state.after[m]
            total += now if m >= 0 else _price(shape, c, low, high - 1)
        elif shape.kind[c] == NUMBER:
            a, b = high, low
            while m >= 0 and (a > low or b < high):
                if m != i:
                    a = np.int64(line[m]) if line[m] < a else a
                    b = np.int64(line[m]) if line[m] > b else b
                m = state.after[m]
            total += _price(shape, c, a, b)
        else:
            m = state.after[m] if m == i else m
            first, level = np.int64(line[m]), np.int64(0)
            while m >= 0 and level < high:
                if m != i:
                    level = _shared_level(shape, c, level, first, np.int64(line[m]))
                m = state.after[m]
            total += _price(shape, c, first, level)
    return total


@inner
def _gather(private, state, j, without, inside, found):
    """Write the sensitive codes of class j's rows to `inside` from `found` on; how many there are then."""
    i = state.head[j]
    while i >= 0:
        if i != without:
            for s in range(private.shape[0]):
                inside[s, found] = private[s, i]
            found += 1
        i = state.after[i]
    return found


@inner
def holds(private, state, j, without, extra, k, requirements, inside, counts, touched):
    """Whether class j meets the rule, without one row (or none) and with another (or none)."""
    size = state.size[j] - (without >= 0) + (extra >= 0)
    if size < k:
        return False
    if requirements is not None:
        if state.tally.shape[1] > 0:
            return _meets_by_tally(private, state.tally[j], without, extra, size, requirements, touched)
        found = _gather(private, state, j, without, inside, np.int64(0))
        if extra >= 0:
            for s in range(private.shape[0]):
                inside[s, found] = private[s, extra]
            found += 1
        return class_meets(inside, np.int64(0), found, requirements, counts, touched)
    return True


@inlined
def _meets_by_tally(private, held, without, extra, size, requirements, touched):
    """The same from the counts of a class's values."""
    met = True
    for s in range(requirements.columns):
        base = requirements.offsets[s]
        if without >= 0:
            held[base + private[s, without]] -= 1
        if extra >= 0:
            held[base + private[s, extra]] += 1
        seen = np.int64(0)
        for v in range(requirements.offsets[s + 1] - base):
            if held[base + v] > 0:
                touched[seen] = v
                seen += 1
        met = met and values_meet(held, base, touched, seen, size, s, requirements)
        if without >= 0:
            held[base + private[s, without]] += 1
        if extra >= 0:
            held[base + private[s, extra]] -= 1
    return met


@inlined
def tallied(private, label, classes, requirements):
    """How often each sensitive value occurs in each class, where rows are counted and the array stays small."""
    width = np.int64(0)
    if requirements is not None:
        values = requirements.offsets[requirements.columns]
        width = values if requirements.persons == 0 and classes * values <= LARGEST_TALLY else np.int64(0)
    tally = np.zeros((classes, width), np.int64)
    if width > 0:
        for i in range(len(label)):
            if label[i] >= 0:
                count_values(private, tally, label[i], i, requirements, 1)
    return tally


@inner
def count_values(private, tally, j, i, requirements, by):
    """Count the sensitive values of a row into class j, or out of it."""
    if requirements is not None:
        for s in range(requirements.columns):
            tally[j, requirements.offsets[s] + private[s, i]] += by


@inlined
def _bits_of(marks, least):
    """The bits of a row, and the least that each costs a row of a class that lacks it."""
    found = 0
    bits, costs = np.empty(len(least), np.uint64), np.empty(len(least))
    for place in range(len(least)):
        bit = np.uint64(1) << np.uint64(place)
        if marks & bit:
            bits[found], costs[found] = bit, least[place]
            found += 1
    return bits[:found], costs[:found]


@inner
def _at_least(lacking, unit, more, bits, least):
    """The least that a row costs a class, then of `more` rows, that lacks some of its bits; `unit` is its own loss."""
    total = unit
    for place in range(len(bits)):
        if lacking & bits[place]:
            total += more * least[place]
    return total


@inner
def best_home(codes, private, shape, state, i, bound, k, requirements, inside, counts, touched):  # noqa: C901
    """The class, other than the own, whose loss row i raises least, if by less than `bound` and if the rule holds."""
    best, chosen, refused = bound, NONE, 0
    kind, offsets, points, words, begins = shape.kind, shape.offsets, shape.points, shape.words, shape.begins
    labels, prices, order = shape.labels, shape.prices, shape.order
    low, high, bits, size, unit, home = state.low, state.high, state.bits, state.size, state.unit, state.label[i]
    marks, own, least, takes = state.marks, shape.marks[i], shape.least, state.takes
    own_bits, own_least = _bits_of(own, shape.least_by_bit)
    kept, value = takes.shape[1] > 0, np.int64(private[0, i]) if private.shape[0] > 0 else np.int64(0)
    first = home if home >= 0 else 0
    for at in range(first, first + len(size)):  # classes that follow one another are alike
        j = at if at < len(size) else at - len(size)
        if unit[j] >= best or j == home or size[j] == 0 or (kept and takes[j, value] == NO):
            continue
        lacking, at_least, step = own & ~marks[j], unit[j], (size[j] + 1) * least
        while lacking and at_least < best:
            lacking &= lacking - np.uint64(1)
            at_least += step
        if at_least >= best or _at_least(own & ~marks[j], unit[j], size[j] + 1, own_bits, own_least) >= best:
            continue
        if kept and takes[j, value] == UNKNOWN:
            met = holds(private, state, np.int64(j), NONE, np.int64(i), k, requirements, inside, counts, touched)
            takes[j, value] = YES if met else NO
            if not met:
                continue
        found = unit[j] + added_loss(codes, i, j, size[j] + 1, best - unit[j], kind, offsets, points, words, begins,
                                 labels, prices, order, low, high, bits)  # fmt: skip
        if found < best:
            if kept or holds(private, state, np.int64(j), NONE, np.int64(i), k, requirements, inside, counts, touched):
                best, chosen = found, np.int64(j)
            else:
                refused += 1
                if refused == REFUSALS:
                    break
    return chosen


@inner
def take(codes, private, shape, state, i, b, without, requirements):
    """Move row i to class b; `without` is what a row of its class then loses."""
    a = state.label[i]
    if state.tally.shape[1] > 0:
        count_values(private, state.tally, a, i, requirements, -1)
        count_values(private, state.tally, b, i, requirements, 1)
    for value in range(state.takes.shape[1]):
        state.takes[a, value] = state.takes[b, value] = UNKNOWN
    unlink(state, a, i)
    if without == state.unit[a]:
        state.size[a] -= 1
    else:
        measure(codes, shape, state, a)
    link(state, b, i)
    enter(codes, shape, state, b, i)


@inlined
def scratch(private, rows, requirements):
    """Room for the sensitive codes of a class, a count of every value, and a list of values."""
    values = np.int64(1)
    if requirements is not None:
        values = requirements.offsets[len(requirements.offsets) - 1]
    return np.empty((private.shape[0], rows), private.dtype), zeros(values), np.empty(rows, np.int64)
