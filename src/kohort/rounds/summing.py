"""Secure sums over requests and replies: a task at the sites, and a generator at the hub.

A method says which integers a site contributes; the scheme (none, masks, encryption) says how they are protected, and
both hub and sites take it from the approved plan. Every message of a sum is a release with the scheme's own claim, so
it passes the door and stands in the ledger.

The members of a sum are a session over the plan's sites (`kohort.crypto.sums.session`). Requests carry its hash; the
list itself is known to hub and sites before the first sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Required, TypedDict, Unpack

from kohort.crypto.sums.scheme import (
    CONFIRMATIONS,
    MIN_SITES,
    SESSION_KEYS,
    Integers,
    SessionKeys,
    SumContext,
    SumScheme,
    find_scheme,
)
from kohort.crypto.sums.session import SiteSession, SumPart, SumSession, is_union
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate, Guarantee, Public, SecureSum
from kohort.privacy.openings import NO_BOOK
from kohort.protocol.hub import Ask, Coordinator, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.books import announced_book, join_books, note_of, own_book, receive_books
from kohort.rounds.encrypted_sums import encrypted_sum
from kohort.rounds.sum_requests import step_request, trust_of

__all__ = [
    "SET_UP",
    "Contribute",
    "SumState",
    "SumTask",
    "Total",
    "join_session",
    "open_session",
    "secure_sum",
    "set_up_request",
    "step_request",
    "sum_steps",
    "sum_task",
    "survivors_of",
    "trust_of",
]

Contribute = Callable[[Site, Request, SumContext, Mapping[str, bytes]], tuple[Integers, int]]
"""(site, request, what binds the sum, its public inputs) -> the site's integers and the rows behind them."""
Over = Callable[[Site, Request, Mapping[str, bytes]], Collection[str] | None]
"""(site, request, public inputs of a sum) -> the sites that must all be in its total; None when the scheme decides."""
Says = Callable[[Site, Request], int]
_ROUTING = frozenset({"inbox", "session", "left_out"})
"""What a request of a sum carries besides public inputs."""


@dataclass
class SumState(TaskState):
    """A site's part in the secure sums of a run."""

    sessions: dict[bytes, SiteSession] = field(default_factory=dict)
    """The sessions it takes part in, by their ids."""
    begun: set[tuple[str, int]] = field(default_factory=set)
    """The sums of several steps that were begun, in whatever session, by task and round."""
    keys: SessionKeys | None = None
    """What the site announced in the run's one set-up."""
    agreed: SiteSession | None = None
    """The session of that set-up."""
    fixed: dict[str, bytes] = field(default_factory=dict)
    """The session of each task whose totals are compared over rounds, or carry noise in shares: its first one."""
    exactly: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """The sites that a sum must be over, by task and round."""
    survived: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """The sites in a sum's total, as this site confirmed them, by task and round."""
    batches: dict[str, dict[str, int]] = field(default_factory=dict)
    """How often the rows of each member changed between earlier openings, by family, as the members signed it."""
    announced: bytes = NO_BOOK
    """The book of openings that the site announced to the other members."""


@dataclass(frozen=True)
class Total:
    """An opened sum and the sites whose vectors are in it."""

    values: Integers
    sites: tuple[str, ...]
    signature: bytes = b""
    """The key-holder's, where the task asks for one."""


@dataclass(frozen=True, kw_only=True)
class SumTask(Task):
    """A task through which sites take part in a sum, and what the hub needs to know to run it."""

    scheme: Callable[[ApprovedPlan], str]
    """How the approved plan protects the sum."""
    modulus: int = 0
    """What is added modulo: 0 for 2^64, or the prime 2^61 - 1."""
    bits: int = 40
    """Signed bits of a total modulo 2^64, where it is encrypted."""
    booked: Callable[[ApprovedPlan], bool] = lambda _: True
    """Whether a plan's totals are noted there: not where noise covers every difference of two."""
    says: Says | None = None
    """The rows that the ledger and messages name, where a sum is of a part of a site's rows; see `Release.said`."""
    over: Over = lambda *_: None
    """Which sites must all be in the total. A site refuses at the first step where it is not among them, and confirms
    no other list of survivors."""

    def family_in(self, approved: ApprovedPlan) -> str:
        """The family that a plan's totals are noted under; empty where they are not."""
        return self.family if self.booked(approved) else ""

    def context(self, session: SumSession, round_number: int, length: int, view: bytes) -> SumContext:
        """The context that a sum's keys are bound to."""
        return session.context(self.name, round_number, length=length, modulus=self.modulus, bits=self.bits, view=view)


