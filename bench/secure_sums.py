"""What a secure sum by masks costs: the set-up once per run, each later sum per site, and the hub's part.

Hub and sites run in one process, and their CPU time is counted apart. Engine, doors, messages and ledgers are left out;
they have benchmarks of their own. Each site checks every signature itself, as it does where sites are apart.
"""

from __future__ import annotations

from time import process_time

import numpy as np

from bench.harness import Row
from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums import mask_keys
from kohort.crypto.sums.masks import SCHEME
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import SessionKeys, SumContext, Trust
from kohort.crypto.sums.session import SumSession
from kohort.rng import Streams

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "secure_sums"
LENGTH = 464
DROPPED = 0.1
SETUP_LIMITS = {500: 0.090}
SUM_LIMITS = {200: 0.010, 500: 0.030}
HUB_LIMITS = {500: 1.0}
MEASURED_SITES = 20
SUMMARY = (
    f"Secure sums by masks of {LENGTH} numbers modulo 2^61 - 1, CPU time on one core: the set-up once per run (keys, "
    "signatures, pair secrets; the best of several), each later sum per site (shares, masked vector, confirmations, "
    f"opening; the mean), and the hub's part with every site answering and with {DROPPED:.0%} of the sites dropping "
    "out after their shares."
)


def measure() -> list[Row]:
    """Set-up, sums and the hub's part, at the sizes that have limits."""
    Sites(5).sum(round_number=0)  # imports and first use are not what is measured
    rows = []
    for count, limit in SUM_LIMITS.items():
        sites = Sites(count)
        if count in SETUP_LIMITS:
            rows.append(_row(f"{count} sites, set-up, per site", sites.setup, SETUP_LIMITS[count]))
        sums = [sites.sum(round_number=number) for number in range(2)]
        rows.append(_row(f"{count} sites, one sum, per site", min(site for site, _ in sums), limit))
        if count in HUB_LIMITS:
            whole = min(hub for _, hub in sums)
            rows.append(_row(f"{count} sites, one sum, the hub's part", whole, HUB_LIMITS[count]))
            _, dropped = sites.sum(round_number=2, dropped=DROPPED)
            what = f"{count} sites, {DROPPED:.0%} drop out, the hub's part"
            rows.append(_row(what, dropped, HUB_LIMITS[count]))
    return rows


def _row(setting: str, seconds: float, limit: float) -> Row:
    return Row.within(setting, ours=seconds, peer="limit", theirs=limit, unit="s")


class Sites:
    """Sites that agreed on keys, and what that cost the quickest of some of them.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.names = tuple(f"site {place}" for place in range(count))
        identities = {name: Identity.from_secret(name, Streams.seeded(at).bytes("id")) for at, name in self._numbered()}
        known = {name: identity.public for name, identity in identities.items()}
        session = SumSession(run="bench", plan_hash="plan", members=self.names)
        self.streams = {name: Streams.seeded(place) for place, name in self._numbered()}
        self.trust = {name: Trust(identity, None, 3, known.get) for name, identity in identities.items()}
        self.keys: dict[str, SessionKeys] = {
            name: SCHEME.session_keys(session, name, self.streams[name], self.trust[name]) for name in self.names
        }
        message = SCHEME.gather({name: keys.announcement for name, keys in self.keys.items()})
        times = []
        for place, keys in enumerate(self.keys.values()):
            if place < MEASURED_SITES:  # the others may know a signature that was checked in this process
                mask_keys.is_signed.cache_clear()
            began = process_time()
            keys.agree(self.names, message)
            times.append(process_time() - began)
        self.setup = min(times[:MEASURED_SITES])

    def _numbered(self) -> list[tuple[int, str]]:
        return list(enumerate(self.names))

    def sum(self, *, round_number: int, dropped: float = 0.0) -> tuple[float, float]:
        """CPU seconds of one sum: per site, and at the hub."""
        context = SumContext(
            run="bench", round=round_number, request="plan:sum", sites=self.names, length=LENGTH, modulus=P61
        )
        generator = np.random.default_rng(round_number)
        vectors = {name: generator.integers(0, P61, LENGTH, dtype=np.uint64) for name in self.names}
        gone = frozenset(self.names[: int(dropped * len(self.names))])
        hub, inboxes = SCHEME.hub_side(context), dict.fromkeys(self.names, b"")
        at_sites, at_hub = 0.0, 0.0
        began = process_time()
        sides = {
            name: SCHEME.site_side(context, name, self.streams[name], self.trust[name], self.keys[name])
            for name in self.names
        }
        at_sites += process_time() - began
        for step in range(SCHEME.steps):
            answering = [name for name in inboxes if step < SCHEME.contributes_at or name not in gone]
            began = process_time()
            replies = {name: sides[name].reply(step, inboxes[name], vectors[name]) for name in answering}
            answered = process_time()
            for name, reply in replies.items():
                hub.take(step, name, reply)
            inboxes = dict(hub.inboxes(step))
            at_sites, at_hub = at_sites + answered - began, at_hub + process_time() - answered
        total, survivors = hub.total()
        wanted = np.sum([vectors[name].astype(object) for name in survivors], axis=0) % P61
        if len(survivors) != len(self.names) - len(gone) or total.tolist() != wanted.tolist():
            raise RuntimeError("what was measured did not give the right result")
        return at_sites / len(self.names), at_hub
