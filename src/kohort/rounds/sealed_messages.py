"""Sealed messages between sites: the hub carries them and can open none.

Guarantees: a site exchanges messages only with peers on its own roster, whose run keys were signed by the identities in
the roster. A sealed message that was altered, misdirected or replayed is refused, and the error names the sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Any

from kohort.crypto.identity.keys import RunKey, accept_run_key, announce_run_key
from kohort.crypto.identity.roster import Roster
from kohort.crypto.replay import SequenceMemory
from kohort.crypto.sealed import Identity, PublicIdentity, open_sealed, seal
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Guarantee, Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload

__all__ = [
    "CLUSTER_TASK",
    "KEYS",
    "PeerState",
    "check_key",
    "check_messages",
    "keys_step",
    "learn_peers",
    "members_of",
    "open_boxes",
    "pack_boxes",
    "passed_around",
    "planned_mates",
    "run_identity",
    "seal_to",
    "unpack_boxes",
]

_SIZE = Struct("<I")
CLUSTER_TASK = "clusters.named"
"""By this task sites name their clusters."""


def pack_boxes(boxes: Mapping[str, bytes]) -> bytes:
    """Encode byte strings by name, such as the sealed messages to several sites, as one byte string.

    Args:
        boxes: Byte strings by the name of their sender or recipient.

    Returns:
        The bundle; `unpack_boxes` is its inverse.
    """
    parts = []
    for name, message in boxes.items():
        encoded = name.encode()
        parts += [_SIZE.pack(len(encoded)), encoded, _SIZE.pack(len(message)), message]
    return b"".join(parts)


def unpack_boxes(data: bytes) -> dict[str, bytes]:
    """Decode a bundle from an untrusted source.

    Args:
        data: What `pack_boxes` returned.

    Returns:
        Byte strings by name.

    Raises:
        IntegrityError: The bundle is cut short.
    """
    messages: dict[str, bytes] = {}
    place = 0
    while place < len(data):
        name, place = _field(data, place)
        message, place = _field(data, place)
        messages[name.decode(errors="replace")] = message
    return messages


def _field(data: bytes, place: int) -> tuple[bytes, int]:
    if place + _SIZE.size > len(data):
        raise IntegrityError("a bundle of sealed messages is cut short")
    end = place + _SIZE.size + _SIZE.unpack_from(data, place)[0]
    if end > len(data):
        raise IntegrityError("a bundle of sealed messages is cut short")
    return data[place + _SIZE.size : end], end


@dataclass
class PeerState(TaskState):
    """A site's keys and its knowledge of its peers in one run."""

    cluster: str = ""
    """The trusted cluster that the site's operator named; run keys are bound to it where the plan asks for clusters."""

    run_identity: Identity | None = None
    """Its identity with an exchange key for this run alone."""
    peers: dict[str, PublicIdentity] = field(default_factory=dict)
    """The peers' verified run keys."""
    announced: bytes = b""
    """Cache: the bundle of announced keys that was verified last."""
    sequences: SequenceMemory = field(default_factory=SequenceMemory)
    """The last sequence number of every sender, against replays."""


def run_identity(site: Site) -> Identity:
    """The site's identity with an exchange key for this run alone.

    Args:
        site: The site.

    Returns:
        The identity; the same one throughout the run.
    """
    state = site.state(PeerState)
    if state.run_identity is None:
        secret = site.streams.bytes("run-key", site.plan.run)
        state.run_identity = site.identity.for_run(secret)
    return state.run_identity


_RUN_KEY = Public(what="run key")


def members_of(site: Site, request: Request) -> tuple[str, ...]:
    """The members of the site's cluster, as the hub names them. Key exchange checks them against the site's roster.

    Args:
        site: The site.
        request: The request, with the members' names.

    Returns:
        The members, the site included.

    Raises:
        RefusedError: The site is not among them, or a name occurs twice.
    """
    members = tuple(request.payload.blobs["members"].decode(errors="replace").split("\n"))
    if site.name not in members or len(set(members)) != len(members):
        raise RefusedError(f"site {site.name!r} was asked to train in a cluster that it is not a member of")
    mates = planned_mates(site.plan, site.name)
    if mates is not None and not mates.issuperset(members):
        raise RefusedError(f"site {site.name!r} was asked to train with sites that the plan has in another cluster")
    return members


def planned_mates(approved: ApprovedPlan, site: str) -> frozenset[str] | None:
    """The members of a site's cluster, if the approved plan lists them.

    Args:
        approved: The approved plan.
        site: The site.

    Returns:
        The members, the site included; None when the plan leaves the clusters to the sites or the hub.
    """
    if approved.clusters is None:
        return None
    return frozenset(next((members for members in approved.clusters.values() if site in members), (site,)))


def _roster(site: Site, members: Sequence[str]) -> Roster:
    """The part of the site's own roster with these members; refuses when one is missing from it."""
    known = {name: site.find_peer(name) for name in members}
    strangers = [name for name, public in known.items() if public is None]
    if strangers:
        raise RefusedError(
            f"{', '.join(map(repr, strangers))} not on the roster of site {site.name!r}",
            hint="Its operator trusts a peer with: kohort site trust NAME FINGERPRINT",
        )
    return Roster({name: public.fingerprint for name, public in known.items() if public is not None})


def _bound_roster(site: Site, roster: Roster) -> str:
    """The members' hash, with the cluster that the operator named: keys of another cluster do not fit."""
    asks = any(step.task == CLUSTER_TASK for step in site.plan.contract)
    cluster = site.state(PeerState).cluster if asks else ""
    return roster.hash() if not cluster else hashlib.blake2b(f"{roster.hash()}:{cluster}".encode()).hexdigest()


