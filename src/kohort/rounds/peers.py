"""Peer-to-peer training: the hub carries sealed messages between sites and can open none of them.

In each round of a peer phase a site opens the messages of its neighbours, averages their models with its own by rows,
trains, and seals the result for each neighbour. After the last round one more delivery completes the average.

Guarantees: a site takes part only with peers on its own roster, whose run keys were signed by the identities in the
roster. A sealed message that was altered, misdirected or replayed stops the run and names the sender. Peers see each
other's models in clear: without noise there is no guarantee towards them, and the ledger says so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError, SiteError
from kohort.models.dense.network import FloatArray
from kohort.models.network_model import NetworkModel
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate, Guarantee, Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import total_claim
from kohort.rounds.phase_rows import reported_rows
from kohort.rounds.phase_training import phase_rounds, train_phase
from kohort.rounds.sealed_messages import (
    KEYS,
    check_key,
    check_messages,
    keys_step,
    learn_peers,
    members_of,
    open_boxes,
    pack_boxes,
    passed_around,
    run_identity,
    seal_to,
    unpack_boxes,
)
from kohort.rounds.training import TrainingState

__all__ = [
    "EXCHANGE",
    "KEYS",
    "SETTLE",
    "PeerRounds",
    "learn_peers",
    "members_of",
    "neighbours",
    "open_boxes",
    "own_model",
    "pack_boxes",
    "passed_around",
    "peer_blocks",
    "peer_rounds",
    "run_identity",
    "seal_to",
    "unpack_boxes",
]

_COUNT = Struct("<Q")


def neighbours(topology: str, members: Sequence[str], name: str) -> tuple[str, ...]:
    """The neighbours of a site in a topology. If a is a neighbour of b, b is one of a.

    Args:
        topology: "full" (all others), "ring" (two), or "regular:d" (d of them, d even).
        members: The sites of the cluster, in their common order.
        name: The site.

    Returns:
        Its neighbours.

    Raises:
        ConfigError: The topology is unknown.

    Example:
        >>> neighbours("ring", ["a", "b", "c", "d"], "a")
        ('b', 'd')
    """
    count, place = len(members), list(members).index(name)
    kind, _, degree = topology.partition(":")
    if kind == "full":
        reach: set[int] = set(range(1, count))
    elif kind == "ring":
        reach = {1, count - 1}
    elif kind == "regular" and degree.isdigit() and int(degree) >= 2 and int(degree) % 2 == 0:
        half = min(int(degree) // 2, count // 2)
        reach = {step for distance in range(1, half + 1) for step in (distance, count - distance)}
    else:
        hint = "Use full, ring, or regular:d with an even d, such as regular:4"
        raise ConfigError(f"unknown topology {topology!r}", hint=hint)
    return tuple(members[(place + step) % count] for step in sorted(reach) if step % count)


@dataclass(frozen=True, eq=False)
class _Received:
    """A neighbour's model and its row count."""

    weights: FloatArray
    rows: int


def _models(site: Site, request: Request, members: Sequence[str]) -> list[_Received]:
    """The neighbours' models of the previous round."""
    network = site.network
    size = _COUNT.size + network.parameter_count * np.dtype(network.dtype).itemsize
    received = []
    for name, payload in open_boxes(site, request, members).items():
        weights = np.frombuffer(payload, dtype=network.dtype, offset=_COUNT.size) if len(payload) == size else None
        if weights is None or not np.isfinite(weights).all():
            raise IntegrityError(f"the model that peer {name!r} sent does not fit this plan")
        received.append(_Received(weights, _COUNT.unpack_from(payload)[0]))
    return received


def _averaged(own: FloatArray, rows: int, received: Sequence[_Received]) -> FloatArray:
    """The mean of the site's model and its neighbours' models, weighted by rows."""
    models = np.stack([own, *(item.weights for item in received)]).astype(np.float64)
    counts = np.asarray([rows, *(item.rows for item in received)], dtype=np.float64)
    return np.asarray((counts / counts.sum()) @ models, dtype=own.dtype)


def _current(site: Site, request: Request, number: int) -> tuple[FloatArray, tuple[str, ...]]:
    """The model to continue from, and the members of the site's cluster."""
    members = members_of(site, request)
    learn_peers(site, request.payload.blobs["keys"], members)
    if request.round == phase_rounds(site.plan, number).start:
        return _first_weights(site, request, number), members
    own = site.state(TrainingState).model
    if own is None:
        raise SiteError(f"site {site.name!r} has no model of its own yet")
    phase = site.plan.phase(number)
    return _averaged(own, reported_rows(site, phase), _models(site, request, members)), members


