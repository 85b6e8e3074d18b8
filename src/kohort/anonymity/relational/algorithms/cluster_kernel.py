"""Greedy k-member clustering of one block of rows.

A cluster starts with the row farthest from the cluster before it and takes the row that raises its loss least, again
and again (Byun et al., 2007). Each row's loss as the next member is kept up to date: only the columns that the last
member changed are added up again, so one step costs a few passes over the kinds of rows that are left: rows with the
same codes have the same loss. A category's change is looked up by code; a number's is computed from its point, which
several rows at once can be.

Guarantee: every cluster meets the rule, before and after the left-over rows are assigned; a row that cannot be assigned
is reported.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inlined, inner, zeros
from kohort.anonymity.relational.algorithms.kinds_kernel import first_place, kinds_of, rows_by_kind, take_out
from kohort.anonymity.relational.class_kernel import class_meets, number_loss, scratch

__all__ = ["assign_leftovers", "grow_clusters"]

WORD = 64
# A cluster whose sensitive values fall short of the rule is given up at this many times k rows, or this many.
LARGEST = 8
AT_LEAST = 128
# A left-over row is tried on this many clusters before the block is given up.
TRIES = 8
# Labels of rows outside the clusters: in none, and (while clusters grow) in one that was given up.
UNASSIGNED = np.int64(-1)
GIVEN_UP = np.int64(-2)


@compiled
def grow_clusters(columns, quasi, is_number, _distinct, offsets, points, price, k, requirements):
    """Cluster of each row of `columns`, -1 for a row that found none, and how many there are; all meet the rule."""
    rows = columns.shape[1]
    kind, first, slots = kinds_of(columns, quasi)
    places = rows_by_kind(kind, slots)
    local = _codes_of_kinds(columns, quasi, first, slots)
    inside = columns[quasi:].copy()
    spots = _kind_points(local, is_number, offsets, points)
    table = np.empty(offsets[quasi])
    change = np.empty(offsets[quasi])
    before = np.empty((2, quasi))
    member = zeros(offsets[quasi])
    low = np.empty(quasi, np.int64)
    high = np.empty(quasi, np.int64)
    held = np.empty(quasi, np.int64)
    wider = np.empty(quasi, np.int64)
    label = np.empty(rows, np.int64)
    for i in range(rows):
        label[i] = UNASSIGNED
    loss = np.empty(slots)
    cap = rows
    if requirements is not None:
        cap = LARGEST * k if LARGEST * k > AT_LEAST else AT_LEAST
    counts, touched = scratch(requirements, rows)
    cluster_counts = zeros(len(counts))
    kinds = zeros(inside.shape[0] + 1)
    left = rows
    clusters = np.int64(0)
    chosen = np.int64(0)
    while left >= k:
        size = np.int64(0)
        met = False
        while chosen >= 0 and not met and size < cap:
            row = places.row[chosen]
            left -= 1
            slots = _take_out(local, spots, is_number, places, loss, chosen, left, slots)
            _add_values(columns, quasi, row, size, requirements, inside, cluster_counts, kinds)
            label[row] = clusters
            size += 1
            _join(columns, row, local, spots, slots, is_number, offsets, points, price, table, change, member, low,
                  high, before, held, wider, loss, size)  # fmt: skip
            met = size >= k and _values_meet(inside, size, requirements, counts, touched)
            if not met:
                chosen = _next_member(columns, quasi, places, left, slots, loss, k, requirements, cluster_counts,
                                      kinds, size)  # fmt: skip
        chosen = _farthest(places, loss, slots)
        _clear_values(inside, size, requirements, cluster_counts, kinds)
        for v in range(len(member)):
            member[v] = 0
        if met:
            clusters += 1
        else:
            _relabel(label, clusters, GIVEN_UP)
    _relabel(label, GIVEN_UP, UNASSIGNED)
    return label, clusters


@inlined
def _codes_of_kinds(columns, quasi, first, slots):
    """The codes of each kind of rows."""
    local = np.empty((quasi, slots), columns.dtype)
    for c in range(quasi):
        for s in range(slots):
            local[c, s] = columns[c, first[s]]
    return local


@inlined
def _kind_points(local, is_number, offsets, points):
    """The point of each kind of rows in the columns of numbers."""
    numbers = 0
    for c in range(local.shape[0]):
        numbers += is_number[c]
    spots = np.empty((local.shape[0], local.shape[1] if numbers > 0 else 0))
    for c in range(local.shape[0]):
        if is_number[c]:
            for i in range(local.shape[1]):
                spots[c, i] = points[offsets[c] + local[c, i]]
    return spots


@inlined
def _take_out(local, spots, is_number, places, loss, chosen, last, slots):
    """Take out the row at a place, and the slot of its kind if no row of it is left. How many slots there are then."""
    slot = places.slot[places.kind[places.row[chosen]]]
    if not take_out(places, chosen, last):
        return slots
    slots -= 1
    moved = places.held[slots]
    places.held[slot] = moved
    places.slot[moved] = slot
    places.front[slot] = places.front[slots]
    loss[slot] = loss[slots]
    for c in range(local.shape[0]):
        if is_number[c]:
            spots[c, slot] = spots[c, slots]
        else:
            local[c, slot] = local[c, slots]
    return slots


@inlined
def _add_values(columns, quasi, row, size, requirements, inside, cluster_counts, kinds):
    """Count the sensitive values of a new member, and how many of each line are new; its place is `size`."""
    if requirements is not None:
        for s in range(inside.shape[0]):
            code = columns[quasi + s, row]
            inside[s, size] = code
            kinds[s] += cluster_counts[requirements.offsets[s] + code] == 0
            cluster_counts[requirements.offsets[s] + code] += 1


@inlined
def _clear_values(inside, size, requirements, cluster_counts, kinds):
    """Set the counts of a finished cluster back to 0."""
    if requirements is not None:
        for s in range(inside.shape[0]):
            kinds[s] = 0
            for i in range(size):
                cluster_counts[requirements.offsets[s] + inside[s, i]] = 0


@inlined
def _values_meet(inside, size, requirements, counts, touched):
    """Whether the first `size` entries of the sensitive columns meet the requirements, if there are any."""
    if requirements is not None:
        return class_meets(inside, np.int64(0), size, requirements, counts, touched)
    return True


@inlined
def _relabel(label, old, new):
    for i in range(len(label)):
        if label[i] == old:
            label[i] = new


@inlined
def _join(columns, row, local, spots, slots, is_number, offsets, points, price, table, change, member, low, high,
          before, held, wider, loss, size):  # fmt: skip
    """Let a row into the cluster, and add up the loss of the others where it changed."""
    if size == 1:
        for i in range(slots):
            loss[i] = 0.0
    count = 0
    for c in range(local.shape[0]):
        base, end = offsets[c], offsets[c + 1]
        code = np.int64(columns[c, row])
        if end - base == 1:
            continue
        if size > 1 and is_number[c]:
            before[0, c], before[1, c] = points[base + low[c]], points[base + high[c]]
        if not _widened(c, code, base, end, is_number, table, member, low, high, held, size):
            continue
        wider[count] = c
        count += 1
        if not is_number[c]:
            same, more = price[base + 2 * c + held[c]], price[base + 2 * c + held[c] + 1]
            _category_change(base, end, same, more, member, table, change)
    _add_changes(local, spots, slots, is_number, offsets, points, price, change, low, high, before, wider, count, loss,
                 size)  # fmt: skip


@inlined
def _category_change(base, end, same, more, member, table, change):
    """What the loss of a category becomes with each code as the next member, and by how much that differs."""
    for v in range(base, end):
        after = same if member[v] else more
        change[v] = after - table[v]
        table[v] = after


@inlined
def _add_changes(local, spots, slots, is_number, offsets, points, price, change, low, high, before, wider, count, loss,
                 size):  # fmt: skip
    """Add the changes of the columns to the loss of every kind that is left, in their order."""
    place = 0
    while place < count:
        a = wider[place]
        place += 1
        if is_number[a]:
            base = offsets[a]
            bottom, top, weight = points[base + low[a]], points[base + high[a]], price[base + 2 * a + 1]
            is_plain = weight == 1.0 and points[base] >= 0.0  # a null's point is below 0
            _add_number(spots[a], slots, bottom, top, before[0, a], before[1, a], is_plain, weight, loss, size)
        elif place < count and not is_number[wider[place]]:
            b = wider[place]
            place += 1
            _add_two(local[a], local[b], slots, change[offsets[a] :], change[offsets[b] :], loss)
        else:
            line, one = local[a], change[offsets[a] :]
            for i in range(slots):
                loss[i] += one[line[i]]


@inlined
def _add_two(first, second, slots, one, other, loss):
    """Add the changes of two categories in one pass."""
    for i in range(slots):
        loss[i] = (loss[i] + one[first[i]]) + other[second[i]]


@inlined
def _add_number(spot, slots, bottom, top, was_bottom, was_top, is_plain, weight, loss, size):
    """Add by how much the range with each kind as the next member differs from what it was before, if it was any.

    Of a plain column, whose ranges count once and are never cut off at 1, only the end that changed is computed twice.
    """
    if size == 1:
        for i in range(slots):
            span = (spot[i] if spot[i] > top else top) - (spot[i] if spot[i] < bottom else bottom)
            loss[i] += (span if span < 1.0 else 1.0) * weight
    elif is_plain and bottom < was_bottom:
        for i in range(slots):
            high = spot[i] if spot[i] > top else top
            was = high - (spot[i] if spot[i] < was_bottom else was_bottom)
            loss[i] += (high - (spot[i] if spot[i] < bottom else bottom)) - was
    elif is_plain:
        for i in range(slots):
            low = spot[i] if spot[i] < bottom else bottom
            was = (spot[i] if spot[i] > was_top else was_top) - low
            loss[i] += ((spot[i] if spot[i] > top else top) - low) - was
    else:
        for i in range(slots):
            span = (spot[i] if spot[i] > top else top) - (spot[i] if spot[i] < bottom else bottom)
            was = (spot[i] if spot[i] > was_top else was_top) - (spot[i] if spot[i] < was_bottom else was_bottom)
            loss[i] += (span if span < 1.0 else 1.0) * weight - (was if was < 1.0 else 1.0) * weight


@inlined
def _widened(c, code, base, end, is_number, table, member, low, high, held, size):
    """Let the cluster's cell of column c cover a code; whether that changed the cell."""
    if is_number[c]:
        outside = size == 1 or code < low[c] or code > high[c]
        low[c] = code if size == 1 or code < low[c] else low[c]
        high[c] = code if size == 1 or code > high[c] else high[c]
        return outside
    if size == 1:
        held[c] = 1
        member[base + code] = 1
        for v in range(base, end):
            table[v] = 0.0
        return True
    if member[base + code]:
        return False
    member[base + code] = 1
    held[c] += 1
    return True


