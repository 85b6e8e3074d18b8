"""Local recoding with hierarchies: search the lattice of levels from the cheapest node up, and form classes on the way.

A node gives each column a level of its hierarchy. At each node the remaining rows are grouped by their labels there;
groups that meet the rule become classes, the others wait for a node of higher loss. So every class has its own node.
Nodes are visited best first, by the mean loss of their labels over the rows that wait, and never twice.

A lattice of many columns is too large to visit: after `node_budget` nodes (or, if it is not set, after a fixed number
of cells looked at) the search turns into a few climbs. Each climb starts at the bottom, follows the column that
releases most rows for the least added loss, and ends at a higher limit than the one before; the last one ends at the
top. So forty quasi-identifiers finish too.

Rows that remain at the very top are too few or too uniform for a class of their own. They join the class that costs
least; within the suppression limit they are suppressed instead, and no other row ever is.

Guarantee: every class meets the rule. Same table, same classes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import Codes, Integers, Partition, Problem

__all__ = ["Recoding", "lattice", "node_classes"]

CELLS = 1_500_000_000
# With a rule about more than k rows every group is judged too, and rows that were left behind are moved afterwards.
CELLS_OF_RULES = 50_000_000
# A node costs this many rows even if none is left to look at.
OVERHEAD = 200
CLIMBS = 8
LOOKED_AT = 8
# When the waiting rows are fewer than this share of those that costs were taken from, costs are taken again.
FRESH = 0.5
HASHED_TWICE = 2


@dataclass(frozen=True)
class Recoding:
    """The classes, and the rows that are suppressed (none of them in a class that is released)."""

    partition: Partition
    suppressed: Integers
    nodes: int


def lattice(
    problem: Problem,
    steps: Sequence[HierarchyLevels],
    *,
    node_budget: int | None = None,
    suppression_limit: float = 0.0,
) -> Recoding:
    """Classes by labels.

    Args:
        problem: The coded table and the rule.
        steps: The hierarchy levels of each quasi-identifier.
        node_budget: Nodes to visit best first.
        suppression_limit: Largest share of the rows that may be suppressed, and only if they must be.

    Returns:
        The classes, the suppressed rows, and how many nodes were visited. Suppressed rows are the last class of the
        partition.
    """
    table = problem.table
    walk = _Walk.start(problem, steps)
    _best_first(walk, node_budget)
    for climb in range(CLIMBS):
        if walk.active:
            _climb(walk, limit=(climb + 1) / CLIMBS)
    left = walk.rows[: walk.active].copy()
    if 0 < len(left) <= suppression_limit * table.rows and walk.classes:
        labels = walk.class_of.copy()
        labels[left] = walk.classes
        return Recoding(Partition.of_labels(labels), np.sort(left), walk.visited)
    if len(left):
        _join_left(walk, left)
    return Recoding(Partition.of_labels(walk.class_of), np.zeros(0, np.int64), walk.visited)


def node_classes(problem: Problem, steps: Sequence[HierarchyLevels], node: Sequence[int]) -> tuple[Partition, int]:
    """The groups of one node as classes.

    Args:
        problem: The coded table and the rule.
        steps: The hierarchy levels of each quasi-identifier.
        node: The level of each quasi-identifier, 0 for its values.

    Returns:
        The classes, and how many rows are in groups that do not meet the rule.
    """
    walk = _Walk.start(problem, steps)
    groups, _ = walk.look(node)
    partition = Partition.of_labels(walk.scratch[2])
    walk.emit(groups)
    return partition, walk.active


@dataclass
class _Walk:
    """What changes along the way, and the scratch space of the loops."""

    problem: Problem
    steps: Sequence[HierarchyLevels]
    columns: Codes
    flat: NDArray[np.int32]
    base: Integers
    top: tuple[int, ...]
    mean_cost: tuple[NDArray[np.float64], ...]
    rows: Integers
    active: int
    class_of: Integers
    scratch: tuple[Any, ...]
    tally: tuple[Any, ...]
    classes: int = 0
    visited: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)

    @classmethod
    def start(cls, problem: Problem, steps: Sequence[HierarchyLevels]) -> _Walk:
        table = problem.table
        rows, quasi = table.rows, len(table.columns)
        base = np.zeros((quasi, max(levels.count for levels in steps)), dtype=np.int64)
        parts: list[Integers] = []
        used = 0
        for c, levels in enumerate(steps):
            for level, labels in enumerate(levels.labels):
                base[c, level] = used
                parts.append(labels)
                used += len(labels)
        slots = 1 << int(np.ceil(np.log2(HASHED_TWICE * max(rows, 2))))
        return cls(
            problem=problem,
            steps=steps,
            columns=problem.columns(),
            flat=np.concatenate(parts).astype(np.int32),
            base=base,
            top=tuple(levels.count - 1 for levels in steps),
            mean_cost=tuple(_mean_costs(levels, codes) for levels, codes in zip(steps, table.codes, strict=True)),
            rows=np.arange(rows, dtype=np.int64),
            active=rows,
            class_of=np.full(rows, -1, dtype=np.int64),
            scratch=(np.empty((rows, quasi), np.int32), slots, np.empty(rows, np.int64), np.empty(rows, np.int64)),
            tally=(
                np.empty((len(problem.sensitive.codes), rows), problem.columns(np.zeros(0, np.int64)).dtype),
                np.zeros(problem.sensitive.offsets[-1], np.int64),
                np.empty(rows, np.int64),
            ),
        )

    def cost(self, node: Sequence[int]) -> float:
        """Mean loss of a node's labels, over the table or the rows that wait."""
        return float(sum(costs[level] for costs, level in zip(self.mean_cost, node, strict=True)))

    def cost_of_waiting(self) -> None:
        """Take the costs of nodes from the rows that still wait: those are not like the others."""
        rows = self.rows[: self.active]
        pairs = zip(self.steps, self.problem.table.codes, strict=True)
        self.mean_cost = tuple(_mean_costs(levels, codes[rows]) for levels, codes in pairs)

    def above(self, node: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The nodes one step up."""
        return [(*node[:c], node[c] + 1, *node[c + 1 :]) for c in range(len(node)) if node[c] < self.top[c]]

    def look(self, node: Sequence[int]) -> tuple[int, int]:
        """Groups of the waiting rows at a node, and rows in groups of at least k."""
        from kohort.anonymity.relational.algorithms.lattice_kernel import count_groups

        held, slots, group, counts = self.scratch
        smaller = np.empty(min(slots, 1 << int(np.ceil(np.log2(HASHED_TWICE * max(self.active, 2))))), np.int64)
        self.visited += 1
        found: tuple[int, int] = count_groups(
            self.problem.table.codes, self.flat, self.base, np.array(node, dtype=np.int64), self.rows, self.active,
            self.problem.rule.k, held, smaller, group, counts,
        )  # fmt: skip
        return found

    def emit(self, groups: int) -> None:
        """Make classes of the groups that the last look found and that meet the rule."""
        from kohort.anonymity.relational.algorithms.lattice_kernel import emit_groups

        _, _, group, counts = self.scratch
        self.active, self.classes = emit_groups(
            self.columns, self.rows, self.active, groups, group, counts, self.problem.rule.k, self.problem.requirements,
            *self.tally, self.class_of, self.classes,
        )  # fmt: skip


def _mean_costs(levels: HierarchyLevels, codes: Codes) -> NDArray[np.float64]:
    shares = np.bincount(codes, minlength=levels.column.distinct) / len(codes)
    pairs = zip(levels.labels, levels.cost, strict=True)
    return np.array([float((shares * cost[labels]).sum()) for labels, cost in pairs])


def _best_first(walk: _Walk, budget: int | None) -> None:
    bottom = tuple(0 for _ in walk.top)
    queue = [(0.0, bottom)]
    walk.seen.add(bottom)
    cells, most = 0, CELLS if walk.problem.requirements is None else CELLS_OF_RULES
    costs_of = walk.active
    while queue and walk.active:
        if (cells >= most) if budget is None else (walk.visited >= budget):
            return
        _, node = heapq.heappop(queue)
        cells += (walk.active + OVERHEAD) * len(node)
        groups, large = walk.look(node)
        if large:
            walk.emit(groups)
        if 0 < walk.active < FRESH * costs_of:
            costs_of = walk.active
            walk.cost_of_waiting()
            queue = [(walk.cost(waiting), waiting) for _, waiting in queue]
            heapq.heapify(queue)
        for step in walk.above(node):
            if step not in walk.seen:
                walk.seen.add(step)
                heapq.heappush(queue, (walk.cost(step), step))


def _climb(walk: _Walk, *, limit: float) -> None:
    """From the bottom to where the mean loss passes a share of the whole; let out what can go at each step."""
    node: tuple[int, ...] = tuple(0 for _ in walk.top)
    highest = walk.cost(walk.top)
    while walk.active:
        groups, large = walk.look(node)
        if large:
            walk.emit(groups)
        within = [step for step in walk.above(node) if limit == 1.0 or walk.cost(step) <= limit * highest]
        if not within or not walk.active:
            return
        node = _next_node(walk, node, within, groups)


def _next_node(walk: _Walk, node: tuple[int, ...], steps: list[tuple[int, ...]], groups: int) -> tuple[int, ...]:
    """Up the column that frees most rows for the least added loss; where none frees any, up several at once."""
    cost = walk.cost(node)
    promises = []
    for step in sorted(steps, key=walk.cost)[:LOOKED_AT]:
        found, large = walk.look(step)
        added = max(walk.cost(step) - cost, 1e-12)
        promises.append((large / added, (groups - found) / added, step))
    promises.sort(reverse=True)
    raised = 1 if promises[0][0] else 1 + len(node) // LOOKED_AT
    return tuple(max(levels) for levels in zip(*(step for _, _, step in promises[:raised]), strict=True))


def _join_left(walk: _Walk, left: Integers) -> None:
    """Put the rows that are left into the class that then loses least; take in more classes until the rule is met."""
    met = walk.problem.rule_test()
    released = np.flatnonzero(walk.class_of >= 0)
    classes = Partition.of_labels(walk.class_of[released])
    rows, sizes = released[classes.order], classes.sizes
    spreads = [
        _Spread.of(levels, codes[rows], codes[left], classes.starts)
        for levels, codes in zip(walk.steps, walk.problem.table.codes, strict=True)
    ]
    own = np.sum([spread.cost(joined=False) for spread in spreads], axis=0)
    waiting = np.ones(classes.count, dtype=np.bool_)
    current = left
    while not met(current):
        joined = np.sum([spread.cost(joined=True) for spread in spreads], axis=0)
        added = (sizes + len(current)) * joined - sizes * own
        cheapest = int(np.argmin(np.where(waiting, added, np.inf)))
        waiting[cheapest] = False
        for spread in spreads:
            spread.join(cheapest)
        current = np.concatenate([current, rows[classes.starts[cheapest] : classes.starts[cheapest + 1]]])
    walk.class_of[current] = walk.classes
    walk.classes += 1


@dataclass(frozen=True)
class _Spread:
    """The lowest and highest label of each class in one column, by level; and of the rows that look for a class."""

    costs: tuple[NDArray[np.float64], ...]
    low: Integers
    high: Integers
    mine: tuple[Integers, Integers]

    @classmethod
    def of(cls, levels: HierarchyLevels, codes: Codes, left: Codes, starts: Integers) -> _Spread:
        held, own = [labels[codes] for labels in levels.labels], [labels[left] for labels in levels.labels]
        return cls(
            levels.cost,
            np.stack([np.minimum.reduceat(labels, starts[:-1]) for labels in held]),
            np.stack([np.maximum.reduceat(labels, starts[:-1]) for labels in held]),
            (np.array([labels.min() for labels in own]), np.array([labels.max() for labels in own])),
        )

    def cost(self, *, joined: bool) -> NDArray[np.float64]:
        """What a row of each class loses, alone or joined with the rows: at the lowest level with one label for all."""
        low = np.minimum(self.low, self.mine[0][:, None]) if joined else self.low
        high = np.maximum(self.high, self.mine[1][:, None]) if joined else self.high
        found: NDArray[np.float64] = self.costs[-1][low[-1]]
        for level in range(len(self.costs) - 2, -1, -1):
            found = np.where(low[level] == high[level], self.costs[level][low[level]], found)
        return found

    def join(self, number: int) -> None:
        """Count a class among the rows."""
        np.minimum(self.mine[0], self.low[:, number], out=self.mine[0])
        np.maximum(self.mine[1], self.high[:, number], out=self.mine[1])
