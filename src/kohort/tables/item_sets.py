"""Sets of items in the forms that tables have them: one cell with a separator, a JSON list, several columns, many rows.

Guarantees: every form of the same sets gives the same column of lists; a row without any item keeps an empty set and is
not taken for a missing value; the order of items is that of the table, and repeats are removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.dialect import ReadingOptions
from kohort.tables.frames import ITEM_SEPARATOR, OTHER_ITEM_SEPARATOR

__all__ = ["set_names", "with_declared_sets", "with_item_sets"]

ONE_AND_ZERO = {"1", "0", "true", "false", "yes", "no", "TRUE", "FALSE", "True", "False", "Yes", "No"}
HELD = ("1", "true", "yes", "TRUE", "True", "Yes")


def set_names(items: Sequence[str], options: ReadingOptions | None = None) -> tuple[str, ...]:
    """The names of the item sets that a plan or a site declares.

    Args:
        items: The columns that hold sets, or `NAME=a+b+c` for a set over several columns.
        options: `sets` over several columns.

    Returns:
        The names that the columns of lists will have.
    """
    names = [entry.partition("=")[0].strip() for entry in items]
    return tuple(dict.fromkeys([*names, *(() if options is None else options.sets)]))


class DeclaresSets(Protocol):
    """A frozen dataclass that says which item sets a table has, and how they are written."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def items(self) -> tuple[str, ...]:
        """The columns that hold sets, or `NAME=a+b+c` for a set over several columns."""

    @property
    def reading(self) -> ReadingOptions | None:
        """How they are written."""


Declared = TypeVar("Declared", bound=DeclaresSets)


def with_declared_sets(frame: pl.DataFrame, declared: Declared) -> tuple[pl.DataFrame, Declared]:
    """A table whose declared item sets are columns of lists.

    Args:
        frame: The table as it was read.
        declared: Which item sets it has.

    Returns:
        The table, and the same declaration with the plain names of the sets.

    Raises:
        ConfigError: A set over several columns has the name of another column.
        DataError: A column is absent, or a person's rows of a long table disagree outside the items.
    """
    if not declared.items and (declared.reading is None or not declared.reading.sets):
        return frame, declared
    made, names = with_item_sets(frame, declared.items, declared.reading)
    return made, replace(declared, items=names)


