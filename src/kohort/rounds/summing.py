"""Secure sums over requests and replies: a task at the sites, and a generator at the hub.

A method says which integers a site contributes; the scheme (none, masks, encryption) says how they are protected, and
both hub and sites take it from the approved plan. Every message of a sum is a release with the scheme's own claim, so
it passes the door and stands in the ledger.

The members of a sum are a session over the plan's sites (`kohort.crypto.sums.session`). Requests carry its hash; the
list itself is known to hub and sites before the first sum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kohort.crypto.sums.scheme import KEY_HOLDER, Integers, SiteSide, SumContext, SumScheme, Trust, find_scheme
from kohort.crypto.sums.session import SiteSession, SumSession
from kohort.errors import ConfigError, SiteError
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload

__all__ = ["Contribute", "SumTask", "Total", "first_request", "join_session", "secure_sum", "step_request", "sum_task"]

Contribute = Callable[[Site, Request, SumContext], tuple[Integers, int]]
"""(site, request, what binds the sum) -> the site's integers and the rows behind them."""


@dataclass
class SumState(TaskState):
    """A site's part in the secure sums of a run."""

    sessions: dict[bytes, SiteSession] = field(default_factory=dict)
    """The sessions it takes part in, by their ids."""
    begun: set[tuple[str, int]] = field(default_factory=set)
    """The sums of several steps that were begun, in whatever session, by task and round."""


@dataclass(frozen=True)
class Total:
    """An opened sum and the sites whose vectors are in it."""

    values: Integers
    sites: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SumTask(Task):
    """A task through which sites take part in a sum, and what the hub needs to know to run it."""

    scheme: Callable[[ApprovedPlan], str]
    """How the approved plan protects the sum."""
    modulus: int = 0
    """What is added modulo: 0 for 2^64, or the prime 2^61 - 1."""
    bits: int = 40
    """Signed bits of a total modulo 2^64, where it is encrypted."""

    def context(self, session: SumSession, round_number: int, length: int) -> SumContext:
        """What binds one sum of this task."""
        return session.context(self.name, round_number, length=length, modulus=self.modulus, bits=self.bits)


def sum_task(
    name: str,
    contribute: Contribute,
    *,
    scheme: Callable[[ApprovedPlan], str],
    modulus: int = 0,
    bits: int = 40,
) -> SumTask:
    """A task through which a site takes part in a sum.

    Args:
        name: The task's name.
        contribute: Gives the site's integers and the rows behind them.
        scheme: Reads the protection from the approved plan.
        modulus: What is added modulo: 0 for 2^64, or the prime 2^61 - 1.
        bits: How many the signed total of a sum modulo 2^64 may have where it is encrypted.

    Returns:
        The task; `secure_sum` runs it.
    """

    def one(site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        chosen = find_scheme(scheme(site.plan))
        side, context = _site_side(site, request, task, chosen, step)
        vector, rows = None, 0
        if step == chosen.contributes_at:
            vector, rows = contribute(site, request, context)
            if vector.shape != (context.length,):
                raise SiteError(f"task {name!r} gives {vector.size} numbers to a sum of {context.length}")
        blob = side.reply(step, request.payload.blobs["inbox"], vector)
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=side.claim(step, rows), rows=rows)

    task = SumTask(name=name, one=one, scheme=scheme, modulus=modulus, bits=bits)
    return task


def secure_sum(
    hub: Hub,
    task: SumTask,
    *,
    length: int,
    round_number: int = 0,
    blobs: Mapping[str, bytes] | None = None,
    opened: tuple[Ask, Replies] | None = None,
) -> Generator[Ask | RoundEnd, Any, Total]:
    """Run one sum over all enrolled sites.

    Args:
        hub: The coordinator.
        task: What is added.
        length: How many numbers each site contributes.
        round_number: The round, which keeps the sums of one task apart.
        blobs: What every site gets with each step, such as weights.
        opened: The first request, as `first_request` made it, and its replies, when both were exchanged before. The
            sum is then over the sites it went to, and those that did not enrol dropped out of it.

    Returns:
        The opened total.

    Raises:
        ConfigError: The scheme needs a key-holder, and the run has none.
        IntegrityError: Somebody sent what no honest party sends.
    """
    scheme = find_scheme(task.scheme(hub.approved))
    sites = hub.sites if opened is None else tuple(opened[0].to)
    session = hub.approved.session.over(sites)
    context = task.context(session, round_number, length)
    if scheme.key_holder:
        return (yield from _encrypted_sum(hub, task, scheme, session, context, blobs or {}))
    side = scheme.hub_side(context)
    inboxes: Mapping[str, bytes] = dict.fromkeys(sites, b"")
    for step in range(scheme.steps):
        if step == 0 and opened is not None:
            enrolled, replies = frozenset(hub.sites), opened[1]
            for site, payload in zip(replies.sites, replies.payloads(), strict=True):
                if site in enrolled:
                    side.take(step, site, payload.blobs["answer"])
        else:
            yield step_request(
                task,
                session,
                step,
                inboxes,
                numbers={"length": length},
                round_number=round_number,
                blobs=blobs or {},
                take=partial(side.take, step),
            )
        inboxes = side.inboxes(step)
    return Total(*side.total())


def first_request(task: SumTask, approved: ApprovedPlan, *, sites: tuple[str, ...], length: int) -> Ask | None:
    """The first request of a sum, to be asked before the sum is run.

    Args:
        task: What is added.
        approved: The approved plan.
        sites: Who takes part.
        length: How many numbers each site contributes.

    Returns:
        The request, or None if the reply would tell of rows.
    """
    if find_scheme(task.scheme(approved)).contributes_at == 0:
        return None
    session = approved.session.over(sites)
    return step_request(task, session, 0, dict.fromkeys(sites, b""), numbers={"length": length})


