"""Use a trained model on a table: predict every row, or judge the model on rows whose answer is known.

Guarantees: columns may come in any order and extra ones are carried along; a table the model cannot read is refused as
a whole, naming columns and counts; rows with missing values get no answer only when the caller says so, never silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args
from warnings import catch_warnings, simplefilter

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest, nearest_column
from kohort.evaluate.intervals import RESAMPLES
from kohort.evaluate.utility import JudgedRows
from kohort.models.base import Model
from kohort.tables.domain import category_text

__all__ = ["MissingCells", "PredictedTable", "TableVerdict", "evaluate_table", "predict_table", "predicted_column"]

MissingCells = Literal["error", "skip"]
MOST_GROUPS = 100
NO_VALUE = "(missing)"


@dataclass(frozen=True, kw_only=True)
class TableVerdict:
    """How good a model is on a table, and for each value of the column to group by, if one was named."""

    rows: int
    skipped: int
    """Rows left out for missing values."""
    metrics: dict[str, Any]
    groups: dict[str, dict[str, Any]]
    unseen: Mapping[str, int]
    """By column, how many rows have a category that the model does not know. They are judged all the same."""


class PredictedTable(NamedTuple):
    """A table with predictions.

    Attributes:
        frame: The table with the added columns at its end.
        skipped: Rows without a prediction, for missing values.
        unseen: By column, how many of the other rows have a category that the model does not know.
    """

    frame: pl.DataFrame
    skipped: int
    unseen: dict[str, int]


def predicted_column(model: Model) -> str:
    """The name of the column predictions are written to.

    Args:
        model: A trained model.

    Returns:
        "predicted_" and the name of its target.
    """
    return f"predicted_{model.target}"


def predict_table(
    model: Model, frame: pl.DataFrame, *, proba: bool = False, missing: MissingCells = "error"
) -> PredictedTable:
    """`frame` with a column of predictions, and what is to be said of its rows.

    Args:
        model: The model that predicts.
        frame: The table. Columns may have any order; columns the model does not read stay as they are.
        proba: Add one column per class with its probability, and then what the model says of how it read each row,
            unless the table has columns of these names.
        missing: "error" refuses a table with missing values that the model does not know; "skip" gives such rows null.

    Returns:
        The table with the added columns at its end, the number of rows without a prediction, and what the model does
        not know in the others.

    Raises:
        ConfigError: Probabilities of a number were asked for, or `missing` is neither "error" nor "skip".
        DataError: The table has a column of a prediction's name already, lacks a column, or has missing values; columns
            are named.
    """
    names = [predicted_column(model)]
    if proba:
        if model.task == "regression":
            raise ConfigError("a predicted number has no class probabilities", hint="Leave out --proba")
        names += [f"probability_{name}" for name in model.classes]
    taken = [name for name in names if name in frame.columns]
    if taken:
        raise DataError(f"the table already has the columns: {', '.join(taken)}", hint="Rename or drop them first")
    readable = _readable_rows(model, frame, missing=missing)
    part = frame if readable is None else frame.filter(pl.Series(readable))
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # the counts are returned
        found, unseen = model.predict_counted(part)
        added = [found.alias(names[0])]
        if proba:
            shares = model.predict_proba(part)
            added += [pl.Series(name, shares[:, code]) for code, name in enumerate(names[1:])]
        added += [column for column in model.read_as(part) if column.name not in frame.columns]
    if readable is None:
        return PredictedTable(frame.with_columns(added), 0, unseen)
    # Row numbers of the predictions; null where there is none, which gather passes on.
    places = pl.Series(np.where(readable, np.cumsum(readable) - 1, -1)).replace(-1, None)
    whole = frame.with_columns(series.gather(places) for series in added)
    return PredictedTable(whole, int((~readable).sum()), unseen)


def evaluate_table(
    model: Model,
    frame: pl.DataFrame,
    *,
    by: str | None = None,
    missing: MissingCells = "error",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> TableVerdict:
    """All measures with their intervals on a table that holds the target.

    Args:
        model: The model.
        frame: The table.
        by: A column to group by.
        missing: What happens to rows that the model cannot read.
        resamples: How many resamples the intervals come from.
        seed: Of the resamples.

    Returns:
        Measures of all rows and of each group, and how many rows were skipped.

    Raises:
        DataError: The target or `by` is no column, or no row can be read.
    """
    target = model.target
    for column in (target, *(() if by is None else (by,))):
        if column not in frame.columns:
            known = (target, *model.encoder.schema.inputs)
            raise DataError(f"the table has no column {column!r}", hint=nearest_column(column, frame.columns, known))
    readable = _readable_rows(model, frame, missing=missing, extra=(target,))
    part = frame if readable is None else frame.filter(pl.Series(readable))
    if part.height == 0:
        raise DataError(f"all {frame.height:,} rows have missing values", hint="Fill them in")
    groups = None if by is None else _labels(part[by])
    judged = JudgedRows.of(model, part, seed)
    return TableVerdict(
        rows=part.height,
        skipped=frame.height - part.height,
        groups={} if groups is None else judged.by_group(groups, resamples),
        metrics=judged.measure(slice(None), resamples),
        unseen=judged.unseen,
    )


def _readable_rows(
    model: Model, frame: pl.DataFrame, *, missing: MissingCells, extra: tuple[str, ...] = ()
) -> NDArray[np.bool_] | None:
    """Which rows have a value wherever the model needs one; None when all do."""
    if missing not in get_args(MissingCells):
        hint = nearest(str(missing), get_args(MissingCells))
        raise ConfigError(f"unknown way to handle missing values {missing!r}", hint=hint)
    encoder = model.encoder
    # A set without a value is an empty set, and a domain may have a place for missing values.
    domains = encoder.domain.columns
    knows_null = {name for name, domain in domains.items() if domain.missing or domain.kind == "items"}
    knows_null |= {*encoder.schema.inputs} if encoder.impute else set()
    known = set(frame.columns) - knows_null
    needed = [name for name in (*encoder.schema.inputs, *extra) if name in known]
    gaps = {name: count for name in needed if (count := frame[name].null_count())}
    if not gaps:
        return None
    if missing == "error":
        listed = ", ".join(f"{name} ({count:,})" for name, count in gaps.items())
        hint = "Fill them in, or leave these rows out with --missing skip"
        raise DataError(f"missing values the model does not know in: {listed}", hint=hint)
    complete = frame.select(pl.all_horizontal(pl.col(name).is_not_null() for name in gaps)).to_series()
    return complete.to_numpy()


def _labels(column: pl.Series) -> list[str]:
    distinct = column.n_unique()
    if distinct > MOST_GROUPS:
        raise DataError(
            f"column {column.name!r} has {distinct:,} values, and measures are given for {MOST_GROUPS} groups at most",
            hint="Group by a column with fewer values, such as an age band",
        )
    return category_text(column).fill_null(NO_VALUE).to_list()
