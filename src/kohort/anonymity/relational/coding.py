"""Techniques that change the numbers of single columns: rounding, top and bottom coding, microaggregation.

Rounding and coding change a column before classes are formed: a number becomes the nearest multiple of a public step; a
number beyond a public limit becomes the limit. They also work on columns that are no quasi-identifiers.
Microaggregation (Defays and Anwar, 1998) changes cells after classes are formed: every row of a class gets the mean of
the class, on a public grid of about a hundredth of the column's range, instead of an interval.

Guarantee: nothing is claimed here. The checker judges the table that comes out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from kohort.anonymity.relational.problem import CodedTable, Partition
from kohort.anonymity.relational.public_grid import grid_step
from kohort.anonymity.relational.recode import ColumnCells
from kohort.errors import ConfigError, DataError, nearest

__all__ = ["Coding", "coded_numbers", "mean_cells"]


@dataclass(frozen=True, kw_only=True)
class Coding:
    """Which columns are changed how.

    Attributes:
        rounding: Step that a column is rounded to, by its name.
        top: Largest number that is released of a column; larger ones become it.
        bottom: Smallest number that is released of a column; smaller ones become it.
        means: Quasi-identifiers that are released as the mean of their class.
    """

    rounding: Mapping[str, float] = field(default_factory=dict)
    top: Mapping[str, float] = field(default_factory=dict)
    bottom: Mapping[str, float] = field(default_factory=dict)
    means: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that change before classes are formed."""
        return tuple(dict.fromkeys((*self.bottom, *self.top, *self.rounding)))

    def within(self, columns: Collection[str]) -> Coding:
        """The limits and steps of columns that a table has."""

        def held(given: Mapping[str, float]) -> dict[str, float]:
            return {name: value for name, value in given.items() if name in columns}

        return Coding(rounding=held(self.rounding), top=held(self.top), bottom=held(self.bottom))

    def check(self, frame: pl.DataFrame, quasi: Sequence[str]) -> None:
        """Refuse columns and numbers that cannot be meant.

        Args:
            frame: The table.
            quasi: The quasi-identifiers.

        Raises:
            ConfigError: A limit or step is no number that can be used, or a column for means is no quasi-identifier.
            DataError: A column is absent or holds no numbers.
        """
        for what, given in (("rounding", self.rounding), ("top", self.top), ("bottom", self.bottom)):
            for name, value in given.items():
                _require_number(frame, name, what)
                if not math.isfinite(value) or (what == "rounding" and value <= 0):
                    raise ConfigError(f"{what} of column {name!r} is {value:g}", hint="Use a number such as 5")
        for name in self.top:
            if name in self.bottom and self.bottom[name] > self.top[name]:
                raise ConfigError(f"bottom of column {name!r} is above its top", hint="Give the smaller one as bottom")
        for name in self.means:
            if name not in quasi:
                hint = nearest(name, quasi)
                raise ConfigError(f"{name!r} is to be released as means and is no quasi-identifier", hint=hint)
            _require_number(frame, name, "microaggregation")


def _require_number(frame: pl.DataFrame, name: str, what: str) -> None:
    if name not in frame.columns:
        raise DataError(f"the table has no column {name!r}", hint=nearest(name, frame.columns))
    if not frame.schema[name].is_numeric():
        raise DataError(f"{what} is for numbers, and column {name!r} holds none", hint="Name a column of numbers")


def coded_numbers(frame: pl.DataFrame, coding: Coding) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The table with limits and steps in force.

    Args:
        frame: The table; `Coding.check` has passed.
        coding: The limits and steps.

    Returns:
        The changed table, and one note per column that says how many of its numbers changed.
    """
    notes = []
    for name in coding.columns:
        column = frame[name].cast(pl.Float64)
        made = column.clip(coding.bottom.get(name), coding.top.get(name))
        coded = int((made != column).fill_null(False).sum())
        step = coding.rounding.get(name)
        if step is not None:
            made = ((made / step).round() * step).round(12)
        changed = int((made != column).fill_null(False).sum())
        parts = [f"{coded:,} to a limit" if name in coding.top or name in coding.bottom else ""]
        parts.append(f"rounded to {step:g}" if step is not None else "")
        how = ", ".join(part for part in parts if part)
        notes.append(f"column {name!r}: {changed:,} of {frame.height:,} numbers were changed ({how})")
        whole = frame.schema[name].is_integer() and bool((made.drop_nulls() % 1 == 0).all())
        frame = frame.with_columns(made.cast(frame.schema[name] if whole else pl.Float64).alias(name))
    return frame, tuple(notes)


def mean_cells(table: CodedTable, partition: Partition, cells: ColumnCells) -> ColumnCells:
    """The cells of a column with the mean of each class, on the public grid, where it would be an interval.

    Args:
        table: The coded table.
        partition: Its classes.
        cells: Intervals and values of the column.

    Returns:
        The cells; what they stand for is kept beside them. A class with missing values keeps its interval.
    """
    place = next(at for at, column in enumerate(table.columns) if column.name == cells.name)
    column = table.columns[place]
    known = column.values.cast(pl.Float64).fill_null(math.nan).to_numpy()
    sums = np.add.reduceat(known[table.codes[place][partition.order]], partition.starts[:-1])
    values = known[np.isfinite(known)].tolist()
    step = grid_step(values, whole=column.values.dtype.is_integer())
    found: list[object] = []
    spans: list[object] = []
    of_class = np.empty(partition.count, np.int64)
    seen: dict[object, int] = {}
    for number, (total, size) in enumerate(zip(sums.tolist(), partition.sizes.tolist(), strict=True)):
        before = cells.cells[cells.of_class[number]]
        plain = not math.isfinite(total) or step == 0.0
        cell = before if plain else float(f"{round(total / size / step) * step:.12g}")
        key = (cell, int(cells.of_class[number]))
        if key not in seen:
            seen[key] = len(found)
            found.append(cell)
            spans.append(before)
        of_class[number] = seen[key]
    return replace(cells, cells=tuple(found), of_class=of_class, generalised=True, spans=tuple(spans))
