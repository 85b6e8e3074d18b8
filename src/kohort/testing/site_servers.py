"""The sites of a small federation behind the servers that real sites run, in this process.

A request becomes a message that the hub signs, and a reply one that the site signs, as in a deployment; only machines
are missing. Each server can be made anew: from nothing, or from what its site has on disk, as after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import polars as pl

from kohort.crypto.identity.keys import public_text
from kohort.crypto.identity.roster import Roster
from kohort.crypto.sealed import Identity
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.openings import OpeningBook
from kohort.privacy.releases import ReleaseAccount
from kohort.protocol.key_holder import needs_key_holder
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rng import Streams
from kohort.runs.backend import RunContext
from kohort.runs.config import Plan
from kohort.runs.plan_faults import require_complete
from kohort.runs.simulation import Population, populate
from kohort.transport.deployment.files import signer_of
from kohort.transport.deployment.site_run import SiteResources, open_chain, run_opener
from kohort.transport.high_water import MARK_FILE, HighWater
from kohort.transport.peer_heads import PeerHeads
from kohort.transport.remote_engine import Carrier, RemoteEngine, SiteReceipts
from kohort.transport.site_ledger import open_site_ledger
from kohort.transport.site_server import SiteServer
from kohort.transport.site_store import AnsweredRequests, ReplayGuard, RunStore

__all__ = ["DirectCarrier", "ServedSites", "serve"]


@dataclass(frozen=True)
class DirectCarrier:
    """Hands messages to site servers in this process."""

    servers: Mapping[str, SiteServer]

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Every site replies at once; see `Carrier.carry`."""
        del deadline
        return {name: self.servers[name].reply(data) for name, data in messages.items()}, {}


@dataclass
class ServedSites:
    """A backend for `kohort.run`: every site of the plan behind a server of its own."""

    tables: dict[str, pl.DataFrame] | None = field(default=None, repr=False)
    folder: Path | None = None
    """Where each site keeps its files, as a real one does; None keeps everything in memory."""
    name: str = "served"
    read_again: Callable[[str], pl.DataFrame] | None = field(default=None, repr=False)
    """Reads the table of a site, by its name, as it is now; None where tables stay as they are."""
    site_servers: dict[str, SiteServer] = field(default_factory=dict, repr=False)
    """The servers of the last run."""
    makers: dict[str, partial[SiteServer]] = field(default_factory=dict, repr=False)
    """Makes a site's server anew from what the site has on disk, as after a crash."""
    hub: Identity | None = field(default=None, repr=False)
    """The hub of the last run."""
    identities: dict[str, Identity] = field(default_factory=dict, repr=False)
    """The identities of its sites, and of its key-holder."""
    approved: ApprovedPlan | None = field(default=None, repr=False)
    """What was approved in the last run."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that lacks what its method needs, as a simulation does.

        Args:
            plan: The plan.

        Raises:
            ConfigError: A key is missing.
        """
        require_complete(plan)

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The rows of a simulation.

        Args:
            plan: The plan.
            streams: The run's randomness.

        Returns:
            The rows by site.
        """
        return populate(plan, streams, tables=self.tables)

    def carrier(self) -> Carrier:
        """What brings messages to the servers.

        Returns:
            The carrier.
        """
        return DirectCarrier(self.site_servers)

    def hub_identity(self, streams: Streams) -> Identity | None:
        """The hub's keys, from the run's seed.

        Args:
            streams: The run's randomness.

        Returns:
            The identity.
        """
        return Identity.from_secret("hub", streams.bytes("hub identity"))

    def engine(self, ready: RunContext) -> RemoteEngine:
        """An engine that writes messages to servers in this process.

        Args:
            ready: What the run has made ready.

        Returns:
            The engine.
        """
        plan, population, streams = ready.plan, ready.population, ready.streams
        hub = self.hub = Identity.from_secret("hub", streams.bytes("hub identity"))
        parties = (KEY_HOLDER,) if needs_key_holder(ready.approved) else ()
        everyone = (*population.names, *parties)
        own = {name: Streams(streams.bytes("site", name), streams.seed) for name in everyone}
        identities = {name: Identity.from_secret(name, part.bytes("identity")) for name, part in own.items()}
        roster = Roster.of(identity.public for identity in identities.values())
        self.identities, self.approved = identities, ready.approved
        self.makers = {
            name: partial(
                serve,
                hub,
                identities[name],
                streams=own[name],
                roster=roster,
                plan=plan,
                population=population,
                folder=None if self.folder is None else self.folder / name,
                read_again=None if self.read_again is None else partial(self.read_again, name),
            )
            for name in everyone
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


def serve(
    hub: Identity,
    identity: Identity,
    *,
    streams: Streams,
    roster: Roster,
    plan: Plan,
    population: Population,
    folder: Path | None = None,
    read_again: Callable[[], pl.DataFrame] | None = None,
) -> SiteServer:
    """The server of one site, or of the key-holder, with its part of a population's rows.

    Args:
        hub: Whose messages it answers.
        identity: The site's keys, under its name in the population.
        streams: Its randomness.
        roster: Whom it trusts.
        plan: Where its policy comes from.
        population: All rows; it gets its own.
        folder: Where it keeps its files; None keeps everything in memory.
        read_again: Reads its table as it is now; None where it stays as it is.

    Returns:
        The server.
    """
    is_site = identity.name != KEY_HOLDER
    index = population.names.index(identity.name) if is_site else 0
    start, stop = population.starts.tolist()[index : index + 2] if is_site else (0, 0)
    frame = population.frame.slice(start, stop - start)
    ledger, receipts = open_site_ledger(
        None if folder is None else folder / "ledger", signer=signer_of(identity), hub_key=hub.public.signing.hex()
    )
    resources = SiteResources(
        identity=identity,
        frame=frame,
        read_again=read_again or (lambda: frame),
        schema=population.schema,
        policy=plan.policy,
        roster=lambda: roster,
        streams=lambda _: streams,
        low=None if population.low is None or not is_site else int(population.low[index]),
        low_by_row=population.low_by_row,
        openings=OpeningBook(None if folder is None else folder / "openings.jsonl"),
        releases=ReleaseAccount(None if folder is None else folder / "releases.jsonl"),
        book=KeyBook(None if folder is None or is_site else folder / "openings"),
    )
    high_water = HighWater(() if folder is None else (folder / MARK_FILE,))
    high_water.check(identity.name, ledger.hashes)
    open_chain(resources, ledger, streams.bytes("ledger"))
    stores: dict[tuple[str, str], RunStore] = {}

    def store_for(run: str, plan_hash: str) -> RunStore:
        own = None if folder is None else folder / "runs" / f"{run}-{plan_hash[:16]}"
        return stores.setdefault((run, plan_hash), RunStore(own, forgets=not is_site))

    return SiteServer(
        identity=identity,
        hub=hub.public,
        ledger=ledger,
        receipts=receipts,
        open_run=run_opener(resources, ledger),
        store_for=store_for,
        replay_guard=ReplayGuard(None if folder is None else folder / "numbers"),
        answered=AnsweredRequests(None if folder is None else folder / "answered"),
        high_water=high_water,
        peer_heads=PeerHeads(None if folder is None else folder / "peers.heads"),
    )
