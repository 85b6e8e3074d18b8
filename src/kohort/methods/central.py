"""Central learning: every site ships its rows and the hub trains alone. The baseline federation is measured against.

Threat model: none. The hub, and whoever reads its disks, sees every row as it is.
Guarantee: Raw. A site takes part only if its policy says `raw = true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from kohort.federation.hubwork import HubTrainer
from kohort.federation.plan import Ask, Expect, Hub, Mark, Plan, Replies, Result
from kohort.federation.rounds import Patience
from kohort.federation.site import Site
from kohort.federation.tables import pack_table, unpack_table
from kohort.federation.task import Release, Request, Task
from kohort.federation.wire import Payload
from kohort.methods.registry import Method
from kohort.privacy.guarantee import Guarantee, Raw

__all__ = ["METHOD", "Central"]


@dataclass(frozen=True, kw_only=True)
class Central:
    """Nothing of its own: `[train]` rounds are the hub's epochs times `local_epochs`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field


def _ship(site: Site, request: Request) -> Release:
    del request
    frame = site.holding.rows().select(*site.schema.inputs, str(site.schema.target))
    payload = Payload(metrics={"rows": frame.height}, blobs={"table": pack_table(frame)})
    return Release(payload=payload, guarantee=Raw(rows=frame.height), rows=frame.height)


SHIP = Task(name="central.ship", one=_ship)


def plan(config: Central, hub: Hub) -> Plan:
    """Collect every row once, then train as a single participant on the rows in site order."""
    del config
    replies: Replies = yield Ask(task=SHIP, to=hub.sites, expect=Expect(metrics=("rows",), blobs=("table",)))
    columns = (*hub.setting.schema.inputs, str(hub.setting.schema.target))
    received = pl.concat(
        [unpack_table(payload.blobs["table"], expect=columns) for payload in replies.payloads()], how="vertical_relaxed"
    )
    trainer = HubTrainer(hub, received)
    weights = hub.network.start(hub.streams.generator("start"))
    train = hub.setting.train
    patience = Patience(train.stop)
    for round_number in range(train.rounds):
        weights, loss = trainer.train(weights, round_number)
        yield Mark(round=round_number, rounds=train.rounds, weights=weights, metrics=trainer.metrics(loss))
        if patience.is_over(loss):
            return Result(weights=weights, rounds=round_number + 1, stopped_by=patience.reason, received=received)
    return Result(weights=weights, rounds=train.rounds, stopped_by="rounds", received=received)


def claims(config: Central, rows: int) -> Sequence[Guarantee]:
    """A site gives away every row."""
    del config
    return (Raw(rows=rows),)


METHOD = Method(
    name="central",
    summary="Sites ship raw rows, the hub trains alone: the baseline.",
    config=Central,
    plan=plan,
    claims=claims,
    tasks=(SHIP,),
    cites="",
)