@inlined
def _farthest(places, loss, slots):
    """Place of the row that would raise the loss most; 0 where none is left."""
    most = -1.0
    for s in range(slots):
        most = loss[s] if loss[s] > most else most
    return first_place(places, loss, slots, most) if slots > 0 else np.int64(0)


@inlined
def _next_member(columns, quasi, places, left, slots, loss, k, requirements, cluster_counts, kinds, size):
    """Place of the row that raises the loss least, among those that help the rule where it needs help; or -1."""
    needs_new, needs_person, selective = False, False, False
    if requirements is not None:
        needs_person = kinds[len(requirements.offsets) - 2] < requirements.persons
        needs_new = _lacks_values(requirements, kinds, k - size)
        selective = needs_new or (size >= k and not needs_person)
    if not (needs_person or selective):
        return first_place(places, loss, slots, _least(loss, slots))
    best, chosen = np.inf, np.int64(-1)
    for i in range(left):
        row = places.row[i]
        rise = loss[places.slot[places.kind[row]]]
        if rise >= best:
            continue
        if needs_person and not _is_new_person(columns, row, requirements, cluster_counts):
            continue
        if selective and not _helps(columns, quasi, row, requirements, cluster_counts, size, needs_new):
            continue
        best, chosen = rise, np.int64(i)
    return chosen


