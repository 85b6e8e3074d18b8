"""Rows that agree in every quasi-identifier.

Guarantee: two rows share a number if and only if all their codes are equal; numbers have no gaps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kohort.anonymity.relational.problem import CodedTable, Integers, Partition

__all__ = ["equal_rows", "exact_classes"]

LARGEST_KEY = 1 << 62


def equal_rows(table: CodedTable, groups: Integers, rows: Integers) -> Integers:
    """A number for each of some rows: those of one group with equal quasi-identifiers share it.

    Args:
        table: The coded quasi-identifiers.
        groups: A group for each of `rows`.
        rows: The rows to look at.

    Returns:
        The numbers, without gaps.
    """
    span = int(groups.max(initial=0)) + 1
    parts = ((column.distinct, codes[rows]) for column, codes in zip(table.columns, table.codes, strict=True))
    return np.unique(_folded(groups, span, parts), return_inverse=True)[1].astype(np.int64)


def exact_classes(table: CodedTable) -> Partition:
    """The classes of rows that agree in every quasi-identifier, as they are before anything is generalised."""
    parts = ((column.distinct, codes) for column, codes in zip(table.columns, table.codes, strict=True))
    key = _folded(np.zeros(table.rows, np.int64), 1, parts)
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    return Partition(order, np.append(starts, table.rows))


def _folded(key: Integers, span: int, parts: Iterable[tuple[int, np.ndarray]]) -> Integers:
    """One number for the codes of a row in all columns, numbered anew wherever it would grow too large."""
    key = key.astype(np.int64, copy=True)
    for distinct, codes in parts:
        if span * distinct > LARGEST_KEY:
            known, key = np.unique(key, return_inverse=True)
            span = len(known)
        key *= distinct
        key += codes
        span *= distinct
    return key
