"""A site's side of every exchange with the hub: reads a message, checks it, lets the site reply, writes back.

In this order, before a task runs: the hub signed the message, it is for this site and came for the first time; the
run's plan hashes to what the message says and the operator approved it; schema, policy and limits allow it; the task is
the next of the plan's contract. Each refusal and failure is a line in the site's ledger with its reason; the hub gets
one word of `kohort.privacy.codes`. Then,
before a byte is sent: the ledger line is on the disk, and the reply is stored by the request's hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.errors import IntegrityError, KohortError, RefusedError, ResourceError
from kohort.privacy.codes import code_of
from kohort.privacy.guarantee import Guarantee, Public
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.protocol.answers import Answers, answer
from kohort.protocol.engine import first_objection
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.transport.high_water import HighWater, LedgerBehindError
from kohort.transport.messages import (
    ReplyMessage,
    RequestMessage,
    join_messages,
    read_reply,
    read_request,
    split_messages,
    write_reply,
)
from kohort.transport.peer_heads import PeerHeads, is_head_of, read_heads
from kohort.transport.site_ledger import KeptReceipts, SiteLedger
from kohort.transport.site_store import AnsweredRequests, ReplayGuard, RunStore

__all__ = ["OpenedRun", "SiteServer"]

_NO_CLAIM = Public(what="nothing")


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run the site takes part in: the site with the plan's approved, what the plan claims, and what it may ask."""

    site: Site
    check: Callable[[], None]
    """Raises a RefusedError when the plan's approval was withdrawn or a limit was reached since the run began."""
    plan_task: str
    claims: Sequence[Guarantee]
    judged: tuple[str, ...]
    """The tasks the claims are judged under, as in a simulation."""
    store: RunStore


OpenRun = Callable[[RequestMessage, bytes, RunStore], OpenedRun]
"""(message, plan, store) -> the run, or a RefusedError: not approved, another schema, a limit."""


