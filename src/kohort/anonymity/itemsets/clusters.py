"""Clusters of at least k rows by relational loss (Poulis et al., 2013).

Rows with equal quasi-identifiers are one group from the start. Groups with too few rows join, the nearest pair first,
until all have k; what is left over goes to the nearest cluster by the same rule. Tables with many
different rows are cut into blocks first (Mondrian), so that the work stays about the same.

Guarantees: every cluster has k persons; clusters never split rows with equal quasi-identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedTable, Integers, Problem
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

if TYPE_CHECKING:
    from kohort.anonymity.itemsets.cluster_kernel import Shape

__all__ = ["columns_shape", "form_clusters"]

# Pairs of groups that one table may ask for: sets the size of a block.
PAIRS = 8_000_000
LARGEST_BLOCK = 2_048
SMALLEST_BLOCK = 32


def columns_shape(
    table: CodedTable, weights: NDArray[np.float64], levels_by_column: Sequence[HierarchyLevels | None] | None
) -> Shape:
    """The quasi-identifiers in the arrays that compiled loops take.

    Args:
        table: The coded quasi-identifiers.
        weights: Weight of each column's loss.
        levels_by_column: The hierarchy levels of each column, None for a column without a hierarchy; None: no column
            has one.

    Returns:
        Kinds, sizes, places, labels and costs of all columns, column after column.
    """
    from kohort.anonymity.itemsets.cluster_kernel import CATEGORY, HIERARCHY, NUMBER, WORD, Shape

    steps = levels_by_column or [None] * len(table.columns)
    kinds = [
        HIERARCHY if levels is not None else NUMBER if column.is_number else CATEGORY
        for column, levels in zip(table.columns, steps, strict=True)
    ]
    words = [(column.distinct - 1) // WORD + 1 if kind == CATEGORY else 0
             for column, kind in zip(table.columns, kinds, strict=True)]  # fmt: skip
    labels = [np.zeros(0, np.int64) if levels is None else np.concatenate(levels.labels) for levels in steps]
    costs = [np.zeros(0) if levels is None else levels.code_costs for levels in steps]
    begins = np.concatenate(([0], np.cumsum([len(found) for found in labels])))
    return Shape(
        np.array(kinds, dtype=np.int64),
        table.distinct,
        weights,
        table.offsets,
        table.points,
        np.concatenate(([0], np.cumsum(words))).astype(np.int64),
        begins.astype(np.int64),
        np.array([1 if levels is None else levels.count for levels in steps], dtype=np.int64),
        np.concatenate([*labels, np.zeros(1, np.int64)]),
        np.concatenate([*costs, np.zeros(1)]),
    )


def form_clusters(table: CodedTable, shape: Shape, *, k: int, persons: Integers | None) -> Integers:
    """Form clusters of at least k persons, which never split rows with equal quasi-identifiers.

    Args:
        table: The coded quasi-identifiers.
        shape: The same as the compiled loops take them.
        k: Persons of every cluster.
        persons: Number of the person each row is about; None: every row is its own person.

    Returns:
        The cluster of each row; numbers have gaps.
    """
    of_row, codes = _distinct_rows(table)
    owner = np.arange(codes.shape[1])
    for block in _blocks(table, of_row, codes.shape[1], k):
        owner[block] = _joined(codes, block, _holders(of_row, None, len(owner)), owner, k, shape)
    labels = owner[of_row]
    if persons is None:
        return labels
    everyone = np.arange(len(owner))
    while True:
        # Persons of joined groups do not add up, so they are counted anew until all clusters have enough.
        sizes = _holders(labels, persons, len(owner))
        alive = owner == everyone
        if (sizes[alive] >= k).all():
            return labels
        owner = _joined(codes, everyone, sizes, owner, k, shape)
        labels = owner[of_row]


def _joined(codes: Integers, block: Integers, sizes: Integers, owner: Integers, k: int, shape: Shape) -> Integers:
    from kohort.anonymity.itemsets.cluster_kernel import agglomerate

    own = sizes[block]
    if (own >= k).all():
        return owner[block]
    local = np.searchsorted(block, owner[block])
    found: Integers = block[agglomerate(np.ascontiguousarray(codes[:, block]), own, local, k, shape)]
    return found


def _holders(labels: Integers, persons: Integers | None, count: int) -> Integers:
    if persons is None:
        return np.bincount(labels, minlength=count)
    width = int(persons.max()) + 1
    pairs = np.unique(labels * width + persons)
    return np.bincount(pairs // width, minlength=count)


def _distinct_rows(table: CodedTable) -> tuple[Integers, Integers]:
    """Which combination of values each row has, and the combinations."""
    key = np.zeros(table.rows, np.int64)
    span = 1
    for column, codes in zip(table.columns, table.codes, strict=True):
        if span * column.distinct >= 1 << 62:
            _, key = np.unique(key, return_inverse=True)
            span = table.rows
        key = key * column.distinct + codes
        span *= column.distinct
    _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
    return of_row.astype(np.int64), table.codes[:, first].astype(np.int64)


def _blocks(table: CodedTable, of_row: Integers, combinations: int, k: int) -> list[Integers]:
    """Combinations in blocks that are clustered apart, each with k rows; one block where the work allows it."""
    size = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, PAIRS // combinations))
    if combinations <= size:
        return [np.arange(combinations)]
    nothing = SensitiveColumns.of(pl.DataFrame({"rows": []}), [])
    rows_a_block = max(2 * k, size * table.rows // combinations)
    found = mondrian(Problem(table, nothing, Rule(k=k)), stop_rows=rows_a_block)
    ends = zip(found.starts[:-1].tolist(), found.starts[1:].tolist(), strict=True)
    return [np.unique(of_row[found.order[start:end]]) for start, end in ends]
