"""Mondrian as one loop over a stack of row ranges; the columns and the row index are permuted in place.

A range of rows is cut on one column, or is a class. Rows that lie on the wrong side of a cut are swapped pairwise in
every column that still varies within the range; a column that no longer does is never touched again below it.

`thesis_partition` is Mondrian as Saleh (2022) has it: the column of the widest relative span first, numbers cut at the
median (numbers below it go left, the others right). Of the values of a category that a part holds, in their order, the
first half goes left; the codes of a category must follow the order of its values.

Guarantees: every class meets the rule if the whole table does; every row is in one class; the result depends on the
arrays alone.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner, zeros
from kohort.anonymity.relational.class_kernel import (
    code_range,
    most_values,
    number_loss,
    parts_meet,
    scratch,
)

__all__ = ["partition", "thesis_partition"]

NO_CUT = -1
# In look-ahead, only this many of the widest columns are tried: forty quasi-identifiers must still finish.
LOOKED_AT = 12
# Rows that are looked at before it is asked whether more of them could change anything.
PIECE = 256


@compiled
def partition(
    columns, index, quasi, is_number, distinct, offsets, points, price, k, requirements, relaxed, look_ahead, stop_rows
):
    """Sort rows into classes; returns the first position of each class in `index`.

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
    counts, touched = scratch(requirements, rows)
    while depth:
        depth -= 1
        start, end = starts[depth], ends[depth]
        middle = start
        if end - start > stop_rows and end - start >= 2 * k:
            _measure(columns, start, end, quasi, varies[depth], is_number, distinct, offsets, points, low, high, span,
                     score)  # fmt: skip
            _rising_order(score, order)
            if look_ahead:
                _look(columns, start, end, quasi, varies[depth], order, span, low, high, is_number, offsets,
                      points, price, k, relaxed, histogram, seen, score, cuts)  # fmt: skip
                _rising_order(score, order)
            middle = _cut(columns, index, varies[depth], start, end, order, span, score, cuts, low, high, k,
                          requirements, relaxed, look_ahead, histogram, swaps, counts, touched)  # fmt: skip
        if middle == start:
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


@inlined
def _measure(columns, start, end, quasi, varies, is_number, distinct, offsets, points, low, high, span, score):
    """Range and relative span of each column within a range of rows; span -1 where the column does not vary."""
    for c in range(quasi):
        span[c] = -1.0
        if varies[c]:
            low[c], high[c] = code_range(columns[c], start, end)
            if low[c] == high[c]:
                varies[c] = False
            elif is_number[c]:
                span[c] = number_loss(points, offsets[c], low[c], high[c])
            else:
                span[c] = (high[c] - low[c] + 1) / distinct[c]
        score[c] = -span[c]


@inlined
def _cut(columns, index, varies, start, end, order, span, score, cuts, low, high, k, requirements, relaxed, look_ahead,
         histogram, swaps, counts, touched):  # fmt: skip
    """Cut on the first column, in order, of which both parts meet the rule; the middle, or `start` for no cut."""
    for place in range(len(order)):
        c = order[place]
        if span[c] < 0.0 or (look_ahead and score[c] == np.inf):
            break
        cut = cuts[c] if look_ahead else _middle(columns[c], start, end, low[c], high[c], k, relaxed, histogram)
        if cut == NO_CUT:
            continue
        middle = _divide(columns, index, varies, start, end, c, cut, relaxed, swaps)
        if parts_meet(columns, start, middle, end, requirements, counts, touched):
            return middle
    return start


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
    """The last code of the left part, or NO_CUT."""
    for value in range(low, high + 1):
        histogram[value] = 0
    for i in range(start, end):
        histogram[line[i]] += 1
    if relaxed:
        below = 0
        for value in range(low, high + 1):
            below += histogram[value]
            if 2 * below >= end - start:
                return value
    return _strict_middle(histogram, low, high, end - start, k)