class _About(TypedDict, total=False):
    """The fields of `SumTask` beside those of a task; the protection must be given."""

    scheme: Required[Callable[[ApprovedPlan], str]]
    modulus: int
    bits: int
    family: str
    booked: Callable[[ApprovedPlan], bool]
    grouped: Callable[[ApprovedPlan], bool]
    small_cells: Callable[[ApprovedPlan], tuple[int, int]] | None
    signed: bool
    says: Says
    over: Over


def sum_task(name: str, contribute: Contribute, **about: Unpack[_About]) -> SumTask:
    """A task through which a site takes part in a sum.

    Args:
        name: The task's name.
        contribute: Gives the site's integers and the rows behind them.
        **about: The fields of `SumTask`.

    Returns:
        The task; `secure_sum` runs it.
    """

    def one(site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        chosen = find_scheme(about["scheme"](site.plan))
        session = join_session(site, request, step, chosen)
        if step == 0:
            part = _begin(site, request, task, chosen, session)
        else:
            part = session.resume(name, request.round, step=step)
        vector, rows = None, 0
        said: int | None = 0  # a step without a contribution is about no rows, and says so where a site has none
        if step == chosen.contributes_at:
            if site.state(PublicInputs).view(part.inputs) != part.context.view:
                raise IntegrityError("the public inputs changed while a secure sum was under way")
            vector, rows = contribute(site, request, part.context, part.inputs)
            said = None if task.says is None else task.says(site, request)
            if vector.shape != (part.context.length,):
                raise SiteError(f"task {name!r} gives {vector.size} numbers to a sum of {part.context.length}")
        blob = part.side.reply(step, request.payload.blobs["inbox"], vector)
        _note_survivors(site, task, request.round, part)
        if step == chosen.steps - 1:
            session.end(name, request.round)
        claim = part.side.claim(step, rows)
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=claim, rows=rows, said=said)

    task = SumTask(name=name, one=one, public=False, **about)
    return task


def sum_steps(
    approved: ApprovedPlan, task: SumTask, *, says: str, rounds: Sequence[int] = range(1), every: int = 1
) -> list[Step]:
    """What a sum asks of a site.

    Args:
        approved: The approved plan.
        task: What is added.
        says: What the total is, for people.
        rounds: The rounds in which it is summed.
        every: Rounds of the sum per turn of its block of the contract.

    Returns:
        The set-up, where the scheme has one, and the sum.
    """
    scheme = find_scheme(task.scheme(approved))
    colluders = 1 if approved.secure is None else approved.secure.colluders
    least = max(MIN_SITES, colluders + 2)
    if scheme.name == "none":
        claims: tuple[Guarantee, ...] = (Aggregate(rows=0),)
        says = f"your own numbers, in clear: {says}"
    else:
        opens = "key-holder" if scheme.key_holder else "hub"
        claims = (
            SecureSum(sites=least, threshold=least, colluders=colluders, opens=opens),
            Public(what=CONFIRMATIONS),
        )
        says = f"your part of a total: {says}"
    step = Step(
        task=task.name,
        says=says,
        claims=claims,
        rounds=rounds,
        parts=scheme.steps,
        every=every,
        sites=least,
        booked=bool(task.family_in(approved)),
        grouped=task.grouped(approved),
    )
    return [*_set_up_steps(scheme), step]


def _set_up_steps(scheme: SumScheme) -> list[Step]:
    if not scheme.sets_up:
        return []
    claims = (Public(what=SESSION_KEYS),)
    return [Step(task=SET_UP.name, says="public keys of a secure sum", claims=claims, parts=2, ordered=False)]


def secure_sum(
    hub: Coordinator,
    task: SumTask,
    *,
    length: int,
    round_number: int = 0,
    inputs: Mapping[str, bytes] | None = None,
    over: Collection[str] | None = None,
) -> Generator[Ask | RoundEnd, Any, Total]:
    """Run one sum over all enrolled sites.

    Args:
        hub: The coordinator.
        task: What is added.
        length: How many numbers each site contributes.
        round_number: The round, which keeps the sums of one task apart.
        inputs: Public inputs, such as weights: every site gets them with the first step, and they bind the sum.
        over: The sites that must all be in the total, where that is fixed before; an encrypted sum is then over them
            alone, and the key-holder opens it over nothing less. By masks, sites see to it themselves.

    Returns:
        The opened total.

    Raises:
        ConfigError: The scheme needs a key-holder, and the run has none.
        IntegrityError: Somebody sent what no honest party sends.
    """
    scheme, own = find_scheme(task.scheme(hub.approved)), inputs or {}
    session = yield from open_session(hub, scheme)
    if scheme.key_holder and over is not None:
        session = session.over(tuple(name for name in session.members if name in {*over}))
    context = task.context(session, round_number, length, hub.inputs.view(own))
    if scheme.key_holder:
        first = partial(
            step_request,
            task,
            session,
            0,
            dict.fromkeys(context.sites, b""),
            numbers={"length": length},
            round_number=round_number,
            inputs=own,
        )
        opened = yield from encrypted_sum(hub, scheme, session, context, task.name, first, least=len(over or ()))
        return Total(*opened)
    groups = hub.approved.sum_groups(session.members) if task.grouped(hub.approved) else []
    side = scheme.hub_side(context, groups)
    inboxes: Mapping[str, bytes] = dict.fromkeys(session.members, b"")
    for step in range(scheme.steps):
        yield step_request(
            task,
            session,
            step,
            inboxes,
            numbers={"length": length} if step == 0 else None,
            round_number=round_number,
            inputs=own if step == 0 else None,
            take=partial(side.take, step),
        )
        inboxes = side.inboxes(step)
    return Total(*side.total())


