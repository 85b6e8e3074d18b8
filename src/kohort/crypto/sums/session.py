"""Secure-sum sessions: a member list is agreed on once, then many sums run over it, whatever the scheme.

A session is the run, the plan and the ordered member list, and its id is a hash over the three. Hub and sites know the
plan's sites, so a member list never travels: a request names the session by its id and, where members are missing, the
places of those left out. A site forms the list itself, compares the hash, and refuses another one.

A sum of a session is named by task and round, and is run once. `SumSession.context` gives what binds it; `SiteSession`
holds one site's part of the sums under way. At the hub, a scheme's `HubSide` takes replies one at a time.

Guarantee: a site takes part only in sums over member lists that it formed out of the plan's sites, that hash to what
the request says, and that it is on. The names themselves are in every sum's transcript.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from kohort.crypto.sums.scheme import SessionKeys, SiteSide, SumContext, SumScheme, Trust
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.rng import Streams

__all__ = ["SiteSession", "SumPart", "SumSession", "is_union"]

_MAX_LENGTH = 1 << 26
_REMEMBERED = 8
"""Sessions and contexts kept at a time: simulated sites of one sum share the object."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SumSession:
    """A member list that sums are run over, in the hub's order.

    Args:
        run: The run's id.
        plan_hash: The hash of the approved plan.
        members: The sites that take part, in order.
        left_out: Places in the plan's site list of those that do not, as little-endian 32-bit numbers.
    """

    run: str
    plan_hash: str
    members: tuple[str, ...]
    left_out: bytes = b""
    _parts: dict[bytes, SumSession] = field(default_factory=dict, init=False, repr=False)
    _known_to: list[Callable[[str], object | None]] = field(default_factory=list, init=False, repr=False)
    """The roster that holds every member, once one was found to."""
    _contexts: dict[tuple[str, int, int, int, int, bytes], SumContext] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def id(self) -> bytes:
        """A hash over run, plan hash and ordered members: 32 bytes."""
        digest = hashlib.blake2b(digest_size=32, person=b"kohort-session")
        for part in (self.run, self.plan_hash, *self.members):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The place of each member."""
        return {name: place for place, name in enumerate(self.members)}

    @property
    def fields(self) -> dict[str, bytes]:
        """What the first request of a sum says about its session."""
        return {"session": self.id, **({"left_out": self.left_out} if self.left_out else {})}

    def refuse_strangers(self, find_peer: Callable[[str], object | None]) -> None:
        """Refuse a list with a site that is not on a roster: whoever is not counts for nothing.

        Args:
            find_peer: The roster: None for a name that is not on it. Simulated sites share one, which is asked once.

        Raises:
            RefusedError: A member is a stranger.
        """
        if self._known_to and self._known_to[0] is find_peer:
            return
        strangers = [name for name in self.members if find_peer(name) is None]
        if strangers:
            raise RefusedError(
                f"site {strangers[0]!r} of a secure sum is not on this site's roster",
                hint=f"Ask for its fingerprint, then: kohort site trust {strangers[0]} FINGERPRINT",
            )
        self._known_to[:] = [find_peer]

    def groups(self, least: int) -> list[tuple[str, ...]]:
        """Public groups of members that take part in a total together or not at all.

        Args:
            least: The fewest sites of a group.

        Returns:
            Consecutive members, at least `least` each; one group when there are too few for two.
        """
        count = max(1, len(self.members) // least)
        ends = [len(self.members) if number == count else number * least for number in range(count + 1)]
        return [self.members[start:end] for start, end in pairwise(ends)]

    def over(self, members: Sequence[str]) -> SumSession:
        """The session over some of the members, as the hub sets it up.

        Args:
            members: Who takes part; in this session's order.

        Returns:
            This session, or one that leaves the others out.

        Raises:
            SiteError: Somebody is no member, or the order is another.
        """
        if tuple(members) == self.members:
            return self
        chosen = frozenset(members)
        places = [place for place, name in enumerate(self.members) if name not in chosen]
        found = self.without(np.asarray(places, dtype="<u4").tobytes())
        if found.members != tuple(members):
            raise SiteError("a secure sum is over sites of the plan, in the plan's order")
        return found

    def without(self, left_out: bytes) -> SumSession:
        """The session that leaves some members out.

        Args:
            left_out: Their places as little-endian 32-bit numbers, growing; none is this session.

        Returns:
            The session over the others.

        Raises:
            IntegrityError: The places are none of this list's, or not in order.
        """
        if not left_out:
            return self
        known = self._parts.get(left_out)
        if known is None:
            gone = frozenset(_places(left_out, len(self.members)))
            members = tuple(name for place, name in enumerate(self.members) if place not in gone)
            known = SumSession(run=self.run, plan_hash=self.plan_hash, members=members, left_out=left_out)
            _remember(self._parts, left_out, known)
        return known

    def find(self, fields: Mapping[str, bytes]) -> SumSession:
        """The session a request names, among those over the plan's sites.

        Args:
            fields: The request's blobs, as `fields` made them.

        Returns:
            The session, formed from the list held here.

        Raises:
            RefusedError: The list held here hashes to something else.
            IntegrityError: The places left out cannot be right.
        """
        found = self.without(fields.get("left_out", b""))
        if found.id != fields.get("session"):
            raise RefusedError("a secure sum is over another list of sites than the plan's, or of another run or plan")
        return found

    def context(self, task: str, round_number: int, *, length: int, modulus: int, bits: int, view: bytes) -> SumContext:
        """The context that a sum's keys are bound to.

        Args:
            task: The task whose contributions are added.
            round_number: The round of the run.
            length: How many numbers are added.
            modulus: What they are added modulo; 0 for 2^64.
            bits: Signed bits of a total modulo 2^64.
            view: The digest of the public inputs in force.

        Returns:
            The sum's context; asked again, the same object.

        Raises:
            RefusedError: The length is out of range.
        """
        if not 0 < length <= _MAX_LENGTH:
            raise RefusedError(f"a sum of {length} numbers is out of range")
        place = (task, round_number, length, modulus, bits, view)
        known = self._contexts.get(place)
        if known is None:
            known = SumContext(
                run=self.run,
                round=round_number,
                request=f"{self.plan_hash}:{task}",
                sites=self.members,
                length=length,
                modulus=modulus,
                bits=bits,
                view=view,
            )
            _remember(self._contexts, place, known)
        return known


def is_union(sites: Collection[str], groups: Sequence[tuple[str, ...]]) -> bool:
    """Whether the sites are whole groups.

    Args:
        sites: The sites of a total.
        groups: The public groups.

    Returns:
        False when a group is in the total with some of its members only.
    """
    return all(len(set(group).intersection(sites)) in {0, len(group)} for group in groups)


def _places(left_out: bytes, count: int) -> list[int]:
    """The places of a list of `count` sites that `left_out` names."""
    if len(left_out) % 4 == 0:
        places = np.frombuffer(left_out, dtype="<u4").astype(np.int64)
        if (np.diff(places) > 0).all() and places[-1] < count:
            return [int(place) for place in places]
    raise IntegrityError("the list of sites that a secure sum leaves out cannot be right")


K = TypeVar("K")
V = TypeVar("V")


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep a value, and drop the oldest when there are too many: a hub must not fill a site's memory."""
    if len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[key] = value


