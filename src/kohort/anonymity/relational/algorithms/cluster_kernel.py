"""Greedy k-member clustering of one block of rows.

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

from kohort.anonymity.compiled import compiled, inner, zeros
from kohort.anonymity.relational.algorithms.loss_kernel import number_loss
from kohort.anonymity.relational.algorithms.rule_kernel import class_meets

__all__ = ["grow_clusters", "house_rows"]

WORD = 64
# A cluster that falls short of what its sensitive values must be is given up at this many times k rows, or this many.
LARGEST = 8
AT_LEAST = 128
# Rows without a cluster are tried on this many clusters before the block is given up.
TRIES = 8


@compiled
def grow_clusters(columns, quasi, is_number, distinct, offsets, points, k, demands):
    """Cluster of each row of `columns`, -1 for a row that found none, and how many there are; all meet the rule."""
    rows = columns.shape[1]
    local = columns[:quasi].copy()
    table = np.empty(offsets[quasi])
    change = np.empty(offsets[quasi])
    member = zeros(offsets[quasi])
    low = np.empty(quasi, np.int64)
    high = np.empty(quasi, np.int64)
    held = np.empty(quasi, np.int64)
    active = np.empty(rows, np.int64)
    label = np.empty(rows, np.int64)
    for i in range(rows):
        active[i] = i
        label[i] = -1
    loss = np.empty(rows)
    cap = rows
    if demands is not None:
        cap = LARGEST * k if LARGEST * k > AT_LEAST else AT_LEAST
        sensitive = len(demands.offsets) - 1
        inside = columns[quasi:].copy()
        counts = zeros(demands.offsets[sensitive])
        cluster_counts = zeros(demands.offsets[sensitive])
        touched = np.empty(rows, np.int64)
    left = rows
    clusters = 0
    chosen = 0
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
            if demands is not None:
                for s in range(sensitive):
                    code = columns[quasi + s, row]
                    inside[s, size] = code
                    cluster_counts[demands.offsets[s] + code] += 1
            label[row] = clusters
            size += 1
            _join(local, left, quasi, is_number, distinct, offsets, points, table, change, member, low, high, held,
                  loss, size)  # fmt: skip
            if size >= k:
                met = True
                if demands is not None:
                    met = class_meets(inside, np.int64(0), size, demands, counts, touched)
                if met or size >= cap:
                    break
            if left == 0:
                break
            if demands is None:
                chosen = _cheapest(loss, left)
            else:
                chosen = _cheapest_that_helps(
                    columns, quasi, active, left, loss, k, demands.offsets, demands.share, demands.distinct_l,
                    cluster_counts, size,
                )  # fmt: skip
            if chosen < 0:
                break
        farthest = -1.0
        chosen = 0
        for i in range(left):
            if loss[i] > farthest:
                farthest, chosen = loss[i], i
        if demands is not None:
            for s in range(sensitive):
                for i in range(size):
                    cluster_counts[demands.offsets[s] + inside[s, i]] = 0
        for v in range(len(member)):
            member[v] = 0
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


@inner
def _join(local, left, quasi, is_number, distinct, offsets, points, table, change, member, low, high, held, loss, size):
    """Let the row at position `left` into the cluster, and add up the loss of the others where it changed."""
    if size == 1:
        for i in range(left):
            loss[i] = 0.0
    for c in range(quasi):
        code = np.int64(local[c, left])
        base, end = offsets[c], offsets[c + 1]
        if end - base == 1:
            continue
        if size == 1:
            low[c], high[c], held[c] = code, code, 1
            member[base + code] = 1
            for v in range(base, end):
                table[v] = 0.0
        elif is_number[c]:
            if code < low[c]:
                low[c] = code
            elif code > high[c]:
                high[c] = code
            else:
                continue
        else:
            if member[base + code]:
                continue
            member[base + code] = 1
            held[c] += 1
        same = (held[c] if held[c] > 1 else 0) / distinct[c]
        more = (held[c] + 1) / distinct[c]
        for v in range(end - base):
            if is_number[c]:
                after = number_loss(points, base, v if v < low[c] else low[c], v if v > high[c] else high[c])
            else:
                after = same if member[base + v] else more
            change[v] = after - table[base + v]
            table[base + v] = after
        line = local[c]
        for i in range(left):
            loss[i] += change[line[i]]


@inner
def _cheapest(loss, left):
    """Position of the row that raises the loss least; or -1."""
    best, chosen = np.inf, -1
    for i in range(left):
        if loss[i] < best:
            best, chosen = loss[i], i
    return chosen


@inner
def _cheapest_that_helps(columns, quasi, active, left, loss, k, s_offsets, share, distinct_l, cluster_counts, size):
    """Position of the row that raises the loss least, among those that help the rule where it needs help; or -1."""
    sensitive = len(s_offsets) - 1
    needs_new = False
    missing = k - size if k - size > 1 else 1
    if distinct_l > 0:
        for s in range(sensitive):
            found = 0
            for v in range(s_offsets[s], s_offsets[s + 1]):
                found += cluster_counts[v] > 0
            needs_new = needs_new or distinct_l - found >= missing
    picky = needs_new or size >= k
    best, chosen = np.inf, -1
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
def house_rows(columns, quasi, is_number, distinct, offsets, points, k, demands, label, clusters):
    """Give every row without a cluster to the one whose loss it raises least and which still meets the rule.

    Changes `label`; whether every row found a cluster. `demands` is None where one row more never breaks the rule.
    """
    rows = columns.shape[1]
    homeless = 0
    for i in range(rows):
        homeless += label[i] < 0
    if homeless == 0:
        return True
    if clusters == 0:
        return False
    if demands is not None:
        if homeless > rows // 4 and homeless > 2 * k:
            return False
        counts = zeros(demands.offsets[len(demands.offsets) - 1])
        touched = np.empty(rows, np.int64)
        inside = columns[quasi:].copy()
    words = zeros(quasi + 1)
    for c in range(quasi):
        words[c + 1] = words[c] + (0 if is_number[c] else (offsets[c + 1] - offsets[c] - 1) // WORD + 1)
    # Of cluster j: column c at j * quasi + c, the set of values of a category at j * words[quasi] + words[c].
    low = zeros(clusters * quasi)
    high = zeros(clusters * quasi)
    held = zeros(clusters * quasi)
    bits = zeros(clusters * words[quasi])
    size = zeros(clusters)
    for i in range(rows):
        if label[i] >= 0:
            _enter(columns, i, label[i], quasi, is_number, words, low, high, held, bits, size)
    cost = np.empty(clusters)
    for row in range(rows):
        if label[row] >= 0:
            continue
        for j in range(clusters):
            before, after = 0.0, 0.0
            for c in range(quasi):
                code = np.int64(columns[c, row])
                place = j * quasi + c
                if is_number[c]:
                    a, b = low[place], high[place]
                    before += number_loss(points, offsets[c], a, b)
                    after += number_loss(points, offsets[c], code if code < a else a, code if code > b else b)
                else:
                    word = j * words[quasi] + words[c] + code // WORD
                    now = held[place]
                    before += (now if now > 1 else 0) / distinct[c]
                    if not (bits[word] >> (code % WORD)) & 1:
                        now += 1
                    after += (now if now > 1 else 0) / distinct[c]
            cost[j] = (size[j] + 1) * after - size[j] * before
        housed = False
        for _ in range(TRIES if clusters > TRIES else clusters):
            home = 0
            for other in range(clusters):
                if cost[other] < cost[home]:
                    home = other
            cost[home] = np.inf
            if demands is not None:
                found = np.int64(0)
                for i in range(rows):
                    if label[i] == home or i == row:
                        for s in range(inside.shape[0]):
                            inside[s, found] = columns[quasi + s, i]
                        found += 1
                if not class_meets(inside, np.int64(0), found, demands, counts, touched):
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
        place = j * quasi + c
        if is_number[c]:
            if size[j] == 1 or code < low[place]:
                low[place] = code
            if size[j] == 1 or code > high[place]:
                high[place] = code
        else:
            word, bit = j * words[quasi] + words[c] + code // WORD, code % WORD
            if not (bits[word] >> bit) & 1:
                bits[word] |= 1 << bit
                held[place] += 1
