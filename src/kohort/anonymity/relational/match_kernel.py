"""The class each new row belongs to: the first, in the given order, whose cells all cover it."""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled

__all__ = ["match_rows"]


@compiled
def match_rows(codes, covers, cell_of_class, order, first_column):
    """For each row the class that covers it (-1: none) and the class that covers most of its columns.

    `covers[c][cell * values + code]` says whether a cell of column c covers a value; `codes[c, row]` is the value.
    `first_column` is tried first: the one whose cells cover least.
    """
    columns, rows = codes.shape
    inside = np.empty(rows, np.int64)
    nearest = np.empty(rows, np.int64)
    for row in range(rows):
        inside[row] = -1
        best = -1
        nearest[row] = order[0]
        for j in order:
            hits = 0
            for step in range(columns):
                c = first_column if step == 0 else (step - 1 if step <= first_column else step)
                hit = covers[c, cell_of_class[c, j], codes[c, row]]
                hits += hit
                if not hit and best >= columns - 1:
                    break
            if hits > best:
                best = hits
                nearest[row] = j
                if hits == columns:
                    inside[row] = j
                    break
    return inside, nearest
