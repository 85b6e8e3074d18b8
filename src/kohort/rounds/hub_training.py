"""The hub as a participant: it trains on shared rows with the same kernel and the same rules as a site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray
from kohort.models.dense.training import OptimiserState
from kohort.models.rows import encode_rows, stack
from kohort.protocol.hub import Hub
from kohort.rounds.loop import Update

__all__ = ["HubTrainer"]


class HubTrainer:
    """Trains on rows that sites shared. Optimizer state is kept or reset between rounds as at the sites.

    Args:
        hub: The hub's side of the run.
        received: The shared rows.
        generalised: Whether their values may be generalised (ranges and sets).
    """

    def __init__(self, hub: Hub, received: pl.DataFrame, *, generalised: bool = False) -> None:
        self._hub = hub
        self._rows = encode_rows(hub.encoder, received, generalised=generalised)
        self._key = hub.streams.key("rows")
        self._optimizer: OptimiserState | None = None

    def train(self, round_number: int, weights: FloatArray) -> Update:
        """Train for one round.

        Args:
            round_number: The round.
            weights: The weights to start from.

        Returns:
            The hub's update.
        """
        train = self._hub.approved.train
        keep = train.state == "keep"
        fitted = self._hub.network.fit(
            weights,
            stack([self._rows]),
            training=train.training(),
            keys=np.array([self._key], dtype=np.uint64),
            round=round_number,
            state=self._optimizer,
            measure_loss=train.stop is not None,
            keep_state=keep,
        )
        self._optimizer = fitted.state if keep else None
        loss = None if fitted.losses is None else float(fitted.losses[0])
        return Update(weights=fitted.weights[0], rows=self._rows.count, loss=loss)

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays to store in a checkpoint."""
        kept = self._optimizer
        return {} if kept is None else {"first": kept.first, "second": kept.second, "steps": kept.steps}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays of a checkpoint."""
        if "first" in state:
            self._optimizer = OptimiserState(state["first"].copy(), state["second"].copy(), state["steps"].copy())
