"""The loop every iterative method shares: choose sites, ask them to train, aggregate, mark the round, stop when done.

A method adds what is its own: which sites train, with which task, and whether the hub takes part as one more
participant. Aggregators, hub optimisers, corrections, selection, averages over rounds, early stopping and
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
from kohort.protocol.corrections import find_correction
from kohort.protocol.hub import Ask, Hub, Replies, Resume, RoundEnd
from kohort.protocol.options import named
from kohort.protocol.plan import Stop, TrainSection
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
    """One participant's weights after a round, the rows behind them, and its mean loss when stopping needs it."""

    weights: FloatArray
    rows: int
    loss: float | None = None


class Participant(Protocol):
    """Whoever trains beside the sites: the hub, on rows it was given."""

    def train(self, round_number: int, weights: FloatArray) -> Update:
        """One round from `weights`."""
        ...

    def state(self) -> State:
        """What a checkpoint must hold of it."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundsResult:
    """How the loop ended."""

    weights: FloatArray
    rounds: int
    stopped_by: str


class EarlyStopping:
    """Watches a metric that should fall, and says when it has stopped falling."""

    def __init__(self, rule: Stop | None) -> None:
        self._rule = rule
        self.best = np.inf
        self.waited = 0
        self._told: tuple[tuple[float, int, bool], NDArray[np.float64]] | None = None

    def is_over(self, value: float | None) -> bool:
        """Whether `value` is one round too many without an improvement."""
        if self._rule is None or value is None:
            return False
        if value < self.best - self._rule.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._rule.patience

    def state(self, *, over: bool) -> NDArray[np.float64]:
        """What a checkpoint must hold of it; the same array as long as nothing changes."""
        now = (self.best, self.waited, over)
        if self._told is None or self._told[0] != now:
            self._told = now, np.asarray(now, dtype=np.float64)
        return self._told[1]

    @property
    def reason(self) -> str:
        """What to say when it is over."""
        return f"no improvement of the loss for {self.waited} rounds"


@dataclass(frozen=True, kw_only=True)
class TrainingGroup:
    """Who trains: these sites, and the hub when it was given rows."""

    sites: tuple[str, ...]
    participant: Participant | None = None


BeforeRound = Callable[[int], Generator[Ask | RoundEnd, Any, TrainingGroup | None]]
"""What a method does before a round, such as gating rows that arrived; a new group, or None when it stays the same."""


def _stays(round_number: int) -> Generator[Ask | RoundEnd, Any, TrainingGroup | None]:
    del round_number
    return None
    yield  # a generator that asks nothing


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """Where these rounds stand in a plan of several phases, and what is special about them."""

    task: Task | None = None
    """Asked instead of the plan's usual training task."""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """Sent with every request."""
    first_round: int = 0
    """Rounds of the phases before."""
    last_round: int | None = None
    """Rounds of the whole plan."""
    own_start: bool = False
    """Whether sites begin with models of their own, which the hub does not know."""
    noise: Callable[[int, FloatArray, FloatArray], FloatArray] | None = None
    """Takes round, weights before, and the sites' weights [sites, parameters]; returns the new weights (noise at the
    hub) instead of the aggregator."""
    average: float = 0.0
    """Average the weights of the last share of the rounds; 0 leaves it to `train.average`."""


