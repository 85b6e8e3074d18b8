"""Federated rounds over a secure sum: the hub sees the total of all sites and no site's own update.

What a site adds: the sum of its clipped row gradients (dp-sgd; one full-batch step a round), its clipped update (hub;
for whole sites), or, without a budget, its update times its rows, as federated averaging weighs it; and its row count.

The hub sends no weights. It sends a seed for the first ones and then the total of the round before, with a check value
that only the sites can make (`kohort.crypto.sums.checked`). Every site verifies the total and takes the step itself, so
a hub cannot choose the weights that rows are seen through. A site that missed rounds is sent their totals.

Noise is added once: every site adds a share of variance sigma^2 clip^2 / (quorum - colluders) before rounding, so the
total carries at least the planned noise as long as no more than `colluders` sites show theirs. A sum of rounded shares
is post-processing of the continuous one. Sites open no total over fewer than `quorum` survivors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS, from_residues, proven_total, to_residues, with_check
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import MIN_SITES, FixedPoint, Integers, SumContext
from kohort.errors import ConfigError, IntegrityError, RefusedError, SiteError
from kohort.models.dense.network import FloatArray, Network
from kohort.models.trainable import Trainable
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Public
from kohort.protocol.hub import Ask, Expect, Hub, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.state import StateArrays, TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import Shares, account_of, answer_once
from kohort.rounds.group_secrets import agree_on_secret, secret_of, secret_step
from kohort.rounds.loop import RoundsResult, WeightAverage
from kohort.rounds.phase_rows import rows_of, stacked_rows
from kohort.rounds.phase_training import plain_update
from kohort.rounds.summing import SumState, Total, secure_sum, sum_steps, sum_task

__all__ = ["SUM_UPDATES", "summed_contract", "summed_rounds"]

LEAST_GRID_UNITS = 8
"""Rounding must be fine compared with a share of the noise."""
PRECISION = 2.0**-24
"""Grid of a sum without noise, relative to the largest number it allows for."""
LARGEST_UPDATE = 1e3
_ROOM = 2.0**59
"""A total lies within this bound either way, so that it is told apart modulo 2^61 - 1."""
_EXTRA = 1
"""Numbers besides the update: the row count."""
_CAUGHT_UP = Public(what="that it has caught up")


def _grid(phase: TrainingPhase, sites: int, deviation: float) -> FixedPoint:
    """The fixed point everybody uses: fine enough for the noise, with headroom for all sites."""
    if deviation > 0:
        scale = 2.0 ** ceil(log2(LEAST_GRID_UNITS * 64 / deviation))
    else:
        scale = 1 / (PRECISION * (phase.dp.clip if phase.dp is not None else 1.0))
    return FixedPoint(bound=_ROOM / (scale * sites), scale=scale, sites=sites)


def _deviation(phase: TrainingPhase, sigma: float, shares: Shares) -> float:
    """Standard deviation of one site's share."""
    return 0.0 if phase.dp is None else sigma * phase.dp.clip / float(np.sqrt(shares.needed))


@dataclass(frozen=True, eq=False)
class _Model:
    """The model of a summed training, as hub and sites each compute it from the same totals."""

    weights: FloatArray
    velocity: NDArray[np.float64]

    @classmethod
    def start(cls, network: Trainable, seed: bytes) -> _Model:
        """The first weights, drawn from a public seed: a hub can choose the seed and not the weights."""
        if len(seed) != 16:
            raise IntegrityError("the seed of the first weights has another length")
        weights = network.start(np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))))
        return cls(weights, np.zeros(len(weights)))

    def moved(self, phase: TrainingPhase, grid: FixedPoint, total: Integers, members: int) -> _Model:
        """The next model from a total: a gradient step, or a mean of updates.

        Args:
            phase: How it is trained.
            grid: The fixed point of the sum.
            total: The opened numbers, without their check value.
            members: How many sites the session has.

        Returns:
            The next model.

        Raises:
            IntegrityError: The total holds no row.
        """
        step, rows = grid.decode(from_residues(total[:-_EXTRA])), int(total[-1])
        if rows < 1 or len(step) != len(self.weights):
            raise IntegrityError("the total of a round is not one of this model")
        velocity = self.velocity
        if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
            momentum = phase.train.momentum if phase.train.optimizer == "momentum" else 0.0
            velocity = momentum * velocity + step / rows
            change = -phase.train.lr * velocity
        else:
            change = step / (rows if phase.dp is None else members)
        return _Model((self.weights + change).astype(self.weights.dtype), velocity)