class SiteServer:
    """What answers messages at a site.

    `broken` is set when the disk failed, or when the site's ledger turned out to be older than what the site signed:
    nothing may be answered after that.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        hub: PublicIdentity,
        ledger: SiteLedger,
        receipts: KeptReceipts,
        open_run: OpenRun,
        store_for: Callable[[str, str], RunStore],
        replay_guard: ReplayGuard,
        answered: AnsweredRequests,
        high_water: HighWater | None = None,
        peer_heads: PeerHeads | None = None,
    ) -> None:
        self.broken: KohortError | None = None
        self.ledger = ledger
        self._number = ""
        self._identity = identity
        self._hub = hub
        self._receipts = receipts
        self._open_run = open_run
        self._store_for = store_for
        self._replay_guard = replay_guard
        self._answered = answered
        self._high_water = high_water or HighWater()
        self._peer_heads = peer_heads or PeerHeads()
        self._runs: dict[tuple[str, str], OpenedRun] = {}

    def reply(self, data: bytes) -> bytes:
        """Reply to every message that came in, one after the other. Whatever came in, something signed goes back.

        Args:
            data: One message, or several that travel together.

        Returns:
            The signed replies, in the same order.
        """
        return join_messages([self._signed_reply(message) for message in split_messages(data)])

    def _signed_reply(self, message: bytes) -> bytes:
        try:
            if self.broken is not None:
                raise self.broken
            reply = self._reply_to(message)
            self._seal()
        except (ResourceError, LedgerBehindError) as error:
            self.broken = error
            # Without a head: lines that did not reach the disk, or that go back, must not be signed.
            reply = ReplyMessage(site=self._identity.name, fresh=self._number, status="failed", code="failed")
        except Exception as error:  # whatever a message holds, it must not end the site's process
            self.record_refusal("message", f"a message that cannot be read ({type(error).__name__})")
            unread = ReplyMessage(site=self._identity.name, fresh=self._number, status="dropped", code="tampered")
            reply = self._with_head(unread)
        return write_reply(reply, self._identity)

    def record_refusal(self, what: str, reason: str) -> None:
        """A line about something that was turned away before it could become a request."""
        self.ledger.note(self.ledger.chain, LedgerContext(what=what), reason=reason)
        self._seal()

    def close(self) -> None:
        """Let go of the files."""
        self.ledger.close()

    def _seal(self) -> None:
        self.ledger.seal(receipts=(self._receipts.length, self._receipts.head), hub_key=self._receipts.hub_key)
        self._high_water.raise_to(self.ledger.chain)

    def _reply_to(self, message: bytes) -> ReplyMessage:
        incoming: RequestMessage | None = None
        try:
            incoming = read_request(message, hub=self._hub)
            if incoming.site != self._identity.name and (incoming.site or incoming.task):
                raise IntegrityError("a message came in that is for another site")
            self._number = incoming.fresh
            self._replay_guard.accept(incoming.fresh)
            self._receipts.take(incoming.receipts, self.ledger)
            self._check_returned(incoming.heads)
        except (ResourceError, LedgerBehindError):
            raise
        except KohortError as error:
            return self._dropped(incoming, error, LedgerContext(what="message"))
        return self._task_reply(incoming) if incoming.task else self._reply(incoming, status="answer")

    def _dropped(
        self, incoming: RequestMessage | None, error: KohortError, ledger_context: LedgerContext
    ) -> ReplyMessage:
        """Note why a message cannot be answered; one word of it leaves."""
        self.ledger.note(self.ledger.chain, ledger_context, reason=error.message)
        return self._reply(incoming, status="dropped", code=code_of(error))

    def _task_reply(self, incoming: RequestMessage) -> ReplyMessage:
        try:
            run = self._run_of(incoming)
        except RefusedError as error:
            return self._reply(incoming, status="refused", code=code_of(error))
        except ResourceError:
            raise
        except KohortError as error:
            return self._dropped(incoming, error, LedgerContext(what=incoming.task, round=incoming.round))
        reply = self._handled(incoming, run)
        if not incoming.plan:
            return reply
        self._peer_heads.take(incoming.heads, run.site.find_peer)
        return replace(reply, seen=self._peer_heads.returned())

    def _check_returned(self, lines: bytes) -> None:
        """Compare the ledger with heads of it that peers or the hub return; those the site did not sign say nothing."""
        for name, head in read_heads(lines):
            if name == self._identity.name and is_head_of(self._identity.public, head):
                self.ledger.check_end(head[0], head[1], source="a head that others returned")

    def _run_of(self, incoming: RequestMessage) -> OpenedRun:
        """The run a request belongs to: under way, kept from before a crash, or new and acceptable."""
        place = (incoming.run, incoming.plan_hash)
        known = self._runs.get(place)
        if known is not None:
            self._still_allowed(incoming, known)
            return known
        store = self._store_for(*place)
        kept = store.plan
        plan = kept or incoming.plan
        if not plan:
            raise IntegrityError("a request came in for a run that was never begun here")
        ledger_context = LedgerContext(what="plan", request=incoming.plan_hash)
        try:
            self._check_whole(place, store)
            run = self._open_run(incoming, plan, store)
            ledger_context = ledger_context._replace(what=run.plan_task)
            against = first_objection(run.site, run.claims, [run.plan_task, *run.judged])
        except RefusedError as error:
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=_NO_CLAIM, reason=error.message)
            raise
        if against is not None:
            claim, reason = against
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=claim, reason=reason)
            raise RefusedError(reason, code="policy")
        if kept:
            store.rebuild(run.site)
        else:
            store.begin(plan, incoming.peers)
        self._runs[place] = run
        return run

    def _check_whole(self, place: tuple[str, str], store: RunStore) -> None:
        """Refuse a run whose stored answers are fewer than those that were sent: it would answer steps again."""
        if any(store.find(digest) is None for digest in self._answered.of(" ".join(place))):
            raise RefusedError(
                "answers of this run were sent that its files do not have: they were deleted or copied back"
            )

    def _still_allowed(self, incoming: RequestMessage, run: OpenedRun) -> None:
        """Withdrawn approvals and reached limits act at the next request; a refusal stands in the ledger."""
        try:
            run.check()
        except RefusedError as error:
            ledger_context = LedgerContext(what=run.plan_task, request=incoming.plan_hash)
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=_NO_CLAIM, reason=error.message)
            raise

    def _handled(self, incoming: RequestMessage, run: OpenedRun) -> ReplyMessage:
        try:
            request = incoming.request
        except IntegrityError as error:
            return self._dropped(incoming, error, LedgerContext(what=incoming.task, round=incoming.round))
        stored = run.store.find(request.digest)
        if stored is not None:
            former = read_reply(stored, site=self._identity.public)
            return self._with_head(replace(former, fresh=incoming.fresh, receipts=self._receipts.length))
        ledger_context = LedgerContext(what=request.task, request=request.digest, round=request.round)
        began = perf_counter()
        try:
            answers = answer((run.site,), request, many=False)
        except ResourceError:
            raise
        except RefusedError as error:  # such as a task that the kohort installed here does not have
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=_NO_CLAIM, reason=error.message)
            return self._reply(incoming, status="refused", code=code_of(error))
        except Exception as error:  # a bug in a task must not stop the site, and its text could hold a cell
            self.ledger.note(self.ledger.chain, ledger_context, reason=f"a bug in the task ({type(error).__name__})")
            return self._reply(incoming, status="failed", code="failed")
        return self._outcome(incoming, request, run, answers, perf_counter() - began)

    def _outcome(
        self, incoming: RequestMessage, request: Request, run: OpenedRun, answers: Answers, seconds: float
    ) -> ReplyMessage:
        if answers.failures:
            failure = answers.failures[0]
            return self._reply(incoming, status="tampered" if failure.tampered else "failed", code=failure.code)
        if answers.refusals:
            code = answers.refusals[0].code
            reply = self._line(incoming, request, status="refused", code=code, seconds=seconds)
            # What came too early is judged anew when its time has come; what a policy refused stays refused.
            return reply if code == "contract" else self._kept(run, request, reply)
        encoded = answers.encoded if isinstance(answers.encoded, list) else answers.encoded.views()
        reply = self._line(incoming, request, status="answer", seconds=seconds, body=bytes(encoded[0]))
        return self._kept(run, request, reply)

    def _kept(self, run: OpenedRun, request: Request, reply: ReplyMessage) -> ReplyMessage:
        run.store.keep(run.site, request, write_reply(reply, self._identity), formed=reply.status == "answer")
        if reply.status == "answer":
            self._answered.note(f"{request.run} {request.plan_hash}", request.digest)
        return reply

    def _line(
        self,
        incoming: RequestMessage,
        request: Request,
        *,
        status: str,
        seconds: float,
        code: str = "",
        body: bytes = b"",
    ) -> ReplyMessage:
        """An answer that stands in the ledger: with the claim of its line, and where the ledger stood after it."""
        claimed = self.ledger.last
        if claimed is None or claimed.ledger_context.request != request.digest:
            raise IntegrityError("an answer without a ledger line was about to leave")
        return replace(
            self._reply(incoming, status=status, code=code, claimed=status == "answer"),
            request=request.digest,
            rows=claimed.rows if status == "answer" else 0,
            to=claimed.ledger_context.to,
            via=claimed.ledger_context.via,
            seconds=seconds,
            body=body,
        )

    def _reply(
        self, incoming: RequestMessage | None, *, status: str, code: str = "", claimed: bool = False
    ) -> ReplyMessage:
        last = self.ledger.last
        return self._with_head(
            ReplyMessage(
                site=self._identity.name,
                fresh="" if incoming is None else incoming.fresh,
                status=status,
                code=code,
                guarantee=json.loads(last.guarantee.text) if claimed and last is not None else {},
                receipts=self._receipts.length,
            )
        )

    def _with_head(self, reply: ReplyMessage) -> ReplyMessage:
        """The reply with the signed end of the site's chain, as every reply carries it."""
        chain = self.ledger.chain
        _, signature = self.ledger.sign_heads([chain])
        return replace(reply, length=chain.length, head=chain.head, head_signature=signature)