@inlined
def _strict_middle(histogram, low, high, size, k):
    """The last code of the left part: as near to half the rows as codes allow, k on both sides; or NO_CUT."""
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
def _divide(columns, index, varies, start, end, cut_column, cut, relaxed, swaps):
    """Bring the rows up to the cut to the front; where the rest begins. Relaxed parts are halves: ties fill up."""
    line = columns[cut_column]
    left, ties = _left_rows(line, start, end, cut, relaxed)
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
        # The next row of the right part that belongs to the left one.
        while line[partner] > cut or (line[partner] == cut and ties <= 0):
            partner += 1
        if line[partner] == cut:
            ties -= 1
        index[i], index[partner] = index[partner], index[i]
        for c in range(columns.shape[0]):
            if varies[c]:
                columns[c, i], columns[c, partner] = columns[c, partner], columns[c, i]
        partner += 1
    return middle


@inlined
def _left_rows(line, start, end, cut, relaxed):
    """Rows of the left part, and how many rows with the cut's own code may be among them."""
    size = end - start
    below, level = 0, 0
    for i in range(start, end):
        below += line[i] < cut
        level += line[i] == cut
    if not relaxed:
        return below + level, size
    # The cut is the first code that reaches half the rows, so fewer than half lie below it.
    ties = size // 2 - below
    ties = min(ties, level)
    return below + ties, ties


