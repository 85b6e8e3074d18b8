"""A trained model: network, weights and the encoder that turns tables into its inputs.

Numbers to predict are trained on the scale [0, 1] of the column's domain, so that one learning rate suits them all, and
are given back on their own scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.dense.network import FloatArray, probabilities, scores
from kohort.models.dense.network import predict as predict_codes
from kohort.models.rows import Rows
from kohort.models.trainable import Trainable
from kohort.tables.encoder import Encoder
from kohort.tables.frames import FrameKind, from_native, to_native

__all__ = ["Model", "encode_rows", "with_target"]

_CHUNK_ROWS = 32_768


def _target_range(encoder: Encoder) -> tuple[float, float]:
    """Offset and width of a numeric target; (0, 1) for classes."""
    if encoder.classes is not None or encoder.schema.target is None:
        return 0.0, 1.0
    bounds = encoder.domain.columns[encoder.schema.target].bounds
    if bounds is None:
        raise ConfigError(f"target {encoder.schema.target!r} has no bounds", hint="Declare them in data.bounds")
    low, high = bounds
    return low, (high - low) or 1.0


def encode_rows(encoder: Encoder, frame: pl.DataFrame, *, generalised: bool = False) -> Rows:
    """Rows ready for training: inputs scaled to [0, 1], classes as codes, a numeric target scaled to [0, 1]."""
    return with_target(encoder, encoder.transform(frame, generalised=generalised), frame)


def with_target(encoder: Encoder, x: FloatArray, frame: pl.DataFrame) -> Rows:
    """Rows of inputs that were encoded already: the target and the weights of the rows come from `frame`."""
    low, width = _target_range(encoder)
    target = encoder.target(frame)
    if (low, width) != (0.0, 1.0):
        target = ((target.astype(np.float64) - low) / width).astype(target.dtype)
    return Rows(x, np.ascontiguousarray(target), encoder.row_weights(target))


@dataclass(frozen=True, eq=False)
class Model:
    """What a run returns, what is exported, and what predicts."""

    network: Trainable
    weights: FloatArray
    encoder: Encoder

    @property
    def task(self) -> str:
        """classification or regression."""
        return self.encoder.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their codes; empty for regression."""
        return self.encoder.classes or ()

    def codes(self, x: FloatArray) -> NDArray[Any]:
        """Class codes of encoded rows, or numbers on the target's own scale."""
        found = predict_codes(self.network, self.weights, x)
        if self.task == "classification":
            return found
        low, width = _target_range(self.encoder)
        return found.astype(np.float64) * width + low

    def positive_scores(self, x: FloatArray) -> FloatArray:
        """[rows, classes] scores that rank rows for each class: probabilities where there are any."""
        if self.network.loss in {"softmax", "logistic"}:
            return probabilities(self.network, self.weights, x)
        raw = scores(self.network, self.weights, x)
        return np.hstack([-raw, raw]) if raw.shape[1] == 1 else raw

    def predict(self, frame: Any) -> Any:
        """The predicted class names or numbers of a table's rows, as a column of the caller's kind of frame."""
        table, kind = (frame, FrameKind.POLARS) if isinstance(frame, pl.DataFrame) else from_native(frame)
        found = np.concatenate([self.codes(x) for x in self._encoded(table)])
        name = str(self.encoder.schema.target)
        if self.task == "regression":
            column = pl.Series(name, found)
        else:
            column = pl.Series(self.classes, dtype=pl.String).gather(found).alias(name)
        if kind is FrameKind.POLARS:
            return column
        native = to_native(column.to_frame(), kind)[name]
        if kind is FrameKind.PANDAS:
            native.index = frame.index  # or pandas would set it beside the wrong rows
        return native

    def predict_proba(self, frame: Any) -> NDArray[Any]:
        """Class probabilities [rows, classes]."""
        table = frame if isinstance(frame, pl.DataFrame) else from_native(frame)[0]
        return np.concatenate([probabilities(self.network, self.weights, x) for x in self._encoded(table)])

    def _encoded(self, frame: pl.DataFrame) -> Iterator[FloatArray]:
        """Rows as the network reads them, a part at a time: long tables of many categories take little memory."""
        try:
            for begin in range(0, max(frame.height, 1), _CHUNK_ROWS):
                yield self.encoder.transform(frame.slice(begin, _CHUNK_ROWS))
        except DataError:
            self.encoder.transform(frame)  # raises the same error with the counts of the whole table
            raise
