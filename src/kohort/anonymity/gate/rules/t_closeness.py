"""t-closeness (Li, Li and Venkatasubramanian, 2007), with k if given.

Protects: in every class that is shared, the sensitive values are spread within t (earth mover's distance) of how they
are spread in the site's whole table, so that knowing the class tells little more than knowing the table. Numbers: the
i-th and j-th of m sorted values are |i - j| / (m - 1) apart, null before all; other columns: all values equally far.
Does not protect: against other columns; nor is the distance taken to the shared rows alone, whose spread is another.
Classes pass or stay whole. The spread is judged on the rows at hand even when the counts for k come from elsewhere.
`strict` is about k alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import ROUNDING, GateInput, GateRule, Mask, ValueCounts, count_values

__all__ = ["RULE"]


def decide(given: GateInput) -> Mask:
    """Share a row if its class is large enough and spread like the table."""
    found = count_values(given)
    distance = _ordered_distance(found) if given.sensitive_kind == "number" else _equal_distance(found)
    passes: Mask = (distance <= (given.t or 0.0) + ROUNDING) & given.large_enough(given.k)
    return given.keys.to_rows(passes)


def _equal_distance(found: ValueCounts) -> NDArray[np.float64]:
    """What has to be moved: all that a class has more of than the table."""
    excess = found.share - (found.table / found.table.sum())[found.value]
    return found.sum_by_group(np.maximum(excess, 0.0))


def _ordered_distance(found: ValueCounts) -> NDArray[np.float64]:
    """The area between two cumulative distributions over the places 0 to m - 1 of the values.

    A class's distribution stays level from one of its values to the next, while the table's rises through that level at
    most once: the area on both sides of that place follows from sums of the table's distribution.
    """
    places = len(found.table)
    if places == 1:
        return np.zeros(found.groups)
    table = np.cumsum(found.table) / found.table.sum()
    area_before = np.concatenate(([0.0], np.cumsum(table)))  # of the places below each place
    opens = np.concatenate(([True], found.group[1:] != found.group[:-1]))
    so_far = np.cumsum(found.count)
    before_group = (so_far - found.count)[opens]
    level = (so_far - before_group[found.group]) / found.sum_by_group(found.count)[found.group]
    end = np.append(found.value[1:], places)
    end[np.append(opens[1:], True)] = places
    crossing = np.clip(np.searchsorted(table, level), found.value, end)
    above = level * (crossing - found.value) - (area_before[crossing] - area_before[found.value])
    below = area_before[end] - area_before[crossing] - level * (end - crossing)
    # Before its first value a class has nothing, so the table's own area counts.
    unreached = np.where(opens, area_before[found.value], 0.0)
    return np.maximum(found.sum_by_group(above + below + unreached) / (places - 1), 0.0)


RULE = GateRule(name="t-closeness", decide=decide, needs=("t",), takes=("k",), needs_sensitive=True, by_group=True)
