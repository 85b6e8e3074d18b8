"""Protocols: generators that yield requests, receive replies and return a result. No IO, clock or hidden randomness.

A method writes a protocol; an engine drives it. The protocol sees replies that were validated: finite, of the expected
shape, and about no more rows than the site declared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.session import SumSession
from kohort.models.base import Model
from kohort.models.network_model import NetworkModel
from kohort.models.options import FloatArray
from kohort.models.rows import Rows
from kohort.models.trainable import Trainable
from kohort.privacy.guarantee import DP
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.task import Request, Task
from kohort.protocol.wire import EncodedReplies, Payload, decode
from kohort.rng import Streams
from kohort.tables.encoder import Encoder

__all__ = [
    "Ask",
    "Coordinator",
    "Excluded",
    "Expect",
    "Hub",
    "ProtocolGenerator",
    "Replies",
    "Result",
    "Resume",
    "RoundEnd",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Expect:
    """What a good reply looks like. `arrays` maps a name to (dtype, shape); an axis of None may have any length."""

    arrays: Mapping[str, tuple[str, tuple[int | None, ...]]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    largest: float = 1e9
    """No honest number is larger: a reply above it is excluded."""
    check: Callable[[Payload], object] | None = None
    """Reads what types and shapes cannot tell, such as a blob; a reply it raises a KohortError for is excluded."""


class Ask(NamedTuple):
    """A request to `to`: one payload for all, or one each."""

    task: Task
    to: Sequence[str]
    payload: Payload = Payload()
    each: Mapping[str, Payload] | None = None
    round: int = 0
    expect: Expect = Expect()
    take: Callable[[str, Payload], None] | None = None
    """Gets every validated reply with its site, as it comes in: of many large replies, few are held at a time."""
    then: Ask | None = None
    """What the same sites are asked next, whatever they answer to this: it travels in the same message."""
    redeclares: bool = False
    """Whether `rows` of the replies is how many rows each site holds from now on, in place of what it declared."""

    def request(self, approved: ApprovedPlan, streams: Streams, payload: Payload, alone: str = "") -> Request:
        """The request that every engine makes of it, hash for hash.

        Args:
            approved: The approved plan.
            streams: The hub's random streams.
            payload: What it asks with.
            alone: The site it is for, where sites are asked one by one: it keeps their requests and receipts apart.

        Returns:
            The request.
        """
        nonce = streams.bytes("nonce", self.task.name, self.round, alone, length=12).hex()
        return Request(
            run=approved.run,
            plan_hash=approved.plan_hash,
            task=self.task.name,
            round=self.round,
            attempt=0,
            nonce=nonce,
            payload=payload,
        )


class RoundEnd(NamedTuple):
    """A round is done and `model` is the model so far: what observers evaluate, show and checkpoint."""

    round: int
    rounds: int
    model: Model | None
    """None when the hub does not know it, as among peers: nothing is measured then."""
    metrics: Mapping[str, float] = MappingProxyType({})
    state: Mapping[str, NDArray[Any]] = MappingProxyType({})
    """All that the protocol needs to go on from here; loops over a weight vector keep it under "weights"."""
    resumed: bool = False
    """True once, when an interrupted run has come to where its checkpoint was taken; nothing new happened."""


@dataclass(frozen=True)
class Excluded:
    """A site whose answer does not count, and why: refused, unmet privacy, failed, malformed."""

    site: str
    kind: str
    reason: str


class Replies:
    """The validated answers to an Ask, in the order the sites were asked."""

    def __init__(
        self,
        sites: Sequence[str],
        body: EncodedReplies | Sequence[bytes],
        excluded: Sequence[Excluded] = (),
        *,
        taken: bool = False,
        then: Replies | None = None,
    ) -> None:
        self.sites = tuple(sites)
        self.excluded = tuple(excluded)
        self.taken = taken
        """Whether the engine handed the replies to the Ask's `take` already; there are none here then."""
        self.then = then
        """The answers to what was asked in the same message."""
        self._body = body

    def __len__(self) -> int:
        return len(self.sites)

    def array(self, name: str) -> NDArray[Any]:
        """The named array of every site, stacked on a first axis."""
        if isinstance(self._body, EncodedReplies):
            return self._body.array(name)
        return np.stack([payload.arrays[name] for payload in self.payloads()])

    def metric(self, name: str) -> NDArray[Any]:
        """The named number of every site."""
        if isinstance(self._body, EncodedReplies):
            return self._body.metric(name)
        return np.asarray([payload.metrics[name] for payload in self.payloads()])

    def payloads(self) -> Iterator[Payload]:
        """Every site's payload, decoded one at a time."""
        parts = self._body.views() if isinstance(self._body, EncodedReplies) else self._body
        for part in parts:
            yield decode(part)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a protocol returns: the model, why training ended, and rows the hub was given, if any."""

    model: Model
    """Of any registered kind; `Hub.model_of` makes one of a weight vector."""
    rounds: int
    stopped_by: str
    received: pl.DataFrame | None = None
    keep_days: int | None = None
    """How long the hub may keep what it received; None where the plan says nothing."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What a reader of the figures must see; shown beside them."""
    claim: DP | None = None
    """What noise the hub added itself promises of the model; what sites promise stands in their ledgers."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What the hub keeps of the run, by name; written into `DIR/hub/`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to tell about the run, as plain values."""
    unlearned: int = 0
    """Rows that neither a site nor the hub learned from, as far as the method leaves any out."""
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By cluster, the sites that ended a phase among peers and have their cluster's model."""
    kept_by: tuple[str, ...] = ()
    """Sites that keep the model together with what the hub has not: classes that were sealed past it."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """The last round an interrupted run finished, and what its protocol kept: the `state` of that `RoundEnd`."""

    round: int
    state: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """What the hub knows before the sites have enrolled: enough to run secure sums."""

    sites: tuple[str, ...]
    approved: ApprovedPlan
    key_holder: str | None = None
    """Who opens encrypted sums; None when the plan has none to open."""
    inputs: PublicInputs = field(default_factory=PublicInputs)
    """What every site was told, as far as it is in force; the engine writes it."""
    sums: dict[str, SumSession] = field(default_factory=dict)
    """The secure-sum sessions that were set up, by scheme."""
    unused: dict[str, int] = field(default_factory=dict)
    """Rows that real sites left out before the run, by reason, where a secure count told it; 0: below the minimum."""
    opened: tuple[Ask, Replies] | None = None
    """What the method's `opening` asked along with the enrolment, and the answers."""


@dataclass(frozen=True, kw_only=True)
class Hub(Coordinator):
    """The coordinator as a protocol sees it: the approved plan, who is enrolled, and the hub's own randomness."""

    rows: Mapping[str, int]
    encoder: Encoder
    network: Trainable
    streams: Streams
    validation: Rows | None = None
    """The hub's own rows, to judge updates by."""
    resume: Resume | None = None
    """Where an interrupted run goes on."""
    clusters: Mapping[str, str] | None = None
    """The trusted cluster of each site; None when none were given."""

    def model_of(self, weights: FloatArray, *, network: Trainable | None = None) -> NetworkModel:
        """The model that a weight vector is.

        Args:
            weights: of the plan's `[model]`, or of `network`.
            network: when the method makes one of its own.
        """
        return NetworkModel(network or self.network, weights, self.encoder)


ProtocolGenerator = Generator[Ask | RoundEnd, Any, Result]
