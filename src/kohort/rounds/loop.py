"""The loop every iterative method shares: choose sites, ask them to train, aggregate, mark the round, stop when done.

A method adds what is its own: which sites train, with which task, and whether the hub takes part as one more
participant. Aggregation, server optimizers, corrections, client selection, weight averaging, early stopping and
resuming work for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.options import FloatArray
from kohort.models.scoring import loss_of
from kohort.protocol.hub import Ask, Hub, Replies, Resume, RoundEnd
from kohort.protocol.plan.approved import Stop, TrainSection
from kohort.protocol.plan.corrections import find_correction
from kohort.protocol.task import Task
from kohort.protocol.wire import Payload
from kohort.rounds.aggregators import find_aggregator
from kohort.rounds.selection import select_sites
from kohort.rounds.server_optimizers import find_server_optimizer
from kohort.rounds.training import expected_update, training_task

__all__ = [
    "BeforeRound",
    "EarlyStopping",
    "Participant",
    "RoundOptions",
    "RoundsResult",
    "TrainingGroup",
    "Update",
    "WeightAverage",
    "federated_rounds",
]

State = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Update:
    """One participant's weights after a round, its row count, and its mean loss when early stopping needs it."""

    weights: FloatArray
    rows: int
    loss: float | None = None


class Participant(Protocol):
    """A participant that trains beside the sites: the hub, on rows that were shared with it."""

    def train(self, round_number: int, weights: FloatArray) -> Update:
        """Train for one round.

        Args:
            round_number: The round.
            weights: The weights to start from.

        Returns:
            The participant's update.
        """
        ...

    def state(self) -> State:
        """The arrays to store in a checkpoint."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays of a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundsResult:
    """The final weights, the number of rounds, and why training stopped."""

    weights: FloatArray
    rounds: int
    stopped_by: str


class EarlyStopping:
    """Early stopping: ends training when the loss has not improved for `patience` rounds.

    Args:
        rule: `train.stop`; None never stops.
    """

    def __init__(self, rule: Stop | None) -> None:
        self._rule = rule
        self.best = np.inf
        self.waited = 0
        self._stored: tuple[tuple[float, int, bool], NDArray[np.float64]] | None = None

    def is_over(self, value: float | None) -> bool:
        """Take the loss of one more round.

        Args:
            value: The loss; None when it was not measured.

        Returns:
            Whether training should stop now.
        """
        if self._rule is None or value is None:
            return False
        if value < self.best - self._rule.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._rule.patience

    def state(self, *, over: bool) -> NDArray[np.float64]:
        """The array to store in a checkpoint; the same object as long as nothing changes.

        Args:
            over: Whether training has stopped.

        Returns:
            Best loss, rounds without an improvement, and `over`.
        """
        now = (self.best, self.waited, over)
        if self._stored is None or self._stored[0] != now:
            self._stored = now, np.asarray(now, dtype=np.float64)
        return self._stored[1]

    @property
    def reason(self) -> str:
        """Why training stopped, for the result."""
        return f"no improvement of the loss for {self.waited} rounds"


@dataclass(frozen=True, kw_only=True)
class TrainingGroup:
    """Who trains in a round: some sites, and the hub if rows were shared with it."""

    sites: tuple[str, ...]
    participant: Participant | None = None


BeforeRound = Callable[[int], Generator[Ask | RoundEnd, Any, TrainingGroup | None]]
"""Runs before each round, such as gating newly arrived rows; returns a new group, or None to keep the old one."""


def _stays(round_number: int) -> Generator[Ask | RoundEnd, Any, TrainingGroup | None]:
    del round_number
    return None
    yield  # a generator that asks nothing


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """Options of one block of rounds in a plan of several phases."""

    task: Task | None = None
    """The task to ask for; None for the plan's usual training task."""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """Metrics sent with every request."""
    first_round: int = 0
    """The number of the first round: how many rounds the earlier phases have."""
    last_round: int | None = None
    """How many rounds the whole plan has; None when this is its only phase."""
    own_start: bool = False
    """Whether the sites start from models of their own, which the hub does not know."""
    noise: Callable[[int, FloatArray, FloatArray], FloatArray] | None = None
    """Replaces aggregation when the hub adds noise: from the round, the weights before it, and the sites' weights
    [sites, parameters] to the new weights."""
    average: float = 0.0
    """Average the weights over this last share of the rounds; 0 means `train.average`."""


