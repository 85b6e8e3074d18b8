"""Peers that train together without showing the hub anything: it carries sealed boxes and can open none.

A round of the peer phase is one message each way: a site opens what its neighbours sealed for it, averages those models
with its own by rows, trains on, and seals the result to each neighbour. After the last round one more delivery settles
the average.

Guarantees: a site takes part only with peers of its own roster, whose run keys were signed by the identities the roster
names. A box that was altered, misdirected or repeated stops the run and names the sender. Peers see each other's
models in clear: without noise there is no guarantee towards them, and the ledger says so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.identity.keys import RunKey, accept_run_key, announce_run_key
from kohort.crypto.identity.roster import Roster
from kohort.crypto.replay import SequenceMemory
from kohort.crypto.sealed import Identity, PublicIdentity, open_sealed, seal
from kohort.errors import ConfigError, IntegrityError, RefusedError, SiteError
from kohort.models.dense.network import FloatArray
from kohort.privacy.guarantee import Guarantee, Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.phase_rows import rows_of
from kohort.rounds.phase_training import train_phase
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
    "pack_boxes",
    "passed_around",
    "peer_rounds",
    "run_identity",
    "seal_to",
    "unpack_boxes",
]

_COUNT, _SIZE = Struct("<Q"), Struct("<I")


def neighbours(topology: str, members: Sequence[str], name: str) -> tuple[str, ...]:
    """Whom `name` sends its model to: all others (full), two (ring), or d of them (regular:d), the same both ways."""
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
        hint = "Use full, ring, or regular:d with an even d"
        raise ConfigError(f"unknown topology {topology!r}", hint=hint)
    return tuple(members[(place + step) % count] for step in sorted(reach) if step % count)


def pack_boxes(boxes: Mapping[str, bytes]) -> bytes:
    """Boxes by the name of whoever they come from or go to."""
    parts = []
    for name, box in boxes.items():
        encoded = name.encode()
        parts += [_SIZE.pack(len(encoded)), encoded, _SIZE.pack(len(box)), box]
    return b"".join(parts)


def unpack_boxes(data: bytes) -> dict[str, bytes]:
    """The inverse of `pack_boxes`."""
    boxes: dict[str, bytes] = {}
    place = 0
    while place < len(data):
        name, place = _field(data, place)
        box, place = _field(data, place)
        boxes[name.decode(errors="replace")] = box
    return boxes


def _field(data: bytes, place: int) -> tuple[bytes, int]:
    if place + _SIZE.size > len(data):
        raise IntegrityError("a bundle of sealed messages is cut short")
    end = place + _SIZE.size + _SIZE.unpack_from(data, place)[0]
    if end > len(data):
        raise IntegrityError("a bundle of sealed messages is cut short")
    return data[place + _SIZE.size : end], end


@dataclass
class PeerState(TaskState):
    """What a site knows of its peers in one run."""

    run_identity: Identity | None = None
    """Its own signer with an exchange key for this run alone."""
    peers: dict[str, PublicIdentity] = field(default_factory=dict)
    """The peers' verified run keys."""
    announced: bytes = b""
    """The keys as they were announced last."""
    sequences: SequenceMemory = field(default_factory=SequenceMemory)
    """The last sequence number of every sender, against replays."""


def run_identity(site: Site) -> Identity:
    """The site's signer with an exchange key for this run alone."""
    state = site.state(PeerState)
    if state.run_identity is None:
        secret = site.streams.bytes("run-key", site.plan.run)
        state.run_identity = site.identity.for_run(secret)
    return state.run_identity


def members_of(site: Site, request: Request) -> tuple[str, ...]:
    """The site's cluster, as the hub names it; a stranger among them is refused, whoever names it."""
    members = tuple(request.payload.blobs["members"].decode(errors="replace").split("\n"))
    if site.name not in members or len(set(members)) != len(members):
        raise RefusedError(f"site {site.name!r} was asked to train in a cluster it is not in")
    return members


