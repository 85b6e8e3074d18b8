"""How a boosted forest is grown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LARGEST_GRADIENT", "MOST_DEPTH", "MOST_WEIGHT", "SCALE", "TreeOptions"]

SCALE = 2**20
"""Grid units per 1: what every gradient, curvature and loss of a row is rounded to, so that sums are exact."""
LARGEST_GRADIENT = 8.0
"""A row's gradient, and its loss on held-out rows, beyond this count as this: totals have a public bound."""
MOST_WEIGHT = 1024.0
"""The largest weight of a row."""
MOST_DEPTH = 8


@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """The settings of a boosted forest; the same at the hub and at every site."""

    steps: int = 10
    """Boosting steps; each adds `trees` trees per output."""
    depth: int = 6
    """Levels of splits, so at most 2^depth leaves."""
    trees: int = 16
    """Trees per output that are grown side by side in one step."""
    rate: float = 1.0
    """What the mean of the parallel trees is multiplied by."""
    columns: float = 0.5
    """Share of the columns that each tree may split on."""
    bins: int = 64
    """Most bins per numeric column."""
    l2: float = 5.0
    """Added to the sum of curvatures of a node."""
    min_leaf: int = 20
    """Fewest rows of a leaf, over all sites."""
    holdout: float = 0.1
    """Share of the rows that no tree is fitted to: their loss decides how many steps are kept."""
    patience: int = 2
    """Steps without a smaller loss on the held-out rows before boosting ends."""
    soft: bool = False
    """Whether rows may have generalised cells."""
    classes: int = 2
    """How many classes the target has; 0 for a number."""
    largest_weight: float = 1.0
    """The largest weight of a row."""
    min_cell: int = 1
    """Fewest rows of a filled cell in an opened total. Above 1, sites count cells in totals that they alone read."""