def _first_weights(site: Site, request: Request, number: int) -> FloatArray:
    """The hub's weights; after another phase among peers the site's own, with `method.secure` those that all sites
    compute themselves."""
    if number and site.plan.phase(number - 1).topology:
        own = site.state(TrainingState).model
        if own is None:
            raise SiteError(f"site {site.name!r} has no model of its own yet")
        return own
    if site.plan.secure is not None:
        from kohort.rounds.totals.summed_tasks import common_model

        return common_model(site, number, request.payload.blobs)
    sent = request.payload.arrays.get("weights")
    if sent is None:
        raise SiteError(f"site {site.name!r} was sent no weights to begin with")
    return sent


def _exchange(site: Site, request: Request) -> Release:
    """Average the received models, train, and seal the result for every neighbour."""
    number = int(request.payload.metrics["phase"])
    start, members = _current(site, request, number)
    phase = site.plan.phase(number)
    trained = train_phase([site], request, number, start)
    weights, rows = trained.weights[0], trained.reported[0]
    site.state(TrainingState).model = weights
    message = _COUNT.pack(rows) + weights.tobytes()
    to = neighbours(phase.topology, members, site.name)
    sealed = seal_to(site, request, message, to, guarantee=trained.guarantees[0], rows=trained.counts[0])
    return replace(sealed, said=rows)


EXCHANGE = Task(name="peers.exchange", one=_exchange, public=False)


_SETTLED = Public(what="that it has settled")


def _settle(site: Site, request: Request) -> Release:
    """Average the models received after the last round; the result stays at the site."""
    site.state(TrainingState).model, _ = _current(site, request, int(request.payload.metrics["phase"]))
    site.keep_model(own_model(site))
    return Release(payload=Payload(), guarantee=_SETTLED, rows=0)


def own_model(site: Site) -> NetworkModel:
    """The model that a site has with its peers, after the last phase among them.

    Args:
        site: The site.

    Returns:
        The model; sites of a cluster where all are neighbours have the same one.

    Raises:
        SiteError: It has none.
    """
    weights = site.state(TrainingState).model
    if weights is None:
        raise SiteError(f"site {site.name!r} has no model of its own yet")
    return NetworkModel(site.network, weights, site.encoder)


SETTLE = Task(name="peers.settle", one=_settle, public=False)


@dataclass(frozen=True, kw_only=True)
class PeerRounds:
    """The position of a peer phase in the plan: its number, its rounds, and each site's cluster."""

    number: int
    rounds: int
    first_round: int
    last_round: int
    clusters: Mapping[str, str]
    start: Mapping[str, bytes] | None = None
    """What sites find the first weights from, where the hub does not send them."""


def peer_rounds(hub: Hub, phase: PeerRounds, weights: FloatArray) -> Generator[Ask | RoundEnd, Any, tuple[str, ...]]:
    """Carry the sealed messages of one peer phase.

    Args:
        hub: The hub's side of the run.
        phase: The phase's position in the plan.
        weights: The weights that all sites start from, sent to them unless `phase.start` says otherwise.

    Returns:
        The sites that completed the phase.
    """
    relay = yield from _meet(hub, phase)
    first = phase.first_round
    if hub.resume is not None and hub.resume.round >= first:
        relay.restore(hub.resume.state)
        first = hub.resume.round + 1
        yield RoundEnd(
            round=first - 1,
            rounds=phase.last_round,
            model=None,
            state=hub.resume.state,
            resumed=True,
        )
    for number in range(first, phase.first_round + phase.rounds):
        begins = weights if number == phase.first_round else None
        replies: Replies = yield relay.ask(EXCHANGE, number, begins, Expect(blobs=("boxes",), check=check_messages))
        relay.collect(replies)
        state = {"weights": weights, **relay.state()}
        yield RoundEnd(round=number, rounds=phase.last_round, model=None, state=state)
    settled: Replies = yield relay.ask(SETTLE, phase.first_round + phase.rounds, None, Expect())
    return settled.sites


