"""A torch module that trains: its description (`torch.module`) with both ways of training behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from kohort.models.dp_sgd.options import PrivateFit, PrivateSteps
from kohort.models.options import FitOptions, Fitted, FloatArray, OptimiserState, Training
from kohort.models.rows import StackedRows
from kohort.models.torch.module import TorchModule
from kohort.models.torch.private import fit_private_module
from kohort.models.torch.training import fit_module

__all__ = ["TorchNetwork"]


@dataclass(frozen=True, kw_only=True)
class TorchNetwork(TorchModule):
    """A module by the name of its factory, trained like a dense network; see `TorchModule` for its fields."""

    @property
    def kind(self) -> str:
        """The kind its models are registered under."""
        return "torch"

    def fit(self, weights: FloatArray, rows: StackedRows, **options: Unpack[FitOptions]) -> Fitted:
        """`kohort.models.dense.training.fit_many` for this module."""
        return fit_module(self, weights, rows, **options)

    def fit_private(
        self,
        weights: FloatArray,
        rows: StackedRows,
        *,
        training: Training,
        private: PrivateSteps,
        state: OptimiserState | None = None,
        keep_state: bool = False,
    ) -> PrivateFit:
        """`kohort.models.dp_sgd.fit.fit_private` for this module."""
        return fit_private_module(
            self, weights, rows, training=training, private=private, state=state, keep_state=keep_state
        )
