"""The hub as a participant: it trains on rows it was given, by the same kernel and the same rules as a site."""

from __future__ import annotations

import polars as pl

from kohort.federation.plan import Hub
from kohort.learn.model import encode_rows
from kohort.learn.network import FloatArray
from kohort.learn.training import OptimiserState, fit_one

__all__ = ["HubTrainer"]


class HubTrainer:
    """Trains on `received` rows with the hub's own row order; optimiser state kept or restarted as at the sites."""

    def __init__(self, hub: Hub, received: pl.DataFrame) -> None:
        self._hub = hub
        self._rows = encode_rows(hub.encoder, received)
        self._key = hub.streams.key("rows")
        self._state: OptimiserState | None = None

    @property
    def count(self) -> int:
        """How many rows the hub was given."""
        return self._rows.count

    def train(self, weights: FloatArray, round_number: int) -> tuple[FloatArray, float]:
        """One round from `weights`: the new weights and the mean training loss (NaN unless stopping needs it)."""
        train = self._hub.setting.train
        keep = train.state == "keep"
        fitted = fit_one(
            self._hub.network,
            weights,
            self._rows,
            training=train.training(),
            key=self._key,
            round=round_number,
            state=self._state if keep else None,
            measure_loss=train.stop is not None,
            keep_state=keep,
        )
        self._state = fitted.state
        return fitted.weights[0], float("nan") if fitted.losses is None else float(fitted.losses[0])

    def metrics(self, loss: float) -> dict[str, float]:
        """What a Mark shows of a hub round."""
        return {} if self._hub.setting.train.stop is None else {"loss": loss}
