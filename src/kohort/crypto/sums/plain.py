"""`none`: the sum in clear, for settings where the hub is trusted with every site's vector. The ledger names it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from kohort.crypto.sums.modular import add
from kohort.crypto.sums.scheme import HubSide, Integers, Places, SessionKeys, SiteSide, SumContext, SumScheme, Trust
from kohort.errors import IntegrityError
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.rng import Streams

__all__ = ["SCHEME", "Plain"]


class _Site:
    survivors: Places | None = None

    def reply(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        if step != 0 or inbox or vector is None:
            raise IntegrityError("a plain sum has one step, and a site sends its vector in it")
        return vector.astype("<u8").tobytes()

    def claim(self, step: int, rows: int) -> Guarantee:
        del step
        return Aggregate(rows=rows)


class _Hub:
    def __init__(self, context: SumContext) -> None:
        self._context = context
        self._total: Integers = np.zeros(context.length, dtype=np.uint64)
        self._sites: list[str] = []

    def take(self, step: int, site: str, reply: bytes) -> None:
        del step
        if len(reply) != 8 * self._context.length:
            raise IntegrityError(f"site {site!r} sent a vector of another length")
        self._total = add(self._total, np.frombuffer(reply, dtype="<u8"), self._context.modulus)
        self._sites.append(site)

    def inboxes(self, step: int) -> Mapping[str, bytes]:
        del step
        return {}

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        return self._total, tuple(self._sites)


class Plain(SumScheme):
    """No protection: what each site adds is seen."""

    name: ClassVar[str] = "none"
    steps: ClassVar[int] = 1
    contributes_at: ClassVar[int] = 0

    def site_side(
        self,
        context: SumContext,
        name: str,
        streams: Streams,
        trust: Trust | None = None,
        keys: SessionKeys | None = None,
    ) -> SiteSide:
        """A site that sends its vector."""
        del context, name, streams, trust, keys
        return _Site()

    def hub_side(self, context: SumContext, groups: Sequence[tuple[str, ...]] = ()) -> HubSide:
        """A hub that adds."""
        del groups
        return _Hub(context)

    def claim(self, sites: int, rows: int, *, colluders: int = 1) -> Guarantee:
        """The vector itself."""
        del sites, colluders
        return Aggregate(rows=rows)


SCHEME = Plain()