def set_up_request(approved: ApprovedPlan, sites: tuple[str, ...]) -> Ask:
    """The first request of a session's set-up, which may be asked before any sum is run.

    Args:
        approved: The approved plan.
        sites: Who is asked to take part.

    Returns:
        The request.

    Raises:
        ConfigError: The plan's scheme cannot add up so many sites.
    """
    if approved.secure is not None:
        find_scheme(approved.secure.sum).check_size(len(sites))
    ask = step_request(SET_UP, approved.session.over(sites), 0, dict.fromkeys(sites, b""))
    return ask._replace(expect=Expect(blobs=("answer", "book")))


def open_session(hub: Coordinator, scheme: SumScheme) -> Generator[Ask | RoundEnd, Any, SumSession]:
    """The session of the run's sums; set up with the first one, where the scheme has a set-up.

    Args:
        hub: The coordinator.
        scheme: The scheme of the sums.

    Returns:
        The session; its members may be fewer than the enrolled sites.
    """
    if not scheme.sets_up:
        return hub.approved.session.over(hub.sites)
    known = hub.sums.get(scheme.name)
    if known is None:
        if hub.opened is not None and hub.opened[0].task is SET_UP:
            announced: Replies = hub.opened[1]
        else:
            announced = yield set_up_request(hub.approved, hub.sites)
        enrolled = frozenset(hub.sites)
        parts = {
            site: payload.blobs
            for site, payload in zip(announced.sites, announced.payloads(), strict=True)
            if site in enrolled
        }
        known = hub.approved.session.over(tuple(parts))
        message = scheme.gather({site: blobs["answer"] for site, blobs in parts.items()})
        books = {"books": join_books(blobs["book"] for blobs in parts.values())}
        yield step_request(SET_UP, known, 1, dict.fromkeys(known.members, message), inputs=books, members=True)
        hub.sums[scheme.name] = known
    return known


def _set_up(site: Site, request: Request) -> Release:
    """Announce fresh keys, then agree on them with all members: one session per run."""
    step, secure, state = int(request.payload.metrics["step"]), site.plan.secure, site.state(SumState)
    if secure is None or not find_scheme(secure.sum).sets_up or step not in {0, 1}:
        raise RefusedError("the approved plan sets no secure sum up")
    if step == 0:
        if state.keys is not None:
            raise IntegrityError("a second set-up came in for the sums of one run")
        blobs = {"book": own_book(site)}
        state.keys = find_scheme(secure.sum).session_keys(
            site.plan.session, site.name, site.streams, trust_of(site), note_of(blobs["book"])
        )
        blobs["answer"] = state.keys.announcement
    else:
        if state.keys is None or state.agreed is not None:
            raise IntegrityError("the keys of a secure sum came in a second time, or before they were asked for")
        session = site.plan.session.find(request.payload.blobs)
        agreed = SiteSession(session, site.name, state.keys, state.begun)
        blobs = {"answer": state.keys.agree(session.members, request.payload.blobs["inbox"])}
        about = (site, session.members, state.keys.notes, request.payload.blobs.get("books", b""))
        state.batches, state.announced = receive_books(*about), announced_book(*about)
        state.agreed = state.sessions[session.id] = agreed
    return Release(payload=Payload(blobs=blobs), guarantee=Public(what=SESSION_KEYS), rows=0)


SET_UP = Task(name="sum.setup", one=_set_up, public=False)