def federated_rounds(
    hub: Hub,
    weights: FloatArray,
    *,
    group: TrainingGroup | None = None,
    before: BeforeRound = _stays,
    options: RoundOptions | None = None,
) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """Train until all rounds are done or early stopping ends them.

    Each RoundEnd holds the weights that the next round starts from. The result holds the final weights: their mean over
    the last rounds when the plan asks for weight averaging.

    Args:
        hub: The hub's side of the run.
        weights: The weights to start from.
        group: Who trains; None for all sites.
        before: Runs before each round, and may change the group.
        options: Options of this block of rounds.

    Returns:
        The final weights, the number of rounds, and why training stopped.

    Raises:
        ConfigError: Two settings of `train` cannot be combined.
    """
    options = options or RoundOptions()
    loop = _Loop(hub, group or TrainingGroup(sites=hub.sites), options)
    first = options.first_round
    end = first + hub.approved.train.rounds
    rounds = options.last_round or end
    average = WeightAverage.of(hub.approved.train, first=first, share=options.average)
    if hub.resume is not None and hub.resume.round >= first:
        for passed in range(hub.resume.round + 1):  # earlier requests are replayed, and get the same answers
            loop.take((yield from before(passed)))
        weights, first = loop.resume(hub.resume)
        average.restore(hub.resume.state)
        model = hub.model_of(weights)
        yield RoundEnd(round=first - 1, rounds=rounds, model=model, state=hub.resume.state, resumed=True)
        if loop.is_over:
            return RoundsResult(weights=average.averaged(weights), rounds=first, stopped_by=loop.patience.reason)
    for round_number in range(first, end):
        loop.take((yield from before(round_number)))
        chosen = loop.choose(round_number)
        updates = loop.train_here(round_number, weights)
        replies: Replies | None = None
        if chosen:
            replies = yield loop.ask(chosen, weights, round_number)
        weights, loss = loop.combine(weights, chosen, replies, updates, round_number)
        average.take(round_number, weights)
        loop.is_over = loop.patience.is_over(loss)
        metrics = {} if loss is None else {"loss": loss}
        state = {"weights": weights, **loop.state(), **average.state()}
        model = hub.model_of(weights)
        yield RoundEnd(round=round_number, rounds=rounds, model=model, metrics=metrics, state=state)
        if loop.is_over:
            return RoundsResult(
                weights=average.averaged(weights), rounds=round_number + 1, stopped_by=loop.patience.reason
            )
    return RoundsResult(weights=average.averaged(weights), rounds=end, stopped_by="rounds")


