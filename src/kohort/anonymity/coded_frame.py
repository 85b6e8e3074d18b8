"""A table whose columns are coded once, however many figures are computed from them.

Guarantee: two rows have the same code in a column if and only if they have the same value, null being one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.codes import ranked

__all__ = ["CodedFrame", "OrderedClasses"]

Integers = NDArray[np.int64]

LARGEST_KEY = 1 << 62


@dataclass(frozen=True, eq=False)
class OrderedClasses:
    """Classes of rows.

    Attributes:
        of_row: Class of each row.
        order: The rows in the order of their classes.
        first: Where each class begins in that order.
    """

    of_row: Integers
    order: Integers
    first: Integers

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first)

    def reduced(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """A figure of each class, such as the largest of its values."""
        found: NDArray[Any] = function.reduceat(values[self.order], self.first)
        return found


@dataclass(frozen=True, eq=False)
class CodedFrame:
    """A table and the codes of its columns, each found when it is first asked for."""

    frame: pl.DataFrame
    _codes: dict[str, tuple[Integers, pl.Series]] = field(default_factory=dict)

    @cached_property
    def height(self) -> int:
        """Number of rows."""
        return self.frame.height

    def codes(self, name: str, rows: NDArray[np.int64] | None = None) -> Integers:
        """The code of each row, or of some rows, in a column."""
        found = self._coded(name)[0]
        return found if rows is None or len(rows) == len(found) else found[rows]

    def distinct(self, name: str) -> int:
        """Number of values of a column, null included."""
        return len(self._coded(name)[1])

    def values(self, name: str) -> list[Any]:
        """The value of each code."""
        return self._coded(name)[1].to_list()

    def classes(self, names: Sequence[str]) -> OrderedClasses:
        """Classes of rows that have the same values in some columns."""
        key, span = np.zeros(self.height, np.int64), 1
        for name in names:
            codes, count = self.codes(name), self.distinct(name)
            if span * count > LARGEST_KEY:
                known, key = np.unique(key, return_inverse=True)
                span = len(known)
            key, span = key * count + codes, span * count
        order = np.argsort(key)
        begins = np.diff(key[order], prepend=-1) != 0
        of_row = np.empty(self.height, np.int64)
        of_row[order] = np.cumsum(begins) - 1
        return OrderedClasses(of_row, order, np.flatnonzero(begins))

    def _coded(self, name: str) -> tuple[Integers, pl.Series]:
        if name not in self._codes:
            self._codes[name] = ranked(self.frame[name])
        return self._codes[name]
