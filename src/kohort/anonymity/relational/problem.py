"""A table as the anonymisation algorithms see it: coded columns, the rule to meet, and a partition into classes.

Quasi-identifiers become small whole numbers. A number becomes its rank among the sorted distinct values, null first. A
category becomes its rank by falling frequency (ties by value), so that a cut between codes separates common values from
rare ones; a date keeps its order, and with `by_value` every category does. Null is a value.

Guarantees: `values[code]` is the value a code stands for; the loss of a class is the normalised certainty penalty: for
numbers the covered range, 1 where null and numbers mix; for categories the share of the values, 0 for a single one. In
a `Partition` every row is in exactly one class, and classes are numbered without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.codes import ranked
from kohort.anonymity.relational.rule import Rule, SensitiveColumns, SensitiveRequirements
from kohort.errors import ConfigError, DataError, counted, nearest

__all__ = ["CodedColumn", "CodedTable", "Codes", "Integers", "Partition", "Problem", "code_table"]

Codes = NDArray[np.uint16] | NDArray[np.uint32]
Integers = NDArray[np.int64]

# A null lies one whole range below the smallest number, so that mixing the two costs everything.
NULL_POINT = -1.0
# Times the rows: class numbers that are small enough to have an entry each.
FEW_NUMBERS = 4


@dataclass(frozen=True)
class CodedColumn:
    """One quasi-identifier. `points` places the values of a number, a date or an ordered category in [0, 1], and
    `is_number` says that there are such; empty for other categories."""

    name: str
    is_number: bool
    values: pl.Series
    points: NDArray[np.float64]

    @property
    def distinct(self) -> int:
        """Number of values, null included."""
        return len(self.values)

    @property
    def has_null(self) -> bool:
        """Whether null is one of the values."""
        return self.values.null_count() > 0


@dataclass(frozen=True)
class CodedTable:
    """All quasi-identifiers; `codes[c, r]` belongs to column c and row r."""

    columns: tuple[CodedColumn, ...]
    codes: Codes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[1])

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """Kind of each column."""
        return np.array([column.is_number for column in self.columns], dtype=np.bool_)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """Number of values of each column."""
        return np.array([column.distinct for column in self.columns], dtype=np.int64)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each column begins in `points`."""
        return np.concatenate(([0], np.cumsum(self.distinct))).astype(np.int64)

    @property
    def points(self) -> NDArray[np.float64]:
        """Places of all values, column after column; 0 for categories."""
        parts = [column.points if column.is_number else np.zeros(column.distinct) for column in self.columns]
        return np.concatenate(parts)


