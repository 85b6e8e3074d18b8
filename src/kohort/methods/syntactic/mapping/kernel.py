"""The class of each new row, by sets of classes as bits.

A condition is a value of a column or an item, and `bits[condition]` the classes that cover it, bit b of word w being
the class at place 64 w + b. The classes legitimate for a row are the intersection of its conditions; when that is
empty, the classes that break the fewest of them, found by adding the sets up in binary counters, one plane a digit.
"""

# Written for Numba: positional arguments, types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from kohort.anonymity.compiled import compiled, inlined

__all__ = ["bits_of_entries", "bits_of_numbers", "class_costs", "labels_of_rows", "map_block", "prefix_counts"]

ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_M1, _M2, _M4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_H01 = np.uint64(0x0101010101010101)
_S1, _S2, _S4, _S56 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


@compiled
def _ones(word):
    """How many bits are set."""
    word = word - ((word >> _S1) & _M1)
    word = (word & _M2) + ((word >> _S2) & _M2)
    word = (word + (word >> _S4)) & _M4
    return np.int64((word * _H01) >> _S56)


@compiled
def bits_of_numbers(values, low, high, missing, bits):
    """Fill `bits[v]` with the classes whose interval covers `values[v]`; NaN is a missing value."""
    classes = len(low)
    for v in range(len(values)):
        value = values[v]
        absent = np.isnan(value)
        for start in range(0, classes, 64):
            word = np.uint64(0)
            for j in range(start, min(start + 64, classes)):
                hit = missing[j] if absent else (low[j] <= value <= high[j])
                word |= np.uint64(hit) << np.uint64(j - start)
            bits[v, start >> 6] = word


@compiled
def bits_of_entries(starts, class_at, bits):
    """Set in `bits[i]` the classes `class_at[starts[i]:starts[i + 1]]`."""
    for i in range(len(starts) - 1):
        for at in range(starts[i], starts[i + 1]):
            j = class_at[at]
            bits[i, j >> 6] |= ONE << np.uint64(j & 63)


@compiled
def prefix_counts(bits, counts):
    """How many bits of each row are set before each word."""
    for i in range(bits.shape[0]):
        total = 0
        for w in range(bits.shape[1]):
            counts[i, w] = total
            total += _ones(bits[i, w])


@compiled
def _label(bits, before, starts, label_at, item, first_item, place):
    """The label that holds `item` in the class at `place`, -1 if none does."""
    word = bits[first_item + item, place >> 6]
    bit = ONE << np.uint64(place & 63)
    if word & bit == 0:
        return -1
    return label_at[starts[item] + before[item, place >> 6] + _ones(word & (bit - ONE))]


@compiled
def _item_loss(bits, before, starts, label_at, size, weight, by_share, items, first_item, place, held):
    """UL of a row's items under a class (eqs 4 and 5), by exponents, so that 2^size never overflows; or, `by_share`,
    the mean of the weights of their labels."""
    if by_share:
        lost = 0.0
        for at in range(len(items)):
            label = -1 if items[at] < 0 else _label(bits, before, starts, label_at, items[at], first_item, place)
            lost += 1.0 if label < 0 else weight[label]
        return lost / len(items)
    count = 0
    total = 0
    for at in range(len(items)):
        label = -1 if items[at] < 0 else _label(bits, before, starts, label_at, items[at], first_item, place)
        if label < 0:
            # Not covered: it would be released as it is.
            total += 1
            continue
        known = False
        for other in range(count):
            known |= held[other] == label
        if not known:
            held[count] = label
            count += 1
            total += size[label]
    loss = 0.0
    for at in range(count):
        own = size[held[at]]
        loss += weight[held[at]] * 2.0 ** (own - total) * (1.0 - 2.0**-own)
    return loss / (1.0 - 2.0**-total) if total > 0 else 0.0


@compiled
def _widened(c, place, value, covered, is_number, low, high, missing, held, domain, cost):
    """NCP of a column's cell once it is widened to hold the row's value."""
    if covered:
        return cost[c, place]
    if not is_number[c]:
        return min((held[c, place] + 1.0) / max(domain[c], 1.0), 1.0)
    if np.isnan(value) or low[c, place] > high[c, place] or missing[c, place] or domain[c] <= 0.0:
        return 1.0
    return min((max(high[c, place], value) - min(low[c, place], value)) / domain[c], 1.0)


@compiled
def _closest(bits, conditions, planes, chosen):
    """Fill `chosen` with the classes that break the fewest conditions; how many they break."""
    words = bits.shape[1]
    digits = planes.shape[0]
    for w in range(words):
        for d in range(digits):
            planes[d, w] = np.uint64(0)
        for condition in conditions:
            carry = ~bits[condition, w]
            for d in range(digits):
                planes[d, w], carry = planes[d, w] ^ carry, planes[d, w] & carry
    broken = 0
    for d in range(digits - 1, -1, -1):
        found = False
        for w in range(words):
            found |= (chosen[w] & ~planes[d, w]) != 0
        for w in range(words):
            chosen[w] &= ~planes[d, w] if found else ALL
        broken = 2 * broken + (0 if found else 1)
    return broken


