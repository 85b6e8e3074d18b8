"""What a model is: it reads tables through its encoder, predicts, saves itself as data, describes and explains itself.

A kind of model derives from `Model` and says what encoded rows get: `codes` and `probabilities`. What takes a table is
built on these two. Runs, evaluation, cards and the command line know this class alone, so a kind from another
package is predicted with, evaluated, exported and reported like kohort's own; `kohort.models.registry` finds it again
when its files are read.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.options import FloatArray
from kohort.models.rows import encode_test_rows, target_range
from kohort.rng import Streams
from kohort.tables.answers import as_answer, number_as_answer
from kohort.tables.encoder import Encoder
from kohort.tables.frames import FrameKind, from_native, to_native

__all__ = ["Model", "Remarks", "SavedModel"]

_CHUNK_ROWS = 32_768
SHOWN_COLUMNS = 6
"""Columns that are named where a model is printed."""
SHUFFLES = 5
"""How often each column is shuffled to find its importance."""


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A model as data: plain JSON values, and arrays by name. Nothing in it is executed when it is read."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """What is to be said about rows that a model read, besides its predictions."""

    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Model(ABC):
    """What a run returns, what is exported, and what predicts.

    Example:
        model = kohort.load_model("out/fedavg")
        model.predict(frame)  # class names, or numbers
        model.describe()["kind"]
        model.explain(frame)  # how much each column matters on these rows
    """

    encoder: Encoder
    """How tables become its inputs: the columns it reads, their domain, and the target."""

    def __new__(cls, *_given: Any, **_named: Any) -> Self:
        """Refuse a kind that lacks a member which every kind must have.

        Raises:
            ConfigError: It does; the message names what it lacks.
        """
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise _lacks(cls, ", ".join(missing))
        return super().__new__(cls)

    if not TYPE_CHECKING:  # for type checkers, every model has an encoder

        def __getattr__(self, name: str) -> Any:
            """Only what is not there comes here: say so of an encoder that a kind never sets."""
            if name == "encoder":
                raise _lacks(type(self), name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name its kind is registered under."""

    @property
    def task(self) -> str:
        """classification or regression."""
        return self.encoder.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their codes; empty for regression."""
        return self.encoder.classes or ()

    @property
    def target(self) -> str:
        """The column it predicts."""
        return str(self.encoder.schema.target)

    @property
    def diverged(self) -> bool:
        """Whether training made it useless: numbers that are not finite."""
        return False

    def __repr__(self) -> str:
        """What it is, in one line; `describe` tells more."""
        columns = self.encoder.schema.inputs
        shown = ", ".join(columns[:SHOWN_COLUMNS]) + (", ..." if len(columns) > SHOWN_COLUMNS else "")
        return f"{type(self).__name__}({self.task} of {self.target!r} from {len(columns)} columns: {shown})"

    @abstractmethod
    def codes(self, x: FloatArray) -> NDArray[Any]:
        """What encoded rows are predicted as.

        Args:
            x: inputs [rows, encoder.width], as the encoder makes them.

        Returns:
            Class codes (int64), or numbers on the target's own scale.
        """

    @abstractmethod
    def probabilities(self, x: FloatArray) -> FloatArray:
        """Class probabilities [rows, classes] of encoded rows.

        Raises:
            ConfigError: it has none, because it predicts numbers or only ranks rows.
        """

    def judged(self, x: FloatArray) -> tuple[NDArray[Any], FloatArray | None]:
        """What encoded rows are predicted as, and with which probabilities. Kinds that can do both at once do.

        Args:
            x: inputs [rows, encoder.width], as the encoder makes them.

        Returns:
            As `codes` and `probabilities` give them; None for probabilities that it does not have.
        """
        found = self.codes(x)
        try:
            return found, self.probabilities(x)
        except ConfigError:
            return found, None

    def judged_table(self, frame: pl.DataFrame) -> tuple[NDArray[Any], FloatArray | None, dict[str, int]]:
        """The same for a table, a part at a time, with what ranks its rows; and what the model does not know in it.

        Args:
            frame: Rows with the columns it reads.

        Returns:
            Predictions; [rows, classes] probabilities, or the `ranking` where it has none, None for numbers; and by
            column, how many rows have a category that no training row had.

        Raises:
            DataError: Columns are missing, or cells hold what the model does not know.
        """
        found, ranked, unseen = [], [], Counter[str]()
        for x in self._encoded(frame, unseen):
            codes, shares = self.judged(x)
            found.append(codes)
            if self.task == "classification":
                ranked.append(self.ranking(x) if shares is None else shares)
        return np.concatenate(found), np.concatenate(ranked) if ranked else None, dict(unseen)

    def ranking(self, x: FloatArray) -> FloatArray:
        """[rows, classes] scores that rank encoded rows for each class: probabilities where there are any."""
        return self.probabilities(x)

    def scores(self, x: FloatArray) -> FloatArray:
        """Scores of encoded rows before they become probabilities, one for each class or one for the second of two."""
        return self.ranking(x)

    @abstractmethod
    def save(self) -> SavedModel:
        """The model as data, which the loader of its kind makes the same model of again."""

    def describe(self) -> dict[str, Any]:
        """What it is, as plain values for cards and reports. Kinds add what is their own.

        Returns:
            kind, task, target, classes (of a classifier) and the columns it reads.
        """
        return {
            "kind": self.kind,
            "task": self.task,
            "target": self.target,
            **({"classes": list(self.classes)} if self.classes else {}),
            "columns": list(self.encoder.schema.inputs),
        }

    def predict(self, frame: Any) -> Any:
        """The predicted classes or numbers of a table's rows, as a column of the caller's kind of frame.

        Classes have the type and the labels of the target. A category that the model does not know is "other" where
        its column has that, else any of its column; a `UserWarning` counts such rows, and where the model was trained
        with `unseen = "error"` they are an error.

        Args:
            frame: a polars, pandas or Arrow table with the columns it reads, in any order.

        Raises:
            DataError: columns are missing, or cells hold what the model does not know.
        """
        table, kind = (frame, FrameKind.POLARS) if isinstance(frame, pl.DataFrame) else from_native(frame)
        column = self._answers(np.concatenate([self.codes(x) for x in self._encoded(table)]))
        if kind is FrameKind.POLARS:
            return column
        native = to_native(column.to_frame(), kind)[self.target]
        if kind is FrameKind.PANDAS:
            native.index = frame.index  # or pandas would set it beside the wrong rows
        return native

    def predict_counted(self, frame: pl.DataFrame) -> tuple[pl.Series, dict[str, int]]:
        """The same, with what `unseen` says of the rows: they are encoded once for both.

        Args:
            frame: A table with the columns it reads, in any order.

        Returns:
            The predictions, and by column, how many rows have a category that no training row had.

        Raises:
            DataError: columns are missing, or cells hold what the model does not know.
        """
        unseen = Counter[str]()
        codes = np.concatenate([self.codes(x) for x in self._encoded(frame, unseen)])
        return self._answers(codes), dict(unseen)

    def _answers(self, found: NDArray[Any]) -> pl.Series:
        """Class codes or numbers as the target has them."""
        target = self.encoder.schema.columns[self.target]
        if self.task == "regression":
            return number_as_answer(pl.Series(self.target, found), target)
        names = pl.Series(self.classes, dtype=pl.String).gather(found).alias(self.target)
        is_number = self.encoder.domain.columns[self.target].kind == "number"
        return as_answer(names, target, is_number=is_number).alias(self.target)

    def predict_proba(self, frame: Any) -> NDArray[Any]:
        """Class probabilities [rows, classes] of a table's rows.

        Raises:
            ConfigError: the model has none.
            DataError: columns are missing, or cells hold what the model does not know.
        """
        table = frame if isinstance(frame, pl.DataFrame) else from_native(frame)[0]
        return np.concatenate([self.probabilities(x) for x in self._encoded(table)])

    def explain(self, frame: Any, *, seed: int = 0) -> dict[str, float]:
        """How much each column matters on these rows, by permutation importance (Breiman, 2001).

        A column is shuffled among the rows, which keeps its values and breaks their tie to the target. What that adds
        to the error (the share of wrong classes, or the root mean squared error of numbers), as a mean over a few
        shuffles, is its importance. Columns that say the same stand in for each other and seem to matter less.

        Args:
            frame: rows with the columns it reads and the target.
            seed: of the shuffles; the same seed gives the same answer.

        Returns:
            The importance of every column it reads, the largest first.
        """
        table = frame if isinstance(frame, pl.DataFrame) else from_native(frame)[0]
        if not table.height:
            raise DataError("there are no rows to explain the model on", hint="Give a table with rows")
        whole, streams = self._error(table), Streams.seeded(seed)
        found = {}
        for name in self.encoder.schema.inputs:
            generator = streams.generator("explain", name)
            orders = (generator.permutation(table.height) for _ in range(SHUFFLES))
            errors = [self._error(table.with_columns(table[name].gather(order))) for order in orders]
            found[name] = float(np.mean(errors)) - whole
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def curves(self) -> dict[str, dict[str, Any]]:
        """What the model says of each column by itself, if it is of a kind that can be read like this.

        Returns:
            By column, the most important first: at least `importance`, `bins`, `values` and `counts`; nothing for most
            kinds.
        """
        return {}

    def row_contributions(self, frame: pl.DataFrame) -> list[dict[str, Any]]:
        """What each column adds to the score of each row, if the model is a sum of such parts; nothing otherwise."""
        del frame
        return []

    def remarks(self, frame: pl.DataFrame) -> Remarks:
        """What is to be said about how it reads these rows; nothing, for most kinds."""
        del frame
        return Remarks()

    def read_as(self, frame: pl.DataFrame) -> list[pl.Series]:
        """How each row was read, as columns beside its prediction; none, for most kinds.

        Args:
            frame: The rows.

        Returns:
            Columns with one entry per row.
        """
        del frame
        return []

    def _error(self, table: pl.DataFrame) -> float:
        rows = encode_test_rows(self.encoder, table)
        found = self.codes(rows.x)
        if self.task == "classification":
            return float(np.mean(found != rows.y))
        low, width = target_range(self.encoder)
        return float(np.sqrt(np.mean(np.square(found - (rows.y.astype(np.float64) * width + low)))))

    def unseen(self, frame: pl.DataFrame) -> dict[str, int]:
        """By column, how many rows have a category that no training row had; such rows are predicted all the same.

        Raises:
            DataError: columns are missing, or cells hold what the model does not know.
        """
        return self.encoder.inputs(frame)[1]

    def _encoded(self, frame: pl.DataFrame, counted: Counter[str] | None = None) -> Iterator[FloatArray]:
        """Rows as the model reads them, a part at a time: long tables of many categories take little memory.

        Rows with unknown categories are counted in `counted`, or where it is None, in a warning.
        """
        unseen: Counter[str] = Counter() if counted is None else counted
        try:
            for begin in range(0, max(frame.height, 1), _CHUNK_ROWS):
                x, counts = self.encoder.inputs(frame.slice(begin, _CHUNK_ROWS))
                unseen.update(counts)
                yield x
        except DataError:
            self.encoder.inputs(frame)  # raises the same error with the counts of the whole table
            raise
        if unseen and counted is None:
            listed = ", ".join(f"{name} ({count:,})" for name, count in unseen.items())
            warnings.warn(f"rows with a category unknown to the model: {listed}", UserWarning, stacklevel=3)


def _lacks(kind: type[Model], what: str) -> ConfigError:
    return ConfigError(
        f"the kind of model {kind.__module__}.{kind.__qualname__} lacks {what}",
        hint="Define it there; kohort.models.base.Model says what it gives",
    )
