"""Mondrian as one loop over a stack of row ranges; the columns and the row index are permuted in place.

A range of rows is cut on one column, or is a class. Rows that lie on the wrong side of a cut are swapped pairwise in
every column that still varies within the range; a column that no longer does is never touched again below it.

Guarantees: every class meets the rule if the whole table does; every row is in one class; the result depends on the
arrays alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912, PLR0915, PLR1730

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inner, zeros
from kohort.anonymity.relational.algorithms.loss_kernel import code_range, most_values, number_loss
from kohort.anonymity.relational.algorithms.rule_kernel import class_meets

__all__ = ["divide", "partition"]

NO_CUT = -1
# In look-ahead, only this many of the widest columns are tried: forty quasi-identifiers must still finish.
LOOKED_AT = 12


@compiled
def partition(columns, index, quasi, is_number, distinct, offsets, points, k, demands, relaxed, look_ahead, stop_rows):
    """Sort rows into classes; returns the first position of each class in `index`, and its end.

    `columns` holds the quasi-identifiers, then the sensitive columns. Only the first `quasi` lines are cut on. A range
    of at most `stop_rows` rows is not cut any further.
    """
    rows = len(index)
    width = columns.shape[0]
    # Room for as many ranges as there can be classes: memory that is never written to is never taken.
    most = rows // k + 2
    starts = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    varies = np.empty((most, width), np.bool_)
    starts[0], ends[0], depth = 0, rows, 1
    for c in range(width):
        varies[0, c] = True
    bounds = np.empty(most, np.int64)
    classes = 0
    low = np.empty(quasi, np.int64)
    high = np.empty(quasi, np.int64)
    span = np.empty(quasi)
    score = np.empty(quasi)
    cuts = np.empty(quasi, np.int64)
    order = np.empty(quasi, np.int64)
    values = most_values(offsets)
    histogram = np.empty(values, np.int64)
    seen = np.empty((2, values), np.bool_)
    swaps = np.empty(rows // 2 + 1, np.int64)
    if demands is not None:
        counts = zeros(demands.offsets[len(demands.offsets) - 1])
        touched = np.empty(rows, np.int64)
    while depth:
        depth -= 1
        start, end = starts[depth], ends[depth]
        size = end - start
        cut_made = False
        middle = start
        if size > stop_rows and size >= 2 * k:
            for c in range(quasi):
                span[c] = -1.0
                if not varies[depth, c]:
                    continue
                low[c], high[c] = code_range(columns[c], start, end)
                if low[c] == high[c]:
                    varies[depth, c] = False
                elif is_number[c]:
                    span[c] = number_loss(points, offsets[c], low[c], high[c])
                else:
                    span[c] = (high[c] - low[c] + 1) / distinct[c]
            for c in range(quasi):
                score[c] = -span[c]
            _rising_order(score, order)
            if look_ahead:
                _look(columns, start, end, quasi, varies[depth], order, span, low, high, is_number, distinct,
                      offsets, points, k, relaxed, histogram, seen, score, cuts)  # fmt: skip
                _rising_order(score, order)
            for place in range(quasi):
                c = order[place]
                if span[c] < 0.0 or (look_ahead and score[c] == np.inf):
                    break
                cut = cuts[c] if look_ahead else _middle(columns[c], start, end, low[c], high[c], k, relaxed, histogram)
                if cut == NO_CUT:
                    continue
                middle = divide(columns, index, varies[depth], start, end, c, cut, relaxed, swaps)
                cut_made = True
                if demands is not None:
                    for side in range(2):
                        one, two = (start, middle) if side == 0 else (middle, end)
                        cut_made = cut_made and class_meets(columns, one, two, demands, counts, touched)
                if cut_made:
                    break
        if not cut_made:
            bounds[classes] = start
            classes += 1
            continue
        # The left part goes on top, so that classes come out in the order of their rows.
        for c in range(width):
            varies[depth + 1, c] = varies[depth, c]
        starts[depth], ends[depth] = middle, end
        starts[depth + 1], ends[depth + 1] = start, middle
        depth += 2
    return bounds[:classes]


@inner
def _rising_order(keys, order):
    """Positions of a few keys from the smallest up; equal keys stay in their order."""
    for i in range(len(keys)):
        place = i
        while place > 0 and keys[order[place - 1]] > keys[i]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i


@inner
def _middle(line, start, end, low, high, k, relaxed, histogram):
    """The last code of the left part: as near to half the rows as codes allow, k on both sides; or NO_CUT."""
    size = end - start
    for value in range(low, high + 1):
        histogram[value] = 0
    for i in range(start, end):
        histogram[line[i]] += 1
    if relaxed:
        below = 0
        for value in range(low, high + 1):
            below += histogram[value]
            if 2 * below >= size:
                return value
    best, best_gap, below = NO_CUT, size, 0
    for value in range(low, high):
        below += histogram[value]
        if histogram[value] == 0 or below < k:
            continue
        if size - below < k:
            break
        gap = abs(2 * below - size)
        if gap < best_gap:
            best, best_gap = value, gap
    return best


@inner
def divide(columns, index, varies, start, end, cut_column, cut, relaxed, swaps):
    """Bring the rows up to the cut to the front; where the rest begins. Relaxed parts are halves: ties fill up."""
    line = columns[cut_column]
    size = end - start
    if relaxed:
        below, level = 0, 0
        for i in range(start, end):
            below += line[i] < cut
            level += line[i] == cut
        # The cut is the first code that reaches half the rows, so fewer than half lie below it.
        ties = size // 2 - below
        if ties > level:
            ties = level
        left = below + ties
    else:
        left, ties = 0, size
        for i in range(start, end):
            left += line[i] <= cut
    middle = start + left
    found = 0
    for i in range(start, middle):
        value = line[i]
        stays = value < cut or (value == cut and ties > 0)
        if value == cut:
            ties -= 1
        swaps[found] = i
        found += not stays
    partner = middle
    for place in range(found):
        i = swaps[place]
        while True:
            value = line[partner]
            if value < cut:
                break
            if value == cut and ties > 0:
                ties -= 1
                break
            partner += 1
        index[i], index[partner] = index[partner], index[i]
        for c in range(columns.shape[0]):
            if varies[c]:
                columns[c, i], columns[c, partner] = columns[c, partner], columns[c, i]
        partner += 1
    return middle


@inner
def _look(columns, start, end, quasi, varies, order, span, low, high, is_number, distinct, offsets, points, k, relaxed,
          histogram, seen, score, cuts):  # fmt: skip
    """Loss of the two parts of the middle cut of each of the widest columns; infinite where there is no cut."""
    for c in range(quasi):
        score[c] = np.inf
    tried = 0
    for place in range(quasi):
        j = order[place]
        if span[j] < 0.0 or tried == LOOKED_AT:
            break
        cut = _middle(columns[j], start, end, low[j], high[j], k, relaxed, histogram)
        cuts[j] = cut
        if cut == NO_CUT:
            continue
        tried += 1
        score[j] = _loss_after(columns, start, end, quasi, varies, j, cut, low, high, is_number, distinct, offsets,
                               points, seen)  # fmt: skip


@inner
def _loss_after(columns, start, end, quasi, varies, j, cut, low, high, is_number, distinct, offsets, points, seen):
    by = columns[j]
    left = 0
    for i in range(start, end):
        left += by[i] <= cut
    right = end - start - left
    total = 0.0
    for c in range(quasi):
        if not varies[c]:
            continue
        line = columns[c]
        if is_number[c]:
            a0, b0, a1, b1 = high[c], low[c], high[c], low[c]
            for i in range(start, end):
                code = np.int64(line[i])
                if by[i] <= cut:
                    a0 = code if code < a0 else a0
                    b0 = code if code > b0 else b0
                else:
                    a1 = code if code < a1 else a1
                    b1 = code if code > b1 else b1
            total += left * number_loss(points, offsets[c], a0, b0)
            total += right * number_loss(points, offsets[c], a1, b1)
        else:
            for value in range(low[c], high[c] + 1):
                seen[0, value] = False
                seen[1, value] = False
            for i in range(start, end):
                seen[np.int64(by[i] > cut), line[i]] = True
            first, second = 0, 0
            for value in range(low[c], high[c] + 1):
                first += 1 if seen[0, value] else 0
                second += 1 if seen[1, value] else 0
            total += left * (first if first > 1 else 0) / distinct[c]
            total += right * (second if second > 1 else 0) / distinct[c]
    return total
