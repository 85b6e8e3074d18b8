"""Mondrian as Saleh (2022) has it: widest relative span first, numbers at the median, categories by halves of the values.

Numbers below the median go left, the others right. The values of a category are taken in the order in which the rows of
the part show them; the first half of the values goes left. Rows keep their order, so the result is a function of the
table.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912, PLR0915, PLR0917

from __future__ import annotations

import numba
import numpy as np

from kohort.anonymity.kernels.rules import class_meets

__all__ = ["thesis_partition"]

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")


@compiled
def thesis_partition(
    columns, index, quasi, is_number, distinct, offsets, points, rule, s_offsets, share, cumulative, prefix, ordered
):
    """Sort rows into classes; the first position of each class in `index`, which is permuted along with `columns`."""
    rows = len(index)
    bounds = np.empty(rows // int(rule[0]) + 2, np.int64)
    stack = np.empty((rows + 2, 2), np.int64)
    stack[0, 0], stack[0, 1], depth, classes = 0, rows, 1, 0
    span = np.empty(quasi)
    histogram = np.zeros(distinct.max(), np.int64)
    goes_left = np.zeros(distinct.max(), np.bool_)
    spare = np.empty(rows, np.int64)
    moved = np.empty(rows, columns.dtype)
    counts = np.zeros(max(s_offsets[-1], 1), np.int64)
    touched = np.empty(rows, np.int64)
    while depth:
        depth -= 1
        start, end = stack[depth, 0], stack[depth, 1]
        for c in range(quasi):
            span[c] = _relative_span(columns[c], start, end, is_number[c], distinct[c], offsets[c], points, histogram)
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
            _choose_side(columns[widest], start, end, is_number[widest], offsets[widest], points, histogram, goes_left,
                         distinct[widest])  # fmt: skip
            middle = _divide(columns, index, start, end, widest, goes_left, spare, moved)
            done = class_meets(
                columns, start, middle, rule, s_offsets, share, cumulative, prefix, ordered, counts, touched
            ) and class_meets(columns, middle, end, rule, s_offsets, share, cumulative, prefix, ordered, counts, touched)
            if not done:
                _restore(columns, index, start, end)
        if done:
            stack[depth, 0], stack[depth, 1] = middle, end
            stack[depth + 1, 0], stack[depth + 1, 1] = start, middle
            depth += 2
        else:
            bounds[classes] = start
            classes += 1
    return bounds[:classes]


@compiled
def _relative_span(line, start, end, is_number, distinct, offset, points, histogram):
    low, high, found = line[start], line[start], 0
    for i in range(start, end):
        histogram[line[i]] = 0
    for i in range(start, end):
        low, high = min(low, line[i]), max(high, line[i])
        found += histogram[line[i]] == 0
        histogram[line[i]] += 1
    if low == high:
        return -1.0
    return points[offset + high] - points[offset + low] if is_number else found / distinct


@compiled
def _choose_side(line, start, end, is_number, offset, points, histogram, goes_left, distinct):
    size = end - start
    if not is_number:
        for i in range(start, end):
            histogram[line[i]] = 0
        found = 0
        for i in range(start, end):
            found += histogram[line[i]] == 0
            histogram[line[i]] = 1
        shown = 0
        for i in range(start, end):
            value = line[i]
            if histogram[value] == 1:
                histogram[value] = 2
                goes_left[value] = shown < found // 2
                shown += 1
        return
    for value in range(distinct):
        histogram[value] = 0
    for i in range(start, end):
        histogram[line[i]] += 1
    below, lower, upper = 0, -1, -1
    for value in range(distinct):
        below += histogram[value]
        if lower < 0 and below > (size - 1) // 2:
            lower = value
        if upper < 0 and below > size // 2:
            upper = value
    median = (points[offset + lower] + points[offset + upper]) / 2
    for value in range(distinct):
        goes_left[value] = points[offset + value] < median


@compiled
def _divide(columns, index, start, end, chosen, goes_left, spare, moved):
    """Left rows to the front, both sides in the order they had."""
    left = 0
    for i in range(start, end):
        left += goes_left[columns[chosen, i]]
    middle = start + left
    one, two = start, middle
    for i in range(start, end):
        if goes_left[columns[chosen, i]]:
            spare[i] = one
            one += 1
        else:
            spare[i] = two
            two += 1
    for c in range(columns.shape[0]):
        for i in range(start, end):
            moved[spare[i]] = columns[c, i]
        for i in range(start, end):
            columns[c, i] = moved[i]
    shifted = np.empty(end - start, np.int64)
    for i in range(start, end):
        shifted[spare[i] - start] = index[i]
    for i in range(start, end):
        index[i] = shifted[i - start]
    return middle


@compiled
def _restore(columns, index, start, end):
    """Back to the order of the table: the order of the rows decides how the values of a category are halved."""
    order = np.argsort(index[start:end])
    shifted = np.empty(end - start, np.int64)
    for i in range(end - start):
        shifted[i] = index[start + order[i]]
    for i in range(end - start):
        index[start + i] = shifted[i]
    for c in range(columns.shape[0]):
        for i in range(end - start):
            shifted[i] = columns[c, start + order[i]]
        for i in range(end - start):
            columns[c, start + i] = shifted[i]