def join_session(site: Site, request: Request, step: int, scheme: SumScheme | None = None) -> SiteSession:
    """The session of a request, at a site.

    Args:
        site: The site.
        request: The request, as `step_request` made it.
        step: Its step; the first one names the members.
        scheme: The scheme of a sum; one with a set-up has sums over that session alone.

    Returns:
        The site's part in the session.

    Raises:
        RefusedError: The site list known here hashes to something else, or the site is not on it.
        SiteError: A later step came of a session that was not set up here.
    """
    state, blobs = site.state(SumState), request.payload.blobs
    if scheme is not None and scheme.sets_up:
        if state.agreed is None or state.agreed.session.id != blobs.get("session"):
            raise RefusedError("a secure sum is over other sites than those its keys were agreed with")
        return state.agreed
    sessions = state.sessions
    if step == 0:
        session = site.plan.session.find(blobs)
        if session.id not in sessions:
            sessions[session.id] = SiteSession(session, site.name, begun=state.begun)
        return sessions[session.id]
    known = sessions.get(blobs.get("session", b""))
    if known is None:
        raise SiteError(f"site {site.name!r} was asked for step {step} of a sum that was not begun here")
    return known


def _begin(site: Site, request: Request, task: SumTask, scheme: SumScheme, session: SiteSession) -> SumPart:
    """The site's part of a sum at its first step: bound to all public inputs in force at this site."""
    session.session.refuse_strangers(_roster_of(site))
    if scheme.key_holder or scheme.among_peers:
        site.require_one_witness(task.family_in(site.plan), key_holder=scheme.key_holder)
    # Rounds are compared with each other; under a budget, shares of the noise have the size that the first list needs.
    if task.grouped(site.plan) or site.plan.sum_quorum(len(session.session.members)):
        first = site.state(SumState).fixed.setdefault(task.name, session.session.id)
        if first != session.session.id:
            raise RefusedError("the sums of a training are over one list of sites, from the first round on")
    inputs = {name: data for name, data in request.payload.blobs.items() if name not in _ROUTING}
    length = int(request.payload.metrics["length"])
    view = site.state(PublicInputs).view(inputs)
    context = task.context(session.session, request.round, length, view)
    trust = trust_of(site) if scheme.key_holder or scheme.among_peers else None
    if trust is not None:
        trust = replace(trust, quorum=max(trust.quorum, site.plan.sum_quorum(len(context.sites))))
    over = _fixed_sites(task, site, request, inputs, session)
    if over is not None and trust is not None:
        trust = replace(trust, quorum=max(trust.quorum, len(over)))
    if scheme.key_holder:  # nobody confirms survivors to this site: it notes the members, the key-holder who is in it
        site.note_opening(task.family_in(site.plan), task.name, request.round, context.sites)
    part = session.begin(scheme, context, task.name, site.streams, trust, inputs)
    if over is not None:
        site.state(SumState).exactly[task.name, request.round] = over
    return part


def _roster_of(site: Site) -> Callable[[str], object | None]:
    """The site's roster; a site that is asked about itself need not be on it."""
    if site.find_peer(site.name) is not None:
        return site.find_peer
    return lambda name: site if name == site.name else site.find_peer(name)


def _fixed_sites(
    task: SumTask, site: Site, request: Request, inputs: Mapping[str, bytes], session: SiteSession
) -> frozenset[str] | None:
    """The sites that must all be in the total, where that is fixed before; this one is among them."""
    over = task.over(site, request, inputs)
    if over is None:
        return None
    if site.name not in over or not session.session.index.keys() >= {*over}:
        raise RefusedError("a secure sum is over other sites than the one that it continues")
    return frozenset(over)


def _note_survivors(site: Site, task: SumTask, round_number: int, part: SumPart) -> None:
    """Remember the survivors that a site is about to confirm; refuse others than are fixed, and too few."""
    confirmed = part.side.survivors
    if confirmed is None:
        return
    state, which = site.state(SumState), (task.name, round_number)
    survivors = frozenset(part.context.sites[place] for place in confirmed.tolist())
    if state.exactly.get(which, survivors) != survivors:
        raise IntegrityError("the survivors of a secure sum are not the sites of the one that it continues")
    if task.grouped(site.plan) and not is_union(survivors, site.plan.sum_groups(part.context.sites)):
        raise RefusedError(
            "a total would leave out some sites of a group, and the next one with them would show those",
            hint="Wait for the missing sites, or set a budget",
        )
    if which not in state.survived:
        family, batches = task.family_in(site.plan), state.batches.get(task.family, {})
        site.note_opening(family, task.name, round_number, tuple(survivors), batches, state.announced)
    state.survived[which] = survivors


def survivors_of(site: Site, task: SumTask, round_number: int) -> frozenset[str] | None:
    """Who is in a total that this site took part in.

    Args:
        site: The site.
        task: What was added.
        round_number: The round of the sum.

    Returns:
        The sites whose list it confirmed; None where it confirmed none, as in schemes without a confirmation.
    """
    return site.state(SumState).survived.get((task.name, round_number))
