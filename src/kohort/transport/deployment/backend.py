"""Sites on other machines as the backend of a run: the hub's own rows, its engine, and what ends a run under way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Protocol

import numpy as np
import polars as pl

from kohort.crypto.identity.keys import public_text
from kohort.crypto.identity.signers import signer_of
from kohort.crypto.identity.user import remember_signer
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.crypto.sums.scheme import KEY_HOLDER
from kohort.errors import ConfigError, IntegrityError
from kohort.files import write_atomic
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.hub import Ask
from kohort.protocol.key_holder import needs_key_holder
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rng import Streams
from kohort.runs.agreed import usable_rows
from kohort.runs.backend import RunContext
from kohort.runs.config import Plan
from kohort.runs.simulation import Population
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.frames import check_finite
from kohort.tables.item_sets import with_item_sets
from kohort.transport.deployment.files import Registration
from kohort.transport.deployment.site_run import check_table, hub_schema
from kohort.transport.flower.run import FlowerRun
from kohort.transport.remote_engine import RemoteEngine, SiteReceipts

__all__ = ["DEADLINE", "FlowerBackend"]

DEADLINE = 600.0
"""Seconds a site has for an answer when the plan names none."""


class HubPlace(Protocol):
    """What a run needs of the hub's folder."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def sites(self) -> dict[str, Registration]:
        """Every registered site, by name."""
        ...

    def registered(self) -> tuple[tuple[str, int, int], ...]:
        """What changes whenever a registration does."""
        ...


@dataclass
class FlowerBackend:
    """Sites on other machines, reached through this hub's SuperLink."""

    hub: HubPlace
    run: FlowerRun
    identity: Identity
    everyone: Mapping[str, PublicIdentity]
    name: str = "flower"
    _began: float = field(default_factory=time)
    _registered: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        self._registered = self.hub.registered()

    @property
    def sites(self) -> dict[str, PublicIdentity]:
        """Who has rows."""
        return {name: identity for name, identity in self.everyone.items() if name != KEY_HOLDER}

    def check(self, plan: Plan) -> None:
        """Nothing is asked of the plan: real sites declare clusters and rows of low risk themselves."""
        del plan

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The hub's own rows: the test table, if the plan names one."""
        del streams
        if plan.data.validation is not None:
            raise ConfigError("a hub on Flower holds no training rows", hint="Drop data.validation and train.reject")
        opened = None
        if isinstance(plan.data.test, str):
            opened, _ = plan.data.table_mapping.apply(open_table(plan.data.test, plan.data.reading).frame)
            opened, _ = with_item_sets(opened, plan.data.items, plan.data.reading)
        schema = hub_schema(plan, None if opened is None else opened.columns)
        if schema.target is None:
            raise ConfigError("the plan names no target", hint="Set data.target to the column to predict")
        empty = pl.DataFrame(schema=dict.fromkeys(schema.columns, pl.String))
        test = empty
        if opened is not None:
            test = usable_rows(check_finite(check_table(opened, schema, "test")), schema, plan)
        notes: tuple[str, ...] = () if opened is not None else ("the hub has no test table, so nothing was measured",)
        if plan.sites.low_risk is not None or plan.sites.clusters is not None:
            notes += ("sites.low_risk and sites.clusters are for simulations: real sites said both in site.toml",)
        return Population(
            schema=schema,
            frame=empty,
            names=tuple(self.sites),
            starts=np.zeros(len(self.sites) + 1, dtype=np.int64),
            test=test,
            test_sites=None,
            notes=notes,
        )

    def hub_identity(self, streams: Streams) -> Identity | None:
        """The hub's own, which signs its ledger and results; remembered, so that they verify here."""
        del streams
        remember_signer(self.identity.public, f"hub {self.identity.name!r}, which ran here")
        return self.identity

    def engine(self, ready: RunContext) -> RemoteEngine:
        """An engine that sends messages to the sites."""
        signer, asked, approved = signer_of(self.identity), ready.plan.sites, ready.approved
        parties = self._parties(approved)
        return RemoteEngine(
            carrier=self.run,
            approved=approved,
            streams=ready.streams,
            hub=self.identity,
            sites=self.sites,
            parties=parties,
            plan=canonical(ready.plan.to_mapping()).encode(),
            peers="\n".join(public_text(site) for site in self.everyone.values()).encode(),
            ledger=ready.ledger,
            receipts=ready.receipts,
            quorum=asked.quorum,
            deadline=DEADLINE if asked.deadline is None else asked.deadline,
            site_receipts={
                name: SiteReceipts(name, signer=signer, folder=self.hub.path / "receipts" / name)
                for name in (*self.sites, *parties)
            },
            watch=lambda ask: self._note(approved, ask),
        )

    def _parties(self, approved: ApprovedPlan) -> dict[str, PublicIdentity]:
        if not needs_key_holder(approved):
            return {}
        if KEY_HOLDER not in self.everyone:
            raise ConfigError(
                "the plan's sums need a key-holder, and none is registered",
                hint=f"Make one with: kohort site init --name {KEY_HOLDER}; or use method.secure.sum = masks",
            )
        return {KEY_HOLDER: self.everyone[KEY_HOLDER]}

    def _note(self, approved: ApprovedPlan, ask: Ask) -> None:
        """What `kohort hub status` shows of a run that is under way; a run whose sites' keys changed ends."""
        self._check_registered()
        state = {
            "run": approved.run,
            "method": approved.method,
            "task": ask.task.name,
            "round": ask.round,
            "at": time(),
        }
        write_atomic(self.hub.path / "state" / "last.json", json.dumps({**state, "began": self._began}).encode())

    def _check_registered(self) -> None:
        """End a run in which a site was forgotten, revoked or given other keys since it began."""
        if self.hub.registered() == self._registered:
            return
        now = {name: item.site for name, item in self.hub.sites().items()}
        other = sorted(name for name, site in self.everyone.items() if now.get(name) != site)
        if other:
            raise IntegrityError(
                f"the keys of {', '.join(other)} were revoked, replaced or forgotten since the run began",
                hint="Start a new run with the sites that are registered now",
            )
        self._registered = self.hub.registered()
