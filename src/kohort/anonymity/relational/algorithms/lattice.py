"""Local recoding with hierarchies: search the lattice of levels from the cheapest node up, and form classes on the way.

A node gives each column a level of its hierarchy. At each node the remaining rows are grouped by their labels there;
groups that meet the rule become classes, the others wait for a node of higher loss. So every class has its own node.
Nodes are visited best first, by the mean loss of their labels over the table, and never twice.

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
# A node costs this many rows even if none is left to look at.
OVERHEAD = 200
CLIMBS = 8
LOOKED_AT = 8
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
    """The groups of one node as classes, and how many rows are in groups that do not meet the rule."""
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
        """Mean loss of a node's labels over the table."""
        return float(sum(costs[level] for costs, level in zip(self.mean_cost, node, strict=True)))

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
    cells = 0
    while queue and walk.active:
        if (cells >= CELLS) if budget is None else (walk.visited >= budget):
            return
        _, node = heapq.heappop(queue)
        cells += (walk.active + OVERHEAD) * len(node)
        groups, large = walk.look(node)
        if large:
            walk.emit(groups)
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
    current = left
    while True:
        if met(current):
            walk.class_of[current] = walk.classes
            walk.classes += 1
            return
        waiting = walk.class_of.copy()
        waiting[current] = -1
        known = np.unique(waiting[waiting >= 0])
        cheapest = _cheapest_join(walk, current, known, waiting)
        current = np.concatenate([current, np.flatnonzero(waiting == cheapest)])


def _cheapest_join(walk: _Walk, current: Integers, known: Integers, waiting: Integers) -> int:
    """The class whose union with the current rows costs least above what the class costs alone."""
    members = np.flatnonzero(waiting >= 0)
    number = np.searchsorted(known, waiting[members])
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], np.arange(len(known)))
    sizes = np.diff(np.append(first, len(members)))
    added = np.zeros(len(known))
    for levels, codes in zip(walk.steps, walk.problem.table.codes, strict=True):
        own, joined = np.zeros(len(known)), np.zeros(len(known))
        own_open = np.ones(len(known), dtype=np.bool_)
        joined_open = own_open.copy()
        for labels, cost in zip(levels.labels, levels.cost, strict=True):
            held = labels[codes[members[order]]]
            low, high = np.minimum.reduceat(held, first), np.maximum.reduceat(held, first)
            mine = labels[codes[current]]
            own[own_open] = cost[low[own_open]]
            joined[joined_open] = cost[low[joined_open]]
            own_open &= low != high
            joined_open &= (np.minimum(low, mine.min())) != (np.maximum(high, mine.max()))
        added += (sizes + len(current)) * joined - sizes * own
    return int(known[np.argmin(added)])