@inlined
def _least(loss, slots):
    """The smallest loss. Four minima at once, for none has to wait for the one before it."""
    a, b, c, d = np.inf, np.inf, np.inf, np.inf
    even = slots - slots % 4
    for i in range(0, even, 4):
        a = loss[i] if loss[i] < a else a
        b = loss[i + 1] if loss[i + 1] < b else b
        c = loss[i + 2] if loss[i + 2] < c else c
        d = loss[i + 3] if loss[i + 3] < d else d
    for i in range(even, slots):
        a = loss[i] if loss[i] < a else a
    a, c = (b if b < a else a), (d if d < c else c)
    return c if c < a else a


@inlined
def _lacks_values(requirements, kinds, missing):
    """Whether all rows that the cluster still lacks must bring new sensitive values."""
    missing = missing if missing > 1 else 1
    for s in range(requirements.columns if requirements.distinct_l > 0 else 0):
        if requirements.distinct_l - kinds[s] >= missing:
            return True
    return False


@inlined
def _is_new_person(columns, row, requirements, cluster_counts):
    """Whether a row is about a person the cluster has no row of; persons are the last line."""
    if requirements is not None:
        base = requirements.offsets[len(requirements.offsets) - 2]
        return cluster_counts[base + columns[columns.shape[0] - 1, row]] == 0
    return True


