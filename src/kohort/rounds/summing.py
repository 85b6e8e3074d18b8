"""Carry a secure sum through requests and replies: the sites' side as a task, the hub's side as a sub-plan.

A method says which integers a site contributes; the scheme (none, masks, encryption) says how they are protected, and
the sites take it from the approved plan, not from the hub. Every message of the conversation is a release with the
scheme's own claim, so it passes the door and stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kohort.crypto.sums.encrypted import EncryptedSum, join
from kohort.crypto.sums.scheme import Integers, SiteSide, SumContext, SumScheme, find_scheme
from kohort.errors import ConfigError, IntegrityError, SiteError
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.key_holder import KEYS, OPEN, sum_context, trust_of
from kohort.protocol.plan import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload

__all__ = ["Total", "first_step", "sum_task", "summed"]


@dataclass
class SumState(TaskState):
    """A site's part in the sums of a run."""

    sides: dict[tuple[str, int], tuple[SiteSide, SumContext]] = field(default_factory=dict)
    """The sums under way, by task and round."""
    begun: set[bytes] = field(default_factory=set)
    """Transcripts of all sums that were begun: no sum of several steps begins twice."""


@dataclass(frozen=True)
class Total:
    """An opened sum and the sites whose vectors are in it."""

    values: Integers
    sites: tuple[str, ...]


def sum_task(
    name: str,
    contribute: Callable[[Site, Request, int], tuple[Integers, int]],
    *,
    scheme: Callable[[ApprovedPlan], str],
    modulus: int = 0,
    bits: int = 40,
) -> Task:
    """A task through which a site takes part in a sum.

    `contribute(site, request, length)` gives its integers and the rows behind them; `scheme` reads the protection from
    the approved plan. `bits`: how many the signed total of a sum modulo 2^64 may have where it is encrypted.
    """

    def one(site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        chosen = find_scheme(scheme(site.plan))
        side, context = _side(site, request, name, step, chosen, modulus, bits)
        vector, rows = None, 0
        if step == chosen.contributes_at:
            vector, rows = contribute(site, _with_sites(request, context), context.length)
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
    bits: int = 40,
    round_number: int = 0,
    blobs: dict[str, bytes] | None = None,
    opened: tuple[Ask, Replies] | None = None,
) -> Generator[Ask | RoundEnd, Any, Total]:
    """Run one sum over all enrolled sites and return the opened total. `blobs` go to every site with each step.

    `opened` is the first step, as `first_step` made it, and its answers, when both were exchanged before: then the sum
    is over whom it was asked from, and those that did not enrol dropped out of it.
    """
    chosen = find_scheme(scheme)
    sites = hub.sites if opened is None else tuple(opened[0].to)
    names = _joined(sites)
    context = sum_context(hub.approved, task.name, round_number, names, length=length, modulus=modulus, bits=bits)
    if isinstance(chosen, EncryptedSum):
        return (yield from _encrypted(hub, task, chosen, context, names, blobs or {}))
    side = chosen.hub_side(context)
    inboxes, enrolled = dict.fromkeys(sites, b""), frozenset(hub.sites)
    for step in range(chosen.steps):
        if step == 0 and opened is not None:
            replies: Replies = opened[1]
        else:
            replies = yield _step(task, step, inboxes, length=length, round_number=round_number, blobs=blobs or {})
        answers = {
            site: payload.blobs["answer"]
            for site, payload in zip(replies.sites, replies.payloads(), strict=True)
            if site in enrolled
        }
        inboxes = dict(side.route(step, answers))
    total, members = side.total()
    return Total(total, members)


def first_step(task: Task, *, scheme: str, sites: tuple[str, ...], length: int) -> Ask | None:
    """The first question of a sum over `sites`, to be asked before the sum is run; None if it would tell of rows."""
    if find_scheme(scheme).contributes_at == 0:
        return None
    return _step(task, 0, dict.fromkeys(sites, b""), length=length, round_number=0, blobs={})


