"""A hierarchy seen from one coded column: for every level, which codes share a label, what is released, what it costs.

A hierarchy whose top is not `*` for all gets one more level that suppresses everything. Null is no leaf of a
hierarchy: it stands alone on every level but that last one. A label whose leaves are neighbouring numbers is released
as an interval, which can be read without the hierarchy. Its ends are those that the label names ("10 to 20"); else, for
a hierarchy over a list of values of its own, the first and the last of them, and for one over a column's own values
the nearest numbers of the public grid: no person's own value is an end.

Guarantee: labels at one level are unions of labels at the level below, so the levels of all columns span a lattice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import CodedColumn, CodedTable
from kohort.anonymity.relational.public_grid import grid_step, on_grid
from kohort.errors import ConfigError
from kohort.tables.cells import SUPPRESSED, Interval, Label, canonical_text
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = ["HierarchyLevels", "levels_by_column"]

Integers = NDArray[np.int64]

NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
ENDS = re.compile(f"({NUMBER}) to ({NUMBER})")
"""A label that names the ends of an interval."""


@dataclass(frozen=True)
class HierarchyLevels:
    """The levels of one column's hierarchy, over the codes of the column.

    Attributes:
        column: The coded column.
        labels: For each level, the number of the label of each code.
        cells: For each level, the cell that each label is released as.
        cost: For each level, the penalty of each label.
    """

    column: CodedColumn
    labels: tuple[Integers, ...]
    cells: tuple[tuple[Any, ...], ...]
    cost: tuple[NDArray[np.float64], ...]

    @property
    def count(self) -> int:
        """Number of levels, the values themselves included."""
        return len(self.labels)

    @property
    def code_costs(self) -> NDArray[np.float64]:
        """The penalty of each code, level after level."""
        return np.concatenate([cost[labels] for labels, cost in zip(self.labels, self.cost, strict=True)])

    @classmethod
    def of(cls, column: CodedColumn, hierarchy: Hierarchy, *, weight: float = 1.0) -> HierarchyLevels:
        """The levels of a hierarchy, which must cover every value of the column; a weight multiplies its penalties.

        Raises:
            DataError: The hierarchy lacks a value of the column.
        """
        texts = [None if value is None else canonical_text(value) for value in column.values.to_list()]
        hierarchy.check_covers(text for text in texts if text is not None)
        places = _number_places(hierarchy) if column.is_number else {}
        step = _step(column, hierarchy)
        chains = {chain[0]: chain for chain in hierarchy.chains}
        labels, cells, costs = [], [], []
        for level in range(hierarchy.levels):
            names = [None if text is None else chains[text][level] for text in texts]
            numbers, found = _numbered(names)
            made = [
                column.values[int(np.argmax(numbers == number))]
                if level == 0 or name is None
                else _cell(hierarchy, name, places, step)
                for number, name in enumerate(found)
            ]
            labels.append(numbers)
            cells.append(tuple(made))
            costs.append(_costs(column, hierarchy, texts, found, made))
        if any(chain[-1] != ROOT_LABEL for chain in chains.values()) or column.has_null:
            labels, cells, costs = _with_top(column, places, step, labels, cells, costs)
        return cls(column, tuple(labels), tuple(cells), tuple(cost * weight for cost in costs))


def levels_by_column(
    table: CodedTable, hierarchies: Mapping[str, Hierarchy], weights: Sequence[float] = ()
) -> tuple[HierarchyLevels, ...]:
    """The hierarchy levels of every column.

    Args:
        table: The coded quasi-identifiers.
        hierarchies: Hierarchy of each column, by name; it must cover every value of the column.
        weights: Weight of each column, which multiplies its penalties; empty: 1.

    Returns:
        The levels, in the order of the columns.

    Raises:
        ConfigError: A column has no hierarchy.
        DataError: A hierarchy lacks a value of its column.
    """
    lacking = [column.name for column in table.columns if column.name not in hierarchies]
    if lacking:
        hint = "Give one for each quasi-identifier, or use the automatic ones"
        raise ConfigError(f"no hierarchy for: {', '.join(lacking)}", hint=hint)
    return tuple(
        HierarchyLevels.of(column, hierarchies[column.name], weight=weights[place] if weights else 1.0)
        for place, column in enumerate(table.columns)
    )


def _numbered(names: list[str | None]) -> tuple[Integers, list[str | None]]:
    known: dict[str | None, int] = {}
    numbers = np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)
    return numbers, list(known)


def _number_places(hierarchy: Hierarchy) -> dict[str, tuple[int, float]]:
    """Rank and size of each leaf that is a number."""
    numbers = []
    for leaf in hierarchy.values:
        try:
            numbers.append((float(leaf), leaf))
        except ValueError:
            continue
    return {leaf: (rank, value) for rank, (value, leaf) in enumerate(sorted(numbers))}


def _cell(hierarchy: Hierarchy, label: str, places: Mapping[str, tuple[int, float]], step: float) -> Any:
    """The cell of a label. Numbers without gaps are an interval: its ends are those that the label names, or lie on
    the public grid."""
    leaves = hierarchy.leaves(label)
    found = [places[leaf] for leaf in leaves if leaf in places]
    if len(found) == len(leaves):
        ranks = [rank for rank, _ in found]
        if max(ranks) - min(ranks) == len(ranks) - 1:
            return Interval(*_ends(label, [value for _, value in found], step))
    return SUPPRESSED if label == ROOT_LABEL else Label(label)


def _ends(label: str, values: Sequence[float], step: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    named = ENDS.fullmatch(label)
    if named is not None and float(named[1]) <= low and high <= float(named[2]):
        # The upper end belongs to the next label; among whole numbers the one below it does to this one.
        last = float(named[2]) - 1 if all(value == int(value) for value in (low, high)) and step >= 1 else None
        return float(named[1]), last if last is not None and last >= high else float(named[2])
    return on_grid(low, high, step)


def _step(column: CodedColumn, hierarchy: Hierarchy) -> float:
    """The step of the public grid of a hierarchy over a column's own values; 0 for one over a list of its own."""
    values = [value for value in column.values.to_list() if value is not None]
    if not column.values.dtype.is_numeric() or set(hierarchy.values) - {canonical_text(value) for value in values}:
        return 0.0
    return grid_step([float(value) for value in values], whole=column.values.dtype.is_integer())


