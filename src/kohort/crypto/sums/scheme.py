"""Sums of which only the total should open: one interface for every scheme.

All schemes add the same fixed-point integers modulo 2^64, so `none`, masks and encryption give totals that are equal
bit for bit. A scheme runs in steps: at each step every site replies to what the hub sent it, and the hub turns the
replies into what each site gets next; after the last step the hub knows the total, and, where the scheme protects,
nothing else. `kohort.crypto.sums.session` runs many sums over one member list.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError, nearest
from kohort.privacy.guarantee import Guarantee
from kohort.rng import Streams

if TYPE_CHECKING:
    from kohort.crypto.identity.parties import Identity, PublicIdentity

__all__ = [
    "CONFIRMATIONS",
    "KEY_HOLDER",
    "MIN_SITES",
    "NO_NOTE",
    "SESSION_KEYS",
    "FixedPoint",
    "HubSide",
    "Integers",
    "Members",
    "Places",
    "SessionKeys",
    "SiteSide",
    "SumContext",
    "SumScheme",
    "Trust",
    "find_scheme",
    "require_scheme",
]

Integers = NDArray[np.uint64]
Places = NDArray[np.uint32]
"""Places in the ordered member list of a session."""
KEY_HOLDER = "key-holder"
"""The name of the party that opens encrypted totals, in every roster and ledger."""
SESSION_KEYS = "public keys of a secure sum"
CONFIRMATIONS = "confirmations of a secure sum"
"""What set-ups and confirmations claim to be: public."""
MIN_SITES = 3
"""Fewer sites would see each other's numbers in their total."""
NO_NOTE = bytes(32)
"""What a site signs with its keys when it has nothing to tell."""
_HALF = 2**63


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Numbers within [-bound, bound] as integers of `scale` steps to the unit, with headroom for `sites` of them.

    Guarantee: the sum of at most `sites` encoded vectors never wraps; a value outside the bound is clipped before it is
    sent, and settings without headroom are refused.
    """

    bound: float
    scale: float
    sites: int

    def __post_init__(self) -> None:
        if not (self.bound > 0 and self.scale > 0 and self.sites >= 1):
            raise ConfigError("fixed point needs a positive bound, a positive scale and at least one site")
        if self.bound * self.scale * self.sites >= _HALF:
            raise RefusedError(
                f"a sum over {self.sites} sites of values up to {self.bound:g} does not fit 64 bits at this precision",
                hint="Use a smaller bound or a coarser scale",
            )

    def encode(self, values: NDArray[Any]) -> Integers:
        """Integers modulo 2^64. What is outside the bound is clipped and NaN becomes 0: an error would tell of rows."""
        numbers = np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=self.bound, neginf=-self.bound)
        clipped = np.clip(numbers, -self.bound, self.bound)
        return np.rint(clipped * self.scale).astype(np.int64).view(np.uint64)

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """The sum in its own unit."""
        return total.view(np.int64) / self.scale


@dataclass(frozen=True, kw_only=True)
class SumContext:
    """What binds one sum: the run, the round and the request's hash, who takes part, and in which integers."""

    run: str
    round: int
    request: str
    """What this sum is for: plan and task; keys are derived from it, so no two sums share one."""
    sites: tuple[str, ...]
    length: int
    modulus: int = 0
    """What is added modulo: 0 for 2^64, or the prime 2^61 - 1."""
    bits: int = 40
    """Signed bits of a total modulo 2^64; encryption refuses larger ones, and needs several slots above 40."""
    view: bytes = b""
    """The digest of all public inputs in force (weights, domains, approved keys): sites that were told different things
    have different transcripts, so nothing they add opens."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The place of each site in the list."""
        return {name: place for place, name in enumerate(self.sites)}

    @cached_property
    def transcript(self) -> bytes:
        """A hash of all of it: what the keys of this sum are bound to."""
        digest = hashlib.blake2b(digest_size=32, person=b"kohort-sum")
        numbers = f"{self.round} {self.length} {self.modulus} {self.bits} {len(self.sites)}"
        for part in (self.run, self.request, numbers, *self.sites):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        digest.update(len(self.view).to_bytes(8, "little") + self.view)
        return digest.digest()