@compiled
def class_costs(
    bits, conditions, condition_starts, items, item_starts, first_item, before, starts, label_at, size, weight,
    by_share, values, is_number, low, high, missing, held_values, domain, cost, weights, items_weight, loss,
    places, loss_of, violated,
):  # fmt: skip
    """Write what each row would cost in the class at its place, and how many conditions that class breaks."""
    longest = 1
    for row in range(len(places)):
        longest = max(longest, item_starts[row + 1] - item_starts[row])
    held = np.empty(longest, np.int64)
    for row in range(len(places)):
        own = conditions[condition_starts[row] : condition_starts[row + 1]]
        place = places[row]
        word, bit = place >> 6, ONE << np.uint64(place & 63)
        broken = 0
        for condition in own:
            broken += (bits[condition, word] & bit) == 0
        total = loss[place]
        if broken > 0:
            total = _widened_loss(bits, own, word, bit, place, row, values, is_number, low, high, missing, held_values,
                                  domain, cost, weights)  # fmt: skip
        row_items = items[item_starts[row] : item_starts[row + 1]]
        if items_weight > 0.0 and len(row_items) > 0:
            total += items_weight * _item_loss(
                bits, before, starts, label_at, size, weight, by_share, row_items, first_item, place, held
            )
        loss_of[row] = total
        violated[row] = broken


@compiled
def map_block(
    bits, conditions, condition_starts, items, item_starts, first_item, before, starts, label_at, size, weight,
    by_share, values, is_number, low, high, missing, held_values, domain, cost, weights, items_weight, loss,
    listed, order, prefer, digits, class_of, loss_of, legitimate, violated,
):  # fmt: skip
    """Write for each row its class (by number), its loss, how many classes are legitimate, what the class breaks."""
    words = bits.shape[1]
    everything = _every_class(words, len(order))
    chosen = np.empty(words, np.uint64)
    planes = np.empty((digits, words), np.uint64)
    longest = 1
    for row in range(len(class_of)):
        longest = max(longest, item_starts[row + 1] - item_starts[row])
    held = np.empty(longest, np.int64)
    for row in range(len(class_of)):
        own = conditions[condition_starts[row] : condition_starts[row + 1]]
        row_items = items[item_starts[row] : item_starts[row + 1]]
        count = _legitimate(bits, own, everything, chosen)
        legitimate[row] = count
        violated[row] = 0
        if count == 0:
            chosen[:] = everything
            violated[row] = _closest(bits, own, planes, chosen)
        winner, best = _cheapest(
            bits, own, row_items, first_item, before, starts, label_at, size, weight, by_share, values, is_number, low,
            high, missing, held_values, domain, cost, weights, items_weight, loss, listed, order, prefer[row], row,
            count == 0, chosen, held,
        )  # fmt: skip
        class_of[row] = order[winner]
        loss_of[row] = best


@inlined
def _cheapest(
    bits, own, row_items, first_item, before, starts, label_at, size, weight, by_share, values, is_number, low, high,
    missing, held_values, domain, cost, weights, items_weight, loss, listed, order, preferred, row, widen,
    chosen, held,
):  # fmt: skip
    """Place and loss of the chosen class that costs the row least; with `widen`, after its cells hold the row."""
    best = np.inf
    winner = -1
    for w in range(len(chosen)):
        # A class cannot cost less than its cells do, and places are in that order.
        if loss[64 * w] > best:
            break
        word = chosen[w]
        while word != 0:
            lowest = word & (~word + ONE)
            word ^= lowest
            place = 64 * w + _ones(lowest - ONE)
            if loss[place] > best:
                break
            total = loss[place]
            if widen:
                total = _widened_loss(bits, own, w, lowest, place, row, values, is_number, low, high, missing,
                                      held_values, domain, cost, weights)  # fmt: skip
            if items_weight > 0.0 and len(row_items) > 0:
                total += items_weight * _item_loss(
                    bits, before, starts, label_at, size, weight, by_share, row_items, first_item, place, held
                )
            if total < best or (total == best and _wins_tie(place, winner, order, preferred, listed)):
                best = total
                winner = place
    return winner, best


@inlined
def _every_class(words, classes):
    """The set of all classes."""
    everything = np.empty(words, np.uint64)
    for w in range(words):
        left = classes - 64 * w
        everything[w] = ALL if left >= 64 else (ONE << np.uint64(left)) - ONE
    return everything


@inlined
def _legitimate(bits, conditions, everything, chosen):
    """Fill `chosen` with the classes that meet all conditions; how many there are."""
    words = len(chosen)
    for w in range(words):
        chosen[w] = everything[w]
    for condition in conditions:
        for w in range(words):
            chosen[w] &= bits[condition, w]
    count = 0
    for w in range(words):
        count += _ones(chosen[w])
    return count


@inlined
def _widened_loss(
    bits, own, w, bit, place, row, values, is_number, low, high, missing, held_values, domain, cost, weights
):
    """Weighted NCP of a class once its cells are widened to hold the row."""
    total = 0.0
    for c in range(values.shape[0]):
        covered = (bits[own[c], w] & bit) != 0
        total += weights[c] * _widened(
            c, place, values[c, row], covered, is_number, low, high, missing, held_values, domain, cost
        )
    return total


@inlined
def _wins_tie(place, winner, order, preferred, listed):
    """Whether a class comes before the winner at the same cost: preferred, fewest items, lowest number."""
    if order[winner] == preferred:
        return False
    if order[place] == preferred or listed[place] < listed[winner]:
        return True
    return listed[place] == listed[winner] and order[place] <= order[winner]


@compiled
def labels_of_rows(bits, items, item_starts, first_item, before, starts, label_at, places, labels):
    """The label of each item of each row under the class at the row's place, -1 where none holds it."""
    for row in range(len(places)):
        for at in range(item_starts[row], item_starts[row + 1]):
            item = items[at]
            if item < 0:
                labels[at] = -1
            else:
                labels[at] = _label(bits, before, starts, label_at, item, first_item, places[row])