@dataclass(frozen=True, eq=False)
class SumPart:
    """One site's part in one sum that is under way."""

    side: SiteSide
    context: SumContext
    inputs: Mapping[str, bytes]
    """The public inputs that came with the first step."""


@dataclass
class SiteSession:
    """One site's part in the sums of a session.

    Args:
        session: The member list it takes part in.
        name: The site's name.
        keys: What was agreed on in the set-up, where the scheme has one.
        begun: The sums of several steps, by task and round, that the site began in any session. A second beginning is
            refused, also over another member list: two totals of the same rows would show the difference.

    Raises:
        RefusedError: The site is not on the list.
    """

    session: SumSession
    name: str
    keys: SessionKeys | None = None
    begun: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _parts: dict[tuple[str, int], SumPart] = field(default_factory=dict, repr=False)
    """The sums of several steps that are under way."""

    def __post_init__(self) -> None:
        if self.name not in self.session.index:
            raise RefusedError(f"site {self.name!r} is not among the sites of this sum")

    def begin(
        self,
        scheme: SumScheme,
        context: SumContext,
        task: str,
        streams: Streams,
        trust: Trust | None,
        inputs: Mapping[str, bytes],
    ) -> SumPart:
        """This site's part of a sum, at its first step.

        Args:
            scheme: How the sum is protected, as the approved plan says.
            context: What binds the sum.
            task: The task whose contributions are added.
            streams: The site's randomness.
            trust: Whom the site relies on, where the scheme needs that.
            inputs: The public inputs of this sum.

        Returns:
            The site's part.

        Raises:
            IntegrityError: The sum was begun before, over these or other members; it could be opened in two ways.
        """
        part = SumPart(scheme.site_side(context, self.name, streams, trust, self.keys), context, inputs)
        which = (task, context.round)
        if scheme.steps > 1 or scheme.key_holder:  # two vectors under the same pads would show their difference
            if which in self.begun:
                raise IntegrityError("a sum came in that was begun here before")
            self.begun.add(which)
            self._parts[which] = part
        return part

    def resume(self, task: str, round_number: int, *, step: int) -> SumPart:
        """This site's part of a sum that is under way.

        Args:
            task: The task whose contributions are added.
            round_number: The round of the run.
            step: The step that is asked for.

        Returns:
            The site's part.

        Raises:
            SiteError: The sum was not begun here.
        """
        known = self._parts.get((task, round_number))
        if known is None:
            raise SiteError(f"site {self.name!r} was asked for step {step} of a sum that was not begun here")
        return known

    def end(self, task: str, round_number: int) -> None:
        """Forget a sum whose last step was answered; it stays begun."""
        self._parts.pop((task, round_number), None)
