"""The smallest released cell of its row that stands for each item.

Guarantee: exact, by looking at every cell of a row for every item of that row.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled

__all__ = ["smallest_cover"]


@compiled
def smallest_cover(row_of, items, cell_starts, cells, member_starts, members):
    """Size of the smallest cell that stands for each item, 0 where none does; and how many cells stand for any.

    Row r has the cells `cells[cell_starts[r] : cell_starts[r + 1]]`; cell c stands for the items
    `members[member_starts[c] : member_starts[c + 1]]`, which rise.
    """
    best = np.zeros(len(items), np.int64)
    used = np.zeros(len(cells), np.bool_)
    uses = 0
    for i in range(len(items)):
        for at in range(cell_starts[row_of[i]], cell_starts[row_of[i] + 1]):
            low, end = member_starts[cells[at]], member_starts[cells[at] + 1]
            size, high = end - low, end
            while low < high:
                middle = (low + high) // 2
                if members[middle] < items[i]:
                    low = middle + 1
                else:
                    high = middle
            if low < end and members[low] == items[i]:
                uses += 0 if used[at] else 1
                used[at] = True
                if best[i] == 0 or size < best[i]:
                    best[i] = size
    return best, uses
