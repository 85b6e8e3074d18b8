"""Growing the parallel trees of one boosting step, level by level, from totals of histograms.

At each level, one total has the cells of the smaller child of every split node; those of its sibling are what the
parent has more. The same object at every site gets the same totals, so it finds the same splits. A hub that does not
read them follows the splits that sites tell (`follow`).

With `min_cell` above 1 there are two totals per level. The first counts the rows of every cell; cells are joined along
the order of cuts until each has enough rows or none. The second has the sums of joined cells. Siblings are joined
alike, and by whole cells of their parent, so that no difference of totals of one tree has fewer rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.trees.bins import ABSENT, Bins, joined_codes
from kohort.models.trees.forest import Trees
from kohort.models.trees.kernel import best_splits, complete, histograms, join_cells
from kohort.models.trees.level import LevelSplits
from kohort.models.trees.options import SCALE, TreeOptions
from kohort.models.trees.precision import rounded_gains, rounded_values

__all__ = ["Growth"]

Cells = NDArray[np.int64]


@dataclass(frozen=True)
class _Open:
    """Nodes of one level whose cells are known or asked for, in the order of trees and nodes."""

    tree: NDArray[np.int64]
    node: NDArray[np.int64]
    begin: NDArray[np.int64]
    """Where the cells of each begin."""
    cells: int
    """How many there are in all."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]], widths: NDArray[np.int64]) -> _Open:
        tree = np.asarray([pair[0] for pair in pairs], dtype=np.int64)
        node = np.asarray([pair[1] for pair in pairs], dtype=np.int64)
        ends = np.cumsum(widths[tree]) if len(tree) else np.zeros(0, dtype=np.int64)
        return cls(tree, node, ends - widths[tree], int(ends[-1]) if len(tree) else 0)

    def begins(self) -> dict[tuple[int, int], int]:
        return dict(zip(zip(self.tree.tolist(), self.node.tolist(), strict=True), self.begin.tolist(), strict=True))


