"""Whether a class meets a rule, judged from its rows.

The rows of a class lie at `start` to `end` of the last `len(offsets) - 1` lines of `columns`, the coded sensitive
columns. Time grows with the rows of the class, never with the number of values a sensitive column has.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numpy as np

from kohort.anonymity.kernels.compiled import compiled, inner

__all__ = ["class_meets", "code_count", "first_not_below", "sort_first"]

K, L_KIND, L, C, T_KIND, T = 0, 1, 2, 3, 4, 5
DISTINCT, ENTROPY, RECURSIVE = 1, 2, 3
EMD = 1
ROUNDING = 1e-10


@compiled
def class_meets(columns, start, end, rule, offsets, share, cumulative, prefix, ordered, counts, touched):
    """k, then l and t of every sensitive column. `counts` comes in and goes out as zeros."""
    if end - start < rule[K]:
        return False
    if share is None:
        return True
    sensitive = len(offsets) - 1
    first = columns.shape[0] - sensitive
    met = True
    for s in range(sensitive):
        base = offsets[s]
        seen = np.int64(0)
        for i in range(start, end):
            value = columns[first + s, i]
            if counts[base + value] == 0:
                touched[seen] = value
                seen += 1
            counts[base + value] += 1
        met = _diverse(counts, base, touched, seen, end - start, rule)
        if cumulative is not None:
            met = met and _close(
                counts, base, touched, seen, end - start, rule, s, offsets, share, cumulative, prefix, ordered
            )
        for i in range(seen):
            counts[base + touched[i]] = 0
        if not met:
            break
    return met


@inner
def _diverse(counts, base, touched, seen, size, rule):
    if rule[L_KIND] == DISTINCT:
        return seen >= rule[L]
    if rule[L_KIND] == ENTROPY:
        entropy = 0.0
        for i in range(seen):
            p = counts[base + touched[i]] / size
            entropy -= p * math.log(p)
        return math.exp(entropy) >= rule[L] - ROUNDING
    if rule[L_KIND] == RECURSIVE:
        return _recursive(counts, base, touched, seen, size, rule)
    return True


@inner
def _recursive(counts, base, touched, seen, size, rule):
    """r_1 < c (r_l + ... + r_m). The l - 1 largest counts are taken off one by one: l is small, m may not be."""
    if seen < rule[L]:
        return False
    tail = size
    top = 0
    ceiling = size + 1
    taken = 0
    while taken < rule[L] - 1:
        largest, repeats = 0, 0
        for i in range(seen):
            count = counts[base + touched[i]]
            if count < ceiling and count > largest:
                largest, repeats = count, 1
            elif count == largest:
                repeats += 1
        top = max(top, largest)
        off = min(repeats, int(rule[L]) - 1 - taken)
        tail -= off * largest
        taken += off
        ceiling = largest
    if taken == 0:
        for i in range(seen):
            top = max(top, counts[base + touched[i]])
    return tail > 0 and top / tail < rule[C]


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
def code_count(columns, quasi):
    """One more than the largest code of the quasi-identifiers: how long an array indexed by code must be."""
    found = 0
    for c in range(quasi):
        for i in range(columns.shape[1]):
            found = max(found, columns[c, i])
    return np.int64(found) + 1


@inner
def first_not_below(array, start, end, level):
    """Position of the first entry of a rising stretch that is not below `level`; `end` if there is none."""
    while start < end:
        half = (start + end) // 2
        if array[half] < level:
            start = half + 1
        else:
            end = half
    return start


@inner
def _close(counts, base, touched, seen, size, rule, s, offsets, share, cumulative, prefix, ordered):
    if rule[T_KIND] == EMD and ordered[s]:
        distance = _ordered_distance(counts, base, touched, seen, size, s, offsets, cumulative, prefix)
        return distance <= rule[T]
    distance = 0.0
    for i in range(seen):
        p = counts[base + touched[i]] / size
        q = share[base + touched[i]]
        if rule[T_KIND] == EMD:
            distance += max(p - q, 0.0)
        else:
            distance += p * math.log(p / q)
    return distance <= rule[T]


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
        crossing = first_not_below(cumulative, base + begin, base + finish, level) - base
        area += level * (crossing - begin) - (prefix[shift + crossing] - prefix[shift + begin])
        area += (prefix[shift + finish] - prefix[shift + crossing]) - level * (finish - crossing)
    return area / (distinct - 1)