@dataclass(frozen=True)
class Partition:
    """Rows in the order of their classes: class j is `order[starts[j]:starts[j + 1]]`.

    Example:
        >>> found = Partition.of_labels(np.array([7, 3, 7]))
        >>> (found.count, found.labels.tolist())
        (2, [1, 0, 1])
    """

    order: Integers
    starts: Integers

    @classmethod
    def of_labels(cls, labels: Integers) -> Partition:
        """From a class number for each row; numbers need not be dense."""
        if len(labels) and labels.min() >= 0 and labels.max() < FEW_NUMBERS * len(labels):
            counts = np.bincount(labels)
            dense, sizes = (np.cumsum(counts > 0) - 1)[labels], counts[counts > 0]
        else:
            _, dense, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        # Numbers of 16 bits are sorted by their digits, which takes a fraction of the time.
        keys = dense.astype(np.uint16) if len(sizes) <= 1 << 16 else dense
        return cls(np.argsort(keys, kind="stable"), np.concatenate(([0], np.cumsum(sizes))))

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
    """A coded table, the rule its classes must meet, and what generalising costs.

    Attributes:
        table: The coded quasi-identifiers.
        sensitive: The coded sensitive columns.
        rule: What every class must meet.
        weights: How much the loss of each quasi-identifier counts; all alike when empty.
        max_set: Most values that a released set names: a class of more loses as much as by a suppressed cell. None is
            any number.
    """

    table: CodedTable
    sensitive: SensitiveColumns
    rule: Rule
    weights: tuple[float, ...] = ()
    max_set: int | None = None

    def with_k(self, k: int) -> Problem:
        """The same problem with classes of at least k rows."""
        return replace(self, rule=replace(self.rule, k=k))

    def columns(self, rows: Integers | None = None) -> Codes:
        """A fresh array of all codes, of some rows only if given: quasi-identifiers, then what rules count."""
        quasi, private = self.table.codes, self.sensitive.codes
        if self.requirements is None:
            return quasi.copy() if rows is None else quasi[:, rows]
        fits = private.max(initial=0) <= np.iinfo(quasi.dtype).max
        joined: Any = np.concatenate([quasi, private]).astype(quasi.dtype if fits else np.uint32, copy=False)
        found: Codes = joined if rows is None else joined[:, rows]
        return found

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Quasi-identifiers as the loops take them: count, kinds, numbers of values, offsets, points, prices."""
        table = self.table
        return len(table.columns), table.is_number, table.distinct, table.offsets, table.points, self.prices

    @cached_property
    def cut_shape(self) -> tuple[Any, ...]:
        """The same for cuts of large parts, which would all be beyond `max_set` alike."""
        return self.shape if self.max_set is None else replace(self, max_set=None).shape

    def weight(self, position: int) -> float:
        """How much the loss of a quasi-identifier counts."""
        return self.weights[position] if self.weights else 1.0

    @cached_property
    def prices(self) -> NDArray[np.float64]:
        """Loss of a category by the number of values a class has, from 0 on; of a number entry 1 is its weight."""
        parts = []
        for position, column in enumerate(self.table.columns):
            held = np.arange(column.distinct + 2)
            price = np.where(held > 1, held / column.distinct, 0.0)
            if column.is_number:
                price[1] = 1.0
            elif self.max_set is not None and not column.values.dtype.is_temporal():
                price[(held > self.max_set) & (held > 1)] = 1.0
            parts.append(price * self.weight(position))
        return np.concatenate(parts)

    @cached_property
    def requirements(self) -> SensitiveRequirements | None:
        """What the compiled loops judge the sensitive values of a class by; None for a rule of k alone."""
        return SensitiveRequirements.of(self.rule, self.sensitive)

    def rule_test(self) -> Callable[[Integers], bool]:
        """A function that says whether some rows, as a class, meet the rule."""
        k, requirements = self.rule.k, self.requirements
        if requirements is None:
            return lambda rows: len(rows) >= k
        columns = self.columns()
        scratch = np.zeros(requirements.offsets[-1], np.int64), np.empty(self.table.rows, np.int64)

        def met(rows: Integers) -> bool:
            from kohort.anonymity.relational.class_kernel import rows_meet

            return len(rows) >= k and bool(rows_meet(np.ascontiguousarray(columns[:, rows]), requirements, *scratch))

        return met

    def losses(self, partition: Partition) -> NDArray[np.float64]:
        """Loss of each class: its rows times their penalty, summed over the quasi-identifiers."""
        from kohort.anonymity.relational.class_kernel import classes_loss

        ordered = np.ascontiguousarray(self.table.codes[:, partition.order])
        found: NDArray[np.float64] = classes_loss(ordered, partition.starts, *self.shape)
        return found

    def mean_loss(self, partition: Partition) -> float:
        """Loss of the whole partition: the mean over rows and quasi-identifiers."""
        return float(self.losses(partition).sum()) / (self.table.rows * len(self.table.columns))


def code_table(
    frame: pl.DataFrame,
    quasi: Sequence[str],
    *,
    by_value: bool = False,
    ordered: Mapping[str, Sequence[str]] | None = None,
    counts: Integers | None = None,
) -> CodedTable:
    """Code the quasi-identifiers of a table.

    Args:
        frame: The table.
        quasi: Names of the quasi-identifiers.
        by_value: Code categories in the order of their values instead of by falling frequency.
        ordered: The categories of some columns in their order: equal steps apart, so that neighbours join first.
        counts: How many rows each row stands for, where equal ones are given once; 1 each when None.

    Returns:
        The coded columns.

    Raises:
        ConfigError: No quasi-identifier is named.
        DataError: The table has no rows, lacks a column, a column holds lists, numbers without a finite range or
            different times within a microsecond, or an order lacks a value.
    """
    names = tuple(dict.fromkeys(quasi))
    if not names:
        raise ConfigError("no quasi-identifier is named", hint="Name at least one column")
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}", hint=nearest(absent[0], frame.columns))
    if frame.height == 0:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    orders = ordered or {}
    coded = [
        _code_ordered(frame[name], orders[name]) if name in orders else _code(frame[name], counts, by_value=by_value)
        for name in names
    ]
    widest = max(column.distinct for column, _ in coded)
    codes = np.empty((len(coded), frame.height), dtype=np.uint16 if widest <= 1 << 16 else np.uint32)
    for position, (_, found) in enumerate(coded):
        codes[position] = found
    return CodedTable(tuple(column for column, _ in coded), codes)


def _code(column: pl.Series, counts: Integers | None, *, by_value: bool) -> tuple[CodedColumn, NDArray[Any]]:
    if isinstance(column.dtype, pl.List):
        hint = "Declare it as items, or leave it out of the quasi-identifiers"
        raise DataError(f"quasi-identifier {column.name!r} holds lists", hint=hint)
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_unit == "ns" and _tells_nanoseconds(column):
        hint = "Write its times to the microsecond"
        raise DataError(f"quasi-identifier {column.name!r} has different times within a microsecond", hint=hint)
    if column.dtype.is_numeric() or (column.dtype in (pl.Date, pl.Datetime) and not by_value):
        return _code_number(column)
    return _code_category(column, counts, by_value=by_value or column.dtype.is_temporal())


def _tells_nanoseconds(column: pl.Series) -> bool:
    """Whether two times are the same microsecond, which is the smallest unit of labels and intervals."""
    times = column.to_physical()
    return bool((times % 1000 != 0).any()) and times.n_unique() > (times // 1000).n_unique()


def _code_ordered(column: pl.Series, order: Sequence[str]) -> tuple[CodedColumn, Integers]:
    ranks = column.cast(pl.String).cast(pl.Enum(list(order)), strict=False).to_physical()
    lacking = ranks.null_count() - column.null_count()
    if lacking:
        hint = "List every category, in their order"
        raise DataError(
            f"column {column.name!r} has {counted(lacking, 'row')} with a value that its order lacks", hint=hint
        )
    known = ranks.drop_nulls().unique().sort()
    points = known.cast(pl.Float64).to_numpy() / max(len(order) - 1, 1)
    missing = int(column.null_count() > 0)
    dense = (ranks.rank("dense").cast(pl.Int64) - 1 + missing).fill_null(0).to_numpy()
    values = pl.Series(column.name, [None] * missing + [order[at] for at in known.to_list()], dtype=pl.String)
    return CodedColumn(column.name, True, values, np.concatenate((np.full(missing, NULL_POINT), points))), dense


def _code_number(column: pl.Series) -> tuple[CodedColumn, NDArray[Any]]:
    codes, known = ranked(column)
    missing = column.null_count() > 0
    present = known.drop_nulls() if missing else known
    floats = (present if present.dtype.is_numeric() else present.to_physical()).cast(pl.Float64).to_numpy()
    extent = float(floats[-1]) - float(floats[0]) if len(floats) else 0.0
    if not math.isfinite(extent):
        hint = "Correct its largest and smallest values, or drop it"
        raise DataError(f"the numbers of column {column.name!r} are too far apart to be compared", hint=hint)
    points = (floats - floats[0]) / (extent or 1.0) if len(floats) else floats
    if missing:
        points = np.concatenate(([NULL_POINT], points))
    return CodedColumn(column.name, True, known, points), codes


def _code_category(column: pl.Series, counts: Integers | None, *, by_value: bool) -> tuple[CodedColumn, NDArray[Any]]:
    ranks, known = ranked(column)
    if not by_value:
        order = np.argsort(-np.bincount(ranks, counts, minlength=len(known)), kind="stable")
        place = np.empty(len(order), ranks.dtype)
        place[order] = np.arange(len(order))
        ranks, known = place[ranks], known[order]
    return CodedColumn(column.name, False, known, np.zeros(0)), ranks
