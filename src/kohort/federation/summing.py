"""Carry a secure sum through requests and replies: the sites' side as a task, the hub's side as a sub-plan.

A method says which vector a site contributes; the scheme (none, masks, encryption) says how it is protected. Every
message of the conversation is a release with the scheme's own claim, so it passes the door and stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import SiteError
from kohort.federation.plan import Ask, Expect, Hub, Mark, Replies
from kohort.federation.site import Site
from kohort.federation.task import Release, Request, Task
from kohort.federation.training import setting_of
from kohort.federation.wire import Payload
from kohort.secure.sums import FixedPoint, SiteSide, SumContext, find_scheme

__all__ = ["Total", "sum_task", "summed"]

Contribution = tuple[NDArray[Any], int]


@dataclass(frozen=True)
class Total:
    """An opened sum and the sites whose vectors are in it."""

    values: NDArray[np.float64]
    sites: tuple[str, ...]


def sum_task(name: str, contribute: Callable[[Site, Request], Contribution]) -> Task:
    """A task through which a site takes part in a sum; `contribute` gives its vector and the rows behind it."""

    def one(site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        side, context = _side(site, request, name, step)
        scheme = find_scheme(_text(request, "scheme"))
        vector, rows = None, 0
        if step == scheme.contributes_at:
            values, rows = contribute(site, request)
            if values.shape != (context.length,):
                raise SiteError(f"task {name!r} gives {values.size} numbers to a sum of {context.length}")
            vector = context.fixed.encode(values)
        blob = side.answer(step, request.payload.blobs["inbox"], vector)
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=side.claim(step, rows), rows=rows)

    return Task(name=name, one=one)


def summed(
    hub: Hub, task: Task, *, scheme: str, length: int, bound: float, scale: float, round_number: int = 0
) -> Generator[Ask | Mark, Any, Total]:
    """Run one sum over all enrolled sites and return the opened total."""
    chosen = find_scheme(scheme)
    fixed = FixedPoint(bound=bound, scale=scale, sites=len(hub.sites))
    context = SumContext(
        run=hub.setting.run,
        round=round_number,
        request=f"{hub.setting.plan_hash}:{task.name}",
        sites=hub.sites,
        length=length,
        fixed=fixed,
    )
    side = chosen.hub_side(context)
    inboxes = dict.fromkeys(hub.sites, b"")
    for step in range(chosen.steps):
        replies: Replies = yield Ask(
            task=task,
            to=tuple(inboxes),
            each={site: _message(step, inbox, context, scheme) for site, inbox in inboxes.items()},
            round=round_number,
            expect=Expect(blobs=("answer",)),
        )
        answers = {
            site: payload.blobs["answer"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)
        }
        inboxes = dict(side.route(step, answers))
    total, members = side.total()
    return Total(fixed.decode(total), members)


def _message(step: int, inbox: bytes, context: SumContext, scheme: str) -> Payload:
    return Payload(
        metrics={"step": step, "length": context.length, "bound": context.fixed.bound, "scale": context.fixed.scale},
        blobs={"inbox": inbox, "scheme": scheme.encode(), "sites": "\n".join(context.sites).encode()},
    )


def _text(request: Request, name: str) -> str:
    return request.payload.blobs[name].decode(errors="replace")


def _side(site: Site, request: Request, name: str, step: int) -> tuple[SiteSide, SumContext]:
    """The site's part of this sum: begun at the first step, remembered until the last."""
    place = f"sum:{name}:{request.round}"
    if step > 0:
        known = site.memory.get(place)
        if known is None:
            raise SiteError(f"site {site.name!r} was asked for step {step} of a sum that was not begun here")
        side, context = known
        return side, context
    sites = tuple(_text(request, "sites").split("\n"))
    metrics = request.payload.metrics
    context = SumContext(
        run=setting_of(site).run,
        round=request.round,
        request=f"{setting_of(site).plan_hash}:{name}",
        sites=sites,
        length=int(metrics["length"]),
        fixed=FixedPoint(bound=float(metrics["bound"]), scale=float(metrics["scale"]), sites=len(sites)),
    )
    side = find_scheme(_text(request, "scheme")).site_side(context, site.name, site.streams)
    site.memory[place] = (side, context)
    return side, context