class WeightAverage:
    """Weight averaging over the last rounds.

    Args:
        begin: The first round that counts.
    """

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    @classmethod
    def of(cls, train: TrainSection, *, first: int = 0, share: float = 0.0) -> WeightAverage:
        """Averaging as a plan asks for it.

        Args:
            train: The phase's `train` section.
            first: The number of the phase's first round.
            share: The last share of the rounds to average; 0 means `train.average`.

        Returns:
            An average that has seen no weights yet.
        """
        return cls(first + train.rounds - round((share or train.average) * train.rounds))

    def take(self, round_number: int, weights: FloatArray) -> None:
        """Add the weights of a round, if it is one of the last.

        Args:
            round_number: The round.
            weights: The weights after it.
        """
        if round_number >= self._begin:
            self._sum = weights.astype(np.float64) if self._sum is None else self._sum + weights
            self._count += 1

    def averaged(self, weights: FloatArray) -> FloatArray:
        """The average of the weights that were added.

        Args:
            weights: Returned when none were.

        Returns:
            The average, in the type of `weights`.
        """
        return weights if self._sum is None else (self._sum / self._count).astype(weights.dtype)

    def state(self) -> State:
        """The arrays to store in a checkpoint."""
        return {} if self._sum is None else {"average.sum": self._sum, "average.count": np.asarray([self._count])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays of a checkpoint."""
        if "average.sum" in state:
            self._sum, self._count = state["average.sum"].copy(), int(state["average.count"][0])


class _Loop:
    """The hub's state from round to round."""

    def __init__(self, hub: Hub, group: TrainingGroup, options: RoundOptions) -> None:
        train = hub.approved.train
        self._options = options
        self.patience = EarlyStopping(train.stop)
        self.is_over = False
        self._hub = hub
        self._sites = group.sites
        self._participant = group.participant
        self._places = {site: index for index, site in enumerate(hub.sites)}
        self._task = options.task or training_task(hub.approved)
        self._expect = expected_update(hub.network, hub.approved)
        self._aggregate = find_aggregator(train.aggregate)
        self._optimizer = find_server_optimizer(train.hub)
        self._optimizer_state: State = self._optimizer.start(hub.network.parameter_count)
        self._asked = np.zeros(len(hub.sites), dtype=np.int64)
        self._answered = np.zeros(len(hub.sites), dtype=np.int64)
        self._control: FloatArray | None = None
        if find_correction(train.correction).scaffold:
            self._control = np.zeros(hub.network.parameter_count, dtype=hub.network.dtype)
            _check_scaffold(hub)
        if train.reject is not None and hub.validation is None:
            raise ConfigError(
                "train.reject needs validation rows at the hub",
                hint="Set data.validation to a share of the rows, such as 0.1",
            )

    def choose(self, round_number: int) -> tuple[str, ...]:
        if not self._sites or self._hub.approved.train.fraction >= 1:
            return self._sites
        generator = self._hub.streams.generator("select", round_number)
        train = self._hub.approved.train
        here = [self._places[site] for site in self._sites]
        return select_sites(self._sites, train, generator, asked=self._asked[here], answered=self._answered[here])

    def take(self, group: TrainingGroup | None) -> None:
        """Continue with another group; the server optimizer keeps its state."""
        if group is None:
            return
        if self._participant is not None and group.participant is not None:
            group.participant.restore(self._participant.state())
        self._sites, self._participant = group.sites, group.participant

    def train_here(self, round_number: int, weights: FloatArray) -> list[Update]:
        """The hub's own update of a round, if it takes part."""
        return [] if self._participant is None else [self._participant.train(round_number, weights)]

    def _own_start(self, round_number: int) -> bool:
        """Whether sites start this round from models of their own."""
        return self._options.own_start and round_number == self._options.first_round

    def ask(self, chosen: tuple[str, ...], weights: FloatArray, round_number: int) -> Ask:
        options = self._options
        arrays: State = {} if self._own_start(round_number) else {"weights": weights}
        if self._control is not None:
            arrays["control"] = self._control
        payload = Payload(arrays=arrays, metrics=options.metrics)
        return Ask(task=self._task, to=chosen, payload=payload, round=round_number, expect=self._expect)

    def combine(
        self,
        weights: FloatArray,
        chosen: tuple[str, ...],
        replies: Replies | None,
        updates: list[Update],
        round_number: int,
    ) -> tuple[FloatArray, float | None]:
        """New weights and mean loss from the sites' replies and the other participants' updates."""
        if replies is not None:
            self._remember(chosen, replies)
        elif not updates:
            return weights, None  # nobody was chosen: the round passes
        stack, rows, *losses = _gathered(replies, updates, losses=self._hub.approved.train.stop is not None)
        if self._options.noise is not None:
            return self._options.noise(round_number, weights, stack), None
        kept = self._believed(stack)
        if not isinstance(kept, slice):
            stack, rows = stack[kept], rows[kept]
        aggregated = self._aggregate(stack, rows, weights, self._hub.network)
        if self._own_start(round_number):  # from weights that are not known here there is no step to carry on
            moved = aggregated.astype(weights.dtype)
        else:
            moved, self._optimizer_state = self._optimizer.step(weights, aggregated, self._optimizer_state)
        if self._control is not None and replies is not None:
            self._move_control(replies, kept)
        return moved, float(np.average(losses[0][kept], weights=rows)) if losses else None

    def _remember(self, chosen: tuple[str, ...], replies: Replies) -> None:
        if self._hub.approved.train.select == "reliable":
            self._asked[[self._places[site] for site in chosen]] += 1
            self._answered[[self._places[site] for site in replies.sites]] += 1

    def _believed(self, stack: FloatArray) -> NDArray[np.int64] | slice:
        """Indices of the updates whose loss on the hub's validation rows is no outlier; at least half of them."""
        limit, rows = self._hub.approved.train.reject, self._hub.validation
        if limit is None or rows is None or len(stack) < 3:
            return slice(None)
        errors = np.asarray([loss_of(self._hub.network, weights, rows.x, rows.y) for weights in stack])
        middle = np.median(errors)
        spread = 1.4826 * np.median(np.abs(errors - middle))  # a robust estimate of the standard deviation
        return np.flatnonzero(errors <= middle + limit * spread)

    def _move_control(self, replies: Replies, kept: NDArray[np.int64] | slice) -> None:
        """SCAFFOLD: c moves by the sites' mean change, in proportion to the rows that took part."""
        changes, rows = replies.array("control"), replies.metric("rows").astype(np.int64)
        members = np.arange(len(rows) + 1)[kept]
        members = members[members < len(rows)]
        mean = self._aggregate(changes[members], rows[members], np.zeros_like(changes[0]), self._hub.network)
        share = rows[members].sum() / sum(self._hub.rows[site] for site in self._sites)
        assert self._control is not None  # noqa: S101 - the caller checked
        self._control = (self._control + share * mean).astype(changes.dtype)

    def state(self) -> State:
        """Everything a checkpoint needs besides the weights."""
        kept: State = {f"optimiser.{name}": array for name, array in self._optimizer_state.items()}
        kept["patience"] = self.patience.state(over=self.is_over)
        if self._hub.approved.train.select == "reliable":
            kept |= {"asked": self._asked, "answered": self._answered}
        if self._control is not None:
            kept["control"] = self._control
        if self._participant is not None:
            kept |= {f"participant.{name}": array for name, array in self._participant.state().items()}
        return kept

    def resume(self, saved: Resume) -> tuple[FloatArray, int]:
        """Restore a checkpoint. Returns the weights and the round to continue with."""
        state = saved.state
        self._optimizer_state = _part(state, "optimiser.")
        best, waited, over = state["patience"].tolist()
        self.patience.best, self.patience.waited, self.is_over = best, int(waited), bool(over)
        if "asked" in state:
            self._asked, self._answered = state["asked"].copy(), state["answered"].copy()
        if self._control is not None:
            self._control = state["control"].copy()
        if self._participant is not None:
            self._participant.restore(_part(state, "participant."))
        return state["weights"], saved.round + 1


def _gathered(replies: Replies | None, updates: Sequence[Update], *, losses: bool) -> list[NDArray[Any]]:
    """Weights [S, P], rows and, if `losses`, losses: of the sites first, then of the other participants."""
    received = [] if replies is None else [replies.array("weights"), replies.metric("rows")]
    if replies is not None and losses:
        received.append(replies.metric("loss"))
    if not updates:
        return received
    own = [np.stack([update.weights for update in updates]), np.asarray([update.rows for update in updates])]
    if losses:
        own.append(np.asarray([np.nan if update.loss is None else update.loss for update in updates]))
    return [np.concatenate(both) for both in zip(received, own, strict=True)] if received else own


def _part(state: Mapping[str, NDArray[Any]], prefix: str) -> State:
    return {name.removeprefix(prefix): array.copy() for name, array in state.items() if name.startswith(prefix)}


def _check_scaffold(hub: Hub) -> None:
    train = hub.approved.train
    if train.optimizer != "sgd":
        raise ConfigError("SCAFFOLD's control variates are defined for plain SGD", hint='Set train.optimizer = "sgd"')