def _roster(site: Site, members: Sequence[str]) -> Roster:
    """What the site's own roster knows of these members."""
    known = {name: site.find_peer(name) for name in members}
    strangers = [name for name, public in known.items() if public is None]
    if strangers:
        raise RefusedError(
            f"{', '.join(map(repr, strangers))} not on the roster of site {site.name!r}",
            hint="Its operator trusts a peer with: kohort site trust NAME FINGERPRINT",
        )
    return Roster({name: public.fingerprint for name, public in known.items() if public is not None})


def _keys(site: Site, request: Request) -> Release:
    """The site's key for this run, signed over the run, the plan and the cluster it is for."""
    approved = site.plan
    roster = _roster(site, members_of(site, request))
    key = announce_run_key(
        run_identity(site), run=approved.run, plan_hash=approved.plan_hash, roster_hash=roster.hash()
    )
    return Release(payload=Payload(blobs={"key": key.to_bytes()}), guarantee=Public(what="run key"), rows=0)


KEYS = Task(name="peers.keys", one=_keys)


def learn_peers(site: Site, announced: bytes, members: Sequence[str]) -> None:
    """The run keys of the peers, each signed by the identity the site's own roster names."""
    state = site.state(PeerState)
    known = state.peers
    if state.announced == announced:  # the same keys come with every round of a phase
        return
    keys = {name: blob for name, blob in unpack_boxes(announced).items() if name not in known and name != site.name}
    if not keys:
        return
    approved, roster = site.plan, _roster(site, members)
    for name, blob in keys.items():
        owner = site.find_peer(name)
        if owner is None or name not in members:
            raise RefusedError(f"a run key came from {name!r}, who is no peer of site {site.name!r}")
        known[name] = accept_run_key(
            RunKey.from_bytes(blob),
            owner=owner,
            roster=roster,
            run=approved.run,
            plan_hash=approved.plan_hash,
            roster_hash=roster.hash(),
        )
    state.announced = announced


@dataclass(frozen=True, eq=False)
class _Received:
    """A neighbour's model and the rows behind it."""

    weights: FloatArray
    rows: int


def open_boxes(site: Site, request: Request, members: Sequence[str]) -> dict[str, bytes]:
    """What the peers sealed for this site in the round before, by sender."""
    approved = site.plan
    state = site.state(PeerState)
    opened = {}
    for name, box in unpack_boxes(request.payload.blobs["inbox"]).items():
        sender = state.peers.get(name)
        if name not in members or sender is None:
            raise RefusedError(f"a sealed message came from {name!r}, who is no peer of site {site.name!r}")
        opened[name] = open_sealed(
            box,
            recipient=run_identity(site),
            sender=sender,
            run=approved.run,
            round=request.round - 1,
            plan_hash=approved.plan_hash,
            memory=state.sequences,
        )
    return opened


def seal_to(
    site: Site, request: Request, message: bytes, peers: Sequence[str], *, guarantee: Guarantee, rows: int
) -> Release:
    """`message` to each of these peers whose key the site learned, in a box that the hub carries and cannot open."""
    approved, known = site.plan, site.state(PeerState).peers
    boxes = {
        name: seal(
            message,
            sender=run_identity(site),
            recipient=known[name],
            run=approved.run,
            round=request.round,
            sequence=request.round + 1,
            plan_hash=approved.plan_hash,
        )
        for name in peers
        if name in known
    }
    return Release(
        payload=Payload(blobs={"boxes": pack_boxes(boxes)}), guarantee=guarantee, rows=rows, to="peers", via="hub"
    )


def _models(site: Site, request: Request, members: Sequence[str]) -> list[_Received]:
    """The neighbours' models of the round before."""
    network = site.network
    size = _COUNT.size + network.parameter_count * np.dtype(network.dtype).itemsize
    received = []
    for name, payload in open_boxes(site, request, members).items():
        weights = np.frombuffer(payload, dtype=network.dtype, offset=_COUNT.size) if len(payload) == size else None
        if weights is None or not np.isfinite(weights).all():
            raise IntegrityError(f"the model peer {name!r} sent does not fit this plan")
        received.append(_Received(weights, _COUNT.unpack_from(payload)[0]))
    return received


