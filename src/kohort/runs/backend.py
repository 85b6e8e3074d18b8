"""Where a plan is carried out: whose rows there are, and the engine that reaches them.

A backend is all that `runs.run` needs to know about engines. This file holds the one where every site lies in this
process; `kohort.transport.deployment.hub` has the one where sites are other machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import polars as pl

from kohort.crypto.identity.parties import Identity
from kohort.errors import ConfigError
from kohort.privacy.ledger.ledger import Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.protocol.engine import Engine, LocalEngine
from kohort.protocol.key_holder import needs_key_holder, simulated_key_holder
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.arrival import parse_arrival
from kohort.protocol.site import Site, SiteTable
from kohort.rng import Streams
from kohort.runs.config import Plan
from kohort.runs.plan_faults import require_complete
from kohort.runs.simulation import Population, populate

__all__ = ["Backend", "RunContext", "Simulation", "simulated_sites"]


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a run has made ready before it reaches any site."""

    plan: Plan
    population: Population = field(repr=False)
    approved: ApprovedPlan
    streams: Streams = field(repr=False)
    ledger: Ledger
    receipts: Receipts


class Backend(Protocol):
    """Where a plan is carried out."""

    @property
    def name(self) -> str:
        """What `--engine` calls it."""
        ...

    def check(self, plan: Plan) -> None:
        """Refuse a plan that lacks what its method needs here, before anything is read."""
        ...

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The rows this process holds: all of them in a simulation, the hub's own in a deployment."""
        ...

    def hub_identity(self, streams: Streams) -> Identity | None:
        """Who signs the run's ledger and results: the hub. None in a simulation, which the user signs."""
        ...

    def engine(self, ready: RunContext) -> Engine:
        """An engine that reaches the sites."""
        ...


@dataclass(frozen=True)
class Simulation:
    """Every site in this process. `tables` replaces the plan's table; `many=False` asks sites one by one."""

    tables: dict[str, pl.DataFrame] | None = field(default=None, repr=False)
    many: bool = True
    name: str = "local"

    def check(self, plan: Plan) -> None:
        """All that its method needs is in the plan: nobody else declares it. Simulated sites have no tables to append
        to."""
        require_complete(plan)
        arrival = parse_arrival(plan.sites.arrive)
        if arrival is not None and arrival.appended:
            raise ConfigError(
                "rows that are appended are for sites with tables of their own",
                hint='Run it over real sites, or simulate it with sites.arrive = "20%/10 rounds"',
            )

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """Read, check, hold out and deal out."""
        return populate(plan, streams, tables=self.tables)

    def hub_identity(self, streams: Streams) -> Identity | None:
        """Nobody's: hub and sites are in this process."""
        del streams
        return None

    def engine(self, ready: RunContext) -> LocalEngine:
        """The engine that calls the sites directly."""
        asked = ready.plan.sites
        sites = simulated_sites(ready.population, ready.plan, ready.streams, ready.ledger)
        return LocalEngine(
            sites=sites,
            parties=_parties(ready, frozenset(sites)),
            approved=ready.approved,
            streams=ready.streams,
            receipts=ready.receipts,
            quorum=asked.quorum,
            deadline=inf if asked.deadline is None else asked.deadline,
            many=self.many,
        )


def _parties(ready: RunContext, sites: frozenset[str]) -> dict[str, Site]:
    """Who else a simulated run needs: a key-holder where sums are encrypted."""
    if not needs_key_holder(ready.approved):
        return {}
    holder = simulated_key_holder(
        schema=ready.approved.schema, policy=ready.plan.policy, streams=ready.streams, ledger=ready.ledger, sites=sites
    )
    return {holder.name: holder}


def simulated_sites(population: Population, plan: Plan, streams: Streams, ledger: Ledger) -> dict[str, Site]:
    """The sites of a simulation, each with its part of the one frame, its own streams and its chain in `ledger`.

    Args:
        population: The rows of all sites, in one frame.
        plan: The plan; its policy is every site's own.
        streams: Randomness of the run, from which each site's streams are derived by its name.
        ledger: Where every release is written.

    Returns:
        The sites by name. They share the frame without a copy.
    """
    bounds = population.starts.tolist()
    return {
        name: Site(
            name=name,
            table=SiteTable(
                population.frame,
                bounds[index],
                bounds[index + 1],
                low=None if population.low is None else int(population.low[index]),
                low_by_row=population.low_by_row,
            ),
            schema=population.schema,
            policy=plan.policy,
            streams=Streams(streams.bytes("site", name), streams.seed),
            ledger=ledger,
        )
        for index, name in enumerate(population.names)
    }
