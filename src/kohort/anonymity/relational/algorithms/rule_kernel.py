"""Whether a class has the sensitive values that a rule asks for, judged from its rows.

The rows of a class lie at `start` to `end` of the last lines of `columns`, the coded sensitive columns. Time grows with
the rows of the class, never with the number of values a sensitive column has.

`demands` is `relational.rule.Demands`. A member that is None when it is handed on as an argument is not asked
for, and the lines that judge it are not compiled.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR1730

from __future__ import annotations

import math

import numpy as np

from kohort.anonymity.compiled import compiled, inner

__all__ = ["class_meets", "rows_meet", "sort_first"]


@compiled
def rows_meet(columns, demands, counts, touched):
    """`class_meets` of all rows of `columns`, for Python to call."""
    return class_meets(columns, np.int64(0), columns.shape[1], demands, counts, touched)


@inner
def class_meets(columns, start, end, demands, counts, touched):
    """l and t of every sensitive column; k is for the caller to see to. `counts` comes in and goes out as zeros."""
    offsets = demands.offsets
    sensitive = len(offsets) - 1
    first = columns.shape[0] - sensitive
    for s in range(sensitive):
        base = offsets[s]
        line = columns[first + s]
        seen = np.int64(0)
        for i in range(start, end):
            value = np.int64(line[i])
            if counts[base + value] == 0:
                touched[seen] = value
                seen += 1
            counts[base + value] += 1
        met = _values_meet(
            counts, touched, seen, end - start, s, offsets, demands.share, demands.distinct_l, demands.entropy_l,
            demands.recursive, demands.emd, demands.kl, demands.ordered, demands.cumulative, demands.prefix,
        )  # fmt: skip
        for i in range(seen):
            counts[base + touched[i]] = 0
        if not met:
            return False
    return True


@inner
def _values_meet(
    counts, touched, seen, size, s, offsets, share, distinct_l, entropy_l, recursive, emd, kl, ordered, cumulative,
    prefix,
):  # fmt: skip
    """The same for column s of a class of `size` rows, which has the first `seen` values of `touched`."""
    base = offsets[s]
    if seen < distinct_l:
        return False
    if entropy_l is not None:
        entropy = 0.0
        for i in range(seen):
            p = counts[base + touched[i]] / size
            entropy -= p * math.log(p)
        if math.exp(entropy) < entropy_l:
            return False
    if recursive is not None and not _recursive(counts, base, touched, seen, size, recursive[0], recursive[1]):
        return False
    if kl is not None:
        divergence = 0.0
        for i in range(seen):
            p = counts[base + touched[i]] / size
            divergence += p * math.log(p / share[base + touched[i]])
        return divergence <= kl
    if emd is not None:
        if ordered is not None and ordered[s]:
            return _ordered_distance(counts, base, touched, seen, size, s, offsets, cumulative, prefix) <= emd
        distance = 0.0
        for i in range(seen):
            over = counts[base + touched[i]] / size - share[base + touched[i]]
            if over > 0.0:
                distance += over
        return distance <= emd
    return True


@inner
def _recursive(counts, base, touched, seen, size, l, c):  # noqa: E741 - the literature's own letter
    """r_1 < c (r_l + ... + r_m). The l - 1 largest counts are taken off one by one: l is small, m may not be."""
    if seen < l:
        return False
    tail = size
    top = 0
    ceiling = size + 1
    taken = 0
    while taken < l - 1:
        largest, repeats = 0, 0
        for i in range(seen):
            count = counts[base + touched[i]]
            if count < ceiling and count > largest:
                largest, repeats = count, 1
            elif count == largest:
                repeats += 1
        top = largest if largest > top else top
        off = repeats if repeats < l - 1 - taken else l - 1 - taken
        tail -= off * largest
        taken += off
        ceiling = largest
    if taken == 0:
        for i in range(seen):
            if counts[base + touched[i]] > top:
                top = counts[base + touched[i]]
    return tail > 0 and top / tail < c


@inner
def _ordered_distance(counts, base, touched, seen, size, s, offsets, cumulative, prefix):
    """Area between the cumulative distributions of class and table, over the number of steps.

    Between two values of the class its own distribution is flat and the table's rises, so they cross once at most.
    """
    distinct = offsets[s + 1] - base
    if distinct == 1:
        return 0.0
    values = touched
    sort_first(values, seen)
    shift = base + s
    area = prefix[shift + values[0]]
    reached = 0
    for i in range(seen):
        reached += counts[base + values[i]]
        level = reached / size
        begin = values[i]
        finish = values[i + 1] if i + 1 < seen else distinct
        crossing = _first_not_below(cumulative, base + begin, base + finish, level) - base
        area += level * (crossing - begin) - (prefix[shift + crossing] - prefix[shift + begin])
        area += (prefix[shift + finish] - prefix[shift + crossing]) - level * (finish - crossing)
    return area / (distinct - 1)


@compiled
def sort_first(array, count):
    """Shell sort of the first entries, in place. Compiles in a fraction of the time that numpy.sort takes."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value = array[i]
            j = i
            while j >= gap and array[j - gap] > value:
                array[j] = array[j - gap]
                j -= gap
            array[j] = value
        gap //= 3


@inner
def _first_not_below(array, start, end, level):
    """Position of the first entry of a rising stretch that is not below `level`; `end` if there is none."""
    while start < end:
        half = (start + end) // 2
        if array[half] < level:
            start = half + 1
        else:
            end = half
    return start
