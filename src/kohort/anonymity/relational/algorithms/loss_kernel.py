"""The loss of classes, and of one column of a class."""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR1730

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inner

__all__ = ["classes_loss", "code_range", "most_values", "number_loss"]


@compiled
def classes_loss(columns, starts, quasi, is_number, distinct, offsets, points):
    """Loss of each class, summed over its rows and columns; class j is at `starts[j]` to `starts[j + 1]`."""
    classes = len(starts) - 1
    loss = np.empty(classes)
    for j in range(classes):
        loss[j] = 0.0
    last_seen = np.empty(most_values(offsets), np.int64)
    for c in range(quasi):
        line = columns[c]
        for v in range(len(last_seen)):
            last_seen[v] = -1
        for j in range(classes):
            start, end = starts[j], starts[j + 1]
            if is_number[c]:
                low, high = code_range(line, start, end)
                loss[j] += (end - start) * number_loss(points, offsets[c], low, high)
            else:
                found = 0
                for i in range(start, end):
                    if last_seen[line[i]] != j:
                        last_seen[line[i]] = j
                        found += 1
                if found > 1:
                    loss[j] += (end - start) * found / distinct[c]
    return loss


@inner
def code_range(line, start, end):
    """The lowest and the highest code of a range of rows."""
    low, high = line[start], line[start]
    for i in range(start + 1, end):
        if line[i] < low:
            low = line[i]
        if line[i] > high:
            high = line[i]
    return np.int64(low), np.int64(high)


@inner
def number_loss(points, offset, low, high):
    """The range a class covers in a number column whose points begin at `offset`; with a null in it, everything."""
    span = points[offset + high] - points[offset + low]
    return span if span < 1.0 else 1.0


@inner
def most_values(offsets):
    """How many values the column with the most has: the length of an array indexed by code."""
    found = 0
    for c in range(len(offsets) - 1):
        if offsets[c + 1] - offsets[c] > found:
            found = offsets[c + 1] - offsets[c]
    return found
