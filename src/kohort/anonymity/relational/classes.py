"""From a problem to classes and the cells they are released with.

Automatic hierarchies of the thesis algorithm get one rho per column (`choose_rhos`). For each rho, the values of a
class that fall into one group are released as the group; a class that spans several groups is suppressed in that
column. The rho kept is the one whose released column is most associated with the target, by the entropy coefficient
I(column; target) / H(target); of equal ones the smallest, which generalises least.

Guarantee: every class meets the rule if the whole table does; every cell covers the values of its class.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.cell_shape import Steps
from kohort.anonymity.relational.algorithms.lattice import lattice, node_classes
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.algorithms.refine import (
    few_pairs,
    group_classes,
    leave_out,
    loss_of,
    refine,
    too_many_pairs,
)
from kohort.anonymity.relational.coding import mean_cells
from kohort.anonymity.relational.hierarchy_builders import RHOS, automatic_hierarchy, data_independent, date_hierarchy
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels, levels_by_column
from kohort.anonymity.relational.makers import makers_for
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem, code_table
from kohort.anonymity.relational.recode import ColumnCells, cells_at, label_cells, set_cells
from kohort.anonymity.relational.techniques import CutOptions, find_class_technique, find_hierarchy_technique
from kohort.errors import ConfigError, RefusedError
from kohort.tables.cells import canonical_text
from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "ChosenRho",
    "ClassOptions",
    "FormedClasses",
    "choose_rhos",
    "form_classes",
    "leave_rows_out",
    "needs_moves",
    "with_partition",
]

ChosenRho = tuple[float, Hierarchy, ColumnCells]
NOBODY: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """How classes are to be formed.

    Attributes:
        algorithm: "auto", "lattice" or the name of a class technique.
        hierarchies: "auto", the name of a hierarchy technique, or one hierarchy per quasi-identifier.
        target: Column that automatic hierarchies are made for.
        cuts: Options of the class techniques.
        levels: Level of each hierarchy that every row is put on; None: the algorithm chooses.
        node_budget: Nodes of the lattice to visit best first.
        suppression_limit: Largest share of the rows that may be suppressed.
        balance: What a suppressed row costs beside a generalised one, from 0 (nothing) to 1 (everything).
        finish: Applied to a finished partition (the keep-exact step).
        max_set: Most values that a released set may name; None decides by the number of values of a column.
        means: Columns that are released as class means instead of intervals.
    """

    algorithm: str
    hierarchies: str | Mapping[str, Hierarchy]
    target: str | None
    cuts: CutOptions
    levels: Mapping[str, int] | None
    node_budget: int | None
    suppression_limit: float
    finish: Callable[[Partition], Partition]
    max_set: int | None = None
    balance: float = 0.0
    means: tuple[str, ...] = ()


@dataclass(frozen=True)
class FormedClasses:
    """Classes and the cells they are released with.

    Attributes:
        partition: The class of each row.
        make_cells: Makes the released cells, by column and class; where several ways were tried, most are never shown.
        suppressed: Rows that are left out.
        hierarchies: The hierarchies that released labels come from.
        algorithm: Name of the algorithm that formed the classes.
        make_loss: Computes `loss`, which nobody asks for where one way alone was tried.
        steps: The hierarchy levels of the labels; None where intervals and sets are released.
        notes: What was left undone.
        cuts: The problem with codes in the order in which classes are cut; None for that of the table.
    """

    partition: Partition
    make_cells: Callable[[], tuple[ColumnCells, ...]]
    suppressed: Integers
    hierarchies: Mapping[str, Hierarchy]
    algorithm: str
    make_loss: Callable[[], float]
    steps: tuple[HierarchyLevels, ...] | None = None
    notes: tuple[str, ...] = ()
    cuts: Problem | None = None

    @cached_property
    def cells(self) -> tuple[ColumnCells, ...]:
        """The released cells, by column and class."""
        return self.make_cells()

    @property
    def loss(self) -> float:
        """Mean loss over rows and quasi-identifiers of the cells, weighted, before rows are left out."""
        return self.make_loss()


def form_classes(frame: pl.DataFrame, problem: Problem, options: ClassOptions) -> list[FormedClasses]:
    """Form the classes of a table and the cells they are released with.

    Args:
        frame: The table.
        problem: Its coded quasi-identifiers and the rule.
        options: How to form the classes.

    Returns:
        What was formed: by one algorithm or, with "auto", by every one that fits, the least loss first.

    Raises:
        ConfigError: A technique is unknown, a hierarchy is missing, or a level does not exist.
        RefusedError: A class on the given levels does not meet the rule.
    """
    if isinstance(options.hierarchies, str):
        find_hierarchy_technique(options.hierarchies)
    labelled = options.hierarchies != "auto" or options.levels is not None
    if options.means and (labelled or options.algorithm in ("lattice", "thesis")):
        raise ConfigError("columns are to be released as means and as labels", hint="Leave means or hierarchies out")
    chosen = "lattice" if options.algorithm == "auto" and labelled else options.algorithm
    if options.levels is not None:
        if chosen != "lattice":
            raise ConfigError("levels are for hierarchies", hint="Use algorithm lattice, or leave the levels out")
        return [_at_levels(frame, problem, options, options.levels)]
    if chosen == "lattice":
        return [_by_lattice(frame, problem, options)]
    if chosen != "auto":
        return [_by_technique(frame, problem, options, chosen)]
    made = _makers(frame, problem, options)
    return sorted(made, key=lambda one: one.loss) if len(made) > 1 else made


def _makers(frame: pl.DataFrame, problem: Problem, options: ClassOptions) -> list[FormedClasses]:
    """Classes of the algorithms that fit; the best of those without hierarchies are refined where that pays."""
    steps = _date_steps(problem)
    coded = problem if steps is None else _by_decades(problem)
    chosen = makers_for(problem, labels=not options.means and not options.suppression_limit)
    cuts = CutOptions(split="look-ahead", jobs=options.cuts.jobs)
    found = [(find_class_technique(name)(coded, cuts), name) for name in chosen.techniques]
    if len(found) > 1:
        found.sort(key=lambda one: loss_of(problem, one[0], steps) if steps else problem.mean_loss(one[0]))
    best, name = found[0]
    found[0] = refine(problem, best, steps), name
    made = [_by_sets(problem, options, options.finish(partition), maker) for partition, maker in found]
    notes, unmoved = chosen.notes, too_many_pairs(problem.table.rows, best.count)
    if unmoved and needs_moves(problem, made[0].cells):
        notes += unmoved
    if chosen.lattice:
        made.append(_by_lattice(frame, problem, replace(options, hierarchies="intervals")))
    return [replace(one, notes=(*one.notes, *notes)) for one in made]


def needs_moves(problem: Problem, cells: Sequence[ColumnCells]) -> bool:
    """Whether moving rows between classes can help: under a rule about sensitive values, or where sets are suppressed.

    Args:
        problem: The coded table and the rule. With k alone, sets matter only where `max_set` bounds them.
        cells: The cells of the classes that were formed.

    Returns:
        True if rows are worth moving.
    """
    if problem.requirements is not None or problem.max_set is None:
        return problem.requirements is not None
    sets = zip(problem.table.columns, cells, strict=True)
    return any(one.suppressed.any() for column, one in sets if not column.is_number)


def _by_sets(problem: Problem, options: ClassOptions, partition: Partition, name: str) -> FormedClasses:
    """Intervals and sets; dates by the calendar."""
    dates = _date_hierarchies(problem.table)

    def shown() -> tuple[ColumnCells, ...]:
        cells = set_cells(problem.table, partition, max_set=options.max_set)
        by_calendar = (
            _date_cells(problem.table, place, partition, dates[one.name]) if one.name in dates else one
            for place, one in enumerate(cells)
        )
        means = options.means
        return tuple(mean_cells(problem.table, partition, one) if one.name in means else one for one in by_calendar)

    def loss() -> float:
        return loss_of(problem, partition, _date_steps(problem)) if dates else problem.mean_loss(partition)

    return FormedClasses(partition, cache(shown), NOBODY, dates, name, cache(loss))


def _by_technique(frame: pl.DataFrame, problem: Problem, options: ClassOptions, name: str) -> FormedClasses:
    partition = options.finish(find_class_technique(name)(problem, options.cuts))
    loss = cache(lambda: problem.mean_loss(partition))
    if options.hierarchies != "auto":
        given = _hierarchies(frame, problem, options)
        steps = levels_by_column(problem.table, given, problem.weights)
        cells = label_cells(problem.table, partition, steps)
        return FormedClasses(partition, lambda: cells, NOBODY, given, name, loss, steps)
    if name == "thesis" and options.target is not None:
        rhos = choose_rhos(frame, problem.table, partition, target=options.target, jobs=options.cuts.jobs)
        cells = tuple(found for _, _, found in rhos.values())
        return FormedClasses(partition, lambda: cells, NOBODY, {one: rhos[one][1] for one in rhos}, name, loss)
    return _by_sets(problem, options, partition, name)


def leave_rows_out(problem: Problem, made: FormedClasses, options: ClassOptions, rows: int) -> FormedClasses:
    """The same classes with at most `rows` rows left out, those whose suppression saves most.

    Args:
        problem: The coded table and the rule.
        made: Classes and their cells.
        options: How they were formed.
        rows: Rows that may be left out in all.

    Returns:
        The classes of the rows that are left, their cells as narrow as these rows allow.
    """
    if rows <= len(made.suppressed):
        return made
    steps = made.steps or _date_steps(problem)
    partition, left = leave_out(
        problem,
        made.partition,
        steps,
        rows=rows,
        balance=options.balance,
        already=made.suppressed,
        cuts=made.cuts,
    )
    return replace(with_partition(problem, made, options, partition), suppressed=left, make_loss=made.make_loss)


def with_partition(problem: Problem, made: FormedClasses, options: ClassOptions, partition: Partition) -> FormedClasses:
    """Other classes in the place of those that were formed, with cells of the same kind.

    Args:
        problem: The coded table and the rule.
        made: Classes and their cells.
        options: How they were formed.
        partition: The other classes.

    Returns:
        The classes and their cells, as narrow as these allow.
    """
    if made.steps is None:
        return replace(_by_sets(problem, options, partition, made.algorithm), notes=made.notes)
    labels, steps = label_cells(problem.table, partition, made.steps), made.steps
    loss = cache(lambda: _label_loss(problem, steps, partition))
    return replace(made, partition=partition, make_cells=lambda: labels, make_loss=loss)


def _date_hierarchies(table: CodedTable) -> dict[str, Hierarchy]:
    """Day, month, quarter, year and decade for columns of dates: a set of dates would list birthdays."""
    temporal = [column for column in table.columns if column.values.dtype in (pl.Date, pl.Datetime)]
    known = {column.name: column.values.drop_nulls() for column in temporal}
    return {
        name: date_hierarchy(name, [canonical_text(value) for value in values.to_list()])
        for name, values in known.items()
        if len(values)
    }


def _date_steps(problem: Problem) -> Steps | None:
    """The calendar's levels for columns of dates, which are released as its labels; None where there are none."""
    dates = _date_hierarchies(problem.table)
    if not dates:
        return None
    return [
        HierarchyLevels.of(column, dates[column.name], weight=problem.weight(place)) if column.name in dates else None
        for place, column in enumerate(problem.table.columns)
    ]


