"""A released table as an attacker reads it: how far its rows are from persons he knows something of.

Cells may be values, intervals, labels of a taxonomy, sets or suppressed, as `kohort anonymize` writes them, or means of
their class. The distance of a value from a cell is 0 where the cell could stand for it, 1 for another category, and for
a number how far it is outside, as a share of the column's range (Gower, 1971).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text, parse_cell
from kohort.tables.column_blocks import Taxonomy

__all__ = ["Attacked", "Released", "could_stand_for", "distinct", "holds", "texts_of"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Released:
    """A released table, and the public ranges and taxonomies of its columns.

    Attributes:
        frame: The table.
        ranges: The width of each column of numbers; a column that is not here holds categories.
        hierarchies: Taxonomies of labels, where there are any.
    """

    frame: pl.DataFrame
    ranges: Mapping[str, float]
    hierarchies: Mapping[str, Taxonomy] = field(default_factory=dict)

    @classmethod
    def of(
        cls, frame: pl.DataFrame, known: pl.DataFrame, hierarchies: Mapping[str, Taxonomy] | None = None
    ) -> Released:
        """A released table beside the columns of a table like the one it was made from.

        Args:
            frame: The release.
            known: Rows as they are, for types and ranges.
            hierarchies: Taxonomies of labels.
        """
        numbers = [name for name in frame.columns if name in known.columns and known.schema[name].is_numeric()]
        spans = {name: known[name].drop_nulls().cast(pl.Float64) for name in numbers}
        ranges = {
            name: float(np.ptp(values.to_numpy())) or 1.0 if values.len() else 1.0 for name, values in spans.items()
        }
        return cls(frame, ranges, hierarchies or {})

    def distances(self, persons: pl.DataFrame, columns: Sequence[str]) -> Floats:
        """How far each released row is from each person in some columns, summed.

        Args:
            persons: Rows as they are.
            columns: What the attacker knows of them.

        Returns:
            [persons, released rows].
        """
        far = np.zeros((persons.height, self.frame.height), dtype=np.float32)
        for name in columns:
            values, of_person = distinct(persons[name])
            cells, of_row = distinct(self.frame[name])
            apart = np.array(
                [_apart(cell, values, self.ranges.get(name), self.hierarchies.get(name)) for cell in cells],
                dtype=np.float32,
            )
            far += apart[of_row][:, of_person].T
        return far

    def classes(self, columns: Sequence[str]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """The distinct released rows in some columns, and which of them each row is."""
        keyed = self.frame.select(columns)
        distinct = keyed.unique(maintain_order=True).with_row_index("class")
        place = keyed.join(distinct, on=columns, how="left", nulls_equal=True, maintain_order="left")["class"]
        return distinct.drop("class"), place.to_numpy().astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """A released table and whom its attacker is asked about.

    Attributes:
        table: The release.
        members: Rows of persons in it, as they are.
        others: Rows of persons who are not.
        on: What was attacked, in words.
        by: Who has it.
        seed: Of the draws.
    """

    table: Released
    members: pl.DataFrame
    others: pl.DataFrame
    on: str
    by: str
    seed: int = 0


def could_stand_for(
    table: pl.DataFrame, rows: pl.DataFrame, columns: Sequence[str], hierarchies: Mapping[str, Taxonomy]
) -> NDArray[np.bool_]:
    """[rows, table]: whether each row of the table could stand for each row, in all of the columns.

    Args:
        table: A released table.
        rows: Rows as they are.
        columns: The columns that are compared.
        hierarchies: Taxonomies of generalised columns; a column without one must agree exactly.

    Returns:
        The matrix.
    """
    agree = np.ones((rows.height, table.height), dtype=np.bool_)
    for name in columns:
        values, of_row = distinct(rows[name])
        cells, of_cell = distinct(table[name])
        taxonomy = hierarchies.get(name)
        holds = [_stands(cell if taxonomy is None else parse_cell(cell), cell, values, taxonomy) for cell in cells]
        agree &= np.array(holds)[of_cell][:, of_row].T
    return agree


def texts_of(column: pl.Series) -> list[str]:
    """The cells of a column as canonical texts.

    Args:
        column: A column of a released table or of persons' rows.

    Returns:
        One text per row; a missing cell is empty.
    """
    return ["" if value is None else canonical_text(value) for value in column.to_list()]


def distinct(column: pl.Series) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """The distinct cells of a column as texts, and which of them each row has.

    Args:
        column: A column of a released table or of persons' rows.

    Returns:
        The distinct texts in sorted order, and the place of each row's text among them. A missing cell is empty.
    """
    values, place = np.unique(np.array(texts_of(column)), return_inverse=True)
    return values, place.astype(np.int64)


def holds(cell: str, values: NDArray[np.str_], hierarchy: Taxonomy | None) -> NDArray[np.bool_]:
    """Which values a released cell could stand for.

    Args:
        cell: A released cell as text: a value, an interval, a label, a set or a mark of suppression.
        values: Original values as texts; a missing one is empty.
        hierarchy: The taxonomy that says which values a label stands for; None where the column has none.

    Returns:
        True for each value that the cell could stand for, [values]. A suppressed cell could stand for any.
    """
    return _stands(parse_cell(cell), cell, values, hierarchy)


def _stands(read: object, cell: str, values: NDArray[np.str_], hierarchy: Taxonomy | None) -> NDArray[np.bool_]:
    """Which values a cell could stand for."""
    if isinstance(read, Label) and hierarchy is not None:
        return np.isin(values, hierarchy.leaves(read.text))
    if isinstance(read, ValueSet):
        return np.isin(values, ["" if value is None else value for value in read.values])
    if isinstance(read, Interval):
        return np.array([read.missing if text == "" else read.low <= float(text) <= read.high for text in values])
    return np.asarray((values == cell) | (read is SUPPRESSED))


def _apart(cell: str, values: NDArray[np.str_], span: float | None, hierarchy: Taxonomy | None) -> Floats:
    """How far values are from one cell, 0 to 1."""
    read = parse_cell(cell)
    if span is None or not isinstance(read, str | Interval):
        return np.asarray(~_stands(read, cell, values, hierarchy), dtype=np.float32)
    low, high = (read.low, read.high) if isinstance(read, Interval) else (_number(cell), _number(cell))
    found = np.array([_number(text) for text in values])
    outside = np.maximum(np.maximum(low - found, found - high), 0.0) / span
    absent = ~_stands(read, cell, values, hierarchy)
    return np.asarray(np.where(np.isnan(outside), absent, np.minimum(outside, 1.0)), dtype=np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
