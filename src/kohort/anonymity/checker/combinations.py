"""The distinct combinations of values of a table, and how many rows have each: what every measure needs of it.

A table is read in slices, and each slice is counted by one group-by. A table of many rows usually has few combinations,
so that the rest of the checker's work does not grow with its rows. Where the combinations themselves do not fit, the
table is read again, one part of its classes at a time: rows belong to a part by a hash of their quasi-identifiers, so
that a class is in one part as a whole.

Guarantees: counts are exact. Rows of equal values have equal hashes, and rows of equal hashes are compared by their
values. Memory is bounded by LARGEST_PART bytes of combinations, a few times over, however many rows there are; the
distinct values of one sensitive column are held as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import Classes, group_rows, require_columns, require_values
from kohort.errors import DataError

__all__ = ["ClassPart", "ColumnValues", "Combinations", "combine"]

Integers = NDArray[np.int64]

SLICE_ROWS = 1 << 21
LARGEST_PART = 1 << 27
SMALL_TABLE = 1 << 14
# Rows up to which a table is counted at once: streaming takes less processor time and memory, but longer to begin.
COUNTED_AT_ONCE = 1 << 16
COUNT, PLACE = "count", "place"


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassPart:
    """Some classes of a table, each as a whole, by their distinct combinations.

    Attributes:
        classes: The class of each combination; sizes count rows.
        order: The combinations in the order of their classes.
        rows: Rows of each combination.
        sensitive: Values of each sensitive column, one per combination.
        persons: A number for whom each combination is about; None where nobody is named.
    """

    classes: Classes
    order: Integers
    rows: Integers
    sensitive: Mapping[str, pl.Series]
    persons: Integers | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnValues:
    """The distinct values of one column in the whole table.

    Attributes:
        known: The values, rising, without null.
        counts: Rows or persons of each value; null, if there is one, comes first.
    """

    known: pl.Series
    counts: Integers

    @property
    def missing(self) -> bool:
        """Whether null is one of the values."""
        return len(self.counts) > len(self.known)


@dataclass(frozen=True, kw_only=True, eq=False)
class Combinations:
    """A table by its distinct combinations of quasi-identifiers, sensitive values and, where named, persons.

    Attributes:
        table: The columns that are looked at, renamed by `names`.
        names: The name of each column in `table`.
        quasi: Names of the quasi-identifiers.
        sensitive: Names of the sensitive columns.
        persons: Column that says whom a row is about.
        rows: Rows of the table.
        whole: All combinations, where they fit into memory; else None.
        count: Number of parts that the combinations are read in.
    """

    table: pl.LazyFrame = field(repr=False)
    names: Mapping[str, str]
    quasi: tuple[str, ...]
    sensitive: tuple[str, ...]
    persons: str | None
    rows: int
    whole: pl.DataFrame | None = field(repr=False)
    count: int = 1

    def parts(self) -> Iterator[ClassPart]:
        """The classes of the table, part by part."""
        if self.whole is not None:
            yield self._part(self.whole)
            return
        for number in range(self.count):
            mine = self.table.filter(_hash(self._keys()) % self.count == number)
            found = _counted(mine, list(self.names.values()), self.rows)
            if found.height:
                yield self._part(found)

    def values(self, name: str) -> ColumnValues:
        """The values of a column in the whole table, with the rows, or the persons, that have each."""
        if self.persons is None:
            found = self._by_value(name)
        else:
            found = self._persons_by_value(self.names[name], self.names[self.persons])
        found = found.sort(PLACE, nulls_last=False)
        return ColumnValues(known=found[PLACE].drop_nulls(), counts=found[COUNT].to_numpy().astype(np.int64))

    def sizes(self, name: str) -> Integers:
        """Rows of each value of a column."""
        return self._by_value(name)[COUNT].to_numpy().astype(np.int64)

    def _by_value(self, name: str) -> pl.DataFrame:
        column = self.names[name]
        if self.whole is None:
            found = _counted(self.table.select(column), [column], self.rows)
        else:
            found = self.whole.group_by(column).agg(pl.col(COUNT).sum())
        return found.rename({column: PLACE})

    def _persons_by_value(self, column: str, person: str) -> pl.DataFrame:
        pairs = [column] if column == person else [column, person]
        if self.whole is not None:
            return self.whole.select(pairs).unique().group_by(pl.col(column).alias(PLACE)).agg(pl.len().alias(COUNT))
        found = []
        for number in range(self.count):
            mine = self.table.select(pairs).filter(_hash([person]) % self.count == number).unique()
            found.append(_counted(mine.select(column), [column], self.rows))
        return pl.concat(found).group_by(pl.col(column).alias(PLACE)).agg(pl.col(COUNT).sum())

    def _keys(self) -> list[str]:
        return [self.names[name] for name in self.quasi]

    def _part(self, found: pl.DataFrame) -> ClassPart:
        order, rising = _in_classes(found, self._keys())
        of_row = np.empty(found.height, np.int64)
        of_row[order] = rising
        rows = found[COUNT].to_numpy().astype(np.int64)
        return ClassPart(
            classes=Classes(of_row, np.bincount(of_row, weights=rows).astype(np.int64)),
            order=order,
            rows=rows,
            sensitive={name: found[self.names[name]].alias(name) for name in self.sensitive},
            persons=None if self.persons is None else group_rows(found, [self.names[self.persons]]).of_row,
        )


def combine(
    table: pl.LazyFrame,
    *,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    persons: str | None = None,
    where: pl.Expr | None = None,
) -> Combinations:
    """Count the combinations of a table.

    Args:
        table: The table, of the types that `kohort.tables.frames.from_native` gives.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.
        sensitive: Names of the sensitive columns.
        persons: Column that says whom a row is about.
        where: Which rows are looked at; None looks at all of them.

    Returns:
        The combinations.

    Raises:
        ConfigError: Columns are given as one string.
        DataError: The table has no rows, lacks a column, a column holds lists, or a row does not say whom it is about.
    """
    keys, private = require_columns(table, quasi), require_columns(table, sensitive)
    require_values(table, keys)
    for name in private:
        if isinstance(table.collect_schema()[name], pl.List):
            raise DataError(f"column {name!r} holds lists", hint="A sensitive column has one value per row")
    used = dict.fromkeys((*keys, *private, *(() if persons is None else require_columns(table, [persons]))))
    names = {name: f"column{position}" for position, name in enumerate(used)}
    chosen = [pl.col(name).alias(alias) for name, alias in names.items()]
    height = int(table.select(pl.len()).collect(engine="streaming").item())
    whole, count = _read(table, where, chosen, list(names.values()), height)
    kept = (table if where is None else table.filter(where)).select(chosen)
    rows = height
    if where is not None:
        rows = int(kept.select(pl.len()).collect(engine="streaming").item() if whole is None else whole[COUNT].sum())
    if rows == 0:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    if persons is not None:
        _check_persons(kept, names[persons], persons)
    return Combinations(
        table=kept, names=names, quasi=keys, sensitive=private, persons=persons, rows=rows, whole=whole, count=count
    )


def _read(
    table: pl.LazyFrame, where: pl.Expr | None, chosen: list[pl.Expr], columns: list[str], height: int
) -> tuple[pl.DataFrame | None, int]:
    """All combinations and 1; or None and the number of parts that each are small enough."""
    found: pl.DataFrame | None = None
    for start in range(0, height, SLICE_ROWS):
        rows = table.slice(start, SLICE_ROWS)
        piece = _counted((rows if where is None else rows.filter(where)).select(chosen), columns, height)
        found = piece if found is None else _merged(found, piece, columns)
        seen = min(start + SLICE_ROWS, height)
        parts = math.ceil(found.estimated_size() * height / seen / LARGEST_PART)
        # Where most rows seen have a combination of their own, those to come will: no need to hold what is too much.
        if found.estimated_size() > LARGEST_PART or (parts > 1 and 2 * found.height > seen):
            return None, parts
    return found, 1


def _merged(found: pl.DataFrame, piece: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    both = pl.concat([found, piece]).lazy()
    total = pl.col(COUNT).sum()
    return (both.group_by(columns).agg(total) if columns else both.select(total)).collect(engine="streaming")


def _counted(rows: pl.LazyFrame, columns: list[str], height: int) -> pl.DataFrame:
    """Each combination once, with its rows; categories, which are counted faster, as their texts."""
    count = pl.len().cast(pl.Int64).alias(COUNT)
    counted = rows.group_by(columns).agg(count) if columns else rows.select(count)
    found = counted.collect(engine="in-memory" if height <= COUNTED_AT_ONCE else "streaming")
    return found.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _hash(columns: Sequence[str]) -> pl.Expr:
    """A number that rows of equal values share; without columns, all rows do."""
    return pl.struct(columns).hash() if columns else pl.lit(0, dtype=pl.UInt64)


def _in_classes(found: pl.DataFrame, keys: list[str]) -> tuple[Integers, Integers]:
    """An order in which the combinations of a class stand together, and the class of each in that order.

    Combinations are sorted by the hash of their key, and those of one hash are compared. Where two keys share a hash,
    all are grouped by their values.
    """
    if not keys:
        return np.arange(found.height), np.zeros(found.height, np.int64)
    if found.height <= SMALL_TABLE:
        return _by_value(found, keys)
    hashes = found.select(_hash(keys)).to_series()
    order = hashes.arg_sort().to_numpy().astype(np.int64)
    ordered = hashes.to_numpy()[order]
    alike = np.flatnonzero(ordered[1:] == ordered[:-1])
    first, second = found[order[alike]].select(keys), found[order[alike + 1]].select(keys)
    if any(one.ne_missing(other).any() for one, other in zip(first, second, strict=True)):
        return _by_value(found, keys)
    return order, np.cumsum(np.concatenate(([False], ordered[1:] != ordered[:-1])))


def _by_value(found: pl.DataFrame, keys: list[str]) -> tuple[Integers, Integers]:
    of_row = group_rows(found, keys).of_row
    order = np.argsort(of_row, kind="stable")
    return order, of_row[order]


def _check_persons(table: pl.LazyFrame, column: str, name: str) -> None:
    silent = int(table.select(pl.col(column).null_count()).collect(engine="streaming").item())
    if silent:
        hint = "Fill the column in, or drop these rows: nobody can be counted in them"
        raise DataError(f"{silent:,} rows do not say in column {name!r} whom they are about", hint=hint)
