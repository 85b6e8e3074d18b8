"""Mondrian as Saleh (2022) has it: the column of the widest relative span first, numbers cut at the median.

Numbers below the median go left, the others right. Of the values of a category that a part holds, in their order, the
first half goes left. The codes of a category must follow the order of its values.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inner, zeros
from kohort.anonymity.relational.algorithms.loss_kernel import most_values
from kohort.anonymity.relational.algorithms.mondrian_kernel import divide
from kohort.anonymity.relational.algorithms.rule_kernel import class_meets

__all__ = ["thesis_partition"]


@compiled
def thesis_partition(columns, index, quasi, is_number, distinct, offsets, values, scale, k, demands):
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
    if demands is not None:
        counts = zeros(demands.offsets[len(demands.offsets) - 1])
        touched = np.empty(rows, np.int64)
    while depth:
        depth -= 1
        start, end = stack[depth, 0], stack[depth, 1]
        for c in range(quasi):
            span[c] = _relative_span(columns[c], start, end, is_number[c], scale[c], offsets[c], values, histogram)
        middle = start
        done = False
        while not done:
            widest = 0
            for c in range(quasi):
                if span[c] > span[widest]:
                    widest = c
            if span[widest] < 0.0:
                break
            span[widest] = -1.0
            cut = _last_left(columns[widest], start, end, is_number[widest], offsets[widest], values, histogram,
                             distinct[widest])  # fmt: skip
            middle = start if cut < 0 else divide(columns, index, varies, start, end, widest, cut, False, swaps)
            done = middle - start >= k and end - middle >= k
            if demands is not None:
                for side in range(2):
                    one, two = (start, middle) if side == 0 else (middle, end)
                    done = done and class_meets(columns, one, two, demands, counts, touched)
        if done:
            stack[depth, 0], stack[depth, 1] = middle, end
            stack[depth + 1, 0], stack[depth + 1, 1] = start, middle
            depth += 2
        else:
            bounds[classes] = start
            classes += 1
    return bounds[:classes]


@inner
def _relative_span(line, start, end, is_number, scale, offset, values, histogram):
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
def _last_left(line, start, end, is_number, offset, values, histogram, distinct):
    """The last code that goes left, -1 if none does."""
    size = end - start
    for value in range(distinct):
        histogram[value] = 0
    for i in range(start, end):
        histogram[line[i]] += 1
    if not is_number:
        found = 0
        for value in range(distinct):
            found += histogram[value] > 0
        shown = 0
        for value in range(distinct):
            shown += histogram[value] > 0
            if shown == found // 2:
                return value
        return -1
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
