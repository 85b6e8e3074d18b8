"""A site's side of every conversation with the hub: reads a letter, checks it, lets the site answer, writes back.

In this order, before a task runs: the hub signed the letter, it is for this site and came for the first time; the run's
plan hashes to what the letter says and the operator approved it; schema, policy and limits allow it; the task is one of
the plan's method. Each refusal is a line in the site's ledger and comes back to the hub with its reason. Then, before a
byte is sent: the ledger line is on the disk, and the answer is stored by the request's hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.errors import IntegrityError, KohortError, RefusedError, ResourceError
from kohort.privacy.guarantee import Guarantee, Public
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.protocol.engine import first_objection
from kohort.protocol.site import Answers, Site
from kohort.protocol.task import Request
from kohort.transport.messages import (
    Answer,
    Question,
    letters_in,
    message_of,
    read_answer,
    read_question,
    write_answer,
)
from kohort.transport.site_ledger import KeptReceipts, SiteLedger
from kohort.transport.site_store import Numbers, RunStore

__all__ = ["OpenedRun", "SiteServer"]

_NO_CLAIM = Public(what="nothing")


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run the site takes part in: the site with the plan's approved, what the plan claims, and what it may ask."""

    site: Site
    plan_task: str
    claims: Sequence[Guarantee]
    tasks: tuple[str, ...]
    """What the hub may ask for."""
    judged: tuple[str, ...]
    """The tasks the claims are judged under, as in a simulation."""
    store: RunStore


OpenRun = Callable[[Question, bytes, RunStore], OpenedRun]
"""(question, plan, store) -> the run, or a RefusedError: not approved, another schema, a limit."""