@dataclass
class Growth:
    """The trees of one step while they grow."""

    bins: Bins
    options: TreeOptions
    columns: NDArray[np.int64]
    """[trees, columns of each] what each tree may split on."""
    shifts: NDArray[np.float64]
    """[trees, columns of each] where the bins of a number begin, from 0 to 1."""
    trees: Trees
    level: int = 0
    known: _Open = field(init=False)
    """The open nodes of the level before."""
    before: Cells = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    """Their cells."""
    asked: _Open = field(init=False)
    """The nodes whose cells the next total has."""
    open: _Open = field(init=False)
    """The nodes whose cells are known after the next total: those, and their siblings."""
    layout: Cells | None = None
    """Where small cells are joined: the group of every cell of the open nodes; None while they are counted."""
    joined_before: Cells = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The groups of the level before."""

    def __post_init__(self) -> None:
        self._join()
        widths = self.sizes + self.bins.missing[self.columns]
        self.starts = np.ascontiguousarray(np.cumsum(widths, axis=1) - widths)
        self.widths = widths.sum(axis=1)
        self.known = _Open.of([], self.widths)
        self.asked = self.open = _Open.of([(tree, 0) for tree in range(len(self.columns))], self.widths)

    def copied(self) -> Growth:
        """The same trees, which can grow by themselves."""
        found = copy.copy(self)
        found.trees = Trees(**{name: array.copy() for name, array in vars(self.trees).items()})
        return found

    def _join(self) -> None:
        """The bin of every code in each tree's histograms, their order, and the last place that each stands for."""
        shape = (*self.columns.shape, 256)
        self.sizes = np.empty(self.columns.shape, dtype=np.int64)
        self.bin_of, self._order = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self._last = np.zeros(shape, dtype=np.int64)
        for tree, number in np.ndindex(*self.columns.shape):
            column, output = self.columns[tree, number], self.trees.output[tree]
            size = int(self.bins.sizes[column])
            if self.bins.ordered[column]:
                shift = float(self.shifts[tree, number])
                found = joined_codes(size, self.options.bins, shift).astype(np.int64)
                last = np.flatnonzero(np.diff(found, append=256))
                order = np.arange(len(last))
            else:
                found, last = np.arange(size), np.arange(size)
                order = np.argsort(self.bins.rank[output, column, :size], kind="stable")
            self.bin_of[tree, number, :size] = found
            self.bin_of[tree, number, ABSENT] = self.sizes[tree, number] = len(last)
            self._order[tree, number, : len(last)], self._last[tree, number, : len(last)] = order, last

    @property
    def finished(self) -> bool:
        """Whether no node is open any more."""
        return not len(self.asked.tree)

    @property
    def counting(self) -> bool:
        """Whether the next total counts rows, so that small cells can be joined."""
        return self.options.min_cell > 1 and self.layout is None

    @property
    def length(self) -> int:
        """How many numbers the next total has."""
        if self.counting:
            return self.asked.cells
        return 3 * (self.asked.cells if self.layout is None else int(self.layout.max()) + 1)

    def counted(
        self,
        codes: NDArray[np.uint8],
        nodes: NDArray[np.int16],
        gradient: NDArray[np.int64],
        curvature: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The cells that are asked for, of some rows.

        Args:
            codes: [1, rows, columns] their codes, or [trees, rows, columns] where each tree has its own.
            nodes: [trees, rows] the open node of every row, -1 where it is in none.
            gradient: [outputs, rows] in units of the grid.
            curvature: [outputs, rows] in units of the grid.

        Returns:
            For each asked node, column of its tree and code: sums of gradients and curvatures, and rows. Where small
            cells are joined, rows alone at first, and then the sums of each group.
        """
        offset = np.full((len(self.trees), self.trees.value.shape[1]), -1, dtype=np.int64)
        offset[self.asked.tree, self.asked.node] = self.asked.begin
        out = np.zeros((self.asked.cells, 3), dtype=np.int64)
        histograms(
            codes,
            nodes,
            offset,
            self.columns,
            self.starts,
            self.bin_of,
            self.trees.output,
            gradient,
            curvature,
            out,
        )
        if self.counting:
            return out[:, 2].copy()
        if self.layout is not None:
            grouped = np.zeros((self.length // 3, 3), dtype=np.int64)
            np.add.at(grouped, self.layout, out)
            out = grouped
        return out.reshape(-1)

    def sums(self, total: NDArray[np.int64]) -> Cells:
        """What whoever sees a total of `counted` knows: gradient, curvature and rows of every cell of the open nodes.

        Args:
            total: The numbers, of sums and not of counts alone.

        Returns:
            [cells, 3]; cells of siblings follow by subtraction. Where small cells are joined, of every group.
        """
        cells = total.reshape(-1, 3)
        return cells if self.layout is not None else self._completed(cells)

    def places(self, codes: NDArray[np.uint8], nodes: NDArray[np.int16]) -> NDArray[np.int64]:
        """In which of the cells of `sums` rows are.

        Args:
            codes: As in `counted`.
            nodes: As in `counted`.

        Returns:
            [trees, columns of each, rows]; -1 where a row is in no open node.
        """
        offset = np.full((len(self.trees), self.trees.value.shape[1]), -1, dtype=np.int64)
        offset[self.open.tree, self.open.node] = self.open.begin
        found = np.full((*self.columns.shape, nodes.shape[1]), -1, dtype=np.int64)
        for tree, own in enumerate(nodes):
            begin = np.where(own < 0, -1, offset[tree, np.maximum(own, 0)])
            for number, column in enumerate(self.columns[tree]):
                bins = self.bin_of[tree, number, codes[tree % len(codes), :, column]]
                found[tree, number] = np.where(begin < 0, -1, begin + self.starts[tree, number] + bins)
        return found if self.layout is None else np.where(found < 0, -1, self.layout[found])

    def take(self, total: NDArray[np.int64]) -> LevelSplits | None:
        """Split the open nodes by a total of `counted` over all sites, and open the next level; or join small cells.

        Args:
            total: The numbers.

        Returns:
            How the nodes were split; None where small cells were joined.
        """
        if self.counting:
            self.layout = self._joined(total)
            return None
        cells = self._completed(total.reshape(-1, 3))
        level = self._splits(cells)
        self.before = cells if self.layout is None else cells[:0]
        self._grow(level)
        return level

    def follow(self, level: LevelSplits) -> None:
        """Split the open nodes as somebody who read the total says.

        Args:
            level: How they were split; nothing of it can be relied on.

        Raises:
            ValueError: It does not fit the open nodes.
        """
        columns = self.columns[self.open.tree]
        roots = len(self.trees) if self.level == 0 else 0
        level.check(nodes=len(self.open.tree), roots=roots, columns=columns, sizes=self.bins.sizes[columns])
        self._grow(level)

    def _grow(self, level: LevelSplits) -> None:
        """The next level of the trees, and its open nodes."""
        chosen = level.split >= 0
        tree, node = self.open.tree[chosen], self.open.node[chosen]
        self.trees.split[tree, node], self.trees.cut[tree, node] = level.split[chosen], level.cut[chosen]
        self.trees.left[tree, node], self.trees.gain[tree, node] = level.left[chosen], level.gain[chosen]
        self.trees.value[tree, 2 * node + 1] = level.values[chosen, 0]
        self.trees.value[tree, 2 * node + 2] = level.values[chosen, 1]
        if self.level == 0:
            self.trees.value[self.open.tree, 0] = level.roots
        self.known = self.open
        if self.layout is not None:
            self.joined_before, self.layout = self.layout, None
        self.level += 1
        self._open_next(level.grows)

    def _joined(self, counts: NDArray[np.int64]) -> Cells:
        """The group of every cell."""
        layout = np.empty(self.open.cells, dtype=np.int64)
        parents, before = self.open.begin, np.arange(self.open.cells)
        if self.level:
            begins, before = self.known.begins(), self.joined_before
            pairs = zip(self.open.tree.tolist(), self.open.node.tolist(), strict=True)
            parents = np.asarray([begins[tree, (node - 1) // 2] for tree, node in pairs], dtype=np.int64)
        join_cells(
            np.ascontiguousarray(counts),
            self.open.begin,
            self.open.tree,
            self.level > 0,
            parents,
            before,
            self.columns,
            self.starts,
            self.sizes,
            self.bins.missing,
            self._order,
            self.options.min_cell,
            layout,
        )
        return layout

    def _completed(self, total: Cells) -> Cells:
        if self.layout is not None:
            return self._apart(total)
        if self.level == 0:
            return total
        before, begins = self.known.begins(), self.open.begins()
        pairs = list(zip(self.asked.tree.tolist(), self.asked.node.tolist(), strict=True))
        siblings = [(tree, node + 1 if node % 2 else node - 1) for tree, node in pairs]
        own = np.asarray([begins[pair] for pair in pairs], dtype=np.int64)
        out = np.empty((self.open.cells, 3), dtype=np.int64)
        complete(
            total,
            self.before,
            np.stack([self.asked.begin, own], axis=1),
            np.asarray([begins[pair] for pair in siblings], dtype=np.int64),
            np.asarray([before[tree, (node - 1) // 2] for tree, node in pairs], dtype=np.int64),
            self.widths[self.asked.tree],
            out,
        )
        return out

    def _apart(self, total: Cells) -> Cells:
        """Sums of groups at the last of their cells in the order of cuts: no cut falls between the others."""
        out = np.zeros((self.open.cells, 3), dtype=np.int64)
        out[self._last_of_groups()] = total
        return out

    def _last_of_groups(self) -> Cells:
        """The cell that stands for each group of the layout."""
        if self.layout is None:
            raise ValueError("no cells are joined")
        found = np.zeros(int(self.layout.max()) + 1, dtype=np.int64)
        for tree, begin in zip(self.open.tree.tolist(), self.open.begin.tolist(), strict=True):
            for number, start in enumerate(self.starts[tree].tolist()):
                size = int(self.sizes[tree, number])
                own = begin + start + np.append(size, self._order[tree, number, :size])
                own = own[0 if self.bins.missing[self.columns[tree, number]] else 1 :]
                found[self.layout[own]] = own  # the last one of equal groups counts
        return found

    def _sums_of_nodes(self, cells: Cells) -> Cells:
        """Gradient, curvature and rows of every open node, from the cells of its first column."""
        out = np.empty((len(self.open.tree), 3), dtype=np.int64)
        first = self.sizes[:, 0] + self.bins.missing[self.columns[:, 0]]
        for place, (tree, begin) in enumerate(zip(self.open.tree.tolist(), self.open.begin.tolist(), strict=True)):
            out[place] = cells[begin : begin + first[tree]].sum(axis=0)
        return out

    def _steps(self, sums: Cells) -> NDArray[np.float64]:
        """The Newton step of rows with these sums, rounded."""
        options, curvature = self.options, sums[:, 1] / SCALE
        unweighted = curvature / options.largest_weight + options.l2
        return rounded_values(-(sums[:, 0] / SCALE) / (curvature + options.l2), unweighted, classes=options.classes)

    def _splits(self, cells: Cells) -> LevelSplits:
        """The best split of every open node, by its cells."""
        facts = np.empty((len(self.open.tree), 3), dtype=np.int64)
        sums, gains = np.zeros((len(facts), 3), dtype=np.int64), np.empty(len(facts))
        best_splits(
            cells,
            self.open.begin,
            self.open.tree,
            self.columns,
            self.starts,
            self.sizes,
            self.bins.missing,
            self._order,
            self.options.l2,
            self.options.min_leaf,
            facts,
            gains,
            sums,
        )
        nodes = self._sums_of_nodes(cells)
        others, chosen, tree = nodes - sums, facts[:, 0] >= 0, self.open.tree
        column, place = np.where(chosen, facts[:, 0], 0), np.where(chosen, facts[:, 1], 0)
        values = np.zeros((len(facts), 2))
        values[chosen] = np.stack([self._steps(sums[chosen]), self._steps(others[chosen])], axis=1)
        large = np.maximum(sums[:, 2], others[:, 2]) >= 2 * self.options.min_leaf
        grows = chosen & large & (self.level + 1 < self.options.depth)
        return LevelSplits(
            split=np.where(chosen, self.columns[tree, column], -1).astype(np.int16),
            cut=np.where(chosen, self._last[tree, column, place], 0).astype(np.uint8),
            left=np.where(chosen, facts[:, 2], 0).astype(np.uint8),
            gain=rounded_gains(np.where(chosen, gains, 0.0)),
            values=values,
            roots=self._steps(nodes) if self.level == 0 else np.zeros(0),
            grows=np.where(grows, np.where(sums[:, 2] <= others[:, 2], 1, 2), 0).astype(np.uint8),
        )

    def _open_next(self, grows: NDArray[np.uint8]) -> None:
        """Ask for the smaller child of every node that grows on."""
        asked: list[tuple[int, int]] = []
        opened: list[tuple[int, int]] = []
        for place in np.flatnonzero(grows).tolist():
            tree, node = int(self.open.tree[place]), int(self.open.node[place])
            asked.append((tree, 2 * node + int(grows[place])))
            opened += [(tree, 2 * node + 1), (tree, 2 * node + 2)]
        if self.options.min_cell > 1:
            asked = opened
        self.asked, self.open = _Open.of(asked, self.widths), _Open.of(opened, self.widths)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is needed to go on growing, as arrays by name."""
        return {
            **self.trees.arrays("growing"),
            "growing.columns": self.columns,
            "growing.shifts": self.shifts,
            "growing.level": np.asarray(self.level),
            "growing.cells": self.before,
            "growing.joined": self.joined_before,
            "growing.layout": np.zeros(0, dtype=np.int64) if self.layout is None else self.layout,
            **{
                f"growing.{name}": np.stack([part.tree, part.node])
                for name, part in (("known", self.known), ("asked", self.asked), ("open", self.open))
            },
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], bins: Bins, options: TreeOptions) -> Growth:
        """The inverse of `arrays`."""
        found = cls(
            bins,
            options,
            arrays["growing.columns"].copy(),
            arrays["growing.shifts"].copy(),
            Trees.of_arrays(arrays, "growing"),
        )
        found.level, found.before = int(arrays["growing.level"]), arrays["growing.cells"].copy()
        found.joined_before, layout = arrays["growing.joined"].copy(), arrays["growing.layout"]
        found.layout = layout.copy() if len(layout) else None
        for name in ("known", "asked", "open"):
            pairs = [(int(tree), int(node)) for tree, node in arrays[f"growing.{name}"].T]
            setattr(found, name, _Open.of(pairs, found.widths))
        return found