@dataclass
class SummedState(TaskState):
    """A site's own copy of the model that is trained over sums."""

    NAME: ClassVar[str] = "summed"

    model: _Model | None = field(default=None, repr=False)
    round: int = -1
    """The round whose weights these are."""
    members: int = 0
    """How many sites the sums are over."""
    seed: bytes = b""
    """The public seed of the first weights; every round names it, so it is in the view of every sum."""

    def checkpoint(self) -> StateArrays:
        """The model, its round and the number of members, once there is a model."""
        if self.model is None:
            return {}
        numbers = np.asarray([self.round, self.members], dtype=np.int64)
        seed = np.frombuffer(self.seed, dtype=np.uint8)
        return {"weights": self.model.weights, "velocity": self.model.velocity, "numbers": numbers, "seed": seed}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `checkpoint`."""
        self.model = _Model(arrays["weights"].copy(), arrays["velocity"].copy())
        self.round, self.members = (int(number) for number in arrays["numbers"])
        self.seed = arrays["seed"].tobytes()


def _binding(approved: ApprovedPlan, round_number: int) -> bytes:
    """What check values of a round are bound to; a returning site knows it, too."""
    text = f"{approved.run}:{approved.plan_hash}:{SUM_UPDATES.name}:{round_number}"
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kohort-update").digest()


def _checked(approved: ApprovedPlan) -> bool:
    """Whether totals are checked by the sites. With `none` the hub sees every site's own numbers anyway."""
    return _scheme(approved) != "none"


def _at_round(site: Site, round_number: int, inputs: Mapping[str, bytes], members: int) -> _Model:
    """The weights of a round, computed here from what came with the request."""
    state = site.state(SummedState)
    _start(site, inputs.get("start", b""), members)
    if round_number and state.round == round_number - 1:
        _advance(site, inputs.get("total", b""), inputs.get("sites", b""))
    if state.model is None or state.round != round_number:
        raise SiteError(f"site {site.name!r} has no weights of round {round_number}", hint="Send it the missed totals")
    return state.model


def _start(site: Site, seed: bytes, members: int) -> None:
    """Draw the first weights, once per run; another seed is refused, whichever request brings it."""
    state = site.state(SummedState)
    if state.model is None:
        state.model, state.round, state.seed, state.members = _Model.start(site.network, seed), 0, seed, members
    elif seed != state.seed:
        raise IntegrityError("the seed of the first weights is not the one that this run began with")


def _advance(site: Site, announced: bytes, places: bytes) -> None:
    """Take the step of one round, if the announced total is what the sites contributed."""
    state = site.state(SummedState)
    if state.model is None or len(announced) % 8:
        raise IntegrityError("the total of a round came in before the round")
    total = np.frombuffer(announced, dtype="<u8").astype(np.uint64)
    if _checked(site.plan):
        names = site.plan.sites_at(places)
        total = proven_total(secret_of(site), _binding(site.plan, state.round), names, total)
    phase, members = site.plan.phase(0), state.members
    grid = _grid(phase, members, _own_deviation(site, members))
    state.model = state.model.moved(phase, grid, total, members)
    state.round += 1


def _own_deviation(site: Site, members: int) -> float:
    """Standard deviation of this site's share of the noise, by the approved plan."""
    phase, secure = site.plan.phase(0), site.plan.secure
    if phase.dp is None or secure is None:
        return 0.0
    return _deviation(phase, account_of(site).sigmas[0], Shares(members, secure.colluders))


def _contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    approved, network = site.plan, site.network
    phase, secure = approved.phase(0), approved.secure
    if secure is None or context.length != _length(network, approved):
        raise SiteError("a sum of updates was asked for that is not in the approved plan")
    model = _at_round(site, request.round, inputs, len(context.sites))
    rows = rows_of(site, phase)
    values = _own_part(site, request, phase, model.weights)
    deviation = _own_deviation(site, len(context.sites))
    if deviation:
        from kohort.models.dp_sgd.fit import gaussian

        answer_once(site, request)
        values = values + deviation * gaussian(site.streams.bytes("dp", request.digest), len(values))
    grid = _grid(phase, len(context.sites), deviation)
    vector = np.append(to_residues(grid.encode(values)), np.uint64(rows.count))
    if _checked(approved):
        vector = with_check(secret_of(site), _binding(approved, request.round), site.name, vector)
    return vector, rows.count


def _length(network: Trainable, approved: ApprovedPlan) -> int:
    """How many numbers a site adds: its update, its row count, and a check value."""
    return network.parameter_count + _EXTRA + (CHECKS if _checked(approved) else 0)


