"""What a run asks of whatever it trains: a dense network, or a torch module behind the same interface.

Plans, aggregators, checkpoints, the door and the ledger see a flat vector in either case.
"""

from __future__ import annotations

from typing import Any, Protocol, Unpack

import numpy as np

from kohort.models.options import DType, FitOptions, Fitted, FloatArray, Loss
from kohort.models.rows import StackedRows

__all__ = ["Scorer", "Trainable"]


class Scorer(Protocol):
    """What gives rows scores from one flat vector of `parameter_count` weights of `dtype`."""

    @property
    def inputs(self) -> int:
        """Columns of the rows it reads."""
        ...

    @property
    def outputs(self) -> int:
        """Scores it gives a row."""
        ...

    @property
    def loss(self) -> Loss:
        """What it is trained with; see `DenseShape` for what each loss costs."""
        ...

    @property
    def dtype(self) -> DType:
        """Number type of rows, weights and scores."""
        ...

    @property
    def parameter_count(self) -> int:
        """Length of the flat vector."""
        ...

    @property
    def classes(self) -> int:
        """How many classes it tells apart; 0 when it predicts a number."""
        ...

    def forward(self, weights: FloatArray, x: FloatArray) -> FloatArray:
        """Raw scores [rows, outputs] of one chunk of rows."""
        ...


class Trainable(Scorer, Protocol):
    """A model without its weights: it scores rows, and it trains."""

    @property
    def kind(self) -> str:
        """The registered kind of the models it makes."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever runs it should know."""
        ...

    def start(self, generator: np.random.Generator) -> FloatArray:
        """Starting weights: the same for the same state of `generator`."""
        ...

    def fit(self, weights: FloatArray, rows: StackedRows, **options: Unpack[FitOptions]) -> Fitted:
        """Train every site of `rows` from `weights`, each as if it were alone."""
        ...

    def tensors(self, weights: FloatArray) -> dict[str, FloatArray]:
        """The named parts of `weights`, for files that others read."""
        ...

    def to_mapping(self) -> dict[str, Any]:
        """Plain values from which the loader of its kind makes it again."""
        ...
