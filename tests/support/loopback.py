"""A deployment in one process: the sites of a simulation behind the same messages, servers and ClientApps.

For tests and for trying a plan out: what works here works over Flower, and gives the very bits of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import polars as pl

from kohort.crypto.identity.keys import public_text
from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.key_holder import needs_key_holder
from kohort.rng import Streams
from kohort.runs.backend import RunContext
from kohort.runs.config import Plan
from kohort.runs.simulation import Population, populate
from kohort.transport.deployment.files import signer_of
from kohort.transport.deployment.site_run import SiteResources, open_chain, run_opener
from kohort.transport.flower.client_app import client_app, message_bytes, message_content
from kohort.transport.remote_engine import Carrier, RemoteEngine, SiteReceipts
from kohort.transport.site_ledger import open_site_ledger
from kohort.transport.site_server import SiteServer
from kohort.transport.site_store import ReplayGuard, RunStore

__all__ = ["LoopBack", "LoopBackBackend"]


@dataclass(frozen=True)
class LoopBack:
    """Carries messages to ClientApps in this process: what a federation does, without machines."""

    apps: Mapping[str, Any]

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Every site replies at once."""
        del deadline
        from flwr.app import Context, Message, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        replies = {}
        for number, (name, data) in enumerate(messages.items(), 1):
            message = Message(message_content(data), dst_node_id=number, message_type="query")
            context = Context(run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={}, series_id=1)
            replies[name] = message_bytes(self.apps[name](message, context))
        return replies, {}


@dataclass
class LoopBackBackend:
    """Every simulated site behind a site_server and a ClientApp of its own."""

    tables: dict[str, pl.DataFrame] | None = field(default=None, repr=False)
    folder: Path | None = None
    """Where each site keeps its files, as a real one does; None keeps everything in memory."""
    name: str = "loopback"
    site_servers: dict[str, SiteServer] = field(default_factory=dict)
    """The site_servers of the last run, to look at."""
    makers: dict[str, Callable[[], SiteServer]] = field(default_factory=dict, repr=False)
    """Makes a site_server anew from what its site has on disk, as after a crash."""

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """As in a simulation."""
        return populate(plan, streams, tables=self.tables)

    def carrier(self) -> Carrier:
        """What brings messages to the site_servers."""
        return LoopBack({name: client_app(site_server.reply) for name, site_server in self.site_servers.items()})

    def _place(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name

    def engine(self, ready: RunContext) -> RemoteEngine:
        """An engine that writes messages to site_servers in this process."""
        plan, population, streams = ready.plan, ready.population, ready.streams
        hub = Identity.from_secret("hub", streams.bytes("hub identity"))
        parties = (KEY_HOLDER,) if needs_key_holder(ready.approved) else ()
        everyone = (*population.names, *parties)
        own = {name: Streams(streams.bytes("site", name), streams.seed) for name in everyone}
        identities = {name: Identity.from_secret(name, part.bytes("identity")) for name, part in own.items()}
        roster = Roster.of(identity.public for identity in identities.values())
        self.makers = {
            name: partial(
                _site_server, hub, identities[name], own[name], roster, plan, population, index, self._place(name)
            )
            for index, name in enumerate(everyone)
        }
        self.site_servers = {name: make() for name, make in self.makers.items()}
        return RemoteEngine(
            carrier=self.carrier(),
            approved=ready.approved,
            streams=streams,
            hub=hub,
            sites={name: identities[name].public for name in population.names},
            parties={name: identities[name].public for name in parties},
            plan=canonical(plan.to_mapping()).encode(),
            peers="\n".join(public_text(identity.public) for identity in identities.values()).encode(),
            ledger=ready.ledger,
            receipts=ready.receipts,
            quorum=plan.sites.quorum,
            deadline=inf if plan.sites.deadline is None else plan.sites.deadline,
            site_receipts={name: SiteReceipts(name, signer=signer_of(hub)) for name in identities},
        )


def _site_server(
    hub: Identity,
    identity: Identity,
    streams: Streams,
    roster: Roster,
    plan: Plan,
    population: Population,
    index: int,
    place: Path | None,
) -> SiteServer:
    is_site = identity.name != KEY_HOLDER
    start, stop = population.starts.tolist()[index : index + 2] if is_site else (0, 0)
    low = None if population.low is None or not is_site else int(population.low[index])
    signer = signer_of(identity)
    ledger, receipts = open_site_ledger(
        None if place is None else place / "ledger", signer=signer, hub_key=hub.public.signing.hex()
    )
    resources = SiteResources(
        identity=identity,
        frame=population.frame.slice(start, stop - start),
        schema=population.schema,
        policy=plan.policy,
        roster=roster,
        streams=lambda _: streams,
        low=low,
        low_by_row=population.low_by_row,
        book=KeyBook(None if place is None or is_site else place / "openings"),
    )
    open_chain(resources, ledger, streams.bytes("ledger"))
    stores: dict[tuple[str, str], RunStore] = {}

    def store_for(run: str, plan_hash: str) -> RunStore:
        folder = None if place is None else place / "runs" / f"{run}-{plan_hash[:16]}"
        return stores.setdefault((run, plan_hash), RunStore(folder, forgets=not is_site))

    return SiteServer(
        identity=identity,
        hub=hub.public,
        ledger=ledger,
        receipts=receipts,
        open_run=run_opener(resources, ledger),
        store_for=store_for,
        replay_guard=ReplayGuard(None if place is None else place / "numbers"),
    )
