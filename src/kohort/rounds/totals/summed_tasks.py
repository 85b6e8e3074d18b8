"""Federated rounds over a secure sum: the hub sees the total of all sites and no site's own update.

What a site adds: the sum of the bounded gradients of its rows or persons, or of a Poisson sample of them that it draws
by its own coin (dp-sgd; one step per round; `kohort.rounds.totals.bounded`), its clipped update (hub; for whole sites),
or, without a budget, its update times its rows, as federated averaging weighs it; and its row count.

The hub sends no weights. It sends a seed for the first ones and then the total of the round before, with a check value
that only the sites can make (`kohort.crypto.sums.checked`). Every site verifies the total and takes the step itself, so
a hub cannot choose the weights that rows are seen through. A site that missed rounds is sent their totals. After a
phase among peers, training starts from the mean of the sites' own models, which is a secure sum as well (`SUM_MODELS`).

What is released: one total per round, with the noise of the phase's budget; and after a phase among peers the mean of
the models, without noise unless that phase had a budget. To an account each noisy total is one Gaussian release of
multiplier sigma over a Poisson sample of rate `dp.sample`.

Noise is added once: every site adds a share of variance sigma^2 clip^2 / (quorum - colluders) before rounding, so the
total carries at least the planned noise as long as no more than `colluders` sites show theirs. A sum of rounded shares
is post-processing of the continuous one. Sites open no total over fewer than `quorum` survivors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS, proven_total, to_residues, with_check
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import FixedPoint, Integers, SumContext
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Public
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.state import StateArrays, TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import Shares, account_of, answer_once
from kohort.rounds.group_secrets import secret_of
from kohort.rounds.phase_rows import reported_rows, rows_of
from kohort.rounds.phase_training import phase_rounds, plain_update
from kohort.rounds.summing import SumState, sum_steps, sum_task
from kohort.rounds.totals.summable import check_summed
from kohort.rounds.totals.summed_model import (
    EXTRA,
    LARGEST,
    HubPart,
    SummedModel,
    deviation_of,
    grid_of,
    mean_of,
    phase_at,
    summed_rounds_of,
)
from kohort.rounds.training import TrainingState

__all__ = [
    "CATCH_UP",
    "SUM_MODELS",
    "SUM_UPDATES",
    "common_model",
    "models_steps",
    "peers_before",
    "sum_length",
    "summed_steps",
]

_CAUGHT_UP = Public(what="that it has caught up")


@dataclass
class SummedState(TaskState):
    """A site's own copy of the model that is trained over sums."""

    NAME: ClassVar[str] = "summed"

    model: SummedModel | None = field(default=None, repr=False)
    round: int = -1
    """The round whose weights these are."""
    members: int = 0
    """How many sites the sums are over."""
    seed: bytes = b""
    """What the first weights follow from, a public seed or a total of models; every round names it, so it is in the
    view of every sum."""

    def checkpoint(self) -> StateArrays:
        """The model, its round and the number of members, once there is a model."""
        if self.model is None:
            return {}
        numbers = np.asarray([self.round, self.members], dtype=np.int64)
        return {**self.model.arrays(), "numbers": numbers, "seed": np.frombuffer(self.seed, dtype=np.uint8)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `checkpoint`."""
        self.model = SummedModel.stored(arrays)
        self.round, self.members = (int(number) for number in arrays["numbers"])
        self.seed = arrays["seed"].tobytes()


def _binding(approved: ApprovedPlan, task: str, round_number: int) -> bytes:
    """What check values of a round are bound to; a returning site knows it, too."""
    text = f"{approved.run}:{approved.plan_hash}:{task}:{round_number}"
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kohort-update").digest()


def _at_round(site: Site, round_number: int, inputs: Mapping[str, bytes], members: int) -> SummedModel:
    """The weights of a round, computed here from what came with the request."""
    state, first = site.state(SummedState), summed_rounds_of(site.plan, phase_at(site.plan, round_number)).start
    _start(site, first, inputs, members)
    if round_number > first and state.round == round_number - 1:
        _advance(site, inputs.get("total", b""), inputs.get("sites", b""), inputs.get("hub", b""))
    if state.model is None or state.round != round_number:
        raise SiteError(f"site {site.name!r} has no weights of round {round_number}", hint="Send it the missed totals")
    return state.model


def _start(site: Site, first: int, inputs: Mapping[str, bytes], members: int) -> None:
    """Find the first weights of the rounds from `first` on, once; another seed is refused, whichever request brings
    it."""
    state, seed = site.state(SummedState), inputs.get("start", b"")
    if state.model is None or state.round < first:
        state.model, state.round, state.seed = _first_model(site, first, seed, inputs, members), first, seed
        state.members = members
    elif seed != state.seed:
        raise IntegrityError("the seed of the first weights is not the one that this run began with")


def _first_model(site: Site, first: int, seed: bytes, inputs: Mapping[str, bytes], members: int) -> SummedModel:
    """Drawn from a public seed in the first round of a run; after a phase among peers, the mean of all models."""
    if first == 0:
        return SummedModel.start(site.network, seed)
    total = _verified(site, SUM_MODELS.name, first, seed, inputs.get("starters", b""))
    grid = grid_of(peers_before(site.plan, first), members, 0.0)
    return SummedModel.of(mean_of(grid, total, site.network))


def peers_before(approved: ApprovedPlan, first: int) -> TrainingPhase:
    """The phase among peers that ends where round `first` begins.

    Args:
        approved: The approved plan.
        first: The first round of the phase after it, above 0.

    Returns:
        The phase.

    Raises:
        RefusedError: The plan has no phase among peers there.
    """
    phase = approved.phase(phase_at(approved, first - 1))
    if not phase.topology:
        raise RefusedError("the approved plan has no phase among peers there")
    return phase


def _verified(site: Site, task: str, round_number: int, announced: bytes, places: bytes) -> Integers:
    """An announced total, if it is what the listed sites contributed."""
    if len(announced) % 8:
        raise IntegrityError("the total of a round cannot be read")
    total = np.frombuffer(announced, dtype="<u8").astype(np.uint64)
    if site.plan.sums_securely:
        names = site.plan.sites_at(places)
        total = proven_total(secret_of(site), _binding(site.plan, task, round_number), names, total)
    return total


def _advance(site: Site, announced: bytes, places: bytes, hub: bytes = b"") -> None:
    """Take the step of one round, if the announced total is what the sites contributed."""
    state = site.state(SummedState)
    if state.model is None:
        raise IntegrityError("the total of a round came in before the round")
    total = _verified(site, SUM_UPDATES.name, state.round, announced, places)
    number, members = phase_at(site.plan, state.round), state.members
    phase, passed = site.plan.phase(number), state.round - phase_rounds(site.plan, number).start
    grid = grid_of(phase, members, _own_deviation(site, number, members))
    sigma = 0.0 if phase.dp is None else account_of(site).sigmas[number]
    state.model = state.model.moved(phase, passed, grid, total, members, sigma, _hub_part(site, phase, hub))
    state.round += 1


def _hub_part(site: Site, phase: TrainingPhase, data: bytes) -> HubPart | None:
    """What the hub trained in the round before, where the approved plan lets it train; refused where it does not.

    Raises:
        IntegrityError: The plan has no such part, or these are no weights.
    """
    if data and not phase.hub_rows:
        raise IntegrityError("the approved plan has no hub that trains beside the sites")
    return HubPart.read(data, site.network) if data else None


def common_model(site: Site, number: int, inputs: Mapping[str, bytes]) -> FloatArray:
    """The weights that a phase among peers begins with: drawn from a public seed, or those of the phases before it.

    Args:
        site: The site.
        number: The phase, from 0.
        inputs: The blobs of the request: the seed, or the last total of the phases with the hub.

    Returns:
        The weights.

    Raises:
        SiteError: This site missed the end of the phases before.
        IntegrityError: The seed or the total is none.
    """
    if number == 0:
        return SummedModel.start(site.network, inputs.get("start", b"")).weights
    state, begins = site.state(SummedState), phase_rounds(site.plan, number).start
    if state.model is not None and state.round == begins - 1:
        _advance(site, inputs.get("total", b""), inputs.get("sites", b""))
    if state.model is None or state.round != begins:
        raise SiteError(f"site {site.name!r} missed the end of the phases before its peers'")
    return state.model.weights


def _own_deviation(site: Site, number: int, members: int) -> float:
    """Standard deviation of this site's share of the noise, by the approved plan."""
    phase, secure = site.plan.phase(number), site.plan.secure
    if phase.dp is None or secure is None:
        return 0.0
    return deviation_of(phase, account_of(site).sigmas[number], Shares(members, secure.colluders))


def _contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    approved, number = site.plan, phase_at(site.plan, request.round)
    phase = approved.phase(number)
    _check_length(site, context)
    model = _at_round(site, request.round, inputs, len(context.sites))
    values = _own_part(site, request, phase, model.weights)
    deviation = _own_deviation(site, number, len(context.sites))
    if deviation:
        from kohort.models.dp_sgd.fit import gaussian

        answer_once(site, request)
        values = values + deviation * gaussian(site.streams.bytes("dp", request.digest), len(values))
    grid = grid_of(phase, len(context.sites), deviation)
    return _encoded(site, request, SUM_UPDATES.name, grid, values, phase)


def _check_length(site: Site, context: SumContext) -> None:
    if site.plan.secure is None or context.length != sum_length(site.network, site.plan):
        raise SiteError("a sum of updates was asked for that is not in the approved plan")


def _encoded(
    site: Site, request: Request, task: str, grid: FixedPoint, values: NDArray[np.float64], phase: TrainingPhase
) -> tuple[Integers, int]:
    """The numbers of a contribution, its row count and its check value; and the rows behind it."""
    vector = np.append(to_residues(grid.encode(values)), np.uint64(reported_rows(site, phase)))
    if site.plan.sums_securely:
        vector = with_check(secret_of(site), _binding(site.plan, task, request.round), site.name, vector)
    return vector, rows_of(site, phase).count


def sum_length(network: Trainable, approved: ApprovedPlan) -> int:
    """How many numbers a site adds: its update, its row count, and check values in a secure sum.

    Args:
        network: What is trained.
        approved: The approved plan.

    Returns:
        The length of each site's vector, and of the total.
    """
    return network.parameter_count + EXTRA + (CHECKS if approved.sums_securely else 0)


def _own_part(site: Site, request: Request, phase: TrainingPhase, start: FloatArray) -> NDArray[np.float64]:
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        from kohort.rounds.totals.bounded import bounded_gradients

        return bounded_gradients(site, request, phase, start)
    update = plain_update(site, request, phase, start)
    if phase.dp is not None:
        from kohort.models.dp_sgd.fit import clip_update

        return np.asarray(clip_update(update, phase.dp.clip), dtype=np.float64)
    return np.asarray(np.clip(update, -LARGEST, LARGEST) * reported_rows(site, phase))


def _without_noise(approved: ApprovedPlan) -> bool:
    """Whether some phase with the hub has no budget: two of its totals that differ by one site show about its
    update."""
    return any(phase.dp is None for phase in approved.phases if not phase.topology)


def _models_without_noise(approved: ApprovedPlan) -> bool:
    return any(phase.dp is None for phase in approved.phases if phase.topology)


SUM_UPDATES = sum_task(
    "sum.updates",
    _contribute,
    says=lambda site, request: reported_rows(site, site.plan.phase(phase_at(site.plan, request.round))),
    scheme=ApprovedPlan.sum_scheme,
    modulus=P61,
    family="training",
    booked=_without_noise,
    grouped=lambda approved: approved.sums_securely and _without_noise(approved),
)


def _contribute_model(
    site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
) -> tuple[Integers, int]:
    """The model that a site trained with its peers, times its rows."""
    del inputs
    _check_length(site, context)
    phase, model = peers_before(site.plan, request.round), site.state(TrainingState).model
    if model is None:
        raise SiteError(f"site {site.name!r} has no model of its own")
    values = np.asarray(np.clip(model.astype(np.float64), -LARGEST, LARGEST) * reported_rows(site, phase))
    grid = grid_of(phase, len(context.sites), 0.0)
    return _encoded(site, request, SUM_MODELS.name, grid, values, phase)


SUM_MODELS = sum_task(
    "sum.models",
    _contribute_model,
    says=lambda site, request: reported_rows(site, peers_before(site.plan, request.round)),
    scheme=ApprovedPlan.sum_scheme,
    modulus=P61,
    family="models",
    booked=_models_without_noise,
    grouped=lambda approved: approved.sums_securely and _models_without_noise(approved),
)


def _catch_up(site: Site, request: Request) -> Release:
    """Take the steps of rounds this site missed; each total is verified like any other."""
    state, arrays, blobs = site.state(SummedState), request.payload.arrays, request.payload.blobs
    agreed, first = site.state(SumState).agreed, summed_rounds_of(site.plan, phase_at(site.plan, request.round)).start
    if state.model is None and agreed is None:
        raise SiteError(f"site {site.name!r} took part in no round, so it has nothing to catch up with")
    members = state.members if agreed is None else len(agreed.session.members)
    _start(site, first, blobs, members)
    if not len(arrays["sizes"]):
        return Release(payload=Payload(), guarantee=_CAUGHT_UP, rows=0)
    listed = np.split(arrays["places"], np.cumsum(arrays["sizes"])[:-1])
    hubs, size = blobs.get("hubs", b""), 8 * (1 + site.network.parameter_count)
    for number, (total, places) in enumerate(zip(arrays["totals"], listed, strict=True)):
        if int(request.payload.metrics["first"]) + number == state.round:  # the others it took before
            part = hubs[number * size : (number + 1) * size]
            _advance(site, total.astype("<u8").tobytes(), places.astype("<u4").tobytes(), part)
    return Release(payload=Payload(), guarantee=_CAUGHT_UP, rows=0)


CATCH_UP = Task(name="sum.catch-up", one=_catch_up, public=False)


def summed_steps(approved: ApprovedPlan, number: int, *, says: str) -> list[Step]:
    """What a phase of training over sums asks of a site.

    Args:
        approved: The approved plan.
        number: The phase, from 0.
        says: What the total of a round is, for people.

    Returns:
        One sum per round; totals of missed rounds come in between.

    Raises:
        ConfigError: A sum cannot carry the phase.
    """
    check_summed(approved.phase(number))
    rounds = phase_rounds(approved, number)
    missed = Step(
        task=CATCH_UP.name, says="that your site caught up with rounds it missed", claims=(_CAUGHT_UP,), rounds=rounds
    )
    return [missed, *sum_steps(approved, SUM_UPDATES, says=says, rounds=rounds)]


def models_steps(approved: ApprovedPlan, number: int) -> list[Step]:
    """What opening the mean of the models after a phase among peers asks of a site.

    Args:
        approved: The approved plan.
        number: The phase among peers, from 0.

    Returns:
        One sum.
    """
    end, phase = phase_rounds(approved, number).stop, approved.phase(number)
    rows = "your rows" if phase.rows == "all" else f"your rows of {phase.rows} risk"
    says = f"the mean of the models that sites trained with their peers on {rows}"
    says += ", without noise: no guarantee for these rows but the sum" if phase.dp is None else ", with noise"
    return sum_steps(approved, SUM_MODELS, says=says, rounds=range(end, end + 1))
