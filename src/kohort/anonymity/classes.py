"""Which algorithm makes the classes, and which cells they are released with.

A register, not a chain of conditions: an algorithm is a function from a table and a problem to classes and cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from kohort.anonymity.auto_hierarchy import LATTICE_RHOS, automatic_hierarchy
from kohort.anonymity.choose_rho import choose_rhos
from kohort.anonymity.cluster import cluster
from kohort.anonymity.coding import code_table
from kohort.anonymity.intervals import data_independent
from kohort.anonymity.lattice import lattice
from kohort.anonymity.mondrian import Split, mondrian
from kohort.anonymity.partition import Integers, Partition, Problem
from kohort.anonymity.recode import ColumnCells, label_cells, set_cells
from kohort.anonymity.taxonomy import Ladder, ladders
from kohort.anonymity.thesis import thesis_mondrian
from kohort.data.hierarchy import Hierarchy
from kohort.errors import ConfigError, nearest

__all__ = ["Classed", "Classing", "classify"]


@dataclass(frozen=True, kw_only=True)
class Classing:
    """What was asked for. `finish` is applied to a finished partition (keep-exact)."""

    algorithm: str
    hierarchies: Literal["auto", "intervals"] | Mapping[str, Hierarchy]
    target: str | None
    split: Split | None
    relaxed: bool
    dimensions: Sequence[str] | None
    node_budget: int | None
    suppression_limit: float
    jobs: int | None
    finish: Callable[[Partition], Partition]

    def without_suppression(self) -> Classing:
        """The same with every row released."""
        return replace(self, suppression_limit=0.0)


@dataclass(frozen=True)
class Classed:
    """Classes, cells, the rows that are left out, the hierarchies of labels, and the name of what made them."""

    partition: Partition
    cells: tuple[ColumnCells, ...]
    suppressed: Integers
    hierarchies: Mapping[str, Hierarchy]
    algorithm: str


def classify(frame: pl.DataFrame, problem: Problem, options: Classing) -> Classed:
    """Make the classes and their cells."""
    if not isinstance(options.hierarchies, Mapping) and options.hierarchies not in ("auto", "intervals"):
        word = str(options.hierarchies)
        raise ConfigError(f"unknown hierarchies {word!r}", hint=nearest(word, ("auto", "intervals")))
    chosen = options.algorithm
    if chosen == "auto":
        chosen = "cluster" if options.hierarchies == "auto" else "lattice"
    if chosen == "lattice":
        return _by_lattice(frame, problem, options)
    partition = options.finish(_partition(problem, options, chosen))
    nobody = np.zeros(0, np.int64)
    if options.hierarchies == "auto":
        if chosen == "thesis" and options.target is not None:
            rhos = choose_rhos(frame, problem.table, partition, target=options.target, jobs=options.jobs)
            cells = tuple(found for _, _, found in rhos.values())
            return Classed(partition, cells, nobody, {name: one for name, (_, one, _) in rhos.items()}, chosen)
        return Classed(partition, set_cells(problem.table, partition), nobody, {}, chosen)
    given = _hierarchies(frame, problem, options)
    cells = label_cells(problem.table, partition, ladders(problem.table, given))
    return Classed(partition, cells, nobody, given, chosen)


def _partition(problem: Problem, options: Classing, chosen: str) -> Partition:
    if chosen == "thesis":
        return thesis_mondrian(problem)
    trivial = problem.rule.k == 1 and not problem.rule.looks_at_sensitive
    if chosen == "cluster" and not trivial:
        return cluster(problem, jobs=options.jobs)
    return mondrian(problem, split=options.split or "median", relaxed=options.relaxed, dimensions=options.dimensions)


def _hierarchies(frame: pl.DataFrame, problem: Problem, options: Classing) -> dict[str, Hierarchy]:
    names = [column.name for column in problem.table.columns]
    if isinstance(options.hierarchies, Mapping):
        return {name: options.hierarchies[name] for name in names if name in options.hierarchies}
    if options.hierarchies == "intervals" or options.target is None:
        return data_independent(frame, names)
    target = options.target
    return {name: automatic_hierarchy(frame, name, target, rhos=LATTICE_RHOS) for name in names}


def _by_lattice(frame: pl.DataFrame, problem: Problem, options: Classing) -> Classed:
    given = _hierarchies(frame, problem, options)
    steps = ladders(problem.table, given)
    found = lattice(problem, steps, node_budget=options.node_budget, suppression_limit=options.suppression_limit)
    candidates: list[tuple[Partition, Integers]] = [(found.partition, found.suppressed)]
    if problem.rule.looks_at_sensitive:
        # A walk from below lets diverse rows go first and strands the others; a walk from above does not.
        candidates.append((_from_above(problem, frame, steps), np.zeros(0, np.int64)))
    finished = [(options.finish(partition), left) for partition, left in candidates]
    partition, left = min(finished, key=lambda one: _label_loss(problem, steps, one[0]))
    return Classed(partition, label_cells(problem.table, partition, steps), left, given, "lattice")


def _from_above(problem: Problem, frame: pl.DataFrame, steps: Sequence[Ladder]) -> Partition:
    """Mondrian over the leaves in the order of the hierarchies, so that cuts fall between labels."""
    ordered = frame.select(
        pl.Series(ladder.column.name, _leaf_order(ladder)[codes])
        for ladder, codes in zip(steps, problem.table.codes, strict=True)
    )
    return mondrian(replace(problem, table=code_table(ordered, ordered.columns)), split="look-ahead")


def _leaf_order(ladder: Ladder) -> Integers:
    """The place of each code when leaves are sorted by their labels, from the top level down."""
    if ladder.column.is_number:
        return np.arange(ladder.column.distinct, dtype=np.int64)
    keys: list[Any] = list(ladder.labels)
    place = np.empty(ladder.column.distinct, np.int64)
    place[np.lexsort(keys)] = np.arange(ladder.column.distinct)
    return place


def _label_loss(problem: Problem, steps: Sequence[Ladder], partition: Partition) -> float:
    """Loss of a partition released by labels."""
    total = 0.0
    first = partition.starts[:-1]
    for ladder, codes in zip(steps, problem.table.codes, strict=True):
        ordered = codes[partition.order]
        cost = np.zeros(partition.count)
        apart = np.ones(partition.count, dtype=np.bool_)
        for labels, costs in zip(ladder.labels, ladder.cost, strict=True):
            held = labels[ordered]
            low = np.minimum.reduceat(held, first)
            cost[apart] = costs[low[apart]]
            apart &= low != np.maximum.reduceat(held, first)
        total += float((cost * partition.sizes).sum())
    return total
