"""From a problem to classes and the cells they are released with.

Guarantee: every class meets the rule if the whole table does; every cell covers the values of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from kohort.anonymity.relational.algorithms.lattice import lattice, node_classes
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.coding import code_table
from kohort.anonymity.relational.hierarchies.rho import choose_rhos
from kohort.anonymity.relational.hierarchies.taxonomy import Ladder, ladders
from kohort.anonymity.relational.partition import Integers, Partition, Problem
from kohort.anonymity.relational.recode import ColumnCells, cells_at, label_cells, set_cells
from kohort.anonymity.relational.techniques import CutOptions, find_class_technique, find_hierarchy_technique
from kohort.errors import ConfigError, RefusedError
from kohort.tables.hierarchy import Hierarchy

__all__ = ["Classed", "Classing", "classify"]


@dataclass(frozen=True, kw_only=True)
class Classing:
    """What was asked for. `finish` is applied to a finished partition (keep-exact)."""

    algorithm: str
    hierarchies: str | Mapping[str, Hierarchy]
    target: str | None
    cuts: CutOptions
    levels: Mapping[str, int] | None
    node_budget: int | None
    suppression_limit: float
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
    if isinstance(options.hierarchies, str):
        find_hierarchy_technique(options.hierarchies)
    chosen = options.algorithm
    if chosen == "auto":
        chosen = "cluster" if options.hierarchies == "auto" and options.levels is None else "lattice"
    if options.levels is not None:
        if chosen != "lattice":
            raise ConfigError("levels are for hierarchies", hint="Use algorithm lattice, or leave the levels out")
        return _at_levels(frame, problem, options, options.levels)
    if chosen == "lattice":
        return _by_lattice(frame, problem, options)
    partition = options.finish(find_class_technique(chosen)(problem, options.cuts))
    nobody = np.zeros(0, np.int64)
    if options.hierarchies != "auto":
        given = _hierarchies(frame, problem, options)
        cells = label_cells(problem.table, partition, ladders(problem.table, given))
        return Classed(partition, cells, nobody, given, chosen)
    if chosen == "thesis" and options.target is not None:
        rhos = choose_rhos(frame, problem.table, partition, target=options.target, jobs=options.cuts.jobs)
        cells = tuple(found for _, _, found in rhos.values())
        return Classed(partition, cells, nobody, {name: one for name, (_, one, _) in rhos.items()}, chosen)
    return Classed(partition, set_cells(problem.table, partition), nobody, {}, chosen)


def _hierarchies(frame: pl.DataFrame, problem: Problem, options: Classing) -> Mapping[str, Hierarchy]:
    names = [column.name for column in problem.table.columns]
    if isinstance(options.hierarchies, str):
        return find_hierarchy_technique(options.hierarchies)(frame, names, options.target)
    return {name: options.hierarchies[name] for name in names if name in options.hierarchies}


def _at_levels(frame: pl.DataFrame, problem: Problem, options: Classing, levels: Mapping[str, int]) -> Classed:
    """Every row on the same levels: one node of the lattice, refused if a class there does not meet the rule."""
    given = _hierarchies(frame, problem, options)
    steps = ladders(problem.table, given)
    unknown = sorted(set(levels) - {ladder.column.name for ladder in steps})
    if unknown:
        raise ConfigError(f"levels are given for other columns: {', '.join(unknown)}", hint="Name quasi-identifiers")
    node = [levels.get(ladder.column.name, 0) for ladder in steps]
    for ladder, level in zip(steps, node, strict=True):
        if not 0 <= level < ladder.levels:
            hint = f"Use 0 to {ladder.levels - 1}"
            raise ConfigError(f"the hierarchy of column {ladder.column.name!r} has no level {level}", hint=hint)
    partition, left = node_classes(problem, steps, node)
    if left:
        hint = "Raise a level, or let the lattice choose them"
        raise RefusedError(f"{left:,} rows are in classes that do not meet the rule at these levels", hint=hint)
    first = partition.order[partition.starts[:-1]]
    cells = tuple(
        cells_at(ladder, np.full(partition.count, level), codes[first].astype(np.int64))
        for ladder, level, codes in zip(steps, node, problem.table.codes, strict=True)
    )
    return Classed(partition, cells, np.zeros(0, np.int64), given, "lattice")


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
