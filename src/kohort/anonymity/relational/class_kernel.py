"""One class of rows: what it loses, and whether its sensitive values meet the rule.

The rows of a class are at `start` to `end` of the lines of `columns`: the coded quasi-identifiers, then the coded
sensitive columns. Judging a class takes time in proportion to its rows, never to the number of values of a column.

`requirements` is `kohort.anonymity.relational.rule.SensitiveRequirements`, or None for a rule of k alone: the code
that judges sensitive values is then not even compiled.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR1730

from __future__ import annotations

import math

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner, zeros

__all__ = [
    "class_meets",
    "classes_loss",
    "code_range",
    "most_values",
    "number_loss",
    "parts_meet",
    "rows_meet",
    "scratch",
    "sort_first",
    "values_meet",
]


@compiled
def classes_loss(columns, starts, quasi, is_number, _distinct, offsets, points, price):
    """Loss of each class, summed over its rows and columns; class j is at `starts[j]` to `starts[j + 1]`.

    `price[offsets[c] + 2 * c + held]` is what a category with `held` values costs per row; of a number, whose loss is
    the range it covers, entry 1 is the weight.
    """
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
                loss[j] += (end - start) * number_loss(points, offsets[c], low, high) * price[offsets[c] + 2 * c + 1]
            else:
                found = _distinct_codes(line, start, end, last_seen, j)
                loss[j] += (end - start) * price[offsets[c] + 2 * c + found]
    return loss


@inlined
def _distinct_codes(line, start, end, last_seen, j):
    """Number of distinct codes of class j; `last_seen` holds the last class in which each code was seen."""
    found = 0
    for i in range(start, end):
        if last_seen[line[i]] != j:
            last_seen[line[i]] = j
            found += 1
    return found


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
    """The range a class covers in a number column whose points begin at `offset`; the whole range if it has a null."""
    span = points[offset + high] - points[offset + low]
    return span if span < 1.0 else 1.0


@inner
def most_values(offsets):
    """Number of values of the column that has the most: the length of an array indexed by code."""
    found = 0
    for c in range(len(offsets) - 1):
        if offsets[c + 1] - offsets[c] > found:
            found = offsets[c + 1] - offsets[c]
    return found


@compiled
def rows_meet(columns, requirements, counts, touched):
    """`class_meets` of all rows of `columns`, for Python to call."""
    return class_meets(columns, np.int64(0), columns.shape[1], requirements, counts, touched)


@inlined
def parts_meet(columns, start, middle, end, requirements, counts, touched):
    """Whether both parts of a cut meet the requirements; always so where there are none."""
    if requirements is not None:
        return class_meets(columns, start, middle, requirements, counts, touched) and class_meets(
            columns, middle, end, requirements, counts, touched
        )
    return True


@inlined
def scratch(requirements, rows):
    """What `class_meets` works in: a count per sensitive value, all 0, and room for the values of one class."""
    values, most = 1, 1
    if requirements is not None:
        values, most = requirements.offsets[len(requirements.offsets) - 1], rows
    return zeros(values), np.empty(most, np.int64)


@inner
def class_meets(columns, start, end, requirements, counts, touched):  # noqa: C901
    """Persons where they are counted, and l and t of every sensitive column; the caller checks k rows.

    `counts` is all zeros before and after.
    """
    offsets = requirements.offsets
    first = columns.shape[0] - (len(offsets) - 1)
    if requirements.persons > 0 and not _enough_persons(columns, start, end, requirements, counts, touched):
        return False
    for s in range(requirements.columns):
        base = offsets[s]
        line = columns[first + s]
        # Without persons every row is its own pair, and nothing is marked.
        pairs = columns[first + s + (requirements.columns if requirements.persons > 0 else 0)]
        mark = offsets[s + (requirements.columns if requirements.persons > 0 else 0)]
        seen, size = np.int64(0), np.int64(0)
        for i in range(start, end):
            if requirements.persons > 0:
                if counts[mark + pairs[i]] > 0:
                    continue
                counts[mark + pairs[i]] = 1
            value = np.int64(line[i])
            if counts[base + value] == 0:
                touched[seen] = value
                seen += 1
            counts[base + value] += 1
            size += 1
        met = values_meet(counts, base, touched, seen, size, s, requirements)
        for i in range(seen):
            counts[base + touched[i]] = 0
        if requirements.persons > 0:
            for i in range(start, end):
                counts[mark + pairs[i]] = 0
        if not met:
            return False
    return True


@inlined
def _enough_persons(columns, start, end, requirements, counts, touched):
    """Whether the rows are about as many persons as a class needs; the persons are the last line."""
    line = columns[columns.shape[0] - 1]
    base = requirements.offsets[len(requirements.offsets) - 2]
    seen = np.int64(0)
    for i in range(start, end):
        if counts[base + line[i]] == 0:
            counts[base + line[i]] = 1
            touched[seen] = line[i]
            seen += 1
            if seen >= requirements.persons:
                break
    for i in range(seen):
        counts[base + touched[i]] = 0
    return seen >= requirements.persons


@inner
def values_meet(counts, base, touched, seen, size, s, requirements):
    """Whether sensitive column s of a class of `size` rows, with `seen` values (in `touched`), meets the rule."""
    if seen < requirements.distinct_l:
        return False
    if requirements.entropy_l > 0.0:
        entropy = 0.0
        for i in range(seen):
            p = counts[base + touched[i]] / size
            entropy -= p * math.log(p)
        if math.exp(entropy) < requirements.entropy_l:
            return False
    if requirements.recursive_l > 0 and not _recursive(
        counts, base, touched, seen, size, requirements.recursive_l, requirements.recursive_c
    ):
        return False
    if requirements.by_value and not _each_value(counts, base, touched, seen, size, s, requirements):
        return False
    return _close(
        counts, base, touched, seen, size, s, requirements.offsets, requirements.share, requirements.emd,
        requirements.kl, requirements.ordered, requirements.cumulative, requirements.prefix,
    )  # fmt: skip


@inlined
def _each_value(counts, base, touched, seen, size, s, requirements):
    """alpha, beta and delta: bounds on the share of every value by itself, from below too for delta."""
    if requirements.lowest[base] > 0.0 and seen < requirements.offsets[s + 1] - base:
        return False
    for i in range(seen):
        share = counts[base + touched[i]] / size
        if share > requirements.highest[base + touched[i]] or share < requirements.lowest[base + touched[i]]:
            return False
    return True


@inner
def _close(counts, base, touched, seen, size, s, offsets, share, emd, kl, ordered, cumulative, prefix):
    """t of column s of a class of `size` rows that has the first `seen` values of `touched`."""
    if kl < np.inf:
        divergence = 0.0
        for i in range(seen):
            p = counts[base + touched[i]] / size
            divergence += p * math.log(p / share[base + touched[i]])
        return divergence <= kl
    if emd == np.inf:
        return True
    if ordered[s]:
        return _ordered_distance(counts, base, touched, seen, size, s, offsets, cumulative, prefix) <= emd
    distance = 0.0
    for i in range(seen):
        over = counts[base + touched[i]] / size - share[base + touched[i]]
        if over > 0.0:
            distance += over
    return distance <= emd


@inner
def _recursive(counts, base, touched, seen, size, l, c):  # noqa: E741 - the literature's own letter
    """r_1 < c (r_l + ... + r_m). The l - 1 largest counts are taken off one by one: l is small, m may not be."""
    if seen < l:
        return False
    tail = size
    ceiling = size + 1
    top, _ = _largest_below(counts, base, touched, seen, ceiling)
    taken = 0
    while taken < l - 1:
        largest, repeats = _largest_below(counts, base, touched, seen, ceiling)
        off = repeats if repeats < l - 1 - taken else l - 1 - taken
        tail -= off * largest
        taken += off
        ceiling = largest
    return tail > 0 and top / tail < c


@inner
def _largest_below(counts, base, touched, seen, ceiling):
    """The largest count below `ceiling`, and how many values have it."""
    largest, repeats = 0, 0
    for i in range(seen):
        count = counts[base + touched[i]]
        if largest < count < ceiling:
            largest, repeats = count, 1
        elif count == largest:
            repeats += 1
    return largest, repeats


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
