"""Sums by masks without engine, doors and ledgers: unmodified site objects, and a hub that the test plays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from tests.support.sums import routed

from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums.mask_hub import MaskingHub
from kohort.crypto.sums.mask_keys import MaskKeys
from kohort.crypto.sums.mask_messages import CONFIRMED, MAC, pack_places
from kohort.crypto.sums.masks import SCHEME
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SiteSide, SumContext, Trust
from kohort.crypto.sums.session import SumSession
from kohort.rng import Streams

__all__ = ["Federation", "confirmations", "confirmed", "identity", "names_of", "places"]


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"s{number}" for number in range(count))


@cache
def identity(site: str, suite: str = "standard") -> Identity:
    return Identity.from_secret(site, Streams.seeded(7).bytes("identity", site), suite=suite)


@dataclass
class Federation:
    """Sites that set a session up; every sum has unmodified site objects of its own."""

    count: int
    colluders: int = 1
    min_sites: int = 3
    quorum: int = 0
    run: str = "r"
    suite: str = "standard"
    strangers: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By site: who is not on its roster."""
    keys: dict[str, MaskKeys] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.count)

    @property
    def session(self) -> SumSession:
        return SumSession(run=self.run, plan_hash="p", members=self.names)

    def streams(self, site: str) -> Streams:
        return Streams.seeded(self.names.index(site))

    def trust(self, site: str) -> Trust:
        unknown = frozenset(self.strangers.get(site, ()))
        return Trust(
            identity(site, self.suite),
            None,
            self.min_sites,
            lambda name: None if name in unknown else identity(name, self.suite).public,
            colluders=self.colluders,
            quorum=self.quorum,
        )

    def made_keys(self, site: str) -> MaskKeys:
        made = SCHEME.session_keys(self.session, site, self.streams(site), self.trust(site))
        assert isinstance(made, MaskKeys)
        return made

    def set_up(self, members: Collection[str] | None = None) -> Federation:
        """Exchange keys among the members, all of them by default."""
        chosen = tuple(name for name in self.names if members is None or name in members)
        self.keys = {name: self.made_keys(name) for name in chosen}
        message = SCHEME.gather({name: keys.announcement for name, keys in self.keys.items()})
        digests = {keys.agree(chosen, message) for keys in self.keys.values()}
        assert len(digests) == 1
        return self

    def context(self, **changes: Any) -> SumContext:
        made = SumContext(run=self.run, round=1, request="p:t", sites=tuple(self.keys), length=5, modulus=P61)
        return replace(made, **changes)

    def side(self, site: str, context: SumContext) -> SiteSide:
        return SCHEME.site_side(context, site, self.streams(site), self.trust(site), self.keys[site])

    def sides(self, context: SumContext) -> dict[str, SiteSide]:
        return {site: self.side(site, context) for site in self.keys}

    def vectors(self, context: SumContext, seed: int = 0) -> dict[str, Integers]:
        generator = np.random.default_rng(seed)
        return {site: generator.integers(0, P61, context.length, dtype=np.uint64) for site in self.keys}

    def begin(
        self, context: SumContext, vectors: Mapping[str, Integers], *, until: int
    ) -> tuple[dict[str, SiteSide], MaskingHub, dict[str, bytes]]:
        """An honest conversation up to before step `until`: sites, hub, and what each site gets next."""
        sides, hub, inboxes = self.sides(context), MaskingHub(context), dict.fromkeys(self.keys, b"")
        for step in range(until):
            replies = {site: sides[site].reply(step, inbox, vectors[site]) for site, inbox in inboxes.items()}
            inboxes = routed(hub, step, replies)
        return sides, hub, inboxes


def places(*members: int) -> bytes:
    """A list of sites as the hub sends it."""
    return pack_places(np.asarray(members, dtype="<u4"))


def confirmed(records: Mapping[int, bytes]) -> bytes:
    """Confirmations by sender, as the hub sends them to one site."""
    return np.array(list(records.items()), dtype=CONFIRMED).tobytes() if records else b""


def confirmations(reply: bytes, sender: int, survivors: Collection[int]) -> dict[int, bytes]:
    """The confirmations of one site by recipient."""
    others = [place for place in sorted(survivors) if place != sender]
    return {other: reply[MAC * at : MAC * (at + 1)] for at, other in enumerate(others)}