def _by_decades(problem: Problem) -> Problem:
    """The problem with dates as categories of decades: a class that spans two of them is released without its date."""
    dates = _date_hierarchies(problem.table)
    frame = pl.DataFrame(
        (column.values.dt.year() // 10).cast(pl.String).alias(column.name).gather(codes)
        for column, codes in zip(problem.table.columns, problem.table.codes, strict=True)
        if column.name in dates
    )
    decades = code_table(frame, frame.columns, by_value=True)
    columns, lines = list(problem.table.columns), problem.table.codes.copy()
    for place, column in enumerate(columns):
        if column.name in dates:
            at = frame.columns.index(column.name)
            columns[place], lines[place] = decades.columns[at], decades.codes[at]
    return replace(problem, table=CodedTable(tuple(columns), lines))


def _date_cells(table: CodedTable, place: int, partition: Partition, hierarchy: Hierarchy) -> ColumnCells:
    alone = CodedTable((table.columns[place],), table.codes[place : place + 1])
    steps = levels_by_column(alone, {hierarchy.column: hierarchy})
    return label_cells(alone, partition, steps)[0]


def choose_rhos(
    frame: pl.DataFrame,
    table: CodedTable,
    partition: Partition,
    *,
    target: str,
    rhos: Sequence[float] = RHOS,
    jobs: int | None = None,
) -> dict[str, ChosenRho]:
    """Choose the rho of the automatic hierarchy of each quasi-identifier, columns in parallel.

    Args:
        frame: The table.
        table: Its coded quasi-identifiers.
        partition: The classes to release.
        target: Column that the hierarchies are made for.
        rhos: Bucket widths in percent to choose from.
        jobs: Number of threads; all cores when None.

    Returns:
        For each column its rho, the hierarchy of that rho, and the cells it gives.
    """
    labels = frame[target].rank("dense").fill_null(0).cast(pl.Int64).to_numpy()

    def best(position: int) -> ChosenRho:
        return _best_rho(frame, table, partition, position, target=target, labels=labels, rhos=rhos)

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        found = list(pool.map(best, range(len(table.columns))))
    return {column.name: chosen for column, chosen in zip(table.columns, found, strict=True)}


def _best_rho(
    frame: pl.DataFrame,
    table: CodedTable,
    partition: Partition,
    position: int,
    *,
    target: str,
    labels: Integers,
    rhos: Sequence[float],
) -> ChosenRho:
    column = table.columns[position]
    alone = CodedTable((column,), table.codes[position : position + 1])
    best: tuple[float, ChosenRho] | None = None
    for rho in rhos:
        hierarchy = automatic_hierarchy(frame, column.name, target, rhos=[rho])
        (cells,) = label_cells(alone, partition, [HierarchyLevels.of(column, hierarchy)])
        kept = _association(cells.of_class[partition.labels], labels)
        if best is None or kept > best[0] + 1e-12:
            best = kept, (rho, hierarchy, cells)
    if best is None:
        raise ValueError("no rho to choose from")
    return best[1]


def _association(values: Integers, target: Integers) -> float:
    """I(values; target) / H(target), from counts."""
    _, target = np.unique(target, return_inverse=True)
    distinct = int(target.max()) + 1
    _, joint = np.unique(values * distinct + target, return_counts=True)
    _, alone = np.unique(values, return_counts=True)
    whole = _entropy(np.bincount(target))
    return 0.0 if whole == 0.0 else (whole + _entropy(alone) - _entropy(joint)) / whole


def _entropy(counts: NDArray[np.int64]) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _hierarchies(frame: pl.DataFrame, problem: Problem, options: ClassOptions) -> Mapping[str, Hierarchy]:
    names = [column.name for column in problem.table.columns]
    if isinstance(options.hierarchies, str):
        return find_hierarchy_technique(options.hierarchies)(frame, names, options.target)
    given = options.hierarchies
    lacking = [name for name in names if name not in given]
    return {**{name: given[name] for name in names if name in given}, **data_independent(frame, lacking)}


def _at_levels(frame: pl.DataFrame, problem: Problem, options: ClassOptions, asked: Mapping[str, int]) -> FormedClasses:
    """Every row on the same levels: one node of the lattice, refused if a class there does not meet the rule."""
    given = _hierarchies(frame, problem, options)
    steps = levels_by_column(problem.table, given, problem.weights)
    unknown = sorted(set(asked) - {levels.column.name for levels in steps})
    if unknown:
        raise ConfigError(f"levels are given for other columns: {', '.join(unknown)}", hint="Name quasi-identifiers")
    node = [asked.get(levels.column.name, 0) for levels in steps]
    for levels, level in zip(steps, node, strict=True):
        if not 0 <= level < levels.count:
            hint = f"Use 0 to {levels.count - 1}"
            raise ConfigError(f"the hierarchy of column {levels.column.name!r} has no level {level}", hint=hint)
    partition, left = node_classes(problem, steps, node)
    if left:
        hint = "Raise a level, or let the lattice choose them"
        raise RefusedError(f"{left:,} rows are in classes that do not meet the rule at these levels", hint=hint)
    first = partition.order[partition.starts[:-1]]
    cells = tuple(
        cells_at(levels, np.full(partition.count, level), codes[first].astype(np.int64))
        for levels, level, codes in zip(steps, node, problem.table.codes, strict=True)
    )
    return FormedClasses(
        partition, lambda: cells, NOBODY, given, "lattice", lambda: _label_loss(problem, steps, partition), steps
    )


def _by_lattice(frame: pl.DataFrame, problem: Problem, options: ClassOptions) -> FormedClasses:
    given = _hierarchies(frame, problem, options)
    steps = levels_by_column(problem.table, given, problem.weights)
    found = lattice(problem, steps, node_budget=options.node_budget, suppression_limit=options.suppression_limit)
    candidates = [(options.finish(found.partition), found.suppressed)]
    notes: tuple[str, ...] = ()
    # A search from below releases diverse rows first and leaves the others behind; one from above does not.
    ordered = _in_leaf_order(problem, steps)
    # Groups in the order of their own cost take time, and pay most where a budget then opens classes from them.
    looked_for = options.suppression_limit > 0 and options.node_budget is None
    grouped = group_classes(problem, steps) if looked_for else None
    if grouped is not None:
        candidates.append((options.finish(grouped), NOBODY))
    if problem.requirements is not None:
        candidates.append((options.finish(mondrian(ordered, split="look-ahead")), NOBODY))
    candidates.sort(key=lambda one: _label_loss(problem, steps, one[0]))
    if problem.requirements is not None:
        notes = too_many_pairs(problem.table.rows, candidates[0][0].count)
    # Which of several gets best shows only once all are refined, which takes long on large tables.
    several = len(candidates) if grouped is not None and few_pairs(problem, candidates[0][0]) else 1
    for best, left in candidates[:several]:
        candidates.append((options.finish(refine(problem, best, steps, cuts=ordered, left=left)), left))
    partition, left = min(candidates, key=lambda one: _label_loss(problem, steps, one[0]))
    cells = label_cells(problem.table, partition, steps)
    loss = _label_loss(problem, steps, partition)
    return FormedClasses(partition, lambda: cells, left, given, "lattice", lambda: loss, steps, notes, ordered)


def _in_leaf_order(problem: Problem, steps: Sequence[HierarchyLevels]) -> Problem:
    """The problem with leaves coded in the order of the hierarchies, so that cuts fall between labels."""
    ordered = pl.DataFrame(
        pl.Series(levels.column.name, _leaf_order(levels)[codes])
        for levels, codes in zip(steps, problem.table.codes, strict=True)
    )
    return replace(problem, table=code_table(ordered, ordered.columns), max_set=None)


def _leaf_order(levels: HierarchyLevels) -> Integers:
    """The place of each code when leaves are sorted by their labels, from the top level down."""
    if levels.column.is_number:
        return np.arange(levels.column.distinct, dtype=np.int64)
    keys: list[Any] = list(levels.labels)
    place = np.empty(levels.column.distinct, np.int64)
    place[np.lexsort(keys)] = np.arange(levels.column.distinct)
    return place


def _label_loss(problem: Problem, steps: Sequence[HierarchyLevels], partition: Partition) -> float:
    """Mean loss over rows and quasi-identifiers of a partition released by labels."""
    total = 0.0
    first = partition.starts[:-1]
    for levels, codes in zip(steps, problem.table.codes, strict=True):
        ordered = codes[partition.order]
        cost = np.zeros(partition.count)
        apart = np.ones(partition.count, dtype=np.bool_)
        for labels, costs in zip(levels.labels, levels.cost, strict=True):
            held = labels[ordered]
            low = np.minimum.reduceat(held, first)
            cost[apart] = costs[low[apart]]
            apart &= low != np.maximum.reduceat(held, first)
        total += float((cost * partition.sizes).sum())
    return total / (problem.table.rows * len(problem.table.columns))