def with_item_sets(
    frame: pl.DataFrame, items: Sequence[str], options: ReadingOptions | None = None
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A table whose item sets are columns of lists.

    Args:
        frame: The table as it was read.
        items: The columns that hold sets, or `NAME=a+b+c` for a set over several columns.
        options: `separator` between items of a cell, `sets` over several columns, and `long` for a table with one row
            per item.

    Returns:
        The table with a list for every set, and the names of the sets.

    Raises:
        ConfigError: A set over several columns has the name of another column.
        DataError: A column is absent, or a person's rows of a long table disagree outside the items.
    """
    chosen = options or ReadingOptions()
    over_columns, names = dict(chosen.sets), set_names(items, chosen)
    for entry in items:
        name, sign, parts = entry.partition("=")
        if sign:
            over_columns[name.strip()] = tuple(part.strip() for part in parts.split("+") if part.strip())
    for name, columns in over_columns.items():
        frame = _joined(frame, name, columns)
    _require(frame, names)
    if chosen.separator is None and chosen.long is None:
        _refuse_numbers(frame, names)
    lists = [_lists(frame[name], chosen.separator) for name in names]
    frame = frame.with_columns(lists)
    if chosen.long is not None:
        frame = _by_person(frame, chosen.long, names)
    return frame, names


def _require(frame: pl.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, frame.columns))


def _refuse_numbers(frame: pl.DataFrame, names: Sequence[str]) -> None:
    """A number in every cell is no set, unless a separator says that cells hold one item each."""
    for name in names:
        dtype = frame.schema[name]
        if not isinstance(dtype, pl.List | pl.String):
            hint = "Name a column of sets; where each cell is one item, say so with a separator"
            raise DataError(f"column {name!r} of type {dtype} holds no item sets", hint=hint)


def _lists(column: pl.Series, separator: str | None) -> pl.Series:
    """Lists of a column; an empty cell of text is the empty set, a null list stays missing."""
    if isinstance(column.dtype, pl.List):
        return column.cast(pl.List(pl.String)).list.unique(maintain_order=True)
    texts = _texts(column).fill_null("").str.strip_chars()
    known = texts.filter(texts != "")
    if len(known) and known.str.starts_with("[").all() and known.str.ends_with("]").all():
        lists = _json_lists(texts, column.name)
    else:
        lists = texts.str.split(separator or _separator_in(known))
    clean = lists.list.eval(pl.element().str.strip_chars())
    return clean.list.eval(pl.element().filter(pl.element() != "").unique(maintain_order=True)).alias(column.name)


def _separator_in(known: pl.Series) -> str:
    """What stands between items: `;`, or `|` where no cell has a `;` and some have a `|`."""
    usual = known.str.contains(ITEM_SEPARATOR, literal=True).any()
    return (
        ITEM_SEPARATOR
        if usual or not known.str.contains(OTHER_ITEM_SEPARATOR, literal=True).any()
        else OTHER_ITEM_SEPARATOR
    )


def _texts(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column
    if column.dtype.is_float():
        whole = column.drop_nulls()
        if (whole == whole.floor()).all():
            return column.cast(pl.Int64).cast(pl.String)
    return column.cast(pl.String)


def _json_lists(texts: pl.Series, name: str) -> pl.Series:
    found: dict[str, list[str]] = {"": []}
    for text in texts.unique().to_list():
        try:
            parsed = json.loads(text) if text else []
        except ValueError:
            parsed = _single_quoted(text)
        if not isinstance(parsed, list) or any(isinstance(item, list | dict) for item in parsed):
            raise DataError(f"column {name!r} has a cell that is not a list of items", hint='Write ["a", "b"]')
        found[text] = [str(item) for item in parsed if item is not None]
    return pl.Series(name, [found[text] for text in texts.to_list()], dtype=pl.List(pl.String))


def _single_quoted(text: str) -> object:
    """A list as Python prints it: ['a', 'b']."""
    try:
        return json.loads(text.replace("'", '"'))
    except ValueError:
        return None


def _joined(frame: pl.DataFrame, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """One set of several columns: their values, or the names of those that say yes."""
    _require(frame, columns)
    if not columns or (name in frame.columns and name not in columns):
        hint = "Give the set a name of its own and the columns of its items: diagnoses=diag_1+diag_2"
        raise ConfigError(f"the set {name!r} cannot be formed", hint=hint)
    texts = [_texts(frame[column]) for column in columns]
    yes_or_no = all(set(text.drop_nulls().unique().to_list()) <= ONE_AND_ZERO for text in texts)
    if yes_or_no:
        parts = [
            pl.select(pl.when(text.is_in(HELD)).then(pl.lit(text.name)).otherwise(None)).to_series() for text in texts
        ]
    else:
        parts = [text.str.strip_chars() for text in texts]
    table = pl.DataFrame([part.alias(f"part {place}") for place, part in enumerate(parts)])
    lists = table.select(pl.concat_list(pl.all()).list.drop_nulls()).to_series().alias(name)
    clean = lists.list.eval(pl.element().filter(pl.element() != "").unique(maintain_order=True))
    return frame.drop(columns).with_columns(clean.alias(name))


def _by_person(frame: pl.DataFrame, person: str, names: Sequence[str]) -> pl.DataFrame:
    """One row per person, in the order of their first rows."""
    _require(frame, [person])
    others = [name for name in frame.columns if name != person and name not in names]
    grouped = frame.group_by(person, maintain_order=True)
    if others:
        differing = grouped.agg(pl.col(others).n_unique()).select(pl.col(others).max()).row(0)
        odd = [name for name, count in zip(others, differing, strict=True) if count > 1]
        if odd:
            raise DataError(
                f"rows of one person differ in: {', '.join(odd)}",
                hint="Drop these columns: a table with one row per item tells each person's values again in every row",
            )
    order: Mapping[str, pl.Expr] = {
        **{name: pl.col(name).first() for name in others},
        **{name: pl.col(name).explode().drop_nulls().unique(maintain_order=True) for name in names},
    }
    made = grouped.agg(**order)
    return made.select(frame.columns)
