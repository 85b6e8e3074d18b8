"""Groups of equal rows, found about as fast as one group-by.

Guarantees: two rows share a group if and only if they are equal in every column, null being a value and the two zeros
one number; a hash that two different rows share never joins them. The numbers of groups mean nothing, but the same
table always gives the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["Groups", "group_rows"]

Integers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.unsignedinteger[Any]]

# Long tables are grouped in parts of this many rows: that bounds the memory a grouping takes on top of the table.
PART_ROWS = 1 << 20
SAMPLE_ROWS = 2048
REPEATS_OF_FEW_GROUPS = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A partition of rows: the size and the first row of each group.

    `members` lists the rows group by group. It is None where `known_codes`, the group of each row, was found instead:
    whichever is cheaper is kept, and the other one is made when it is asked for.
    """

    sizes: Integers
    first_rows: Integers
    members: Rows | None = field(default=None, repr=False)
    known_codes: Integers | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    @cached_property
    def codes(self) -> Integers:
        """The number of each row's group."""
        if self.known_codes is not None:
            return self.known_codes
        # Half the width while rows are scattered: what costs here is memory, not arithmetic.
        return self.to_rows(np.arange(self.count, dtype=np.uint32)).astype(np.int64)

    def to_rows(self, of_group: NDArray[Any]) -> NDArray[Any]:
        """One value a group in, one value a row out."""
        if self.members is None:
            return of_group[self.codes]
        of_row = np.empty(len(self.members), of_group.dtype)
        of_row[self.members] = np.repeat(of_group, self.sizes)
        return of_row


def group_rows(values: pl.DataFrame) -> Groups:
    """Group the rows by all columns."""
    # Aliases, for a column may be called like one the grouping makes.
    plain = values.select(pl.col(name).alias(f"key{position}") for position, name in enumerate(values.columns))
    if plain.height > SAMPLE_ROWS and _has_many_groups(plain):
        return _group_by_hash(plain)
    return _group_by_value(plain) if plain.height <= PART_ROWS else _group_in_parts(plain)


def _has_many_groups(values: pl.DataFrame) -> bool:
    """Whether a spread-out sample hardly repeats itself."""
    sample = values[np.linspace(0, values.height - 1, SAMPLE_ROWS).astype(np.int64)]
    return SAMPLE_ROWS - sample.n_unique() < REPEATS_OF_FEW_GROUPS


def _group_by_value(values: pl.DataFrame) -> Groups:
    lists = values.with_row_index("row").group_by(values.columns, maintain_order=True).agg(pl.col("row"))["row"]
    sizes = lists.list.len().to_numpy().astype(np.int64)
    members = lists.explode().to_numpy()
    first_rows = members[np.cumsum(sizes) - sizes].astype(np.int64)
    return Groups(sizes=sizes, first_rows=first_rows, members=members)


def _group_in_parts(values: pl.DataFrame) -> Groups:
    """Group part by part, then group the first rows of all parts' groups."""
    codes = np.empty(values.height, np.int64)
    heads: list[Integers] = []
    known = 0
    for start in range(0, values.height, PART_ROWS):
        part = _group_by_value(values.slice(start, PART_ROWS))
        codes[start : start + PART_ROWS] = part.codes + known
        heads.append(part.first_rows + start)
        known += part.count
    all_heads = np.concatenate(heads)
    merged = _group_by_value(values[all_heads])
    merged_codes = merged.codes
    for start in range(0, values.height, PART_ROWS):
        codes[start : start + PART_ROWS] = merged_codes[codes[start : start + PART_ROWS]]
    sizes = np.bincount(codes, minlength=merged.count).astype(np.int64, copy=False)
    return Groups(sizes=sizes, first_rows=all_heads[merged.first_rows], known_codes=codes)


def _group_by_hash(values: pl.DataFrame) -> Groups:
    """Sort the hashes of the rows, then compare every row with the first of its group: equal hashes prove nothing."""
    hashes = _row_hashes(values)
    members = hashes.arg_sort().to_numpy()
    ordered = hashes.to_numpy()[members]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    del ordered
    first_rows = np.minimum.reduceat(members, starts)
    groups = Groups(
        sizes=np.diff(starts, append=values.height), first_rows=first_rows.astype(np.int64), members=members
    )
    first_of_row = pl.Series(groups.to_rows(first_rows))
    if any(column.ne_missing(column.gather(first_of_row)).any() for column in values):
        return _group_by_value(values)
    return groups


def _row_hashes(values: pl.DataFrame) -> pl.Series:
    return values.hash_rows()
