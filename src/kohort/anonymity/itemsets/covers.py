"""What clusters cover in each quasi-identifier, and what joining two of them would lose.

A cluster covers a range of codes (numbers), a set of values (categories), or a label of a hierarchy, which is told by a
level and any one code below it.

Guarantee: `loss` is what one row of a cluster loses: the weighted sum over the quasi-identifiers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import CodedTable, Integers, Partition

__all__ = ["Covers"]

WORD = 64


class Covers:
    """The clusters of a partition; changes as clusters join."""

    def __init__(self, table: CodedTable, shape: Any, partition: Partition) -> None:
        self.shape = shape
        self.size: NDArray[np.float64] = partition.sizes.astype(np.float64)
        self.total = float(shape.weight.sum()) * table.rows
        self._columns = [
            _column(codes[partition.order].astype(np.int64), number, shape, partition)
            for number, codes in enumerate(table.codes)
        ]
        everyone = np.arange(partition.count)
        self.loss: NDArray[np.float64] = self._joint(everyone, everyone)

    def added(self, seed: int, others: Integers) -> NDArray[np.float64]:
        """What joining the seed with each of the others adds to the table's mean relational loss."""
        together = (self.size[seed] + self.size[others]) * self._joint(np.full(len(others), seed), others)
        apart = self.size[seed] * self.loss[seed] + self.size[others] * self.loss[others]
        found: NDArray[np.float64] = (together - apart) / self.total
        return found

    def join(self, seed: int, partner: int) -> None:
        """Let the seed cover both."""
        pair = np.array([seed]), np.array([partner])
        self.loss[seed] = self._joint(*pair)[0]
        for column in self._columns:
            column.join(*pair)
        self.size[seed] += self.size[partner]

    def _joint(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        total = np.zeros(len(ones))
        for weight, column in zip(self.shape.weight, self._columns, strict=True):
            total += weight * column.lost(ones, others)
        return total


class _Range:
    """A number: lowest and highest code, and where the codes lie."""

    def __init__(self, ordered: Integers, points: NDArray[np.float64], partition: Partition) -> None:
        self.points = points
        self.low = np.minimum.reduceat(ordered, partition.starts[:-1])
        self.high = np.maximum.reduceat(ordered, partition.starts[:-1])

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        low = np.minimum(self.low[ones], self.low[others])
        high = np.maximum(self.high[ones], self.high[others])
        return np.minimum(self.points[high] - self.points[low], 1.0)

    def join(self, one: Integers, other: Integers) -> None:
        self.low[one] = np.minimum(self.low[one], self.low[other])
        self.high[one] = np.maximum(self.high[one], self.high[other])


class _Set:
    """A category: which of its values occur, as bits."""

    def __init__(self, ordered: Integers, distinct: int, partition: Partition) -> None:
        self.distinct = distinct
        self.bits = np.zeros((partition.count, (distinct - 1) // WORD + 1), np.uint64)
        cluster = np.repeat(np.arange(partition.count), partition.sizes)
        bit = np.left_shift(np.uint64(1), (ordered % WORD).astype(np.uint64))
        np.bitwise_or.at(self.bits, (cluster, ordered // WORD), bit)

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        held = np.bitwise_count(self.bits[ones] | self.bits[others]).sum(axis=1, dtype=np.int64)
        return np.where(held > 1, held / self.distinct, 0.0)

    def join(self, one: Integers, other: Integers) -> None:
        self.bits[one] |= self.bits[other]


class _Label:
    """A column with a hierarchy: level and one code; `labels[level, code]` and `costs[level, code]` belong to it."""

    def __init__(self, ordered: Integers, labels: Integers, costs: NDArray[np.float64], partition: Partition) -> None:
        self.labels, self.costs = labels, costs
        self.code = ordered[partition.starts[:-1]].copy()
        self.level = np.zeros(partition.count, np.int64)
        apart = np.ones(partition.count, dtype=np.bool_)
        for level, line in enumerate(labels):
            self.level[apart] = level
            held = line[ordered]
            lowest = np.minimum.reduceat(held, partition.starts[:-1])
            apart &= lowest != np.maximum.reduceat(held, partition.starts[:-1])

    def lost(self, ones: Integers, others: Integers) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.costs[self._above(ones, others), self.code[ones]]
        return found

    def join(self, one: Integers, other: Integers) -> None:
        self.level[one] = self._above(one, other)

    def _above(self, ones: Integers, others: Integers) -> Integers:
        level = np.maximum(self.level[ones], self.level[others])
        for _ in range(len(self.labels) - 1):
            apart = self.labels[level, self.code[ones]] != self.labels[level, self.code[others]]
            if not apart.any():
                break
            level = np.minimum(level + apart, len(self.labels) - 1)
        return level


def _column(ordered: Integers, number: int, shape: Any, partition: Partition) -> _Range | _Set | _Label:
    distinct = int(shape.distinct[number])
    if shape.levels[number] > 1:
        part = slice(shape.level_starts[number], shape.level_starts[number + 1])
        lines = shape.labels[part].reshape(-1, distinct), shape.costs[part].reshape(-1, distinct)
        return _Label(ordered, *lines, partition)
    if shape.words[number + 1] > shape.words[number]:
        return _Set(ordered, distinct, partition)
    return _Range(ordered, shape.points[shape.offsets[number] : shape.offsets[number + 1]], partition)
