"""Carry a secure sum through requests and replies: the sites' side as a task, the hub's side as a sub-plan.

A method says which integers a site contributes; the scheme (none, masks, encryption) says how they are protected, and
the sites take it from the approved plan, not from the hub. Every message of the conversation is a release with the
scheme's own claim, so it passes the door and stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from kohort.errors import RefusedError, SiteError
from kohort.federation.plan import Ask, Expect, Hub, Mark, Replies
from kohort.federation.setting import Setting
from kohort.federation.site import Site
from kohort.federation.task import Release, Request, Task
from kohort.federation.training import setting_of
from kohort.federation.wire import Payload
from kohort.secure.sums import Integers, SiteSide, SumContext, find_scheme

__all__ = ["Total", "sum_task", "summed"]

LONGEST = 1 << 26


@dataclass(frozen=True)
class Total:
    """An opened sum and the sites whose vectors are in it."""

    values: Integers
    sites: tuple[str, ...]


def sum_task(
    name: str,
    contribute: Callable[[Site, Request, int], tuple[Integers, int]],
    *,
    scheme: Callable[[Setting], str],
    modulus: int = 0,
) -> Task:
    """A task through which a site takes part in a sum.

    `contribute(site, request, length)` gives its integers and the rows behind them; `scheme` reads the protection from
    the approved plan.
    """

    def one(site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        chosen = scheme(setting_of(site))
        side, context = _side(site, request, name, step, chosen, modulus)
        vector, rows = None, 0
        if step == find_scheme(chosen).contributes_at:
            vector, rows = contribute(site, request, context.length)
            if vector.shape != (context.length,):
                raise SiteError(f"task {name!r} gives {vector.size} numbers to a sum of {context.length}")
        blob = side.answer(step, request.payload.blobs["inbox"], vector)
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=side.claim(step, rows), rows=rows)

    return Task(name=name, one=one)


def summed(
    hub: Hub,
    task: Task,
    *,
    scheme: str,
    length: int,
    modulus: int = 0,
    round_number: int = 0,
    blobs: dict[str, bytes] | None = None,
) -> Generator[Ask | Mark, Any, Total]:
    """Run one sum over all enrolled sites and return the opened total. `blobs` go to every site with each step."""
    chosen = find_scheme(scheme)
    context = _context(hub.setting, task.name, round_number, hub.sites, length, modulus)
    side = chosen.hub_side(context)
    inboxes = dict.fromkeys(hub.sites, b"")
    names = "\n".join(hub.sites).encode()
    for step in range(chosen.steps):
        replies: Replies = yield Ask(
            task=task,
            to=tuple(inboxes),
            each={
                site: Payload(
                    metrics={"step": step, "length": length}, blobs={**(blobs or {}), "inbox": inbox, "sites": names}
                )
                for site, inbox in inboxes.items()
            },
            round=round_number,
            expect=Expect(blobs=("answer",)),
        )
        answers = {
            site: payload.blobs["answer"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)
        }
        inboxes = dict(side.route(step, answers))
    total, members = side.total()
    return Total(total, members)


def _context(
    setting: Setting, task: str, round_number: int, sites: tuple[str, ...], length: int, modulus: int
) -> SumContext:
    return SumContext(
        run=setting.run,
        round=round_number,
        request=f"{setting.plan_hash}:{task}",
        sites=sites,
        length=length,
        modulus=modulus,
    )


def _side(site: Site, request: Request, name: str, step: int, scheme: str, modulus: int) -> tuple[SiteSide, SumContext]:
    """The site's part of this sum: begun at the first step, remembered until the last."""
    place = f"sum:{name}:{request.round}"
    if step > 0:
        known = site.memory.get(place)
        if known is None:
            raise SiteError(f"site {site.name!r} was asked for step {step} of a sum that was not begun here")
        side, context = known
        return side, context
    length = int(request.payload.metrics["length"])
    if not 0 < length <= LONGEST:
        raise RefusedError(f"a sum of {length} numbers is out of range")
    sites = tuple(request.payload.blobs["sites"].decode(errors="replace").split("\n"))
    context = _context(setting_of(site), name, request.round, sites, length, modulus)
    side = find_scheme(scheme).site_side(context, site.name, site.streams)
    site.memory[place] = (side, context)
    return side, context
