"""Sums of which only the total should open: one interface for every scheme.

All schemes add the same fixed-point integers modulo 2^64, so `none`, masks and encryption give totals that are equal
bit for bit. A scheme is a conversation in steps: at each step every site answers what the hub sent it, and the hub
turns the answers into what each site gets next; after the last step the hub knows the total, and, where the scheme
protects, nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError, nearest
from kohort.privacy.guarantee import Guarantee
from kohort.registry import discover
from kohort.rng import Streams

if TYPE_CHECKING:
    from kohort.crypto.identity.parties import Identity, PublicIdentity

__all__ = [
    "FixedPoint",
    "HubSide",
    "Integers",
    "SiteSide",
    "SumContext",
    "SumScheme",
    "Trust",
    "find_scheme",
    "schemes",
]

Integers = NDArray[np.uint64]
_HALF = 2**63


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Numbers within [-bound, bound] as integers of `scale` steps to the unit, with headroom for `sites` of them.

    Guarantee: the sum of at most `sites` encoded vectors never wraps; a value outside the bound is refused before it is
    sent, and so are settings without headroom.
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
        """Integers modulo 2^64."""
        numbers = np.asarray(values, dtype=np.float64)
        largest = float(np.max(np.abs(numbers), initial=0.0))
        if not largest <= self.bound:
            raise RefusedError(
                f"a value is outside the public bound {self.bound:g}", hint="Declare wider bounds, or mend the column"
            )
        return np.rint(numbers * self.scale).astype(np.int64).view(np.uint64)

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """The sum in its own unit."""
        return total.view(np.int64) / self.scale


@dataclass(frozen=True, kw_only=True)
class SumContext:
    """What binds one sum: the run, the round and the request's hash, who takes part, and in which integers."""

    run: str
    round: int
    request: str
    """What this sum is for: task, plan and attempt; keys are derived from it, so no two sums share one."""
    sites: tuple[str, ...]
    length: int
    modulus: int = 0
    """What is added modulo: 0 for 2^64, or the prime 2^61 - 1."""
    bits: int = 40
    """Signed bits of a total modulo 2^64; encryption refuses larger ones, and needs several slots above 40."""

    @cached_property
    def members(self) -> frozenset[str]:
        """The sites, to look one up."""
        return frozenset(self.sites)

    @cached_property
    def transcript(self) -> bytes:
        """A hash of all of it: what keys and tags of this sum are bound to."""
        digest = hashlib.blake2b(digest_size=32, person=b"kohort-sum")
        numbers = f"{self.round} {self.length} {self.modulus} {self.bits} {len(self.sites)}"
        for part in (self.run, self.request, numbers, *self.sites):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()


@dataclass(frozen=True, eq=False)
class Trust:
    """Whom a site relies on in a sum: its own keys, the key-holder's if there is one, its own minimum, its roster."""

    identity: Identity
    holder: PublicIdentity | None
    min_sites: int
    find_peer: Callable[[str], PublicIdentity | None] = lambda _: None
    """The lasting keys of a site that is on this one's roster."""

    @property
    def key_holder(self) -> PublicIdentity:
        """Who makes keys and opens totals; a site without one on its roster encrypts nothing."""
        if self.holder is None:
            raise RefusedError(
                f"site {self.identity.name!r} knows no key-holder, so it encrypts nothing",
                hint="Name a key-holder and put it on the site's roster, or use masks",
            )
        return self.holder


class SiteSide(Protocol):
    """One site's part of the conversation."""

    def answer(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        """What to send at `step`, given what came in; `vector` is there at the step that contributes it."""
        ...

    def claim(self, step: int, rows: int) -> Guarantee:
        """The guarantee of what `answer` returns at `step`, for a vector computed from `rows` rows."""
        ...


class HubSide(Protocol):
    """The hub's part of the conversation."""

    def route(self, step: int, answers: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """What each site gets next; sites that are missing from `answers` dropped out."""
        ...

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        """The opened sum and the sites in it."""
        ...


class SumScheme:
    """A way to add."""

    name: ClassVar[str]
    steps: ClassVar[int]
    contributes_at: ClassVar[int]
    """The step at which a site's vector is needed."""
    key_holder: ClassVar[bool] = False
    """Whether the total is opened by a party that is neither the hub nor a site; sites then need `trust` in it."""
    among_peers: ClassVar[bool] = False
    """Whether sites seal to each other; they then need `trust`, which says who they are."""

    def site_side(self, context: SumContext, name: str, streams: Streams, trust: Trust | None = None) -> SiteSide:
        """The part of the site called `name`."""
        raise NotImplementedError

    def hub_side(self, context: SumContext) -> HubSide:
        """The hub's part."""
        raise NotImplementedError

    def claim(self, sites: int, rows: int) -> Guarantee:
        """What a plan with such a sum over `sites` sites asks each of them to let out, for policies to judge before."""
        raise NotImplementedError


@cache
def schemes() -> dict[str, SumScheme]:
    """Every scheme by name: each module of this package with a SCHEME."""
    return discover("kohort.crypto.sums", attribute="SCHEME", kind=SumScheme)


def find_scheme(name: str) -> SumScheme:
    """The scheme a plan names in `method.secure.sum`."""
    known = schemes()
    if name not in known:
        raise ConfigError(f"unknown secure sum {name!r}", hint=nearest(name, known))
    return known[name]
