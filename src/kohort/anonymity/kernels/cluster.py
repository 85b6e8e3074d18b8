"""Greedy k-member clustering of one block of rows, and the loss of classes.

A cluster starts with the row farthest from the cluster before it and takes the row that raises its loss least, again
and again (Byun et al., 2007). Each row's loss as the next member is kept up to date: only the columns that the last
member changed are added up again, so one step costs a few passes over the rows that are left.

Guarantee: every cluster meets the rule, before and after rows without one are housed; a row that cannot be is told.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

import numpy as np

from kohort.anonymity.kernels.compiled import compiled, inner
from kohort.anonymity.kernels.rules import (
    DISTINCT,
    L_KIND,
    T_KIND,
    K,
    L,
    class_meets,
    code_count,
    first_not_below,
    sort_first,
)

__all__ = ["classes_loss", "grow_clusters", "house_rows", "local_codes"]

WORD = 64
# Rows without a cluster are tried on this many clusters before the block is given up.
TRIES = 8


@compiled
def classes_loss(columns, starts, quasi, is_number, distinct, offsets, points):
    """Loss of each class, summed over its rows and columns; class j is at `starts[j]` to `starts[j + 1]`."""
    classes = len(starts) - 1
    loss = np.zeros(classes)
    last_seen = np.empty(code_count(columns, quasi), np.int64)
    for c in range(quasi):
        line = columns[c]
        for v in range(len(last_seen)):
            last_seen[v] = -1
        for j in range(classes):
            start, end = starts[j], starts[j + 1]
            if is_number[c]:
                a, b = line[start], line[start]
                for i in range(start + 1, end):
                    a, b = min(a, line[i]), max(b, line[i])
                loss[j] += (end - start) * min(points[offsets[c] + b] - points[offsets[c] + a], 1.0)
            else:
                found = 0
                for i in range(start, end):
                    if last_seen[line[i]] != j:
                        last_seen[line[i]] = j
                        found += 1
                if found > 1:
                    loss[j] += (end - start) * found / distinct[c]
    return loss


@compiled
def grow_clusters(
    columns, quasi, is_number, distinct, offsets, points, rule, s_offsets, share, cumulative, prefix, ordered, seed_row
):
    """Cluster of each row of `columns`, -1 for a row that found none, and how many there are; all meet the rule."""
    rows = columns.shape[1]
    sensitive = len(s_offsets) - 1
    k = int(rule[K])
    local, values, begin = local_codes(columns, quasi)
    total_values = begin[quasi]
    place = np.zeros(total_values)
    for c in range(quasi):
        for v in range(begin[c], begin[c + 1]):
            place[v] = points[offsets[c] + values[v]]
    cap = rows if share is None else min(rows, max(8 * k, 128))
    table = np.zeros(total_values)
    member = np.zeros(total_values, np.bool_)
    low = np.zeros(quasi, np.int64)
    high = np.zeros(quasi, np.int64)
    held = np.zeros(quasi, np.int64)
    counts = np.zeros(max(s_offsets[-1], 1), np.int64)
    cluster_counts = np.zeros(max(s_offsets[-1], 1), np.int64)
    touched = np.empty(rows, np.int64)
    inside = np.zeros((max(sensitive, 1), rows), columns.dtype)
    active = np.arange(rows)
    left = rows
    loss = np.zeros(rows)
    label = np.empty(rows, np.int64)
    for i in range(rows):
        label[i] = -1
    clusters = 0
    chosen = min(seed_row, rows - 1)
    while left >= k:
        size = 0
        met = False
        while True:
            row = active[chosen]
            left -= 1
            active[chosen] = active[left]
            loss[chosen] = loss[left]
            for c in range(quasi):
                local[c, chosen], local[c, left] = local[c, left], local[c, chosen]
            for s in range(sensitive):
                code = columns[quasi + s, row]
                inside[s, size] = code
                cluster_counts[s_offsets[s] + code] += 1
            label[row] = clusters
            size += 1
            _join(local, left, quasi, is_number, distinct, begin, place, table, member, low, high, held, loss, size)
            if size >= k:
                met = class_meets(
                    inside, np.int64(0), size, rule, s_offsets, share, cumulative, prefix, ordered, counts, touched
                )
                if met or size >= cap:
                    break
            if left == 0:
                break
            chosen = _nearest(
                columns, quasi, active, left, loss, rule, s_offsets, share, cluster_counts, size, k, sensitive
            )
            if chosen < 0:
                break
        farthest = -1.0
        chosen = 0
        for i in range(left):
            if loss[i] > farthest:
                farthest, chosen = loss[i], i
        for s in range(sensitive):
            for i in range(size):
                cluster_counts[s_offsets[s] + inside[s, i]] = 0
        for c in range(quasi):
            for v in range(begin[c], begin[c + 1]):
                member[v] = False
        if met:
            clusters += 1
        else:
            for i in range(rows):
                if label[i] == clusters:
                    label[i] = -2
    for i in range(rows):
        if label[i] == -2:
            label[i] = -1
    return label, clusters


@compiled
def local_codes(columns, quasi):
    """Codes that count only the values of this block, in the same order, and the values they stand for."""
    rows = columns.shape[1]
    local = np.empty((quasi, rows), np.int32)
    begin = np.zeros(quasi + 1, np.int64)
    values = np.empty(quasi * rows, np.int64)
    found = np.empty(rows, np.int64)
    ordered = np.empty(rows, np.int64)
    for c in range(quasi):
        for i in range(rows):
            found[i] = columns[c, i]
        for i in range(rows):
            ordered[i] = found[i]
        sort_first(ordered, rows)
        end = begin[c]
        for i in range(rows):
            if i == 0 or ordered[i] != ordered[i - 1]:
                values[end] = ordered[i]
                end += 1
        for i in range(rows):
            local[c, i] = first_not_below(values, begin[c], end, found[i]) - begin[c]
        begin[c + 1] = end
    return local, values, begin


@inner
def _join(local, left, quasi, is_number, distinct, begin, place, table, member, low, high, held, loss, size):
    """Let the row at position `left` into the cluster, and add up the loss of the others where it changed."""
    if size == 1:
        for i in range(left):
            loss[i] = 0.0
    for c in range(quasi):
        code = local[c, left]
        base, end = begin[c], begin[c + 1]
        if end - base == 1:
            continue
        if size == 1:
            low[c], high[c], held[c] = code, code, 1
            member[base + code] = True
            for v in range(base, end):
                table[v] = 0.0
        elif is_number[c]:
            if low[c] <= code <= high[c]:
                continue
            low[c], high[c] = min(low[c], code), max(high[c], code)
        else:
            if member[base + code]:
                continue
            member[base + code] = True
            held[c] += 1
        change = np.empty(end - base)
        same = (held[c] if held[c] > 1 else 0) / distinct[c]
        more = (held[c] + 1) / distinct[c]
        for v in range(end - base):
            if is_number[c]:
                after = min(place[base + max(high[c], v)] - place[base + min(low[c], v)], 1.0)
            else:
                after = same if member[base + v] else more
            change[v] = after - table[base + v]
            table[base + v] = after
        line = local[c]
        for i in range(left):
            loss[i] += change[line[i]]


@inner
def _nearest(columns, quasi, active, left, loss, rule, s_offsets, share, cluster_counts, size, k, sensitive):
    """Position of the row that raises the loss least, among those that help the rule where it needs help; or -1."""
    best, chosen = np.inf, -1
    if share is None:
        for i in range(left):
            if loss[i] < best:
                best, chosen = loss[i], i
        return chosen
    needs_new = False
    if rule[L_KIND] == DISTINCT:
        for s in range(sensitive):
            found = 0
            for v in range(s_offsets[s], s_offsets[s + 1]):
                found += cluster_counts[v] > 0
            needs_new = needs_new or rule[L] - found >= max(k - size, 1)
    picky = needs_new or size >= k
    for i in range(left):
        if loss[i] >= best:
            continue
        if picky:
            helps = False
            for s in range(sensitive):
                v = s_offsets[s] + columns[quasi + s, active[i]]
                rare = cluster_counts[v] == 0 if needs_new else cluster_counts[v] < share[v] * size
                helps = helps or rare
            if not helps:
                continue
        best, chosen = loss[i], i
    return chosen


@compiled
def house_rows(columns, quasi, is_number, distinct, offsets, points, rule, s_offsets, share, cumulative, prefix,
               ordered, label, clusters):  # fmt: skip
    """Give every row without a cluster to the one whose loss it raises least and which still meets the rule.

    Changes `label`; whether every row found a cluster.
    """
    counts = np.zeros(max(s_offsets[-1], 1), np.int64)
    touched = np.empty(columns.shape[1], np.int64)
    rows = columns.shape[1]
    sensitive = len(s_offsets) - 1
    simple = (rule[L_KIND] == 0 or rule[L_KIND] == DISTINCT) and rule[T_KIND] == 0
    homeless = 0
    for i in range(rows):
        homeless += label[i] < 0
    if homeless == 0:
        return True
    if clusters == 0 or (not simple and homeless > max(rows // 4, 2 * rule[K])):
        return False
    words = np.zeros(quasi + 1, np.int64)
    for c in range(quasi):
        highest = 0
        for i in range(rows):
            highest = max(highest, columns[c, i])
        words[c + 1] = words[c] + (0 if is_number[c] else highest // WORD + 1)
    low = np.zeros((clusters, quasi), np.int64)
    high = np.zeros((clusters, quasi), np.int64)
    held = np.zeros((clusters, quasi), np.int64)
    bits = np.zeros((clusters, max(words[quasi], 1)), np.uint64)
    size = np.zeros(clusters, np.int64)
    for i in range(rows):
        if label[i] >= 0:
            _enter(columns, i, label[i], quasi, is_number, words, low, high, held, bits, size)
    cost = np.empty(clusters)
    inside = np.zeros((max(sensitive, 1), rows), columns.dtype)
    for row in range(rows):
        if label[row] >= 0:
            continue
        for j in range(clusters):
            before, after = 0.0, 0.0
            for c in range(quasi):
                code = np.int64(columns[c, row])
                if is_number[c]:
                    base = offsets[c]
                    before += min(points[base + high[j, c]] - points[base + low[j, c]], 1.0)
                    a, b = min(low[j, c], code), max(high[j, c], code)
                    after += min(points[base + b] - points[base + a], 1.0)
                else:
                    word, bit = words[c] + code // WORD, np.uint64(code % WORD)
                    known = (bits[j, word] >> bit) & np.uint64(1)
                    now = held[j, c] + (0 if known else 1)
                    before += (held[j, c] if held[j, c] > 1 else 0) / distinct[c]
                    after += (now if now > 1 else 0) / distinct[c]
            cost[j] = (size[j] + 1) * after - size[j] * before
        housed = False
        for _ in range(min(TRIES, clusters)):
            home = 0
            for other in range(clusters):
                if cost[other] < cost[home]:
                    home = other
            cost[home] = np.inf
            if not simple:
                found = np.int64(0)
                for i in range(rows):
                    if label[i] == home or i == row:
                        for s in range(sensitive):
                            inside[s, found] = columns[quasi + s, i]
                        found += 1
                if not class_meets(
                    inside, np.int64(0), found, rule, s_offsets, share, cumulative, prefix, ordered, counts, touched
                ):
                    continue
            label[row] = home
            _enter(columns, row, np.int64(home), quasi, is_number, words, low, high, held, bits, size)
            housed = True
            break
        if not housed:
            return False
    return True


@inner
def _enter(columns, row, j, quasi, is_number, words, low, high, held, bits, size):
    size[j] += 1
    for c in range(quasi):
        code = np.int64(columns[c, row])
        if is_number[c]:
            low[j, c] = code if size[j] == 1 else min(low[j, c], code)
            high[j, c] = code if size[j] == 1 else max(high[j, c], code)
        else:
            word, bit = words[c] + code // WORD, np.uint64(code % WORD)
            if not (bits[j, word] >> bit) & np.uint64(1):
                bits[j, word] |= np.uint64(1) << bit
                held[j, c] += 1
