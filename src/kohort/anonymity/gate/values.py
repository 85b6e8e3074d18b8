"""How the sensitive values are spread over the groups of a gate: what l-diversity and t-closeness judge.

Guarantee: where persons are known, a person counts once for each value in a group, however many rows say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import GateInput
from kohort.errors import ConfigError

__all__ = ["ROUNDING", "ValueCounts", "count_values"]

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

# Sums of rounded shares may miss a bound that they meet exactly.
ROUNDING = 1e-10


@dataclass(frozen=True)
class ValueCounts:
    """One entry for every value that occurs in a group, by group, then by value. `table` counts the whole table."""

    group: Integers
    value: Integers
    count: Integers
    groups: int
    table: Integers

    @property
    def share(self) -> Floats:
        """Share of each entry's value in its group."""
        found: Floats = self.count / self.sum_by_group(self.count)[self.group]
        return found

    def sum_by_group(self, numbers: NDArray[np.generic]) -> Floats:
        """One number an entry in, their sum a group out."""
        return np.bincount(self.group, weights=numbers, minlength=self.groups).astype(np.float64)


def count_values(given: GateInput) -> ValueCounts:
    """Count rows, or distinct persons, by group and value."""
    if given.sensitive is None:
        raise ConfigError("the sensitive values are missing", hint="Name a sensitive column")
    distinct = int(given.sensitive.max()) + 1
    pairs = given.keys.codes * distinct + given.sensitive
    if given.persons is not None:
        _, numbered = np.unique(pairs, return_inverse=True)
        _, kept = np.unique(numbered * (int(given.persons.max()) + 1) + given.persons, return_index=True)
        pairs = pairs[kept]
    entries, count = np.unique(pairs, return_counts=True)
    group, value = np.divmod(entries, distinct)
    table = np.bincount(value, weights=count, minlength=distinct).astype(np.int64)
    return ValueCounts(group=group, value=value, count=count.astype(np.int64), groups=given.keys.groups, table=table)
