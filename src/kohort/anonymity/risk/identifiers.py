"""Warnings about columns that may identify people although nobody said so.

A column is suspected by its name or by the shape of its values, after the eighteen identifiers of the HIPAA Safe
Harbor rule (45 CFR 164.514(b)(2)). Direct identifiers are always reported. Places, dates and ages are reported unless
they are quasi-identifiers, for then the classes account for them. Columns without a role are reported because a release
would carry them while no measure looks at them.

A suspicion, not a proof: a column that is not reported may still identify. Warnings name columns and counts only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from kohort.anonymity.checker.classes import as_frame, require_columns
from kohort.tables.roles import KINDS, IdentifierKind, plain_name

__all__ = ["ColumnWarning", "identifier_warnings"]

Reason = Literal["name", "values", "unique", "undeclared"]

LOOKED_AT = 10_000
SHARE_OF_SHAPE = 0.5
SHARE_OF_UNIQUE = 0.95
FEWEST_ROWS_FOR_UNIQUE = 20
OLDEST_NAMED_AGE = 89


@dataclass(frozen=True, kw_only=True)
class ColumnWarning:
    """One suspicion about one column.

    Attributes:
        column: Name of the column.
        kind: Kind of identifier it may be.
        reason: Why: its name, its values, nearly all of them unique, or no declared role.
        message: One sentence without a cell value.
    """

    column: str
    kind: str
    reason: Reason
    message: str

    def to_mapping(self) -> dict[str, str]:
        """JSON values."""
        return dict(vars(self))


def identifier_warnings(
    frame: Any,
    *,
    quasi: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    items: Sequence[str] = (),
    identifiers: Sequence[str] = (),
    others: Sequence[str] = (),
) -> tuple[ColumnWarning, ...]:
    """Warn about columns that may identify people.

    Args:
        frame: A pandas, polars or pyarrow table, or a lazy polars table that `kohort.tables.scanning` opened.
        quasi: Names of the quasi-identifiers.
        sensitive: Names of the sensitive columns.
        items: Names of the columns of item sets.
        identifiers: Columns declared to be identifiers; they are passed over.
        others: Columns with any further role (target, feature): declared, and looked at like the rest.

    Returns:
        The suspicions, in the order of the columns.

    Raises:
        DataError: The table lacks a column or has no rows.
    """
    table = frame if isinstance(frame, pl.LazyFrame) else as_frame(frame).lazy()
    quasi = require_columns(table, quasi)
    declared = {*quasi, *(name for names in (sensitive, items, others) for name in require_columns(table, names))}
    hidden = set(require_columns(table, identifiers))
    found: list[ColumnWarning] = []
    for name, dtype in table.collect_schema().items():
        if name in hidden:
            continue
        column = _Column(name=name, dtype=dtype, table=table.select(name))
        suspicion = _suspicion(column, is_quasi=name in quasi) or _nearly_unique(column, declared)
        if suspicion is not None:
            found.append(suspicion)
        if name not in declared:
            message = f"column {name!r} has no role: it would be released as it is, and no measure looks at it"
            found.append(ColumnWarning(column=name, kind="no role", reason="undeclared", message=message))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Column:
    """One column of a table that may be too large to hold."""

    name: str
    dtype: pl.DataType
    table: pl.LazyFrame

    def count(self, what: pl.Expr) -> int:
        """One number about the whole column."""
        return int(self.table.select(what).collect(engine="streaming").item())

    def first_values(self) -> pl.Series:
        """Values of the first rows that have one."""
        return self.table.filter(pl.col(self.name).is_not_null()).head(LOOKED_AT).collect().to_series()


def _suspicion(column: _Column, *, is_quasi: bool) -> ColumnWarning | None:
    name = plain_name(column.name)
    kinds = [kind for kind in KINDS if kind.direct or not is_quasi]
    for kind in kinds:
        if re.fullmatch(kind.words, name):
            message = f"column {column.name!r} is named like a {kind.title}"
            return ColumnWarning(column=column.name, kind=kind.title, reason="name", message=message)
    if column.dtype.is_temporal() and not is_quasi:
        message = f"column {column.name!r} holds dates or times"
        return ColumnWarning(column=column.name, kind="date", reason="values", message=message)
    if column.dtype == pl.String:
        return _shaped(column, kinds)
    if column.dtype.is_numeric() and not is_quasi and re.fullmatch(r"(.*_)?ages?(_.*)?", name):
        old = column.count((pl.col(column.name) > OLDEST_NAMED_AGE).sum())
        if old:
            message = f"column {column.name!r} tells {old:,} ages over {OLDEST_NAMED_AGE} apart"
            return ColumnWarning(column=column.name, kind="age", reason="values", message=message)
    return None


def _shaped(column: _Column, kinds: Sequence[IdentifierKind]) -> ColumnWarning | None:
    known = column.first_values()
    if known.is_empty():
        return None
    for kind in kinds:
        if kind.shape is None:
            continue
        count = int(known.str.contains(kind.shape).sum())
        if count > SHARE_OF_SHAPE * len(known):
            message = (
                f"column {column.name!r}: {count:,} of {len(known):,} values looked at have the shape of a {kind.title}"
            )
            return ColumnWarning(column=column.name, kind=kind.title, reason="values", message=message)
    return None


def _nearly_unique(column: _Column, declared: set[str]) -> ColumnWarning | None:
    """Warn about an undeclared column of codes or texts that tells almost every row apart."""
    codes = column.dtype == pl.String or column.dtype.is_integer()
    if column.name in declared or not codes:
        return None
    rows = column.count(pl.len())
    if rows < FEWEST_ROWS_FOR_UNIQUE:
        return None
    distinct = column.count(pl.col(column.name).n_unique())
    if distinct < SHARE_OF_UNIQUE * rows:
        return None
    message = f"column {column.name!r} tells rows apart: {distinct:,} values in {rows:,} rows"
    return ColumnWarning(column=column.name, kind="record identifier", reason="unique", message=message)