def _costs(
    column: CodedColumn, hierarchy: Hierarchy, texts: list[str | None], names: list[str | None], cells: list[Any]
) -> NDArray[np.float64]:
    """What a row with this cell loses at most: tight penalties can only be lower."""
    place = {text: code for code, text in enumerate(texts)}
    costs = np.zeros(len(names))
    for number, (name, cell) in enumerate(zip(names, cells, strict=True)):
        if name is None or column.distinct == 1:
            continue
        if cell is SUPPRESSED:
            costs[number] = 1.0
        elif isinstance(cell, Interval):
            inside = [column.points[place[leaf]] for leaf in hierarchy.leaves(name) if leaf in place]
            costs[number] = max(inside) - min(inside)
        elif isinstance(cell, Label):
            below = sum(leaf in place for leaf in hierarchy.leaves(name))
            costs[number] = below / column.distinct if below > 1 else 0.0
    return costs


def _with_top(
    column: CodedColumn,
    places: Mapping[str, tuple[int, float]],
    step: float,
    labels: list[Integers],
    cells: list[tuple[Any, ...]],
    costs: list[NDArray[np.float64]],
) -> tuple[list[Integers], list[tuple[Any, ...]], list[NDArray[np.float64]]]:
    """Add a level that suppresses everything: the whole range for a number, a suppression mark for all else."""
    values = [value for _, value in places.values()]
    top = Interval(*on_grid(min(values), max(values), step), column.has_null) if values else SUPPRESSED
    return (
        [*labels, np.zeros(column.distinct, dtype=np.int64)],
        [*cells, (top,)],
        [*costs, np.array([0.0 if column.distinct == 1 else 1.0])],
    )