def federated_rounds(
    hub: Hub,
    weights: FloatArray,
    *,
    group: TrainingGroup | None = None,
    before: BeforeRound = _stays,
    options: RoundOptions | None = None,
) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """Train until the rounds are used up or the loss stays put. Without a `group` all sites train.

    Marks show the weights that the next round begins with; what is ended with is their mean over the average, if any.
    """
    options = options or RoundOptions()
    loop = _Loop(hub, group or TrainingGroup(sites=hub.sites), options)
    first = options.first_round
    end = first + hub.approved.train.rounds
    rounds = options.last_round or end
    average = WeightAverage.of(hub.approved.train, first=first, share=options.average)
    if hub.resume is not None and hub.resume.round >= first:
        for passed in range(hub.resume.round + 1):  # what came before is asked again, and gets the same answers
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
    """The running sum of the weights of the last rounds, from round `begin` on."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    @classmethod
    def of(cls, train: TrainSection, *, first: int = 0, share: float = 0.0) -> WeightAverage:
        """The average of a phase that begins with round `first`: its own `share` of the rounds, or else the plan's."""
        return cls(first + train.rounds - round((share or train.average) * train.rounds))

    def take(self, round_number: int, weights: FloatArray) -> None:
        """Add the weights of a round, if it is one of the last."""
        if round_number >= self._begin:
            self._sum = weights.astype(np.float64) if self._sum is None else self._sum + weights
            self._count += 1

    def averaged(self, weights: FloatArray) -> FloatArray:
        """The mean of what was added; `weights` when nothing was."""
        return weights if self._sum is None else (self._sum / self._count).astype(weights.dtype)

    def state(self) -> State:
        """What a checkpoint must hold of it."""
        return {} if self._sum is None else {"average.sum": self._sum, "average.count": np.asarray([self._count])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a checkpoint."""
        if "average.sum" in state:
            self._sum, self._count = state["average.sum"].copy(), int(state["average.count"][0])


class _Loop:
    """What the hub keeps from round to round."""

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
        self._optimiser = find_server_optimizer(train.hub)
        self._optimiser_state: State = self._optimiser.start(hub.network.parameter_count)
        self._asked = np.zeros(len(hub.sites), dtype=np.int64)
        self._answered = np.zeros(len(hub.sites), dtype=np.int64)
        self._control: FloatArray | None = None
        if find_correction(train.correction).scaffold:
            self._control = np.zeros(hub.network.parameter_count, dtype=hub.network.dtype)
            _check_scaffold(hub)
        if train.reject is not None and hub.validation is None:
            raise ConfigError("train.reject needs rows to judge by", hint="Set data.validation to a share of the rows")

    def choose(self, round_number: int) -> tuple[str, ...]:
        if not self._sites or self._hub.approved.train.fraction >= 1:
            return self._sites
        generator = self._hub.streams.generator("select", round_number)
        train = self._hub.approved.train
        here = [self._places[site] for site in self._sites]
        return select_sites(self._sites, train, generator, asked=self._asked[here], answered=self._answered[here])

    def take(self, group: TrainingGroup | None) -> None:
        """Go on with another group; the hub's optimiser keeps what it remembers."""
        if group is None:
            return
        if self._participant is not None and group.participant is not None:
            group.participant.restore(self._participant.state())
        self._sites, self._participant = group.sites, group.participant

    def train_here(self, round_number: int, weights: FloatArray) -> list[Update]:
        """The hub's own part of a round, if it takes part."""
        return [] if self._participant is None else [self._participant.train(round_number, weights)]

    def ask(self, chosen: tuple[str, ...], weights: FloatArray, round_number: int) -> Ask:
        options = self._options
        arrays: State = {} if options.own_start and round_number == options.first_round else {"weights": weights}
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
        moved, self._optimiser_state = self._optimiser.step(weights, aggregated, self._optimiser_state)
        if self._control is not None and replies is not None:
            self._move_control(replies, kept)
        return moved, float(np.average(losses[0][kept], weights=rows)) if losses else None

    def _remember(self, chosen: tuple[str, ...], replies: Replies) -> None:
        if self._hub.approved.train.select == "reliable":
            self._asked[[self._places[site] for site in chosen]] += 1
            self._answered[[self._places[site] for site in replies.sites]] += 1

    def _believed(self, stack: FloatArray) -> NDArray[np.int64] | slice:
        """Updates whose error on the hub's validation rows is no outlier; at least half of them."""
        limit, rows = self._hub.approved.train.reject, self._hub.validation
        if limit is None or rows is None or len(stack) < 3:
            return slice(None)
        errors = np.asarray([loss_of(self._hub.network, weights, rows.x, rows.y) for weights in stack])
        middle = np.median(errors)
        spread = 1.4826 * np.median(np.abs(errors - middle))  # a normal sample's standard deviation, robustly
        return np.flatnonzero(errors <= middle + limit * spread)

    def _move_control(self, replies: Replies, kept: NDArray[np.int64] | slice) -> None:
        """c moves by the sites' mean change, in proportion to the rows that took part."""
        changes, rows = replies.array("control"), replies.metric("rows").astype(np.int64)
        members = np.arange(len(rows) + 1)[kept]
        members = members[members < len(rows)]
        mean = self._aggregate(changes[members], rows[members], np.zeros_like(changes[0]), self._hub.network)
        share = rows[members].sum() / sum(self._hub.rows[site] for site in self._sites)
        assert self._control is not None  # noqa: S101 - the caller checked
        self._control = (self._control + share * mean).astype(changes.dtype)

    def state(self) -> State:
        """Everything a checkpoint needs besides the weights."""
        kept: State = {f"optimiser.{name}": array for name, array in self._optimiser_state.items()}
        kept["patience"] = self.patience.state(over=self.is_over)
        if self._hub.approved.train.select == "reliable":
            kept |= {"asked": self._asked, "answered": self._answered}
        if self._control is not None:
            kept["control"] = self._control
        if self._participant is not None:
            kept |= {f"participant.{name}": array for name, array in self._participant.state().items()}
        return kept

    def resume(self, saved: Resume) -> tuple[FloatArray, int]:
        """The weights and the round to go on with."""
        state = saved.state
        self._optimiser_state = _part(state, "optimiser.")
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
    """Weights [S, P], rows and, when asked for, losses of the sites, and then of the other participants."""
    told = [] if replies is None else [replies.array("weights"), replies.metric("rows")]
    if replies is not None and losses:
        told.append(replies.metric("loss"))
    if not updates:
        return told
    own = [np.stack([update.weights for update in updates]), np.asarray([update.rows for update in updates])]
    if losses:
        own.append(np.asarray([np.nan if update.loss is None else update.loss for update in updates]))
    return [np.concatenate(both) for both in zip(told, own, strict=True)] if told else own


def _part(state: Mapping[str, NDArray[Any]], prefix: str) -> State:
    return {name.removeprefix(prefix): array.copy() for name, array in state.items() if name.startswith(prefix)}


def _check_scaffold(hub: Hub) -> None:
    train = hub.approved.train
    if train.optimizer != "sgd":
        raise ConfigError("SCAFFOLD's control variates are defined for plain SGD", hint='Set train.optimizer = "sgd"')
    if named(train.aggregate)[0] == "fedma":
        raise ConfigError("SCAFFOLD needs units in a fixed order, and fedma moves them", hint="Drop one of the two")
