"""Two releases of the same rows: how small a class becomes for somebody who holds both.

Guarantees: exact counts; no result holds a cell value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kohort.anonymity.checker.classes import as_frame, group_rows
from kohort.errors import DataError

__all__ = ["JointRelease", "joint_release"]


@dataclass(frozen=True, kw_only=True)
class JointRelease:
    """What two releases of the same rows show together.

    Attributes:
        k: Rows of the smallest joint class: the rows that share their class in both releases.
        promised: The smaller k of the two releases by themselves.
        isolated: Rows whose two classes have fewer than `promised` rows in common.
        rows: Rows of each release.
    """

    k: int
    promised: int
    isolated: int
    rows: int


def joint_release(first: Any, second: Any, *, quasi: Sequence[str], promised: int | None = None) -> JointRelease:
    """Measure what two releases show together: k-anonymity of each does not compose.

    Args:
        first: A released table.
        second: Another release of the same rows, in the same order.
        quasi: The quasi-identifiers; each table may lack some of them.
        promised: The k that each release promises; None: the smaller k of the two releases by themselves.

    Returns:
        The smallest joint class, and how many rows are in joint classes smaller than promised.

    Raises:
        DataError: The tables have different numbers of rows, or one has none of the columns.

    Example:
        >>> import polars as pl
        >>> one = pl.DataFrame({"age": ["20-29", "20-29", "30-39", "30-39"]})
        >>> two = pl.DataFrame({"age": ["20-24", "25-39", "25-39", "20-24"]})
        >>> together(one, two, quasi=["age"]).isolated
        4
    """
    tables = [as_frame(first), as_frame(second)]
    if tables[0].height != tables[1].height:
        hint = "Give two releases of the same rows, in the same order"
        raise DataError(f"one release has {tables[0].height:,} rows, the other {tables[1].height:,}", hint=hint)
    parts = []
    for table in tables:
        columns = [name for name in quasi if name in table.columns]
        if not columns:
            raise DataError("a release has none of the quasi-identifiers", hint="Name columns that it has")
        parts.append(group_rows(table, columns))
    pairs = parts[0].of_row * parts[1].count + parts[1].of_row
    _, place, sizes = np.unique(pairs, return_inverse=True, return_counts=True)
    least = min(int(part.sizes.min()) for part in parts) if promised is None else promised
    isolated = int((sizes[place] < least).sum())
    return JointRelease(k=int(sizes.min()), promised=least, isolated=isolated, rows=tables[0].height)
