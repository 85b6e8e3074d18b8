"""Boosted forests the slow way: dictionaries of cells, every cut tried, one row at a time, exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

SCALE = 2**20


def histogram(
    codes: Any, nodes: Any, gradient: Any, curvature: Any, tree: int, node: int, column: int
) -> dict[int, list[int]]:
    """Gradient, curvature and rows of every code of a column, among the rows of one node."""
    found: dict[int, list[int]] = {}
    for row in range(len(codes)):
        if nodes[tree][row] == node:
            cell = found.setdefault(int(codes[row][column]), [0, 0, 0])
            cell[0] += int(gradient[row])
            cell[1] += int(curvature[row])
            cell[2] += 1
    return found


def worth(g: int, h: int, l2: float) -> Fraction:
    """How much a Newton step on rows with these sums lowers the loss, twice."""
    return Fraction(g, SCALE) ** 2 / (Fraction(h, SCALE) + Fraction(l2))


def best_gain(cells: dict[int, list[int]], places: dict[int, int], absent: int, l2: float, least: int) -> Fraction:
    """The largest gain of all cuts of the order `places`, with missing numbers on either side; 0 without a cut."""
    total = [sum(cell[part] for cell in cells.values()) for part in range(3)]
    best = Fraction(0)
    for cut in range(max(places.values(), default=0) + 1):
        for absent_left in (False, True):
            left = [0, 0, 0]
            for code, cell in cells.items():
                if absent_left if code == absent else places[code] <= cut:
                    left = [a + b for a, b in zip(left, cell, strict=True)]
            right = [a - b for a, b in zip(total, left, strict=True)]
            if min(left[2], right[2]) >= least:
                gain = worth(*left[:2], l2) + worth(*right[:2], l2) - worth(*total[:2], l2)
                best = max(best, gain)
    return best


def leaf(codes: Any, rank: Any, split: Any, cut: Any, left: Any) -> int:
    """The node of a tree where one row ends."""
    node = 0
    while node < len(split) and split[node] >= 0:
        code = codes[split[node]]
        goes_left = bool(left[node]) if code == 255 else rank[split[node]][code] <= cut[node]
        node = 2 * node + (1 if goes_left else 2)
    return node