def _averaged(own: FloatArray, rows: int, received: Sequence[_Received]) -> FloatArray:
    """The mean of the site's model and its neighbours', each by its rows."""
    models = np.stack([own, *(item.weights for item in received)]).astype(np.float64)
    counts = np.asarray([rows, *(item.rows for item in received)], dtype=np.float64)
    return np.asarray((counts / counts.sum()) @ models, dtype=own.dtype)


def _current(site: Site, request: Request, number: int) -> tuple[FloatArray, tuple[str, ...]]:
    """The model to go on from, and the members of the site's cluster."""
    members = members_of(site, request)
    learn_peers(site, request.payload.blobs["keys"], members)
    sent = request.payload.arrays.get("weights")
    if sent is not None:
        return sent, members
    own = site.state(TrainingState).model
    if own is None:
        raise SiteError(f"site {site.name!r} has no model of its own yet")
    phase = site.plan.phase(number)
    return _averaged(own, rows_of(site, phase).count, _models(site, request, members)), members


def _exchange(site: Site, request: Request) -> Release:
    """Average what came in, train, and seal the result to every neighbour."""
    number = int(request.payload.metrics["phase"])
    start, members = _current(site, request, number)
    phase = site.plan.phase(number)
    trained = train_phase([site], request, number, start)
    weights, rows = trained.weights[0], trained.counts[0]
    site.state(TrainingState).model = weights
    message = _COUNT.pack(rows) + weights.tobytes()
    to = neighbours(phase.topology, members, site.name)
    return seal_to(site, request, message, to, guarantee=trained.guarantees[0], rows=rows)


EXCHANGE = Task(name="peers.exchange", one=_exchange)


def _settle(site: Site, request: Request) -> Release:
    """Average what came in after the last round; nothing about it leaves."""
    site.state(TrainingState).model, _ = _current(site, request, int(request.payload.metrics["phase"]))
    return Release(payload=Payload(), guarantee=Public(what="that it has settled"), rows=0)


SETTLE = Task(name="peers.settle", one=_settle)


@dataclass(frozen=True, kw_only=True)
class PeerRounds:
    """Where a peer phase stands in the plan."""

    number: int
    rounds: int
    first_round: int
    last_round: int
    clusters: Mapping[str, str]


def peer_rounds(hub: Hub, phase: PeerRounds, weights: FloatArray) -> Generator[Ask | RoundEnd, Any, tuple[str, ...]]:
    """Carry the boxes of one peer phase; the sites' models start from `weights`. Returns who is still there."""
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
        replies: Replies = yield relay.ask(EXCHANGE, number, begins, Expect(blobs=("boxes",), check=_readable))
        relay.collect(replies)
        state = {"weights": weights, **relay.state()}
        yield RoundEnd(round=number, rounds=phase.last_round, model=None, state=state)
    settled: Replies = yield relay.ask(SETTLE, phase.first_round + phase.rounds, None, Expect())
    return settled.sites


def _readable(payload: Payload) -> object:
    return unpack_boxes(payload.blobs["boxes"])


def _meet(hub: Hub, phase: PeerRounds) -> Generator[Ask | RoundEnd, Any, _Relay]:
    """Learn everyone's run key, to hand to their peers."""
    relay = _Relay(phase, hub.sites)
    replies: Replies = yield Ask(
        task=KEYS,
        to=hub.sites,
        each={site: Payload(blobs={"members": relay.members(site)}) for site in hub.sites},
        round=phase.first_round,
        expect=Expect(blobs=("key",), check=_readable_key),
    )
    relay.keys = {site: payload.blobs["key"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)}
    return relay


