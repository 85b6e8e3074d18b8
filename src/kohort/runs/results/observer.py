"""What watches a run: measures every round, keeps the history and the checkpoints, tells the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import polars as pl

from kohort.errors import ConfigError
from kohort.evaluate.utility import accuracy_and_loss
from kohort.models.base import Model
from kohort.models.rows import Rows, encode_test_rows
from kohort.privacy.ledger.ledger import Ledger
from kohort.protocol.checkpoint import Checkpoint
from kohort.protocol.engine import Costs, Engine
from kohort.protocol.hub import Excluded, Hub, RoundEnd
from kohort.runs.folder import RunFolder
from kohort.tables.encoder import Encoder

__all__ = ["Progress", "RoundObserver", "require_finite"]

HISTORY_ROWS = 50_000
"""While a run is under way, accuracy is measured on at most this many test rows; the final measures use all."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a progress callback gets after every round."""

    round: int
    rounds: int
    accuracy: float | None
    """On test rows, R2 for a number; none when the plan keeps no test rows."""
    measure: str = "accuracy"
    seconds: float


def require_finite(model: Model, *, round: int, lr: float) -> None:
    """Refuse a model that training made useless.

    Args:
        model: The trained model.
        round: The round that made it, for the message.
        lr: The plan's learning rate, for the message.

    Raises:
        ConfigError: The model's numbers are not finite.
    """
    if model.diverged:
        raise ConfigError(
            f"Training diverged in round {round}: the weights are not finite", hint=f"Lower train.lr (now {lr:g})"
        )


class RoundObserver:
    """Measures every round on test rows, keeps the history and the checkpoints, tells the watcher."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        test: pl.DataFrame,
        watch: Callable[[Progress], None],
        began: float,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        ledger: Ledger,
    ) -> None:
        self._ledger = ledger
        self.history: list[dict[str, float]] = []
        self._hub = hub
        self._engine = engine
        self._test = _spread(test)
        self._encoder = hub.encoder
        self._rows: Rows | None = None
        if self._test.height and not hub.approved.own_rows:
            self._encoded(hub.encoder)  # rows the model could not read are found before any budget is spent
        self._watch = watch
        self._began = began
        self._folder = folder
        self._checkpoint = checkpoint

    def __call__(self, mark: RoundEnd) -> None:
        """Take note of a finished round; a resumed run gets the history of its checkpoint back."""
        if mark.resumed and self._checkpoint is not None:
            facts = self._checkpoint.facts
            self.history = list(facts["history"])
            self._engine.costs = Costs(**facts["costs"])
            self._engine.excluded = [Excluded(**item) for item in facts["excluded"]]
            return
        accuracy = loss = None
        if mark.model is not None:
            require_finite(mark.model, round=mark.round + 1, lr=self._hub.approved.train.lr)
            if self._test.height:
                accuracy, loss = accuracy_and_loss(mark.model, self._encoded(mark.model.encoder))
        known = {"training_loss" if name == "loss" else name: value for name, value in mark.metrics.items()}
        measured = {name: value for name, value in (("accuracy", accuracy), ("loss", loss)) if value is not None}
        self.history.append({"round": mark.round + 1, **measured, **known})
        if self._folder is not None:
            self._save(mark, self._folder)
        seconds = perf_counter() - self._began
        measure = "accuracy" if self._hub.encoder.task == "classification" else "R2"
        self._watch(
            Progress(round=mark.round + 1, rounds=mark.rounds, accuracy=accuracy, measure=measure, seconds=seconds)
        )

    def _encoded(self, encoder: Encoder) -> Rows:
        """The test rows as the model reads them; the same until the encoder changes."""
        if self._rows is None or self._encoder is not encoder:
            self._rows, self._encoder = encode_test_rows(encoder, self._test), encoder
        return self._rows

    def _save(self, mark: RoundEnd, folder: RunFolder) -> None:
        facts = {
            "history": self.history,
            "costs": vars(self._engine.costs),
            "excluded": [vars(item) for item in self._engine.excluded],
        }
        folder.checkpoints.save(
            Checkpoint(
                round=mark.round,
                state=mark.state,
                sites=self._engine.checkpoint(),
                ledger_lines=self._ledger.length,
                facts=facts,
            )
        )


def _spread(test: pl.DataFrame) -> pl.DataFrame:
    """At most `HISTORY_ROWS` test rows, from all over the table: its first ones may all be of one kind."""
    return test.gather_every(max(1, -(-test.height // HISTORY_ROWS)))
