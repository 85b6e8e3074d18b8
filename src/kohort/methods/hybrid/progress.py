"""The hub's way through the phases of a hybrid federation: the model between phases, known to it or to sites alone."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kohort.methods.hybrid.judging import prefers_later, revealed
from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.models.dense.network import FloatArray
from kohort.protocol.hub import Ask, Hub, RoundEnd
from kohort.protocol.plan.phases import JudgeSection, TrainingPhase
from kohort.rounds.group_secrets import agree_on_secret
from kohort.rounds.hub_noise import hub_noise
from kohort.rounds.loop import RoundOptions, federated_rounds
from kohort.rounds.peers import PeerRounds, peer_rounds
from kohort.rounds.phase_training import TRAIN_PHASE
from kohort.rounds.totals.summed import mean_model, require_enough, summed_rounds
from kohort.rounds.totals.summed_model import summed_rounds_of

__all__ = ["Progress"]

Ended = TypeVar("Ended")


class Progress:
    """The model between phases: known to the hub, or only to the sites."""

    def __init__(self, hub: Hub, weights: FloatArray) -> None:
        self.round = 0
        self.notes: list[str] = []
        self.clusters: dict[str, tuple[str, ...]] = {}
        """By cluster, the sites that ended the last phase among peers."""
        self._hub = hub
        self._weights = weights
        self._hidden = False
        self._is_summed = hub.approved.secure is not None
        self._start: dict[str, bytes] = {"start": hub.streams.bytes("start", length=16)}
        """With secure sums, what sites find the weights of the next phase from."""
        self._asked: NDArray[np.uint32] | None = None
        """With secure sums, the places of the sites that were asked to share a secret."""

    def _passed(self, rounds: int) -> bool:
        """Whether the resumed run had already finished the phase that begins here."""
        resume = self._hub.resume
        return resume is not None and resume.round >= self.round + rounds

    def with_peers(self, phase: PeerRounds) -> Generator[Ask | RoundEnd, Any, None]:
        """Run a phase among peers; afterwards only they know the model."""
        there = self._hub.sites
        if not self._passed(phase.rounds):
            begun = replace(phase, start=self._start if self._is_summed else None)
            there = yield from self._noted(peer_rounds(self._hub, begun, self._weights))
            self._hub = replace(self._hub, sites=there)
        self.clusters = _members(phase.clusters, there)
        self.round += phase.rounds
        self._hidden = True

    def with_server(self, number: int, phase: TrainingPhase, total: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Run a phase with the hub, over secure sums where the plan has them."""
        return self.over_sums(number, total) if self._is_summed else self.with_hub(number, phase, total)

    def with_hub(self, number: int, phase: TrainingPhase, total: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Run a phase with the hub; sites start from their peers' model if they have one."""
        rounds, dp = phase.train.rounds, phase.dp
        hub = replace(self._hub, approved=replace(self._hub.approved, train=phase.train))
        noise = None
        if dp is not None and dp.mechanism == "hub":
            noise = hub_noise(hub, dp, rounds=rounds, sites=len(hub.sites))
        if not self._passed(rounds):
            ended = yield from federated_rounds(
                hub,
                self._weights,
                options=RoundOptions(
                    task=TRAIN_PHASE,
                    metrics={"phase": number},
                    first_round=self.round,
                    last_round=total,
                    own_start=self._hidden,
                    noise=noise,
                    average=0.0 if dp is None else dp.average or 0.0,
                ),
            )
            self._weights = ended.weights
        elif hub.resume is not None:
            self._weights = hub.resume.state["weights"]
        self.round += rounds
        self._hidden = False

    def over_sums(self, number: int, total: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Run this phase with the hub, and those that follow it without peers in between, over secure sums."""
        approved = self._hub.approved
        rounds = summed_rounds_of(approved, number)
        if rounds.start < self.round:  # it was run together with the phase before
            return
        yield from self._share_secret()
        resume, start = self._hub.resume, None
        if resume is not None and resume.round >= rounds.stop:
            self._weights = resume.state["weights"]
        else:
            if self._hidden and (resume is None or resume.round not in rounds):
                _, start = yield from mean_model(self._hub, rounds.start)
            started = start or (None if self._hidden else self._start)
            ended = yield from self._noted(summed_rounds(self._hub, rounds=rounds, last_round=total, start=started))
            self._weights, self._start = ended.model.weights, ended.last_total()
        self._note_opened(number)
        self.round, self._hidden = rounds.stop, False

    def _note_opened(self, number: int) -> None:
        """Say that the mean of the clusters' models was opened, where their rows have no guarantee."""
        peers = self._hub.approved.phases[number - 1] if number else None
        if peers is not None and self._hidden and peers.dp is None:
            rows = "all rows" if peers.rows == "all" else f"rows of {peers.rows} risk"
            self.notes.append(f"the mean of the clusters' models was opened: {rows}, no guarantee")

    def _share_secret(self) -> Generator[Ask | RoundEnd, Any, None]:
        """Let the sites agree on a secret, once per run; a resumed run asks the same sites again."""
        approved, resume = self._hub.approved, self._hub.resume
        if self._asked is not None:
            return
        if resume is not None and "asked" in resume.state:
            self._asked = resume.state["asked"]
            self._hub = replace(self._hub, sites=tuple(approved.sites[place] for place in self._asked.tolist()))
        else:
            self._asked = np.frombuffer(approved.places_of(self._hub.sites), dtype="<u4")
        require_enough(self._hub)
        if approved.sums_securely:
            self._hub = replace(self._hub, sites=(yield from agree_on_secret(self._hub)))

    def _noted(self, steps: Generator[Ask | RoundEnd, Any, Ended]) -> Generator[Ask | RoundEnd, Any, Ended]:
        """The same steps; checkpoints also hold which sites were asked to share a secret."""
        asked = self._asked
        if asked is None:
            return (yield from steps)
        reply: Any = None
        while True:
            try:
                item = steps.send(reply)
            except StopIteration as ended:
                found: Ended = ended.value
                return found
            reply = yield item._replace(state={**item.state, "asked": asked}) if isinstance(item, RoundEnd) else item

    def earlier_model(self, number: int) -> Generator[Ask | RoundEnd, Any, FloatArray]:
        """The model before phase `number`, which is judged; if only the sites know it, they disclose theirs to the hub,
        which averages them."""
        if not self._hidden:
            return self._weights
        shown = yield from revealed(self._hub, number - 1, self.round)
        return shown

    @property
    def model(self) -> Model:
        """The model as the hub knows it: after a last phase among peers it has none, only the clusters' names."""
        return NoCommonModel(self._hub.encoder, self.clusters) if self._hidden else self._hub.model_of(self._weights)

    def choose(self, section: JudgeSection, earlier: FloatArray, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Continue with the better of two models, as measured on held-out rows."""
        better = yield from prefers_later(
            self._hub, earlier=earlier, later=self._weights, number=number, round_number=self.round
        )
        if not better:
            self._weights = earlier
        kept = "later" if better else "earlier"
        self.notes.append(f"held-out {section.rows}-risk rows chose the {kept} model")


def _members(clusters: Mapping[str, str], sites: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The sites of each cluster, both in the order of the sites."""
    found: dict[str, tuple[str, ...]] = {}
    for site in sites:
        found[clusters[site]] = (*found.get(clusters[site], ()), site)
    return found
