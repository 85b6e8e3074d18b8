"""How the open nodes of one level were split: what a grown tree shows of them anyway, and which children grow on.

Sites find it from a total. Where they alone read the totals, they tell the hub this instead, so that it holds the same
trees without a count, a gradient or a curvature of any cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LevelSplits"]


@dataclass(frozen=True, eq=False)
class LevelSplits:
    """The splits of one level, a place per open node in the order of trees and nodes."""

    split: NDArray[np.int16]
    """The column a node splits on; -1 where it stays a leaf."""
    cut: NDArray[np.uint8]
    """Codes up to this place in the column's order go left."""
    left: NDArray[np.uint8]
    """Whether missing numbers go left."""
    gain: NDArray[np.float64]
    """What the split lowers the loss by, rounded."""
    values: NDArray[np.float64]
    """[nodes, 2] the Newton steps of both children, rounded."""
    roots: NDArray[np.float64]
    """The Newton step of every tree's root, after the first level; empty later."""
    grows: NDArray[np.uint8]
    """0 where no child is large enough to be split; 1 or 2 where both are open: the left or the right is smaller."""

    @staticmethod
    def shapes() -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """Types and shapes of `arrays`, by name; None for an axis of any length."""
        anything = (None,)
        return {
            "level.split": ("<i2", anything),
            "level.cut": ("|u1", anything),
            "level.left": ("|u1", anything),
            "level.gain": ("<f8", anything),
            "level.values": ("<f8", (None, 2)),
            "level.roots": ("<f8", anything),
            "level.grows": ("|u1", anything),
        }

    @classmethod
    def none(cls) -> LevelSplits:
        """Of no node."""
        empty = np.zeros(0)
        return cls(
            split=np.zeros(0, dtype=np.int16),
            cut=np.zeros(0, dtype=np.uint8),
            left=np.zeros(0, dtype=np.uint8),
            gain=empty,
            values=np.zeros((0, 2)),
            roots=empty,
            grows=np.zeros(0, dtype=np.uint8),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The splits as arrays by name."""
        return {f"level.{part.name}": getattr(self, part.name) for part in fields(self)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LevelSplits:
        """The inverse of `arrays`."""
        return cls(**{part.name: arrays[f"level.{part.name}"].copy() for part in fields(cls)})

    def check(self, *, nodes: int, roots: int, columns: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Refuse what no total could have led to.

        Args:
            nodes: How many nodes are open.
            roots: How many trees have their first level now; 0 at later levels.
            columns: [nodes, columns of each tree] what each node may split on.
            sizes: [nodes, columns of each tree] how many codes each of them has.

        Raises:
            ValueError: The splits do not fit the open nodes.
        """
        one_each = (self.split, self.cut, self.left, self.gain, self.values, self.grows)
        if any(len(part) != nodes for part in one_each) or len(self.roots) != roots:
            raise ValueError("splits of other nodes")
        chosen = self.split >= 0
        may = (columns == self.split[:, None]) & (self.cut[:, None] < sizes)
        if not may[chosen].any(axis=1).all() or (self.left > 1).any() or (self.grows > 2 * chosen).any():
            raise ValueError("splits of other columns")
        if not all(np.isfinite(part).all() for part in (self.gain, self.values, self.roots)):
            raise ValueError("values that are no numbers")
