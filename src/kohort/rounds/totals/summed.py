"""Federated rounds over a secure sum, at the hub: it opens totals, announces them, and computes the model as sites do.

What sites add, and what they check, is in `kohort.rounds.totals.summed_tasks`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS
from kohort.crypto.sums.scheme import MIN_SITES, Integers, find_scheme
from kohort.errors import RefusedError
from kohort.models.dense.network import FloatArray
from kohort.privacy.dp.account import Shares
from kohort.protocol.hub import Ask, Hub, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.wire import Payload
from kohort.rounds.loop import Participant
from kohort.rounds.phase_training import phase_rounds
from kohort.rounds.plan_account import shared_sigma
from kohort.rounds.summing import Total, open_session, secure_sum
from kohort.rounds.totals.protocol import AnnouncedTotals
from kohort.rounds.totals.summed_model import (
    LARGEST,
    HubPart,
    SummedModel,
    deviation_of,
    grid_of,
    mean_of,
    phase_at,
)
from kohort.rounds.totals.summed_tasks import (
    CATCH_UP,
    SUM_MODELS,
    SUM_UPDATES,
    peers_before,
    sum_length,
)

__all__ = ["SummedPhases", "mean_model", "require_enough", "summed_rounds"]


@dataclass(kw_only=True)
class SummedPhases(AnnouncedTotals):
    """The hub's side of phases that follow each other: the model, and the totals that it follows from."""

    model: SummedModel
    members: int
    """How many sites the sums are over."""
    participant: Participant | None = None
    """The hub, where it trains beside the sites on rows that it was sent."""
    parts: list[bytes] = field(default_factory=list)
    """What it trained in the rounds of `totals`."""

    def last_total(self) -> dict[str, bytes]:
        """The total of the last round, and what the hub trained in it."""
        return {**super().last_total(), **({"hub": self.parts[-1]} if self.parts else {})}

    def _missed(self, last: int, number: int) -> Payload:
        payload = super()._missed(last, number)
        missed = self.parts[last - self.first : number - 1 - self.first] if last >= self.first else []
        return replace(payload, blobs={**payload.blobs, "hubs": b"".join(missed)}) if missed else payload

    def packed(self, totals: Sequence[Integers]) -> dict[str, NDArray[Any]]:
        """All totals have one length."""
        length = sum_length(self.hub.network, self.hub.approved)
        return {"totals": np.stack(totals) if totals else np.empty((0, length), np.uint64)}

    def take(self, number: int, total: Total) -> None:
        """Take the step of a round; the hub, where it takes part, trains from the same weights as the sites."""
        beside = None
        if self.participant is not None:
            update = self.participant.train(number, self.model.weights)
            beside = HubPart(np.clip(update.weights.astype(np.float64), -LARGEST, LARGEST), update.rows)
            self.parts.append(beside.to_bytes())
        self.keep(number, total.values, total.sites)
        self.parts = self.parts[-len(self.totals) :]
        approved = self.hub.approved
        place = phase_at(approved, number)
        phase, passed = approved.phase(place), number - phase_rounds(approved, place).start
        sigma, colluders = shared_sigma(approved, place), 0
        if approved.secure is not None:
            colluders = approved.secure.colluders
        grid = grid_of(phase, self.members, deviation_of(phase, sigma, Shares(self.members, colluders)))
        numbers = _numbers(approved, total.values)
        self.model = self.model.moved(phase, passed, grid, numbers, self.members, sigma, beside)

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint holds."""
        total, places = self.totals[-1]
        start = {f"stretch_{name}": np.frombuffer(data, dtype=np.uint8) for name, data in self.start.items()}
        own = {"part": np.frombuffer(self.parts[-1], dtype=np.uint8)} if self.parts else {}
        if self.participant is not None:
            own |= {f"participant_{name}": array for name, array in self.participant.state().items()}
        return {**self.model.arrays(), "total": total, "places": places, **start, **own}

    def resume(self, last: int, state: Mapping[str, NDArray[Any]]) -> int:
        """Go on after the last whole round; returns the number of the next one."""
        self.model = SummedModel.stored(state)
        self.parts = [state["part"].tobytes()] if "part" in state else []
        if self.participant is not None:
            own = {name: array for name, array in state.items() if name.startswith("participant_")}
            self.participant.restore({name.removeprefix("participant_"): array for name, array in own.items()})
        self.totals, self.first = [(state["total"], state["places"])], last
        sites = self.hub.approved.sites
        self.known = dict.fromkeys((sites[place] for place in state["places"].tolist()), last)
        return last + 1


def _numbers(approved: ApprovedPlan, total: Integers) -> Integers:
    """A total without its check value."""
    return total[:-CHECKS] if approved.sums_securely else total


def summed_rounds(
    hub: Hub,
    *,
    rounds: range,
    last_round: int,
    start: Mapping[str, bytes] | None = None,
    participant: Participant | None = None,
) -> Generator[Ask | RoundEnd, Any, SummedPhases]:
    """Train over secure sums.

    Args:
        hub: The coordinator; its sites share a secret where totals are checked.
        rounds: The rounds of the run, of one phase or of several that follow each other.
        last_round: How many rounds the run has.
        start: After a phase among peers, the opened total of the models (`mean_model`); by default a seed is drawn.
        participant: The hub, where the plan lets it train beside the sites on rows that it was sent.

    Returns:
        The hub's side at the end, with the trained model.

    Raises:
        IntegrityError: A total is none of this training.
    """
    members = len((yield from open_session(hub, find_scheme(hub.approved.sum_scheme()))).members)
    if hub.resume is not None and hub.resume.round in rounds:
        kept = {name: array for name, array in hub.resume.state.items() if name.startswith("stretch_")}
        start = {name.removeprefix("stretch_"): array.tobytes() for name, array in kept.items()}
    beside = dict(start or {"start": hub.streams.bytes("start", length=16)})
    model, seed = _begun(hub, rounds.start, beside, members), beside.pop("start")
    training = SummedPhases(
        hub=hub,
        seed=seed,
        begin=rounds.start,
        beside=beside,
        model=model,
        members=members,
        participant=participant,
    )
    first = rounds.start
    if hub.resume is not None and hub.resume.round in rounds:
        first = training.resume(hub.resume.round, hub.resume.state)
        resumed = hub.model_of(training.model.weights)
        yield RoundEnd(round=first - 1, rounds=last_round, model=resumed, state=hub.resume.state, resumed=True)
    length = sum_length(hub.network, hub.approved)
    for number in range(first, rounds.stop):
        yield from training.catch_up(CATCH_UP, number)
        total: Total = yield from secure_sum(
            hub, SUM_UPDATES, length=length, round_number=number, inputs=training.inputs(number)
        )
        training.take(number, total)
        found = hub.model_of(training.model.weights)
        yield RoundEnd(round=number, rounds=last_round, model=found, state=training.state())
    return training


def _begun(hub: Hub, first: int, start: Mapping[str, bytes], members: int) -> SummedModel:
    if first == 0:
        return SummedModel.start(hub.network, start["start"])
    total = np.frombuffer(start["start"], dtype="<u8").astype(np.uint64)
    grid = grid_of(peers_before(hub.approved, first), members, 0.0)
    return SummedModel.of(mean_of(grid, _numbers(hub.approved, total), hub.network))


def mean_model(hub: Hub, end: int) -> Generator[Ask | RoundEnd, Any, tuple[FloatArray, dict[str, bytes]]]:
    """Open the mean of the models that sites trained with their peers, each weighted by its rows.

    Args:
        hub: The coordinator; its sites share a secret where totals are checked.
        end: The round after the last one of the phase among peers.

    Returns:
        The mean, and what `summed_rounds` starts from.
    """
    members = len((yield from open_session(hub, find_scheme(hub.approved.sum_scheme()))).members)
    length = sum_length(hub.network, hub.approved)
    total: Total = yield from secure_sum(hub, SUM_MODELS, length=length, round_number=end)
    start = {"start": total.values.astype("<u8").tobytes(), "starters": hub.approved.places_of(total.sites)}
    return _begun(hub, end, start, members).weights, start


def require_enough(hub: Hub) -> None:
    """Refuse a sum over fewer than three sites.

    Args:
        hub: The coordinator.

    Raises:
        RefusedError: Too few sites take part.
    """
    if len(hub.sites) < MIN_SITES:
        raise RefusedError("a sum over fewer than three sites hides nothing", hint="Add sites, or drop method.secure")