@inlined
def _look(columns, start, end, quasi, varies, order, span, low, high, is_number, offsets, points, price, k, relaxed,
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
        score[j] = _loss_after(columns, start, end, quasi, varies, j, cut, low, high, is_number, offsets, points,
                               price, seen)  # fmt: skip


@inlined
def _loss_after(columns, start, end, quasi, varies, j, cut, low, high, is_number, offsets, points, price, seen):
    """Summed loss of the two parts of a cut of column j."""
    by = columns[j]
    left = 0
    for i in range(start, end):
        left += by[i] <= cut
    right = end - start - left
    total = 0.0
    for c in range(quasi):
        if not varies[c]:
            continue
        if is_number[c]:
            a0, b0, a1, b1 = _ranges(columns[c], by, start, end, cut, low[c], high[c])
            weight = price[offsets[c] + 2 * c + 1]
            total += left * number_loss(points, offsets[c], a0, b0) * weight
            total += right * number_loss(points, offsets[c], a1, b1) * weight
        else:
            first, second = _held_values(columns[c], by, start, end, cut, low[c], high[c], seen)
            total += left * price[offsets[c] + 2 * c + first] + right * price[offsets[c] + 2 * c + second]
    return total


@inlined
def _ranges(line, by, start, end, cut, low, high):
    """The lowest and highest code of each part; looks no further once both parts hold the whole range."""
    a0, b0, a1, b1 = high, low, high, low
    begin = start
    while begin < end and (a0 > low or a1 > low or b0 < high or b1 < high):
        stop = begin + PIECE if begin + PIECE < end else end
        for i in range(begin, stop):
            code = np.int64(line[i])
            if by[i] <= cut:
                a0 = code if code < a0 else a0
                b0 = code if code > b0 else b0
            else:
                a1 = code if code < a1 else a1
                b1 = code if code > b1 else b1
        begin = stop
    return a0, b0, a1, b1


@inlined
def _held_values(line, by, start, end, cut, low, high, seen):
    """Number of distinct codes of each part; looks no further once both parts hold every code of the range."""
    for value in range(low, high + 1):
        seen[0, value] = False
        seen[1, value] = False
    first, second, begin = 0, 0, start
    while begin < end and (first <= high - low or second <= high - low):
        stop = begin + PIECE if begin + PIECE < end else end
        for i in range(begin, stop):
            side, code = np.int64(by[i] > cut), line[i]
            if not seen[side, code]:
                seen[side, code] = True
                if side == 0:
                    first += 1
                else:
                    second += 1
        begin = stop
    return first, second


@compiled
def thesis_partition(columns, index, quasi, is_number, distinct, offsets, values, scale, k, requirements):
    """Sort rows into classes; the first position of each class in `index`, which is permuted along with `columns`.

    `scale` is the span of each column over the whole table: the range of a number, the number of values of a category.
    """
    rows = len(index)
    bounds = np.empty(rows // k + 2, np.int64)
    stack = np.empty((rows + 2, 2), np.int64)
    stack[0, 0], stack[0, 1], depth, classes = 0, rows, 1, 0
    span = np.empty(quasi)
    histogram = zeros(most_values(offsets))
    swaps = np.empty(rows // 2 + 1, np.int64)
    varies = np.ones(columns.shape[0], np.bool_)
    counts, touched = scratch(requirements, rows)
    while depth:
        depth -= 1
        start, end = stack[depth, 0], stack[depth, 1]
        for c in range(quasi):
            span[c] = _relative_span(columns[c], start, end, is_number[c], scale[c], offsets[c], values, histogram)
        middle = _thesis_cut(columns, index, varies, start, end, span, is_number, distinct, offsets, values, k,
                             requirements, histogram, swaps, counts, touched)  # fmt: skip
        if middle > start:
            stack[depth, 0], stack[depth, 1] = middle, end
            stack[depth + 1, 0], stack[depth + 1, 1] = start, middle
            depth += 2
        else:
            bounds[classes] = start
            classes += 1
    return bounds[:classes]


@inlined
def _thesis_cut(columns, index, varies, start, end, span, is_number, distinct, offsets, values, k, requirements,
                histogram, swaps, counts, touched):  # fmt: skip
    """Cut on the widest column of which both parts meet the rule; the middle, or `start` for no cut."""
    while True:
        widest = 0
        for c in range(len(span)):
            if span[c] > span[widest]:
                widest = c
        if span[widest] < 0.0:
            return start
        span[widest] = -1.0
        line = columns[widest]
        if is_number[widest]:
            cut = _below_median(line, start, end, offsets[widest], values, histogram, distinct[widest])
        else:
            cut = _first_half(line, start, end, histogram, distinct[widest])
        middle = start if cut < 0 else _divide(columns, index, varies, start, end, widest, cut, False, swaps)
        large = middle - start >= k and end - middle >= k
        if large and parts_meet(columns, start, middle, end, requirements, counts, touched):
            return middle


@inner
def _relative_span(line, start, end, is_number, scale, offset, values, histogram):
    """Span of a column within a range of rows, relative to the table; -1 where it does not vary."""
    low, high, found = line[start], line[start], 0
    for i in range(start, end):
        histogram[line[i]] = 0
    for i in range(start, end):
        low, high = min(low, line[i]), max(high, line[i])
        found += histogram[line[i]] == 0
        histogram[line[i]] += 1
    if low == high:
        return -1.0
    return ((values[offset + high] - values[offset + low]) if is_number else found) / scale


@inner
def _count_codes(line, start, end, histogram, distinct):
    for value in range(distinct):
        histogram[value] = 0
    for i in range(start, end):
        histogram[line[i]] += 1


@inner
def _first_half(line, start, end, histogram, distinct):
    """The last code of the first half of the values that occur, -1 if there is none."""
    _count_codes(line, start, end, histogram, distinct)
    found = 0
    for value in range(distinct):
        found += histogram[value] > 0
    shown = 0
    for value in range(distinct):
        shown += histogram[value] > 0
        if shown == found // 2:
            return value
    return -1


@inner
def _below_median(line, start, end, offset, values, histogram, distinct):
    """The last code below the median, -1 if there is none."""
    _count_codes(line, start, end, histogram, distinct)
    size = end - start
    below, lower, upper = 0, -1, -1
    for value in range(distinct):
        below += histogram[value]
        if lower < 0 and below > (size - 1) // 2:
            lower = value
        if upper < 0 and below > size // 2:
            upper = value
    median = (values[offset + lower] + values[offset + upper]) / 2
    last = -1
    for value in range(distinct):
        if values[offset + value] < median:
            last = value
    return last
