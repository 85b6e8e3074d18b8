"""The synthetic federation all comparisons use, and kohort's own run of it: real engine, door, ledger and wire.

Twelve numbers in [0, 1], two classes, an MLP 12-12-2 and plain SGD. The domains are declared, so that the rows kohort
trains on are the very numbers the peers get; the order of rows is a function of site and round, so the peers can be
given that too, and all of them must end at the same weights.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.methods.registry import find_method
from kohort.models.dense.network import Network
from kohort.models.dense.training import row_order
from kohort.models.scoring import predict
from kohort.privacy.ledger.ledger import Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.protocol.engine import LocalEngine, drive
from kohort.protocol.enrolment import encoder_for, enrol
from kohort.protocol.hub import Hub, RoundEnd
from kohort.protocol.site import Site, SiteTable
from kohort.rng import Streams
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.simulation import schema_of
from kohort.tables.domain import declared_domain

__all__ = ["BATCH", "FEATURES", "HIDDEN", "LR", "NETWORK", "Federation", "Timed", "run_kohort"]

FEATURES, HIDDEN, CLASSES = 12, 12, 2
BATCH, LR = 32, 0.1
SEED = 7
NETWORK = Network(inputs=FEATURES, hidden=(HIDDEN,), outputs=CLASSES)

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """`sites` sites of `rows` rows each, and how long they train."""

    sites: int
    rows: int
    rounds: int

    @cached_property
    def x(self) -> Floats:
        """All rows, site after site."""
        generator = np.random.default_rng(SEED)
        made: Floats = generator.random((self.sites * self.rows, FEATURES), dtype=np.float32)
        return made

    @cached_property
    def y(self) -> Floats:
        """Classes that a curved and noisy border tells apart."""
        generator = np.random.default_rng(SEED + 1)
        centred = self.x - 0.5
        border = centred[:, :6].sum(axis=1) + 4 * centred[:, 6] * centred[:, 7]
        return (border + 0.2 * generator.standard_normal(len(border)) > 0).astype(np.float32)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows as the table kohort is given."""
        columns: dict[str, Any] = {f"f{index}": self.x[:, index] for index in range(FEATURES)}
        return pl.DataFrame({**columns, "label": np.where(self.y > 0, "yes", "no")})

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(f"site-{index:05d}" for index in range(self.sites))

    @cached_property
    def plan(self) -> Plan:
        """Federated averaging of this federation."""
        numbers = [f"f{index}" for index in range(FEATURES)]
        return load_plan(
            {
                "data": {
                    "table": "synthetic",
                    "target": "label",
                    "features": numbers,
                    "bounds": {name: [0.0, 1.0] for name in numbers},
                    "categories": {"label": ["no", "yes"]},
                },
                "model": {"kind": "mlp", "hidden": [HIDDEN]},
                "train": {"rounds": self.rounds, "batch": BATCH, "optimizer": "sgd", "lr": LR},
                "method": {"name": "fedavg"},
            }
        )

    @cached_property
    def start(self) -> Floats:
        """The weights kohort starts from."""
        streams = Streams(Streams.seeded(SEED).bytes("hub"), SEED)
        return NETWORK.start(streams.generator("start")).astype(np.float32)

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The keys of the sites' row orders."""
        return np.array([_site_streams(name).key("rows") for name in self.names], dtype=np.uint64)

    @cached_property
    def orders(self) -> NDArray[np.int64]:
        """[round, site, row]: the row each site reads at each place. Peers get them ready-made, outside the clock."""
        return np.array(
            [[row_order(int(key), number, 0, self.rows) for key in self.keys] for number in range(self.rounds)]
        )

    def accuracy(self, weights: Floats) -> float:
        """Share of right classes over all rows."""
        return float((predict(NETWORK, weights, self.x) == self.y).mean())


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a run gave and took. `rounds` are the seconds of each; `total` is the run with all it needs to begin."""

    weights: Floats
    total: float
    rounds: list[float]

    @property
    def warm_round(self) -> float:
        """The best of all rounds but the first."""
        return min(self.rounds[1:])


def run_kohort(federation: Federation, folder: Path | None = None) -> Timed:
    """The whole run without evaluation: sites, approval, enrolment, encoding, rounds, sealed ledger on the disk."""
    plan, frame = federation.plan, federation.frame
    if folder is None:
        with TemporaryDirectory() as made:
            return run_kohort(federation, Path(made))
    gc.collect()
    began = perf_counter()
    engine, ledger, receipts = _assemble(plan, federation, frame, folder)
    method = find_method(plan.method)
    marks: list[float] = []
    latest: dict[str, Any] = {}

    def observe(mark: RoundEnd) -> None:
        marks.append(perf_counter())
        latest["weights"] = mark.model.weights

    agreed = engine.approve(lambda site: method.claims(plan.config, site.count))
    engine.declared = {name: site.count for name, site in engine.sites.items()}
    approved = engine.approved
    domain, rows, _ = drive(enrol(agreed, declared=declared_domain(approved.schema, missing=approved.missing)), engine)
    encoder = encoder_for(approved, domain)
    hub = Hub(
        sites=tuple(rows),
        rows=rows,
        encoder=encoder,
        network=approved.model.network(encoder),
        approved=approved,
        streams=Streams(engine.streams.bytes("hub"), SEED),
    )
    marks.append(perf_counter())
    drive(method.protocol(plan.config, hub), engine, observe=observe)
    ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    ledger.close()
    receipts.close()
    total = perf_counter() - began
    if engine.excluded:
        raise RuntimeError(f"{len(engine.excluded)} sites were excluded: {engine.excluded[0].reason}")
    return Timed(weights=latest["weights"], total=total, rounds=np.diff(marks).tolist())


def _assemble(
    plan: Plan, federation: Federation, frame: pl.DataFrame, folder: Path
) -> tuple[LocalEngine, Ledger, Receipts]:
    """Ledger, receipts, sites and engine, as `kohort.runs.run` makes them."""
    streams = Streams.seeded(SEED)
    schema = schema_of(plan.data, frame.columns, codebook=None, default=None)
    ledger = Ledger(signer=Signer.from_secret(streams.bytes("signer", "sites")), folder=folder / "ledger", run="bench")
    receipts = Receipts(signer=Signer.from_secret(streams.bytes("signer", "hub")), folder=folder / "ledger")
    sites = {
        name: Site(
            name=name,
            table=SiteTable(frame, index * federation.rows, (index + 1) * federation.rows),
            schema=schema,
            policy=plan.policy,
            streams=_site_streams(name),
            ledger=ledger,
        )
        for index, name in enumerate(federation.names)
    }
    approved = approved_plan_for(plan, schema=schema, run="bench", sites=federation.names)
    return LocalEngine(sites=sites, approved=approved, streams=streams, receipts=receipts), ledger, receipts


def _site_streams(name: str) -> Streams:
    return Streams(Streams.seeded(SEED).bytes("site", name), SEED)
