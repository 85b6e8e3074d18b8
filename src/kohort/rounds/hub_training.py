"""The hub as a participant: it trains on rows it was given, by the same kernel and the same rules as a site."""

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
    """Trains on `received` rows with the hub's own row order; optimiser state kept or restarted as at the sites."""

    def __init__(self, hub: Hub, received: pl.DataFrame, *, generalised: bool = False) -> None:
        self._hub = hub
        self._rows = encode_rows(hub.encoder, received, generalised=generalised)
        self._key = hub.streams.key("rows")
        self._optimiser: OptimiserState | None = None

    def train(self, round_number: int, weights: FloatArray) -> Update:
        """One round from `weights`."""
        train = self._hub.approved.train
        keep = train.state == "keep"
        fitted = self._hub.network.fit(
            weights,
            stack([self._rows]),
            training=train.training(),
            keys=np.array([self._key], dtype=np.uint64),
            round=round_number,
            state=self._optimiser,
            measure_loss=train.stop is not None,
            keep_state=keep,
        )
        self._optimiser = fitted.state if keep else None
        loss = None if fitted.losses is None else float(fitted.losses[0])
        return Update(weights=fitted.weights[0], rows=self._rows.count, loss=loss)

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint must hold of it."""
        kept = self._optimiser
        return {} if kept is None else {"first": kept.first, "second": kept.second, "steps": kept.steps}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a checkpoint."""
        if "first" in state:
            self._optimiser = OptimiserState(state["first"].copy(), state["second"].copy(), state["steps"].copy())
