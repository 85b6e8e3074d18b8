"""A boosted forest as arrays: heaps of splits and values, the same at hub and sites, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.trees.bins import Bins
from kohort.models.trees.kernel import add_scores

__all__ = ["Forest", "Trees"]


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees as heaps [trees, nodes]: the root is node 0, the children of node i are 2i + 1 and 2i + 2."""

    split: NDArray[np.int16]
    """The column a node splits on; -1 for a leaf."""
    cut: NDArray[np.uint8]
    """Codes up to this place in the column's order go left."""
    left: NDArray[np.uint8]
    """Whether missing numbers go left."""
    gain: NDArray[np.float64]
    """What the split lowers the loss by, to second order."""
    value: NDArray[np.float64]
    """[trees, nodes of all levels]: the Newton step of a node's rows; that of the last node on a path counts."""
    output: NDArray[np.int64]
    """Which score of the model a tree adds to."""

    @classmethod
    def empty(cls, output: NDArray[np.int64], depth: int) -> Trees:
        """Trees without a split."""
        nodes = (len(output), 2**depth - 1)
        return cls(
            split=np.full(nodes, -1, dtype=np.int16),
            cut=np.zeros(nodes, dtype=np.uint8),
            left=np.zeros(nodes, dtype=np.uint8),
            gain=np.zeros(nodes),
            value=np.zeros((len(output), 2 ** (depth + 1) - 1)),
            output=output,
        )

    def __len__(self) -> int:
        return len(self.output)

    def part(self, begin: int, end: int) -> Trees:
        """Some of the trees; no copy."""
        return Trees(**{name: array[begin:end] for name, array in vars(self).items()})

    def joined(self, other: Trees) -> Trees:
        """These trees, then the others."""
        mine, others = vars(self), vars(other)
        return Trees(**{name: np.concatenate([mine[name], others[name]]) for name in mine})

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The trees as arrays by name."""
        return {f"{prefix}.{name}": array for name, array in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Trees:
        """The inverse of `arrays`."""
        return cls(**{name: arrays[f"{prefix}.{name}"].copy() for name in cls.__dataclass_fields__})


@dataclass(frozen=True, eq=False)
class Forest:
    """What a model adds up: a start, and trees with the factor of each."""

    bins: Bins
    base: NDArray[np.float64]
    """The score every row begins with, for each output."""
    factor: float
    """What the value of every tree is multiplied by."""
    trees: Trees

    def scores(self, codes: NDArray[np.uint8]) -> NDArray[np.float64]:
        """[outputs, rows] scores of coded rows.

        Args:
            codes: As `Bins.codes` makes them.

        Returns:
            The same bits for a row, whichever rows stand beside it.
        """
        out = np.repeat(self.base[:, None], len(codes), axis=1)
        self.add(self.trees, codes[None], out)
        return out

    def add(self, trees: Trees, codes: NDArray[np.uint8], scores: NDArray[np.float64]) -> None:
        """Add what some of the trees say of coded rows to their scores, in place.

        Args:
            trees: The trees.
            codes: [1, rows, columns] codes that all trees read, or [trees, rows, columns] each its own.
            scores: [outputs, rows].
        """
        add_scores(
            codes, self.bins.rank, trees.split, trees.cut, trees.left, trees.value, trees.output, self.factor, scores
        )

    def with_trees(self, trees: Trees) -> Forest:
        """The same start, with these trees."""
        return replace(self, trees=trees)