def _own_part(site: Site, request: Request, phase: TrainingPhase, start: FloatArray) -> NDArray[np.float64]:
    from kohort.models.dp_sgd.fit import clip_update, clipped_sums

    network, rows = site.network, rows_of(site, phase)
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        if not isinstance(network, Network):
            raise ConfigError("sums of clipped gradients need one of kohort's own networks", hint="Use mlp or logistic")
        return np.asarray(clipped_sums(network, start, stacked_rows([site], phase), clip=phase.dp.clip)[0])
    update = plain_update(site, request, phase, start)
    if phase.dp is not None:
        return np.asarray(clip_update(update, phase.dp.clip), dtype=np.float64)
    return np.asarray(np.clip(update, -LARGEST_UPDATE, LARGEST_UPDATE) * rows.count)


def _scheme(approved: ApprovedPlan) -> str:
    secure = approved.secure
    if secure is None:
        raise RefusedError("the approved plan sums nothing")
    return secure.sum


def _grouped(approved: ApprovedPlan) -> bool:
    """Without a budget, totals of two rounds that differ by one site would show about its update."""
    return _checked(approved) and approved.phase(0).dp is None


SUM_UPDATES = sum_task("sum.updates", _contribute, scheme=_scheme, modulus=P61, family="training", grouped=_grouped)


def _catch_up(site: Site, request: Request) -> Release:
    """Take the steps of rounds this site missed; each total is verified like any other."""
    state, arrays = site.state(SummedState), request.payload.arrays
    agreed = site.state(SumState).agreed
    if state.model is None and agreed is None:
        raise SiteError(f"site {site.name!r} took part in no round, so it has nothing to catch up with")
    members = state.members if agreed is None else len(agreed.session.members)
    _start(site, request.payload.blobs.get("start", b""), members)
    if not len(arrays["sizes"]):
        return Release(payload=Payload(), guarantee=_CAUGHT_UP, rows=0)
    listed = np.split(arrays["places"], np.cumsum(arrays["sizes"])[:-1])
    for number, (total, places) in enumerate(zip(arrays["totals"], listed, strict=True)):
        if int(request.payload.metrics["first"]) + number == state.round:  # the others it took before
            _advance(site, total.astype("<u8").tobytes(), places.astype("<u4").tobytes())
    return Release(payload=Payload(), guarantee=_CAUGHT_UP, rows=0)


CATCH_UP = Task(name="sum.catch-up", one=_catch_up, public=False)


def summed_contract(approved: ApprovedPlan, *, says: str) -> Contract:
    """What training over sums asks of a site.

    Args:
        approved: The approved plan.
        says: What the total of a round is, for people.

    Returns:
        The agreement on a secret, and one sum per round; totals of missed rounds come in between.
    """
    rounds = range(approved.train.rounds)
    secret = [secret_step()] if _checked(approved) else []
    missed = Step(
        task=CATCH_UP.name, says="that you took the steps of rounds you missed", claims=(_CAUGHT_UP,), rounds=rounds
    )
    return Contract.of(secret, [missed, *sum_steps(approved, SUM_UPDATES, says=says, rounds=rounds)])


@dataclass
class _Training:
    """The hub's side: the model, the totals so far, and which sites know which round."""

    hub: Hub
    phase: TrainingPhase
    grid: FixedPoint
    model: _Model
    seed: bytes
    totals: list[tuple[Integers, NDArray[np.uint32]]] = field(default_factory=list)
    """The total of every round since the run began or was resumed, and the places of the sites in it."""
    first: int = 0
    """The round of the first of them."""
    known: dict[str, int] = field(default_factory=dict)
    """The last round each site took part in."""

    def inputs(self, number: int) -> dict[str, bytes]:
        """What every site gets with the first step of a round."""
        if number == 0:
            return {"start": self.seed}
        total, places = self.totals[-1]
        listed = places.astype("<u4").tobytes()
        return {"start": self.seed, "total": total.astype("<u8").tobytes(), "sites": listed}

    def behind(self, number: int) -> dict[str, Payload]:
        """What sites that missed rounds need before round `number`."""
        last = {site: max(self.known.get(site, -1), 0) for site in self.hub.sites}
        if number == 0 or not any(self.first <= known < number - 1 for known in last.values()):
            return {}
        return {site: self._missed(known, number) for site, known in last.items()}

    def _missed(self, last: int, number: int) -> Payload:
        """The totals from round `last` on, without the latest, which comes with the sum; none where they are lost."""
        missed = self.totals[last - self.first : number - 1 - self.first] if last >= self.first else []
        length = _length(self.hub.network, self.hub.approved)
        return Payload(
            arrays={
                "totals": np.stack([total for total, _ in missed]) if missed else np.empty((0, length), np.uint64),
                "places": np.concatenate([np.empty(0, np.uint32), *(places for _, places in missed)]),
                "sizes": np.asarray([len(places) for _, places in missed], dtype=np.int64),
            },
            metrics={"first": last},
            blobs={"start": self.seed},
        )

    def take(self, number: int, total: Total) -> None:
        """Take the step of a round."""
        listed = np.frombuffer(self.hub.approved.places_of(total.sites), dtype="<u4")
        self.totals.append((total.values, listed))
        self.known.update(dict.fromkeys(total.sites, number))
        numbers = total.values[:-CHECKS] if _checked(self.hub.approved) else total.values
        self.model = self.model.moved(self.phase, self.grid, numbers, self.grid.sites)