@dataclass(frozen=True, eq=False)
class Trust:
    """Whom a site relies on in a sum: its own keys, the key-holder's if there is one, its own minimum, its roster."""

    identity: Identity
    holder: PublicIdentity | None
    min_sites: int
    find_peer: Callable[[str], PublicIdentity | None] = lambda _: None
    """The lasting keys of a site that is on this one's roster."""
    colluders: int = 1
    """How many sites may collude with the hub, as the approved plan says."""
    quorum: int = 0
    """Fewest sites of an opened total that the approved plan allows; 0 when it leaves that to the scheme."""

    @property
    def key_holder(self) -> PublicIdentity:
        """Who makes keys and opens totals; a site without one on its roster encrypts nothing."""
        if self.holder is None:
            raise RefusedError(
                f"site {self.identity.name!r} knows no key-holder, so it encrypts nothing",
                hint="Name a key-holder and put it on the site's roster, or use masks",
            )
        return self.holder


class Members(Protocol):
    """Who is asked to take part in the sums of a run: what a scheme reads of a session."""

    @property
    def run(self) -> str:
        """The run's id."""
        ...

    @property
    def plan_hash(self) -> str:
        """The hash of the approved plan."""
        ...

    @property
    def members(self) -> tuple[str, ...]:
        """The sites, in order."""
        ...


class SessionKeys(Protocol):
    """One site's part in setting a session up: fresh keys are exchanged once, and every sum of the session uses them.

    Step 0 of the set-up sends `announcement`; step 1 brings every member's announcement to `agree`.
    """

    notes: tuple[bytes, ...]
    """What each member signed with its keys, in the members' order; empty until they agreed."""

    @property
    def announcement(self) -> bytes:
        """The site's fresh public keys, signed by its identity; the same bytes each time."""
        ...

    def agree(self, members: tuple[str, ...], inbox: bytes) -> bytes:
        """Take the announcements of all members, once.

        Args:
            members: Who takes part: those of the announced sites whose announcement came in, in order.
            inbox: What `SumScheme.gather` made at the hub.

        Returns:
            A digest over session and keys, which is public and equal at all members.

        Raises:
            RefusedError: Too few members, or one that is not on the site's roster.
            IntegrityError: A signature does not hold, the site's own announcement was changed, or it agreed before.
        """
        ...