def peer_blocks(approved: ApprovedPlan, number: int) -> list[list[Step]]:
    """What a phase among peers asks of a site.

    Args:
        approved: The approved plan.
        number: The phase, from 0.

    Returns:
        Keys, the rounds, and the delivery after the last one, each a block of the contract.
    """
    phase, rounds = approved.phase(number), phase_rounds(approved, number)
    says = "your model, sealed to the peers of your cluster, who can read it"
    claims: tuple[Guarantee, ...] = (Aggregate(rows=0),)
    if phase.dp is not None:
        says += f", with noise for epsilon {phase.dp.epsilon:g} over all rounds"
        claims = (total_claim(approved),)
    exchange = Step(task=EXCHANGE.name, says=says, claims=claims, rounds=rounds, to="peers", phase=number)
    ends = "; your cluster's model stays with its sites, and the hub gets none"
    settle = Step(
        task=SETTLE.name,
        says="that you are done" + (ends if number == len(approved.phases) - 1 else ""),
        claims=(_SETTLED,),
        rounds=range(rounds.stop, rounds.stop + 1),
        phase=number,
    )
    return [[keys_step(range(rounds.start, rounds.start + 1))], [exchange], [settle]]


def _meet(hub: Hub, phase: PeerRounds) -> Generator[Ask | RoundEnd, Any, _Relay]:
    """Collect every site's run key, to pass on to its peers."""
    relay = _Relay(phase, hub.sites)
    replies: Replies = yield Ask(
        task=KEYS,
        to=hub.sites,
        each={site: Payload(blobs={"members": relay.members(site)}) for site in hub.sites},
        round=phase.first_round,
        expect=Expect(blobs=("key",), check=check_key),
    )
    relay.keys = {site: payload.blobs["key"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)}
    return relay


class _Relay:
    """What the hub carries from round to round: run keys, and sealed messages that it cannot open."""

    def __init__(self, phase: PeerRounds, sites: Sequence[str]) -> None:
        self.keys: dict[str, bytes] = {}
        self._phase = phase
        self._sites = tuple(sites)
        self._inboxes: dict[str, dict[str, bytes]] = {}

    def members(self, site: str) -> bytes:
        """The members of the cluster of `site` at its beginning; a site that dropped out stays in the list."""
        cluster = self._phase.clusters[site]
        return "\n".join(name for name in self._sites if self._phase.clusters[name] == cluster).encode()

    def ask(self, task: Task, round_number: int, weights: FloatArray | None, expect: Expect) -> Ask:
        sites = tuple(self._inboxes) or tuple(self.keys)
        start = self._phase.start
        arrays: dict[str, NDArray[Any]] = {} if weights is None or start is not None else {"weights": weights}
        start_blobs = start if weights is not None and start is not None else {}
        each = {
            site: Payload(
                arrays=arrays,
                metrics={"phase": self._phase.number},
                blobs={**start_blobs, **self._cluster(site), "inbox": pack_boxes(self._inboxes.get(site, {}))},
            )
            for site in sites
        }
        return Ask(task=task, to=sites, each=each, round=round_number, expect=expect)

    def _cluster(self, site: str) -> dict[str, bytes]:
        """The members of the cluster of `site`, and their run keys."""
        cluster = self._phase.clusters[site]
        keys = {name: key for name, key in self.keys.items() if self._phase.clusters[name] == cluster}
        return {"members": self.members(site), "keys": pack_boxes(keys)}

    def collect(self, replies: Replies) -> None:
        """Sort the sealed messages by recipient. Sites that did not answer drop out of the phase."""
        self._inboxes = {site: {} for site in replies.sites}
        for sender, payload in zip(replies.sites, replies.payloads(), strict=True):
            for recipient, message in unpack_boxes(payload.blobs["boxes"]).items():
                if recipient in self._inboxes:
                    self._inboxes[recipient][sender] = message

    def state(self) -> dict[str, NDArray[Any]]:
        """The undelivered messages, for a checkpoint; one array, because a site may have any name."""
        bundle = pack_boxes({site: pack_boxes(inbox) for site, inbox in self._inboxes.items()})
        return {"inboxes": np.frombuffer(bundle, dtype=np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the undelivered messages of a checkpoint."""
        bundle = unpack_boxes(state["inboxes"].tobytes())
        self._inboxes = {site: unpack_boxes(inbox) for site, inbox in bundle.items()}