def _step(
    task: Task, step: int, inboxes: dict[str, bytes], *, length: int, round_number: int, blobs: dict[str, bytes]
) -> Ask:
    """The question of one step; who takes part is told with the first, and remembered."""
    texts = {**blobs, "sites": _joined(tuple(inboxes))} if step == 0 else blobs
    numbers = {"step": step, "length": length}
    each = {site: Payload(metrics=numbers, blobs={**texts, "inbox": inbox}) for site, inbox in inboxes.items()}
    alike = len(set(inboxes.values())) == 1  # one question to all is made, hashed and receipted once
    return Ask(
        task=task,
        to=tuple(each),
        payload=next(iter(each.values())) if alike else Payload(),
        each=None if alike else each,
        round=round_number,
        expect=Expect(blobs=("answer",)),
    )


def _encrypted(
    hub: Hub, task: Task, scheme: EncryptedSum, context: SumContext, names: bytes, blobs: dict[str, bytes]
) -> Generator[Ask | RoundEnd, Any, Total]:
    """A key from the key-holder, one message from every site, added as it comes in, and one total to open."""
    if hub.key_holder is None:
        raise ConfigError(
            f"a sum by {scheme.name!r} needs a key-holder, and this run has none", hint="Use method.secure.sum = masks"
        )
    which = Payload(
        metrics={"length": context.length, "modulus": context.modulus, "bits": context.bits},
        blobs={"scheme": scheme.name.encode(), "task": task.name.encode(), "sites": names},
    )
    # The task's name keeps the requests of two sums of one round apart.
    keys: Replies = yield Ask(
        task=KEYS, to=(hub.key_holder,), payload=which, round=context.round, expect=Expect(blobs=("offer",))
    )
    offer = next(keys.payloads()).blobs["offer"]
    side = scheme.adding(context)
    yield Ask(
        task=task,
        to=hub.sites,
        payload=Payload(metrics={"step": 0, "length": context.length}, blobs={**blobs, "inbox": offer, "sites": names}),
        round=context.round,
        expect=Expect(blobs=("answer",)),
        take=lambda site, payload: side.take(site, payload.blobs["answer"]),
    )
    index = {site: number for number, site in enumerate(context.sites)}
    claimed = np.fromiter((index[site] for site in side.claimed), dtype=np.uint32, count=len(side.claimed))
    opened: Replies = yield Ask(
        task=OPEN,
        to=(hub.key_holder,),
        payload=Payload(
            arrays={"claimed": claimed}, metrics=which.metrics, blobs={**which.blobs, "totals": join(side.totals())}
        ),
        round=context.round,
        expect=Expect(arrays={"total": ("<u8", (context.length,))}),
    )
    side.opened(next(opened.payloads()).arrays["total"])
    return Total(*side.total())


def _with_sites(request: Request, context: SumContext) -> Request:
    """The request with the names of the sites, which travel with the first step alone."""
    if "sites" in request.payload.blobs:
        return request
    blobs = {**request.payload.blobs, "sites": _joined(context.sites)}
    return replace(request, payload=replace(request.payload, blobs=blobs))


@lru_cache(maxsize=4)
def _joined(sites: tuple[str, ...]) -> bytes:
    return "\n".join(sites).encode()


def _side(
    site: Site, request: Request, name: str, step: int, scheme: SumScheme, modulus: int, bits: int
) -> tuple[SiteSide, SumContext]:
    """The site's part of this sum: begun at the first step, remembered until the last."""
    state, place = site.state(SumState), (name, request.round)
    if step > 0:
        known = state.sides.get(place)
        if known is None:
            raise SiteError(f"site {site.name!r} was asked for step {step} of a sum that was not begun here")
        return known
    context = sum_context(
        site.plan,
        name,
        request.round,
        request.payload.blobs["sites"],
        length=int(request.payload.metrics["length"]),
        modulus=modulus,
        bits=bits,
    )
    trust = trust_of(site) if scheme.key_holder or scheme.among_peers else None
    side = scheme.site_side(context, site.name, site.streams, trust)
    if scheme.steps > 1:
        if context.transcript in state.begun:  # the same keys could then be opened in two ways
            raise IntegrityError("a sum came in that was begun here before")
        state.begun.add(context.transcript)
        state.sides[place] = (side, context)
    return side, context
