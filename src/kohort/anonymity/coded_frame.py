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

from kohort.anonymity.checker.sensitive import value_codes
from kohort.anonymity.row_keys import fold_codes, key_order

__all__ = ["TEXTS", "CodedFrame", "OrderedClasses"]

Integers = NDArray[np.integer[Any]]

# Times the rows: a range of whole numbers that is small enough to have an entry each.
SMALL_RANGE = 4
TEXTS = (pl.String, pl.Categorical)


@dataclass(frozen=True, eq=False)
class OrderedClasses:
    """Classes of rows.

    Attributes:
        of_row: Class of each row.
        order: The rows in the order of their classes.
        first: Where each class begins in that order.
    """

    of_row: NDArray[np.int64]
    order: NDArray[np.int64]
    first: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each class."""
        return np.diff(self.first, append=len(self.order))

    def summed(self, counts: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Rows of each class, where each row stands for `counts` of them; for one when None."""
        return self.sizes if counts is None else np.add.reduceat(counts[self.order], self.first)

    def reduced(self, function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        """A figure of each class, such as the largest of its values, which are in the order of classes."""
        found: NDArray[Any] = function.reduceat(values, self.first)
        return found


@dataclass(frozen=True, eq=False)
class CodedFrame:
    """A table and the codes of its columns, each found when it is first asked for.

    Attributes:
        frame: The table.
        counts: How many rows each row stands for, where equal ones are given once; None: each is one.
    """

    frame: pl.DataFrame
    counts: NDArray[np.int64] | None = None
    _codes: dict[str, tuple[Integers, int]] = field(default_factory=dict)

    @cached_property
    def height(self) -> int:
        """Number of rows of the frame."""
        return self.frame.height

    @property
    def rows(self) -> int:
        """Number of rows that they stand for."""
        return self.height if self.counts is None else int(self.counts.sum())

    def codes(self, name: str, rows: NDArray[np.int64] | None = None) -> Integers:
        """The code of each row, or of some rows in their order, in a column."""
        found = self._coded(name)[0]
        return found if rows is None else found[rows]

    def distinct(self, name: str) -> int:
        """Number of values of a column, null included."""
        return self._coded(name)[1]

    def classes(self, names: Sequence[str]) -> OrderedClasses:
        """Classes of rows that have the same values in some columns."""
        parts = ((self.distinct(name), self.codes(name)) for name in names)
        order, first = key_order(fold_codes(parts, np.zeros(self.height, np.int64)))
        of_row = np.empty(self.height, np.int64)
        of_row[order] = np.repeat(np.arange(len(first)), np.diff(first, append=self.height))
        return OrderedClasses(of_row, order, first)

    def _coded(self, name: str) -> tuple[Integers, int]:
        if name not in self._codes:
            self._codes[name] = _codes_of(self.frame[name])
        return self._codes[name]


def _codes_of(column: pl.Series) -> tuple[Integers, int]:
    """Codes without gaps and their number: texts by one pass over a hash table, all else by rank."""
    if column.dtype in TEXTS:
        numbers = column.cast(pl.Categorical).to_physical()
    elif column.dtype.is_integer() and column.dtype != pl.UInt64:
        whole = column.cast(pl.Int64)
        low, high = whole.min(), whole.max()
        if not isinstance(low, int) or not isinstance(high, int) or high - low > SMALL_RANGE * len(column):
            return value_codes(column)
        numbers = (whole - low).cast(pl.UInt32)
    else:
        return value_codes(column)
    last = numbers.max()
    missing = last + 1 if isinstance(last, int) else 0
    codes = (numbers.fill_null(missing) if column.null_count() else numbers).to_numpy()
    held = np.bincount(codes, minlength=missing + 1) > 0
    count = int(np.count_nonzero(held))
    if held[:count].all():
        return codes, count
    ranks = np.cumsum(held) - 1
    dense: Integers = ranks.astype(np.uint16 if count <= 1 << 16 else np.uint32)[codes]
    return dense, count
