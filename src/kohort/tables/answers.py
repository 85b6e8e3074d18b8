"""What a target is: classes or a number, by a rule that is said; and the type that its predictions get.

The rule: what is declared (`task`, or the kind, categories or bounds of the column) wins. Truth values, texts, two
values of any kind, and up to 20 whole numbers are classes; all else is a number.

Guarantee: predictions have the type and the labels that the target has in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from kohort.errors import ConfigError
from kohort.tables.domain import MAX_INTEGER_CLASSES, category_text
from kohort.tables.schema import Answer, ColumnSpec

__all__ = ["TargetTask", "answer_of", "as_answer", "kind_for", "number_as_answer", "settle_target", "task_of"]

Task = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True)
class TargetTask:
    """What is learned, and why.

    Attributes:
        task: classification or regression.
        why: The part of the rule that decided.
    """

    task: Task
    why: str


def task_of(column: pl.Series, spec: ColumnSpec, *, declared: Task | None = None) -> TargetTask:
    """Whether a target is classes or a number.

    Args:
        column: The target of all rows at hand.
        spec: What is declared about the column.
        declared: What the user said.

    Returns:
        The task and the part of the rule that decided.
    """
    if declared is not None:
        return TargetTask(task=declared, why="declared")
    if spec.declared_kind is not None:
        return TargetTask(task="regression" if spec.declared_kind == "number" else "classification", why="declared")
    if column.dtype == pl.Boolean:
        return TargetTask(task="classification", why="truth values")
    if not column.dtype.is_numeric():
        return TargetTask(task="regression" if column.dtype.is_temporal() else "classification", why=_named(column))
    distinct = column.drop_nulls().n_unique()
    if distinct <= 2:
        return TargetTask(task="classification", why="two values")
    if distinct <= MAX_INTEGER_CLASSES and _is_whole(column):
        return TargetTask(task="classification", why=f"{distinct} whole numbers")
    return TargetTask(task="regression", why="many numbers" if _is_whole(column) else "numbers with decimals")


def kind_for(task: Task | None, kind: str | None, target: str) -> Literal["number", "category"] | None:
    """The kind of a target that `task` asks for.

    Args:
        task: "classification", "regression", or None where nothing is asked.
        kind: The declared kind of the target, or None.
        target: Name of the target, for errors.

    Returns:
        "category" for classification, "number" for regression; None where nothing is asked.

    Raises:
        ConfigError: Another kind is declared.
    """
    if task is None:
        return None
    wanted: Literal["number", "category"] = "category" if task == "classification" else "number"
    if kind not in (None, wanted):
        raise ConfigError(
            f"task is {task!r} and the kind of target {target!r} is {kind!r}", hint="Drop one of the two from [data]"
        )
    return wanted


def settle_target(frame: pl.DataFrame, target: str | None, spec: ColumnSpec | None) -> pl.DataFrame:
    """A table whose target is of a type that means what it is: whole numbers or texts for classes.

    A column of 0.0 and 1.0 holds classes: tables write whole numbers with decimals where some are missing.

    Args:
        frame: The table.
        target: The column to predict.
        spec: What is declared about it; nothing is changed where something is.

    Returns:
        The table, whose target holds whole numbers or texts if it is one of classes; otherwise the table as it is.
    """
    if target is None or spec is None or spec.declared_kind is not None or target not in frame.columns:
        return frame
    column = frame[target]
    if not column.dtype.is_float() or task_of(column, spec).task == "regression":
        return frame
    if _is_whole(column):
        return frame.with_columns(column.cast(pl.Int64))
    return frame.with_columns(category_text(column).alias(target))


def answer_of(dtype: pl.DataType) -> Answer:
    """The name of a target's type, as a schema stores it.

    Args:
        dtype: The polars type of the target.

    Returns:
        "boolean", "integer", "float", "date" (a day), "time" (any other temporal type) or "text".
    """
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_integer():
        return "integer"
    if dtype.is_float():
        return "float"
    if dtype.is_temporal():
        return "date" if dtype == pl.Date else "time"
    return "text"


def as_answer(classes: pl.Series, spec: ColumnSpec, *, is_number: bool) -> pl.Series:
    """Predicted classes in the type of the target.

    Args:
        classes: Class names as text.
        spec: What is known about the target.
        is_number: Whether its domain is one of numbers, for models that know no more.

    Returns:
        The classes in that type; they stay texts where one of them is no such number.
    """
    answer = spec.answer or ("integer" if is_number else "text")
    if answer == "boolean":
        return classes == "true"
    if answer == "integer":
        return classes.cast(pl.Int64, strict=False) if _are(classes, pl.Int64()) else classes
    if answer == "float":
        return classes.cast(pl.Float64, strict=False) if _are(classes, pl.Float64()) else classes
    if answer == "date":
        return classes.str.to_date(strict=False)
    return classes


def number_as_answer(numbers: pl.Series, spec: ColumnSpec) -> pl.Series:
    """Predicted numbers in the type of the target: days and microseconds are dates and times again.

    Args:
        numbers: The numbers that a model predicts.
        spec: What is known about the target.

    Returns:
        Dates or times for a target of these; otherwise the numbers as they are.
    """
    if spec.answer == "date":
        return numbers.round().cast(pl.Int32).cast(pl.Date)
    if spec.answer == "time":
        return numbers.round().cast(pl.Int64).cast(pl.Datetime("us"))
    return numbers


def _are(classes: pl.Series, dtype: pl.DataType) -> bool:
    """Whether every class has that type: a class "other" does not."""
    distinct = classes.drop_nulls().unique()
    return distinct.cast(dtype, strict=False).null_count() == 0


def _is_whole(column: pl.Series) -> bool:
    if column.dtype.is_integer():
        return True
    known = column.drop_nulls()
    return bool((known == known.floor()).all()) and bool((known.abs() < 2.0**53).all())


def _named(column: pl.Series) -> str:
    return "dates" if column.dtype.is_temporal() else "texts"