@inlined
def _helps(columns, quasi, row, requirements, cluster_counts, size, needs_new):
    """Whether a row brings a new value, or one that is rarer in the cluster than in the table."""
    if requirements is not None:
        for s in range(requirements.columns):
            v = requirements.offsets[s] + columns[quasi + s, row]
            if cluster_counts[v] == 0 if needs_new else cluster_counts[v] < requirements.share[v] * size:
                return True
        return False
    return True


@compiled
def assign_leftovers(columns, quasi, is_number, _distinct, offsets, points, price, k, requirements, label, clusters):
    """Give every row without a cluster to the one whose loss it raises least and which still meets the rule.

    Changes `label`; whether every row found a cluster. `requirements` is None where one more row never breaks the rule.
    """
    rows = columns.shape[1]
    lacking = _count_unassigned(label)
    if lacking == 0:
        return True
    if clusters == 0 or (requirements is not None and lacking > rows // 4 and lacking > 2 * k):
        return False
    counts, touched = scratch(requirements, rows)
    inside = columns[quasi:].copy()
    words = _word_starts(quasi, is_number, offsets)
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
        _added_losses(columns, row, quasi, is_number, offsets, points, price, words, low, high, held, bits, size,
                      cost)  # fmt: skip
        home = _cheapest_cluster(columns, quasi, row, label, cost, inside, requirements, counts, touched)
        if home < 0:
            return False
        label[row] = home
        _enter(columns, row, home, quasi, is_number, words, low, high, held, bits, size)
    return True


@inlined
def _count_unassigned(label):
    found = 0
    for i in range(len(label)):
        found += label[i] < 0
    return found


@inlined
def _word_starts(quasi, is_number, offsets):
    """Where the bits of each category column begin among the words of a cluster."""
    words = zeros(quasi + 1)
    for c in range(quasi):
        words[c + 1] = words[c] + (0 if is_number[c] else (offsets[c + 1] - offsets[c] - 1) // WORD + 1)
    return words


@inlined
def _added_losses(columns, row, quasi, is_number, offsets, points, price, words, low, high, held, bits, size, cost):
    """What each cluster would lose more with this row."""
    for j in range(len(cost)):
        before, after = 0.0, 0.0
        for c in range(quasi):
            code = np.int64(columns[c, row])
            place = j * quasi + c
            if is_number[c]:
                a, b = low[place], high[place]
                weight = price[offsets[c] + 2 * c + 1]
                before += number_loss(points, offsets[c], a, b) * weight
                after += number_loss(points, offsets[c], code if code < a else a, code if code > b else b) * weight
            else:
                word = j * words[quasi] + words[c] + code // WORD
                now = held[place]
                before += price[offsets[c] + 2 * c + now]
                if not (bits[word] >> (code % WORD)) & 1:
                    now += 1
                after += price[offsets[c] + 2 * c + now]
        cost[j] = (size[j] + 1) * after - size[j] * before


@inlined
def _cheapest_cluster(columns, quasi, row, label, cost, inside, requirements, counts, touched):
    """The cluster with the least added loss that still meets the rule with this row; -1 if few tries find none."""
    for _ in range(TRIES if len(cost) > TRIES else len(cost)):
        home = np.int64(0)
        for other in range(len(cost)):
            if cost[other] < cost[home]:
                home = np.int64(other)
        cost[home] = np.inf
        if _accepts(columns, quasi, row, label, home, inside, requirements, counts, touched):
            return home
    return np.int64(-1)


@inlined
def _accepts(columns, quasi, row, label, home, inside, requirements, counts, touched):
    """Whether a cluster still meets the requirements with one more row."""
    if requirements is not None:
        found = np.int64(0)
        for i in range(len(label)):
            if label[i] == home or i == row:
                for s in range(inside.shape[0]):
                    inside[s, found] = columns[quasi + s, i]
                found += 1
        return class_meets(inside, np.int64(0), found, requirements, counts, touched)
    return True


@inner
def _enter(columns, row, j, quasi, is_number, words, low, high, held, bits, size):
    """Let cluster j cover a row."""
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