class SiteSide(Protocol):
    """One site's part of a sum."""

    @property
    def survivors(self) -> Places | None:
        """The sites that this one confirmed to be in the total; None before, and in schemes without confirmations."""
        ...

    def reply(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        """What the site sends at a step.

        Args:
            step: The step of the sum, from 0.
            inbox: What the hub sent the site for this step.
            vector: The site's numbers, at the step that contributes them.

        Returns:
            The site's message to the hub.

        Raises:
            RefusedError: The site takes no part: strangers, or too few sites.
            IntegrityError: What came in was altered, repeated or out of order.
        """
        ...

    def claim(self, step: int, rows: int) -> Guarantee:
        """The guarantee of what `reply` returns.

        Args:
            step: The step of the sum.
            rows: How many rows the vector was computed from.

        Returns:
            The claim that the door compares with the site's policy.
        """
        ...


class HubSide(Protocol):
    """The hub's part of a sum. Replies are taken one at a time, so that few are held."""

    def take(self, step: int, site: str, reply: bytes) -> None:
        """Take one site's reply to a step.

        Args:
            step: The step of the sum.
            site: Who sent it.
            reply: What `SiteSide.reply` returned there.

        Raises:
            IntegrityError: It cannot be what an honest site sends.
        """
        ...

    def inboxes(self, step: int) -> Mapping[str, bytes]:
        """What each site gets for the step after `step`; a site that is missing dropped out.

        Args:
            step: The step whose replies were all taken.

        Returns:
            Messages by site; none after the last step.
        """
        ...

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        """The opened sum.

        Returns:
            The total, and the sites that are in it.
        """
        ...


class SumScheme(ABC):
    """A way to add."""

    name: ClassVar[str]
    steps: ClassVar[int]
    contributes_at: ClassVar[int]
    """The step at which a site's vector is needed."""
    key_holder: ClassVar[bool] = False
    """Whether the total is opened by a party that is neither the hub nor a site; sites then need `trust` in it."""
    among_peers: ClassVar[bool] = False
    """Whether sites seal to each other; they then need `trust`, which says who they are."""
    sets_up: ClassVar[bool] = False
    """Whether members exchange keys once, before the first sum of a session."""
    most_sites: ClassVar[int | None] = None
    """How many sites a sum may be over; None when that is not limited."""

    def check_size(self, sites: int) -> None:
        """Refuse a plan with more sites than the scheme can add up.

        Args:
            sites: How many sites take part.

        Raises:
            ConfigError: There are too many.
        """
        if self.most_sites is not None and sites > self.most_sites:
            raise ConfigError(
                f"a sum by {self.name!r} is over at most {self.most_sites} sites, and {sites} take part",
                hint='Use method.secure.sum = "bfv"',
            )

    def session_keys(
        self, session: Members, name: str, streams: Streams, trust: Trust, note: bytes = NO_NOTE
    ) -> SessionKeys:
        """One site's part in setting a session up; for schemes with `sets_up`.

        Args:
            session: The run, the plan and the sites that were asked to take part.
            name: The site's name.
            streams: The site's randomness.
            trust: Whom the site relies on.
            note: 32 bytes that the site signs with its keys, for the other members.

        Returns:
            The site's keys.

        Raises:
            ConfigError: The scheme has no set-up.
        """
        del session, name, streams, trust, note
        raise ConfigError(f"a sum by {self.name!r} has no set-up")

    def gather(self, announcements: Mapping[str, bytes]) -> bytes:
        """The hub's part in a set-up: what every member gets of what all members announced, in their order."""
        return b"".join(announcements.values())

    @abstractmethod
    def site_side(
        self,
        context: SumContext,
        name: str,
        streams: Streams,
        trust: Trust | None = None,
        keys: SessionKeys | None = None,
    ) -> SiteSide:
        """One site's part of a sum.

        Args:
            context: What binds the sum.
            name: The site's name.
            streams: The site's randomness.
            trust: Whom the site relies on, where the scheme needs that.
            keys: What the site agreed on in the session's set-up, where the scheme has one.

        Returns:
            The site's part.

        Raises:
            RefusedError: The site would take part in no such sum.
        """

    @abstractmethod
    def hub_side(self, context: SumContext, groups: Sequence[tuple[str, ...]] = ()) -> HubSide:
        """The hub's part of a sum.

        Args:
            context: What binds the sum.
            groups: Sites that are in the total together or not at all.

        Returns:
            The hub's part.
        """

    @abstractmethod
    def claim(self, sites: int, rows: int, *, colluders: int = 1) -> Guarantee:
        """What a plan with such a sum asks each site to let out, for policies to judge before.

        Args:
            sites: How many sites the sum is over.
            rows: How many rows the site has.
            colluders: How many sites may collude with the hub.

        Returns:
            The claim.
        """


def find_scheme(name: str) -> SumScheme:
    """The scheme a plan names in `method.secure.sum`. Only its own module is imported: encryption is heavy.

    Args:
        name: none | masks | bfv | ckks.

    Returns:
        The scheme.

    Raises:
        ConfigError: There is no scheme of that name.
    """
    require_scheme(name)
    scheme = import_module(f"kohort.crypto.sums.{_MODULES[name]}").SCHEME
    if not isinstance(scheme, SumScheme):
        raise ConfigError(f"kohort.crypto.sums.{_MODULES[name]} holds no scheme")
    return scheme


def require_scheme(name: str) -> None:
    """Refuse the name of a scheme that does not exist, without loading one.

    Args:
        name: What a plan says.

    Raises:
        ConfigError: There is no scheme of that name.
    """
    if name not in _MODULES:
        raise ConfigError(f"unknown secure sum {name!r}", hint=nearest(name, _MODULES))


_MODULES = {"none": "plain", "masks": "masks", "bfv": "bfv", "ckks": "ckks"}
"""The module of this package that holds each scheme, as SCHEME."""