def summed_rounds(hub: Hub, *, sigma: float = 0.0) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """Train over secure sums.

    Args:
        hub: The coordinator.
        sigma: The noise multiplier the sites' accounts have: the grid depends on it.

    Returns:
        The trained weights.

    Raises:
        ConfigError: The plan asks for what a sum hides.
        RefusedError: Too few sites take part.
    """
    phase, secure = hub.approved.phase(0), hub.approved.secure
    if secure is None:
        raise ConfigError("sums need a scheme", hint='Set method.secure.sum = "masks"')
    _check(phase, hub)
    if _checked(hub.approved):
        hub = replace(hub, sites=(yield from agree_on_secret(hub)))
    rounds = phase.train.rounds
    average = WeightAverage.of(phase.train, share=0.0 if phase.dp is None else phase.dp.average)
    seed = hub.streams.bytes("start", length=16)
    deviation = _deviation(phase, sigma, Shares(len(hub.sites), secure.colluders))
    training = _Training(hub, phase, _grid(phase, len(hub.sites), deviation), _Model.start(hub.network, seed), seed)
    first = 0
    if hub.resume is not None:
        first = _resume(training, average, hub)
        model = hub.model_of(training.model.weights)
        yield RoundEnd(round=first - 1, rounds=rounds, model=model, state=hub.resume.state, resumed=True)
    for number in range(first, rounds):
        behind = training.behind(number)
        if behind:
            yield Ask(task=CATCH_UP, to=tuple(behind), each=behind, round=number, expect=Expect())
        length = _length(hub.network, hub.approved)
        total: Total = yield from secure_sum(
            hub, SUM_UPDATES, length=length, round_number=number, inputs=training.inputs(number)
        )
        training.take(number, total)
        average.take(number, training.model.weights)
        state = _state(training, average)
        yield RoundEnd(round=number, rounds=rounds, model=hub.model_of(training.model.weights), state=state)
    return RoundsResult(weights=average.averaged(training.model.weights), rounds=rounds, stopped_by="rounds")


def _state(training: _Training, average: WeightAverage) -> Mapping[str, NDArray[Any]]:
    total, places = training.totals[-1]
    model = training.model
    return {
        "weights": model.weights,
        "velocity": model.velocity,
        "total": total,
        "places": places,
        **average.state(),
    }


def _resume(training: _Training, average: WeightAverage, hub: Hub) -> int:
    """Go on after the last whole round; returns the number of the next one."""
    if hub.resume is None:
        return 0
    state, last = hub.resume.state, hub.resume.round
    training.model = _Model(state["weights"], state["velocity"].copy())
    training.totals, training.first = [(state["total"], state["places"])], last
    training.known = dict.fromkeys((hub.approved.sites[place] for place in state["places"].tolist()), last)
    average.restore(state)
    return last + 1


def _check(phase: TrainingPhase, hub: Hub) -> None:
    train = phase.train
    if phase.dp is not None and phase.dp.mechanism not in {"dp-sgd", "hub"}:
        raise ConfigError(
            f"the noise of {phase.dp.mechanism!r} is each site's own", hint="Drop method.secure, or use dp-sgd or hub"
        )
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        _check_gradients(phase.dp, train)
    for name, usual in (("fraction", 1.0), ("aggregate", "mean"), ("hub", "plain"), ("correction", "none")):
        if getattr(train, name) != usual:
            raise ConfigError(
                f"train.{name} needs each site's own update, and method.secure hides it",
                hint=f"Drop train.{name} or method.secure",
            )
    if train.stop is not None or train.reject is not None:
        raise ConfigError(
            "train.stop and train.reject need each site's own loss or update, and method.secure hides them",
            hint="Drop them, or method.secure",
        )
    if len(hub.sites) < MIN_SITES:
        raise RefusedError("a sum over fewer than three sites hides nothing", hint="Add sites, or drop method.secure")


def _check_gradients(dp: DPSection, train: TrainSection) -> None:
    if train.batch != 0 or train.local_epochs != 1 or train.optimizer == "adam":
        raise ConfigError(
            "a sum of clipped gradients is one full step a round",
            hint='Set train.batch = 0, train.local_epochs = 1 and train.optimizer = "sgd" or "momentum"',
        )
    if dp.quantile is not None:
        raise ConfigError("the bound of a sum is the same at all sites", hint="Drop dp.quantile")
