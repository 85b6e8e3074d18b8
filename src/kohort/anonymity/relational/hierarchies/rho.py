"""Automatic hierarchies put to use: one rho a column, chosen by what the released column still says about the target.

For each rho the values of a class that fall into one group are released as the group; a class that spans several groups
is suppressed in that column. The rho kept is the one whose released column is most associated with the target, by the
entropy coefficient I(column; target) / H(target); of equal ones the smallest, which generalises least.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.coding import CodedTable
from kohort.anonymity.relational.hierarchies.automatic import RHOS, automatic_hierarchy
from kohort.anonymity.relational.hierarchies.taxonomy import Ladder
from kohort.anonymity.relational.partition import Integers, Partition
from kohort.anonymity.relational.recode import ColumnCells, label_cells
from kohort.tables.hierarchy import Hierarchy

__all__ = ["ChosenRho", "choose_rhos"]

ChosenRho = tuple[float, Hierarchy, ColumnCells]


def choose_rhos(
    frame: pl.DataFrame,
    table: CodedTable,
    partition: Partition,
    *,
    target: str,
    rhos: Sequence[float] = RHOS,
    jobs: int | None = None,
) -> dict[str, ChosenRho]:
    """For each quasi-identifier its rho, the hierarchy of that rho, and the cells it gives; columns in parallel."""
    labels = frame[target].rank("dense").fill_null(0).cast(pl.Int64).to_numpy()

    def best(position: int) -> ChosenRho:
        return _best_rho(frame, table, partition, position, target=target, labels=labels, rhos=rhos)

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        found = list(pool.map(best, range(len(table.columns))))
    return {column.name: chosen for column, chosen in zip(table.columns, found, strict=True)}


def _best_rho(
    frame: pl.DataFrame,
    table: CodedTable,
    partition: Partition,
    position: int,
    *,
    target: str,
    labels: Integers,
    rhos: Sequence[float],
) -> ChosenRho:
    column = table.columns[position]
    alone = CodedTable((column,), table.codes[position : position + 1])
    best: tuple[float, ChosenRho] | None = None
    for rho in rhos:
        hierarchy = automatic_hierarchy(frame, column.name, target, rhos=[rho])
        (cells,) = label_cells(alone, partition, [Ladder.of(column, hierarchy)])
        kept = _association(cells.of_class[partition.labels], labels)
        if best is None or kept > best[0] + 1e-12:
            best = kept, (rho, hierarchy, cells)
    if best is None:
        raise ValueError("no rho to choose from")
    return best[1]


def _association(values: Integers, target: Integers) -> float:
    """I(values; target) / H(target), from counts."""
    _, target = np.unique(target, return_inverse=True)
    distinct = int(target.max()) + 1
    _, joint = np.unique(values * distinct + target, return_counts=True)
    _, alone = np.unique(values, return_counts=True)
    whole = _entropy(np.bincount(target))
    return 0.0 if whole == 0.0 else (whole + _entropy(alone) - _entropy(joint)) / whole


def _entropy(counts: NDArray[np.int64]) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
