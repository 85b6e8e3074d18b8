"""A dense network that trains: its shape (`dense.shape`) with the compiled kernel behind it (`dense.training`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from kohort.errors import ConfigError
from kohort.models.dense.shape import Activation, DenseShape, Init
from kohort.models.dense.training import fit_many
from kohort.models.options import DType, FitOptions, Fitted, FloatArray, Loss
from kohort.models.rows import StackedRows

__all__ = ["Activation", "DType", "FloatArray", "Init", "Loss", "Network"]


@dataclass(frozen=True, kw_only=True)
class Network(DenseShape):
    """A dense network, trained with mini-batches of rows at many sites in one call; see `DenseShape` for its fields."""

    @property
    def kind(self) -> str:
        """The kind its models are registered under."""
        return "dense"

    def fit(self, weights: FloatArray, rows: StackedRows, **options: Unpack[FitOptions]) -> Fitted:
        """Train every site of `rows` from `weights`: `kohort.models.dense.training.fit_many`."""
        if self.activation == "cos":
            raise ConfigError(
                "a network of random cosines is solved, not trained", hint='Use activation "relu", "tanh" or "sigmoid"'
            )
        return fit_many(self, weights, rows, **options)