def step_request(
    task: Task,
    session: SumSession,
    step: int,
    inboxes: Mapping[str, bytes],
    *,
    numbers: Mapping[str, int] | None = None,
    round_number: int = 0,
    blobs: Mapping[str, bytes] | None = None,
    take: Callable[[str, bytes], None] | None = None,
) -> Ask:
    """The request of one step of a sum, or of anything else that members of a session do in steps.

    Args:
        task: What the sites run.
        session: Who takes part. The first step names its members, later ones its id alone.
        step: Which step.
        inboxes: What each site gets; one request goes to all where that is the same.
        numbers: What the request says besides the step.
        round_number: The round of the run.
        blobs: What every site gets.
        take: Gets each site's reply as it comes in.

    Returns:
        The request.
    """
    metrics = {"step": step, **(numbers or {})}
    texts = {**(blobs or {}), **(session.fields if step == 0 else {"session": session.id})}
    each = {site: Payload(metrics=metrics, blobs={**texts, "inbox": inbox}) for site, inbox in inboxes.items()}
    alike = len(set(inboxes.values())) == 1  # one request to all is made, hashed and receipted once
    return Ask(
        task=task,
        to=tuple(each),
        payload=next(iter(each.values())) if alike else Payload(),
        each=None if alike else each,
        round=round_number,
        expect=Expect(blobs=("answer",)),
        take=None if take is None else _taking(take),
    )


def _taking(take: Callable[[str, bytes], None]) -> Callable[[str, Payload], None]:
    return lambda site, payload: take(site, payload.blobs["answer"])


def join_session(site: Site, request: Request, step: int) -> SiteSession:
    """The session of a request, at a site.

    Args:
        site: The site.
        request: The request, as `step_request` made it.
        step: Its step; the first one sets the session up.

    Returns:
        The site's part in the session.

    Raises:
        RefusedError: The site list known here hashes to something else, or the site is not on it.
        SiteError: A later step came of a session that was not set up here.
    """
    state, blobs = site.state(SumState), request.payload.blobs
    sessions = state.sessions
    if step == 0:
        session = site.plan.session.find(blobs)
        if session.id not in sessions:
            sessions[session.id] = SiteSession(session, site.name, state.begun)
        return sessions[session.id]
    known = sessions.get(blobs.get("session", b""))
    if known is None:
        raise SiteError(f"site {site.name!r} was asked for step {step} of a sum that was not begun here")
    return known


def _site_side(
    site: Site, request: Request, task: SumTask, scheme: SumScheme, step: int
) -> tuple[SiteSide, SumContext]:
    """The site's part of this sum: begun at the first step, remembered until the last."""
    session = join_session(site, request, step)
    if step > 0:
        return session.resume(task.name, request.round, step=step)
    length = int(request.payload.metrics["length"])
    context = task.context(session.session, request.round, length)
    trust = _trust_of(site) if scheme.key_holder or scheme.among_peers else None
    return session.begin(scheme, context, task.name, site.streams, trust), context


def _trust_of(site: Site) -> Trust:
    """Whom a site relies on in a sum: its roster says who is a peer, and whether there is a key-holder."""
    return Trust(site.identity, site.find_peer(KEY_HOLDER), site.policy.min_sum_sites, site.find_peer)


def _encrypted_sum(
    hub: Hub,
    task: SumTask,
    scheme: SumScheme,
    session: SumSession,
    context: SumContext,
    blobs: Mapping[str, bytes],
) -> Generator[Ask | RoundEnd, Any, Total]:
    """A key from the key-holder, one message from every site, added as it comes in, and one total to open."""
    from kohort.crypto.sums.encrypted import EncryptedSum, join_ciphertexts
    from kohort.protocol.key_holder import KEYS, OPEN

    if hub.key_holder is None or not isinstance(scheme, EncryptedSum):
        raise ConfigError(
            f"a sum by {scheme.name!r} needs a key-holder, and this run has none", hint="Use method.secure.sum = masks"
        )
    which = Payload(
        metrics={"length": context.length, "modulus": context.modulus, "bits": context.bits},
        blobs={"scheme": scheme.name.encode(), "task": task.name.encode(), **session.fields},
    )
    # The task's name keeps the requests of two sums of one round apart.
    keys: Replies = yield Ask(
        task=KEYS, to=(hub.key_holder,), payload=which, round=context.round, expect=Expect(blobs=("offer",))
    )
    offer = next(keys.payloads()).blobs["offer"]
    side = scheme.encrypted_hub(context)
    yield step_request(
        task,
        session,
        0,
        dict.fromkeys(context.sites, offer),
        numbers={"length": context.length},
        round_number=context.round,
        blobs=blobs,
        take=partial(side.take, 0),
    )
    claimed = np.fromiter((context.index[site] for site in side.claimed), dtype=np.uint32, count=len(side.claimed))
    opened: Replies = yield Ask(
        task=OPEN,
        to=(hub.key_holder,),
        payload=Payload(
            arrays={"claimed": claimed},
            metrics=which.metrics,
            blobs={**which.blobs, "totals": join_ciphertexts(side.totals())},
        ),
        round=context.round,
        expect=Expect(arrays={"total": ("<u8", (context.length,))}),
    )
    side.set_total(next(opened.payloads()).arrays["total"])
    return Total(*side.total())