def passed_around(
    hub: Hub, task: Task, blobs: Mapping[str, bytes] = MappingProxyType({})
) -> Generator[Ask | RoundEnd, Any, dict[str, Payload]]:
    """Introduce all sites to each other and let each seal something to the others, by `task`, which gets `blobs`.

    Returns what to hand to every site that did: who the others are, `blobs`, and the boxes they sealed for it.
    """
    members = "\n".join(hub.sites).encode()
    met: Replies = yield Ask(
        task=KEYS,
        to=hub.sites,
        payload=Payload(blobs={"members": members}),
        expect=Expect(blobs=("key",), check=_readable_key),
    )
    keys = pack_boxes({site: payload.blobs["key"] for site, payload in zip(met.sites, met.payloads(), strict=True)})
    company = {"members": members, "keys": keys, **blobs}
    sealed: Replies = yield Ask(
        task=task, to=met.sites, payload=Payload(blobs=company), expect=Expect(blobs=("boxes",), check=_readable)
    )
    inboxes: dict[str, dict[str, bytes]] = {site: {} for site in sealed.sites}
    for sender, payload in zip(sealed.sites, sealed.payloads(), strict=True):
        for recipient, box in unpack_boxes(payload.blobs["boxes"]).items():
            if recipient in inboxes:
                inboxes[recipient][sender] = box
    return {site: Payload(blobs={**company, "inbox": pack_boxes(boxes)}) for site, boxes in inboxes.items()}


def _readable_key(payload: Payload) -> object:
    return RunKey.from_bytes(payload.blobs["key"])


class _Relay:
    """What the hub carries from round to round: keys, and boxes it cannot open."""

    def __init__(self, phase: PeerRounds, sites: Sequence[str]) -> None:
        self.keys: dict[str, bytes] = {}
        self._phase = phase
        self._sites = tuple(sites)
        self._inboxes: dict[str, dict[str, bytes]] = {}

    def members(self, site: str) -> bytes:
        """The cluster of `site`, as it met: who left since then stays named, so that all name the same."""
        cluster = self._phase.clusters[site]
        return "\n".join(name for name in self._sites if self._phase.clusters[name] == cluster).encode()

    def ask(self, task: Task, round_number: int, weights: FloatArray | None, expect: Expect) -> Ask:
        sites = tuple(self._inboxes) or tuple(self.keys)
        arrays: dict[str, NDArray[Any]] = {} if weights is None else {"weights": weights}
        each = {
            site: Payload(
                arrays=arrays,
                metrics={"phase": self._phase.number},
                blobs={**self._company(site), "inbox": pack_boxes(self._inboxes.get(site, {}))},
            )
            for site in sites
        }
        return Ask(task=task, to=sites, each=each, round=round_number, expect=expect)

    def _company(self, site: str) -> dict[str, bytes]:
        cluster = self._phase.clusters[site]
        keys = {name: key for name, key in self.keys.items() if self._phase.clusters[name] == cluster}
        return {"members": self.members(site), "keys": pack_boxes(keys)}

    def collect(self, replies: Replies) -> None:
        """Sort the boxes by recipient; who did not answer is out, and the others go on without."""
        self._inboxes = {site: {} for site in replies.sites}
        for sender, payload in zip(replies.sites, replies.payloads(), strict=True):
            for recipient, box in unpack_boxes(payload.blobs["boxes"]).items():
                if recipient in self._inboxes:
                    self._inboxes[recipient][sender] = box

    def state(self) -> dict[str, NDArray[Any]]:
        """The boxes on their way, for a checkpoint; one array, because a site may have any name."""
        bundle = pack_boxes({site: pack_boxes(boxes) for site, boxes in self._inboxes.items()})
        return {"inboxes": np.frombuffer(bundle, dtype=np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with the boxes of a checkpoint."""
        bundle = unpack_boxes(state["inboxes"].tobytes())
        self._inboxes = {site: unpack_boxes(boxes) for site, boxes in bundle.items()}
