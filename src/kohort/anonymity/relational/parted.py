"""A table that is read in parts, and the classes of its rows: what a release of it is written from.

Guarantee: rows are those that `kohort.tables.frames.handle_missing` keeps, in table order, whatever the size of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.codes import TEXTS
from kohort.anonymity.relational.recode import ColumnCells
from kohort.tables.frames import Missing, complete_where, none_complete
from kohort.tables.hierarchy import Hierarchy
from kohort.tables.parts import part_rows, row_count

__all__ = ["Kinds", "PartedTable", "RowClasses"]

LEFT_OUT = -1
"""The class of rows that are not released."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartedTable:
    """A table that may be larger than memory.

    Attributes:
        table: All its rows.
        complete: Which of them are looked at; None: all.
        rows: How many are looked at.
        step: Rows that are read at once.
    """

    table: pl.LazyFrame = field(repr=False)
    complete: NDArray[np.bool_] | None = field(repr=False)
    rows: int
    step: int

    @classmethod
    def of(cls, table: pl.LazyFrame, missing: Missing) -> PartedTable:
        """The rows of a table that are looked at.

        Args:
            table: The table.
            missing: "category" (null is a value) or "drop" (only complete rows).

        Raises:
            ConfigError: `missing` is neither.
            DataError: No row is complete.
        """
        height, names = row_count(table), table.collect_schema().names()
        step = part_rows(table, height)
        where = complete_where(names, missing)
        if where is None:
            return cls(table=table, complete=None, rows=height, step=step)
        found = [table.slice(start, step).select(where).collect().to_series() for start in range(0, height, step)]
        complete = pl.concat(found).to_numpy()
        if not complete.any():
            raise none_complete(height, len(names))
        return cls(table=table, complete=complete, rows=int(complete.sum()), step=step)

    @property
    def schema(self) -> pl.Schema:
        """The types of the columns."""
        return self.table.collect_schema()

    def parts(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Some columns of the rows that are looked at, part by part."""
        chosen = self.table.select(columns)
        height = self.rows if self.complete is None else len(self.complete)
        for start in range(0, height, self.step):
            part = chosen.slice(start, self.step).collect()
            yield part if self.complete is None else part.filter(self.complete[start : start + self.step])

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """Some columns as a whole, texts as categories."""
        schema = self.schema
        wanted = [pl.col(name).cast(pl.Categorical) if schema[name] in TEXTS else pl.col(name) for name in names]
        found = self.table.select(wanted).collect(engine="streaming")
        return found if self.complete is None else found.filter(self.complete)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """Rows that are alike in a table and in its release, each kind once.

    Attributes:
        before: The quasi-identifiers and the target of each kind.
        classes: Its class.
        counts: Its rows.
    """

    before: pl.DataFrame = field(repr=False)
    classes: NDArray[np.int64] = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowClasses:
    """The class of every row, and the cells that classes are released with.

    Attributes:
        labels: The class of each row; LEFT_OUT for those that are not released.
        cells: The released cells by column and class.
        make_kinds: Counts the kinds of rows.
        hierarchies: The hierarchies that released labels come from.
        algorithm: What formed the classes.
        notes: What was left undone.
    """

    labels: NDArray[np.int32] = field(repr=False)
    cells: tuple[ColumnCells, ...] = field(repr=False)
    make_kinds: Callable[[], Kinds] = field(repr=False)
    hierarchies: Mapping[str, Hierarchy] = field(default_factory=dict)
    algorithm: str = ""
    notes: tuple[str, ...] = ()

    def shown(self, classes: NDArray[np.integer], *, as_categories: bool = False) -> list[pl.Series]:
        """The cells of some rows, by their classes, in the columns that were generalised."""
        texts = ((one, one.texts.cast(pl.Categorical) if as_categories else one.texts) for one in self.cells)
        return [text.gather(one.of_class[classes]) for one, text in texts if one.generalised]

    def released(self, rows: PartedTable, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Some columns of the released rows, in table order, part by part."""
        done = 0
        for part in rows.parts(columns):
            labels = self.labels[done : done + part.height]
            done += part.height
            kept = labels != LEFT_OUT
            yield part.filter(kept).with_columns(self.shown(labels[kept]))

    def schema(self, rows: PartedTable, columns: Sequence[str]) -> dict[str, pl.DataType]:
        """The types of some released columns."""
        texts = {one.name for one in self.cells if one.generalised}
        return {name: pl.String() if name in texts else rows.schema[name] for name in columns}
