"""A table divided into classes, and what the compiled loops need to divide it.

Guarantee of a `Partition`: every row is in exactly one class; the numbers of the classes are dense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.coding import CodedTable, Codes
from kohort.anonymity.relational.rule import Demands, Rule, SensitiveColumns

__all__ = ["Partition", "Problem"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """Rows in the order of their classes: class j is `order[starts[j]:starts[j + 1]]`."""

    order: Integers
    starts: Integers

    @classmethod
    def of_labels(cls, labels: Integers) -> Partition:
        """From a class number for each row; numbers need not be dense."""
        _, dense = np.unique(labels, return_inverse=True)
        sizes = np.bincount(dense)
        return cls(np.argsort(dense, kind="stable"), np.concatenate(([0], np.cumsum(sizes))))

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> Integers:
        """Rows of each class."""
        return np.diff(self.starts)

    @cached_property
    def labels(self) -> Integers:
        """Class of each row."""
        found = np.empty(len(self.order), np.int64)
        found[self.order] = np.repeat(np.arange(self.count), self.sizes)
        return found


@dataclass(frozen=True)
class Problem:
    """A coded table and the rule its classes must meet."""

    table: CodedTable
    sensitive: SensitiveColumns
    rule: Rule

    def columns(self, rows: Integers | None = None) -> Codes:
        """A fresh array of all codes, quasi-identifiers first, the sensitive columns below; of some rows only."""
        quasi, private = self.table.codes, self.sensitive.codes
        if not self.rule.looks_at_sensitive:
            return quasi.copy() if rows is None else quasi[:, rows]
        fits = private.max(initial=0) <= np.iinfo(quasi.dtype).max
        joined: Any = np.concatenate([quasi, private]).astype(quasi.dtype if fits else np.uint32, copy=False)
        found: Codes = joined if rows is None else joined[:, rows]
        return found

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Quasi-identifiers as the loops take them: count, kinds, numbers of values, offsets, points."""
        table = self.table
        return len(table.columns), table.is_number, table.distinct, table.offsets, table.points

    @cached_property
    def demands(self) -> Demands | None:
        """Rule and sensitive columns as the loops take them, next to k; None for a rule of k alone."""
        return Demands.of(self.rule, self.sensitive)

    def judge(self) -> Callable[[Integers], bool]:
        """A function that says whether some rows meet the rule as a class."""
        k, demands = self.rule.k, self.demands
        if demands is None:
            return lambda rows: len(rows) >= k
        columns = self.columns()
        scratch = np.zeros(demands.offsets[-1], np.int64), np.empty(self.table.rows, np.int64)

        def met(rows: Integers) -> bool:
            from kohort.anonymity.relational.algorithms.rule_kernel import rows_meet

            return len(rows) >= k and bool(rows_meet(np.ascontiguousarray(columns[:, rows]), demands, *scratch))

        return met

    def losses(self, partition: Partition) -> NDArray[np.float64]:
        """Loss of each class: its rows times their penalty, summed over the quasi-identifiers."""
        from kohort.anonymity.relational.algorithms.loss_kernel import classes_loss

        ordered = np.ascontiguousarray(self.table.codes[:, partition.order])
        found: NDArray[np.float64] = classes_loss(ordered, partition.starts, *self.shape)
        return found

    def mean_loss(self, partition: Partition) -> float:
        """Loss of the whole partition: the mean over rows and quasi-identifiers."""
        return float(self.losses(partition).sum()) / (self.table.rows * len(self.table.columns))