def _keys(site: Site, request: Request) -> Release:
    """The site's key for this run, signed over the run, the plan and the cluster it is for."""
    approved = site.plan
    roster = _roster(site, members_of(site, request))
    key = announce_run_key(
        run_identity(site), run=approved.run, plan_hash=approved.plan_hash, roster_hash=_bound_roster(site, roster)
    )
    return Release(payload=Payload(blobs={"key": key.to_bytes()}), guarantee=_RUN_KEY, rows=0)


KEYS = Task(name="peers.keys", one=_keys, public=False)


def keys_step(rounds: Sequence[int] = range(1)) -> Step:
    """The exchange of run keys among peers.

    Args:
        rounds: When keys are exchanged.

    Returns:
        The step.
    """
    return Step(task=KEYS.name, says="a public key of your site for this run", claims=(_RUN_KEY,), rounds=rounds)


def learn_peers(site: Site, announced: bytes, members: Sequence[str]) -> None:
    """Verify and store the run keys of the peers. Each must be signed by the identity in the site's own roster.

    Args:
        site: The site.
        announced: The bundle of announced keys, by site.
        members: The members of the site's cluster.

    Raises:
        RefusedError: A key belongs to a site that is no peer or not on the roster.
        IntegrityError: A key's signature is invalid.
    """
    state = site.state(PeerState)
    known = state.peers
    if state.announced == announced:  # every round of a phase brings the same keys
        return
    keys = {name: blob for name, blob in unpack_boxes(announced).items() if name not in known and name != site.name}
    if not keys:
        return
    approved, roster = site.plan, _roster(site, members)
    for name, blob in keys.items():
        owner = site.find_peer(name)
        if owner is None or name not in members:
            raise RefusedError(f"a run key came from {name!r}, which is not a peer of site {site.name!r}")
        known[name] = accept_run_key(
            RunKey.from_bytes(blob),
            owner=owner,
            roster=roster,
            run=approved.run,
            plan_hash=approved.plan_hash,
            roster_hash=_bound_roster(site, roster),
        )
    state.announced = announced


def open_boxes(site: Site, request: Request, members: Sequence[str]) -> dict[str, bytes]:
    """Open the messages that peers sealed for this site in the previous round.

    Args:
        site: The site.
        request: The request, with the sealed messages.
        members: The members of the site's cluster.

    Returns:
        The opened messages by sender.

    Raises:
        RefusedError: A message came from a site that is no peer.
        IntegrityError: A message was altered, misdirected or replayed.
    """
    approved = site.plan
    state = site.state(PeerState)
    opened = {}
    for name, message in unpack_boxes(request.payload.blobs["inbox"]).items():
        sender = state.peers.get(name)
        if name not in members or sender is None:
            raise RefusedError(f"a sealed message came from {name!r}, which is not a peer of site {site.name!r}")
        opened[name] = open_sealed(
            message,
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
    """Seal a message for several peers. The hub carries the sealed messages and cannot open them.

    Args:
        site: The sender.
        request: The request that is answered.
        message: What to send.
        peers: The recipients; those whose key the site has not verified are skipped.
        guarantee: What the release claims towards the peers.
        rows: How many rows the message was computed from.

    Returns:
        The release, addressed to the peers and carried by the hub.
    """
    approved, known = site.plan, site.state(PeerState).peers
    sealed = {
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
        payload=Payload(blobs={"boxes": pack_boxes(sealed)}), guarantee=guarantee, rows=rows, to="peers", via="hub"
    )


def passed_around(
    hub: Hub, task: Task, blobs: Mapping[str, bytes] = MappingProxyType({})
) -> Generator[Ask | RoundEnd, Any, dict[str, Payload]]:
    """Let every site send a sealed message to every other site, once.

    Args:
        hub: The hub's side of the run.
        task: The task that makes a site's messages.
        blobs: Further blobs for that task.

    Returns:
        By site, the payload of its next request: members, run keys, `blobs`, and the messages sealed for it.
    """
    members = "\n".join(hub.sites).encode()
    met: Replies = yield Ask(
        task=KEYS,
        to=hub.sites,
        payload=Payload(blobs={"members": members}),
        expect=Expect(blobs=("key",), check=check_key),
    )
    keys = pack_boxes({site: payload.blobs["key"] for site, payload in zip(met.sites, met.payloads(), strict=True)})
    common = {"members": members, "keys": keys, **blobs}
    sealed: Replies = yield Ask(
        task=task, to=met.sites, payload=Payload(blobs=common), expect=Expect(blobs=("boxes",), check=check_messages)
    )
    inboxes: dict[str, dict[str, bytes]] = {site: {} for site in sealed.sites}
    for sender, payload in zip(sealed.sites, sealed.payloads(), strict=True):
        for recipient, message in unpack_boxes(payload.blobs["boxes"]).items():
            if recipient in inboxes:
                inboxes[recipient][sender] = message
    return {site: Payload(blobs={**common, "inbox": pack_boxes(inbox)}) for site, inbox in inboxes.items()}


def check_messages(payload: Payload) -> object:
    """Check that a reply holds a well-formed bundle of sealed messages.

    Args:
        payload: The reply.

    Returns:
        The sealed messages by recipient.

    Raises:
        IntegrityError: The bundle is malformed.
    """
    return unpack_boxes(payload.blobs["boxes"])


def check_key(payload: Payload) -> object:
    """Check that a reply holds a well-formed run key.

    Args:
        payload: The reply.

    Returns:
        The key.

    Raises:
        IntegrityError: It is malformed.
    """
    return RunKey.from_bytes(payload.blobs["key"])
