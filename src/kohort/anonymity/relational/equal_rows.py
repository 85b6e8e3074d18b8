"""Rows that agree in every quasi-identifier.

Guarantee: two rows share a number if and only if all their codes are equal; numbers have no gaps.
"""

from __future__ import annotations

import numpy as np

from kohort.anonymity.relational.problem import CodedTable, Integers, Partition
from kohort.anonymity.row_keys import fold_codes, key_order

__all__ = ["equal_rows", "exact_classes"]


def equal_rows(table: CodedTable, groups: Integers, rows: Integers) -> Integers:
    """A number for each of some rows: those of one group with equal quasi-identifiers share it.

    Args:
        table: The coded quasi-identifiers.
        groups: A group for each of `rows`.
        rows: The rows to look at.

    Returns:
        The numbers, without gaps.
    """
    parts = ((column.distinct, codes[rows]) for column, codes in zip(table.columns, table.codes, strict=True))
    order, first = key_order(fold_codes(parts, groups, int(groups.max(initial=0)) + 1))
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    return numbers


def exact_classes(table: CodedTable) -> Partition:
    """The classes of rows that agree in every quasi-identifier, as they are before anything is generalised.

    Args:
        table: The coded quasi-identifiers.

    Returns:
        One class for each combination of values that occurs.
    """
    parts = ((column.distinct, codes) for column, codes in zip(table.columns, table.codes, strict=True))
    order, starts = key_order(fold_codes(parts, np.zeros(table.rows, np.int64)))
    return Partition(order, np.append(starts, table.rows))
