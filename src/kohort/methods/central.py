"""Central learning, without a paper of its own: every site sends its rows, and the hub trains alone. It is the baseline
that federated methods are compared with.

Threat model: none. The hub, and whoever reads its disks, sees every row as it is.

Guarantee: Raw. A site takes part only if its policy says `raw = true`.

Sharp edges: rows that were sent cannot be taken back, and the policy is the only protection there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kohort.errors import IntegrityError
from kohort.methods.registry import Method
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Guarantee, Raw
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.reads import FEDERATED_ROUNDS, NETWORK, SELECTION, Reads
from kohort.protocol.site import Site
from kohort.protocol.table_payload import pack_table, unpack_table
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.hub_training import HubTrainer
from kohort.rounds.loop import TrainingGroup, federated_rounds

__all__ = ["METHOD", "Central"]


@dataclass(frozen=True, kw_only=True)
class Central:
    """No keys of its own. In each of the `[train]` rounds the hub trains `local_epochs` epochs."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field


def _ship(site: Site, request: Request) -> Release:
    del request
    allowed = site.may_leave()
    sent = np.ones(site.count, dtype=bool) if allowed is None else allowed
    frame = site.table.rows().filter(pl.Series(sent)).select(*site.schema.inputs, str(site.schema.target))
    payload = Payload(metrics={"rows": frame.height}, blobs={"table": pack_table(frame)})
    return Release(payload=payload, guarantee=Raw(rows=frame.height), rows=frame.height, sent=sent)


SHIP = Task(name="central.ship", one=_ship)


def protocol(config: Central, hub: Hub) -> ProtocolGenerator:
    """Collect all rows, in site order, then train on them at the hub.

    Raises:
        IntegrityError: A site sent another number of rows than it announced.
    """
    del config
    columns = (*hub.approved.schema.inputs, str(hub.approved.schema.target))

    def table_in(payload: Payload) -> pl.DataFrame:
        table = unpack_table(payload.blobs["table"], expect=columns)
        if table.height != payload.metrics["rows"]:
            raise IntegrityError("a table came in with another number of rows than it was announced with")
        return table

    expect = Expect(metrics=("rows",), blobs=("table",), check=table_in)
    replies: Replies = yield Ask(task=SHIP, to=hub.sites, expect=expect)
    received = pl.concat([table_in(payload) for payload in replies.payloads()], how="vertical_relaxed")
    weights = hub.network.start(hub.streams.generator("start"))
    ended = yield from federated_rounds(
        hub, weights, group=TrainingGroup(sites=(), participant=HubTrainer(hub, received))
    )
    return Result(
        model=hub.model_of(ended.weights), rounds=ended.rounds, stopped_by=ended.stopped_by, received=received
    )


def claims(config: Central, rows: int) -> Sequence[Guarantee]:
    """What a site with `rows` rows discloses: every row as it is."""
    del config
    return (Raw(rows=rows),)


def contract(approved: ApprovedPlan) -> Contract:
    """All rows, once."""
    del approved
    return Contract.of([Step(task=SHIP.name, says="all your rows, as they are", claims=(Raw(rows=0),), rows=True)])


def reads(config: Central) -> Reads:
    """No site trains, so none is chosen, and no update is judged against others."""
    del config
    return Reads(FEDERATED_ROUNDS - SELECTION - {"train.reject"} | NETWORK)


METHOD = Method(
    name="central",
    summary="Sites ship raw rows, the hub trains alone: the baseline.",
    config=Central,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="",
    reads=reads,
)