class SiteServer:
    """What answers letters at a site. `broken` is set when the disk failed: nothing may be answered after that."""

    def __init__(
        self,
        *,
        identity: Identity,
        hub: PublicIdentity,
        ledger: SiteLedger,
        receipts: KeptReceipts,
        open_run: OpenRun,
        store_for: Callable[[str, str], RunStore],
        numbers: Numbers,
    ) -> None:
        self.broken: KohortError | None = None
        self.ledger = ledger
        self._number = ""
        self._identity = identity
        self._hub = hub
        self._receipts = receipts
        self._open_run = open_run
        self._store_for = store_for
        self._numbers = numbers
        self._runs: dict[tuple[str, str], OpenedRun] = {}

    def answer(self, message: bytes) -> bytes:
        """The answers to a message's letters, one after the other. Whatever came in, something signed goes back."""
        return message_of([self._answered(letter) for letter in letters_in(message)])

    def _answered(self, letter: bytes) -> bytes:
        try:
            reply = self._answer(letter)
            self._seal()
        except ResourceError as error:
            self.broken = error
            reply = Answer(site=self._identity.name, fresh=self._number, status="failed", reason=error.message)
        return write_answer(reply, self._identity)

    def record_refusal(self, what: str, reason: str) -> None:
        """A line about something that was turned away before it could become a question."""
        self.ledger.note(self.ledger.chain, LedgerContext(what=what), reason=reason)
        self._seal()

    def close(self) -> None:
        """Let go of the files."""
        self.ledger.close()

    def _seal(self) -> None:
        self.ledger.seal(receipts=(self._receipts.length, self._receipts.head), hub_key=self._receipts.hub_key)

    def _answer(self, letter: bytes) -> Answer:
        question: Question | None = None
        try:
            question = read_question(letter, hub=self._hub)
            if question.site != self._identity.name and (question.site or question.task):
                raise IntegrityError("a letter came in that is for another site")
            self._number = question.fresh
            self._numbers.accept(question.fresh)
            self._receipts.take(question.receipts, self.ledger.chain)
        except ResourceError:
            raise
        except KohortError as error:
            self.ledger.note(self.ledger.chain, LedgerContext(what="letter"), reason=error.message)
            return self._reply(question, status="dropped", reason=error.message)
        if not question.task:
            return self._reply(question, status="answer")
        try:
            run = self._run_of(question)
        except RefusedError as error:
            return self._reply(question, status="refused", reason=error.message, claimed=True)
        except ResourceError:
            raise
        except KohortError as error:
            self.ledger.note(
                self.ledger.chain, LedgerContext(what=question.task, round=question.round), reason=error.message
            )
            return self._reply(question, status="dropped", reason=error.message)
        return self._handled(question, run)

    def _run_of(self, question: Question) -> OpenedRun:
        """The run a question belongs to: under way, kept from before a crash, or new and acceptable."""
        place = (question.run, question.plan_hash)
        known = self._runs.get(place)
        if known is not None:
            return known
        store = self._store_for(*place)
        kept = store.plan
        plan = kept or question.plan
        if not plan:
            raise IntegrityError("a question came in for a run that was never begun here")
        ledger_context = LedgerContext(what="plan", request=question.plan_hash)
        try:
            run = self._open_run(question, plan, store)
            ledger_context = ledger_context._replace(what=run.plan_task)
            against = first_objection(run.site, run.claims, [run.plan_task, *run.judged])
        except RefusedError as error:
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=_NO_CLAIM, reason=error.message)
            raise
        if against is not None:
            claim, reason = against
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=claim, reason=reason)
            raise RefusedError(reason)
        if kept:
            store.rebuild(run.site)
        else:
            store.begin(plan, question.peers)
        self._runs[place] = run
        return run

    def _handled(self, question: Question, run: OpenedRun) -> Answer:
        request = question.request
        stored = run.store.find(request.digest)
        if stored is not None:
            former = read_answer(stored, site=self._identity.public)
            return replace(
                former, fresh=question.fresh, length=self.ledger.chain.length, receipts=self._receipts.length
            )
        ledger_context = LedgerContext(what=request.task, request=request.digest, round=request.round)
        if request.task not in run.tasks:
            reason = f"the approved plan does not ask for {request.task!r}"
            self.ledger.refuse(self.ledger.chain, ledger_context, guarantee=_NO_CLAIM, reason=reason)
            return self._kept(run, request, self._line(question, request, status="refused", reason=reason, seconds=0.0))
        began = perf_counter()
        try:
            answers = run.site.handle(request)
        except ResourceError:
            raise
        except Exception as error:  # a bug in a task must not stop the site, and its text could hold a cell
            self.ledger.note(self.ledger.chain, ledger_context, reason=f"a bug in the task ({type(error).__name__})")
            return self._reply(question, status="failed", reason=f"a bug in the task ({type(error).__name__})")
        return self._told(question, request, run, answers, perf_counter() - began)

    def _told(self, question: Question, request: Request, run: OpenedRun, answers: Answers, seconds: float) -> Answer:
        if answers.failures:
            failure = answers.failures[0]
            return self._reply(question, status="tampered" if failure.tampered else "failed", reason=failure.reason)
        if answers.refusals:
            reason = answers.refusals[0].reason
            reply = self._line(question, request, status="refused", reason=reason, seconds=seconds)
            return self._kept(run, request, reply)
        encoded = answers.encoded if isinstance(answers.encoded, list) else answers.encoded.views()
        reply = self._line(question, request, status="answer", seconds=seconds, body=bytes(encoded[0]))
        return self._kept(run, request, reply)

    def _kept(self, run: OpenedRun, request: Request, reply: Answer) -> Answer:
        run.store.keep(run.site, request, write_answer(reply, self._identity), formed=reply.status == "answer")
        return reply

    def _line(
        self,
        question: Question,
        request: Request,
        *,
        status: str,
        seconds: float,
        reason: str = "",
        body: bytes = b"",
    ) -> Answer:
        """An answer that stands in the ledger: with the claim of its line, and where the ledger stood after it."""
        claimed = self.ledger.last
        if claimed is None or claimed.ledger_context.request != request.digest:
            raise IntegrityError("an answer would leave that does not stand in the ledger")
        heads, signature = self.ledger.sign_heads([self.ledger.chain])
        return replace(
            self._reply(question, status=status, reason=reason, claimed=True),
            request=request.digest,
            rows=claimed.rows,
            to=claimed.ledger_context.to,
            via=claimed.ledger_context.via,
            heads=heads,
            head_signature=signature,
            seconds=seconds,
            body=body,
        )

    def _reply(self, question: Question | None, *, status: str, reason: str = "", claimed: bool = False) -> Answer:
        last = self.ledger.last
        return Answer(
            site=self._identity.name,
            fresh="" if question is None else question.fresh,
            status=status,
            reason=reason,
            guarantee=json.loads(last.guarantee.text) if claimed and last is not None else {},
            length=self.ledger.chain.length,
            receipts=self._receipts.length,
        )
