"""A deployment on disk, hub and sites in their folders, whose messages travel in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kohort.crypto.identity.keys import load_identity
from kohort.errors import KohortError
from kohort.runs.config import read_plan
from kohort.runs.run import Outcome, run
from kohort.transport.deployment.files import Invitation, Registration
from kohort.transport.deployment.hub import FlowerBackend, HubFolder
from kohort.transport.deployment.site import SiteFolder

PLAN = """
[data]
table = "at the sites"
target = "outcome"
features = ["dose", "ward"]
bounds = {dose = [-5, 5]}
categories = {ward = ["x", "y"], outcome = ["ill", "well"]}

[sites]
split = "files"
quorum = 0.3

[method]
name = "fedavg"

[model]
hidden = []

[train]
rounds = 2
"""
NAMES = ("east", "north", "south")


class Servers:
    """Carries messages to the sites' servers, which are made from their folders for each exchange, as after a crash."""

    def __init__(self, sites: Mapping[str, SiteFolder]) -> None:
        self.sites = sites
        self.broken: dict[str, KohortError] = {}

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        del deadline
        came, missing = {}, {}
        for name, message in messages.items():
            try:
                server = self.sites[name].site_server()
            except KohortError as error:
                self.broken[name] = error
                missing[name] = "not connected"
                continue
            try:
                came[name] = server.reply(message)
                if server.broken is not None:
                    self.broken[name] = server.broken
            finally:
                server.close()
        return came, missing


def few_rows() -> dict[str, pl.DataFrame]:
    """The tables of three sites that fit `PLAN`."""
    made = {}
    for number, name in enumerate(NAMES):
        random = np.random.default_rng(number)
        dose = random.normal(size=120).clip(-5, 5)
        ill = np.where(dose > 0, "ill", "well")
        made[name] = pl.DataFrame({"dose": dose, "ward": random.choice(["x", "y"], 120), "outcome": ill})
    return made


@dataclass(frozen=True)
class Deployed:
    """A hub, its sites, and how to run the plan."""

    folder: Path
    hub: HubFolder
    sites: dict[str, SiteFolder]

    @classmethod
    def make(cls, folder: Path, *, plan: str = PLAN, tables: Mapping[str, pl.DataFrame] | None = None) -> Deployed:
        """A hub and its sites; of three sites with a few rows each, if no tables are given."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.toml").write_text(plan)
        hub = HubFolder.init(folder / "hub", address="127.0.0.1:9", insecure=True)
        sites = {}
        for name, table in (few_rows() if tables is None else tables).items():
            table.write_csv(folder / f"{name}.csv")
            sites[name] = SiteFolder.init(
                folder / name,
                name=name,
                table=folder / f"{name}.csv",
                invitation=Invitation.read(hub.path / "invitation.json"),
                plan=read_plan(folder / "plan.toml"),
            )
            hub.add(Registration.read(sites[name].path / "registration.json"))
            sites[name].approvals.approve(read_plan(folder / "plan.toml").digest())
        for site in sites.values():
            for name, item in hub.sites().items():
                site.trust(name, item.site.fingerprint)
        return cls(folder, hub, sites)

    def backend(self, servers: Any = None) -> FlowerBackend:
        """The sites as a run reaches them."""
        identity = load_identity(self.hub.path / "identity.key")
        everyone = {name: item.site for name, item in self.hub.sites().items()}
        carrier: Any = servers or Servers(self.sites)
        return FlowerBackend(hub=self.hub, run=carrier, identity=identity, everyone=everyone)

    def run(self, out: str, *, seed: int, servers: Any = None) -> Outcome:
        backend = self.backend(servers)
        return run(read_plan(self.folder / "plan.toml"), out=self.folder / out, seed=seed, backend=backend)
