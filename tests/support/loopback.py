"""A deployment in one process: the sites of a simulation behind the same letters, desks and ClientApps as on machines.

For tests and for trying a plan out: what works here works over Flower, and gives the very bits of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import polars as pl

from kohort.runs.config import PlanFile
from kohort.transport.deployment.site_run import Premises, open_chain, run_opener
from kohort.transport.deployment.files import signer_of
from kohort.transport.site_server import Desk
from kohort.transport.flower.app import LoopBack, client_app
from kohort.protocol.key_holder import needs_key_holder
from kohort.transport.remote_engine import Carrier, RemoteEngine, SiteReceipts
from kohort.transport.site_ledger import open_site_ledger
from kohort.transport.site_store import Numbers, RunStore
from kohort.privacy.ledger.ledger import canonical
from kohort.rng import Streams
from kohort.crypto.identity.keys import public_text
from kohort.crypto.sums.key_holder import KEY_HOLDER
from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity
from kohort.runs.simulation import Population, populate
from kohort.runs.backend import Groundwork

__all__ = ["LoopBackVenue"]


@dataclass
class LoopBackVenue:
    """Every simulated site behind a desk and a ClientApp of its own."""

    tables: dict[str, pl.DataFrame] | None = field(default=None, repr=False)
    folder: Path | None = None
    """Where each site keeps its files, as a real one does; None keeps everything in memory."""
    name: str = "loopback"
    desks: dict[str, Desk] = field(default_factory=dict)
    """The desks of the last run, to look at."""
    makers: dict[str, Callable[[], Desk]] = field(default_factory=dict, repr=False)
    """Makes a desk anew from what its site has on disk, as after a crash."""

    def populate(self, plan: PlanFile, streams: Streams) -> Population:
        """As in a simulation."""
        return populate(plan, streams, tables=self.tables)

    def carrier(self) -> Carrier:
        """What brings letters to the desks."""
        return LoopBack({name: client_app(desk.answer) for name, desk in self.desks.items()})

    def _place(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name

    def engine(self, ready: Groundwork) -> RemoteEngine:
        """An engine that writes letters to desks in this process."""
        plan, population, streams = ready.plan, ready.population, ready.streams
        hub = Identity.from_secret("hub", streams.bytes("hub identity"))
        parties = (KEY_HOLDER,) if needs_key_holder(ready.setting) else ()
        everyone = (*population.names, *parties)
        own = {name: Streams(streams.bytes("site", name), streams.seed) for name in everyone}
        identities = {name: Identity.from_secret(name, part.bytes("identity")) for name, part in own.items()}
        roster = Roster.of(identity.public for identity in identities.values())
        self.makers = {
            name: partial(_desk, hub, identities[name], own[name], roster, plan, population, index, self._place(name))
            for index, name in enumerate(everyone)
        }
        self.desks = {name: make() for name, make in self.makers.items()}
        return RemoteEngine(
            carrier=self.carrier(),
            setting=ready.setting,
            streams=streams,
            hub=hub,
            sites={name: identities[name].public for name in population.names},
            parties={name: identities[name].public for name in parties},
            plan=canonical(plan.to_mapping()).encode(),
            peers="\n".join(public_text(identity.public) for identity in identities.values()).encode(),
            book=ready.book,
            receipts=ready.receipts,
            quorum=plan.sites.quorum,
            deadline=inf if plan.sites.deadline is None else plan.sites.deadline,
            site_receipts={name: SiteReceipts(name, signer=signer_of(hub)) for name in identities},
        )


def _desk(
    hub: Identity,
    identity: Identity,
    streams: Streams,
    roster: Roster,
    plan: PlanFile,
    population: Population,
    index: int,
    place: Path | None,
) -> Desk:
    is_site = identity.name != KEY_HOLDER
    start, stop = population.starts.tolist()[index : index + 2] if is_site else (0, 0)
    low = None if population.low is None or not is_site else int(population.low[index])
    signer = signer_of(identity)
    book, receipts = open_site_ledger(
        None if place is None else place / "ledger", signer=signer, hub_key=hub.public.signing.hex()
    )
    premises = Premises(
        identity=identity,
        frame=population.frame.slice(start, stop - start),
        schema=population.schema,
        policy=plan.policy,
        roster=roster,
        streams=lambda _: streams,
        low=low,
        low_by_row=population.low_by_row,
    )
    open_chain(premises, book, streams.bytes("ledger"))
    stores: dict[tuple[str, str], RunStore] = {}

    def store_for(run: str, plan_hash: str) -> RunStore:
        folder = None if place is None else place / "runs" / f"{run}-{plan_hash[:16]}"
        return stores.setdefault((run, plan_hash), RunStore(folder, forgets=not is_site))

    return Desk(
        identity=identity,
        hub=hub.public,
        book=book,
        receipts=receipts,
        open_run=run_opener(premises, book),
        store_for=store_for,
        numbers=Numbers(None if place is None else place / "numbers"),
    )
