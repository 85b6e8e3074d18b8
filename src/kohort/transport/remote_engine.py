"""The hub's side of sites that are other processes: requests go out and replies come back as signed messages.

Whatever carries the messages (Flower, or a loop-back in tests) is trusted with nothing: it can delay or lose them, not
change, repeat or invent them. Deadline and quorum are ours. The hub keeps its own ledger of what it received, line by
line what the sites' own ledgers say, and a chain of receipts for each site, which the site keeps beside its ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from numpy.typing import NDArray

from kohort.crypto.identity.keys import public_text
from kohort.crypto.sealed import Identity, PublicIdentity
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.privacy.codes import CODES
from kohort.privacy.guarantee import DP, Guarantee, Public, parse_guarantee
from kohort.privacy.ledger.ledger import Chain, Ledger, LedgerContext, canonical, heads_digest
from kohort.privacy.ledger.receipts import RECEIPTS_FILE, Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import checked_receipts
from kohort.protocol.answers import Failure
from kohort.protocol.engine import Claims, Costs, give_up, least_answers, stop_if_tampered
from kohort.protocol.faults import Faults
from kohort.protocol.hub import Ask, Excluded, Replies
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.task import Request
from kohort.protocol.validate import UNDECLARED, validate_ask
from kohort.protocol.wire import EncodedReplies
from kohort.rng import Streams
from kohort.transport.messages import (
    ReplyMessage,
    RequestMessage,
    fresh_number,
    join_messages,
    read_reply,
    split_messages,
    write_request,
)
from kohort.transport.peer_heads import Head, head_lines, is_head_of, read_head

__all__ = ["Carrier", "RemoteEngine", "SiteReceipts"]

RECEIPTS_AT_ONCE = 64


class Carrier(Protocol):
    """What brings messages to sites and their replies back."""

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Replies by site, and for each site without one why. Returns after `deadline` seconds at the latest."""
        ...


class _Heads:
    """Where a site's own ledger stood, as it said; in the form `Receipts` asks a ledger for it."""

    def __init__(self, answer: ReplyMessage) -> None:
        self._signature = answer.head_signature

    def sign_heads(self, chains: Sequence[Chain]) -> tuple[str, str]:
        """What the site signed."""
        return heads_digest(chains), self._signature


class SiteReceipts(Receipts):
    """The hub's receipts for one site, kept at the hub and handed to the site with the next request."""

    def __init__(self, site: str, *, signer: Signer, folder: Path | None = None) -> None:
        super().__init__(signer=signer, folder=folder)
        self._chain = Chain(site, secret=bytes(32))
        self._texts: list[str] = []
        self.last: Head | None = None
        """Length, last hash and signature of the newest head of the site's ledger; None before the first."""
        self._missed = 0
        """Lines of the site's ledger that were written while no hub was there to see for which request."""
        if folder is not None and (folder / RECEIPTS_FILE).stat().st_size:
            checked = checked_receipts(folder / RECEIPTS_FILE)
            self.adopt(Ledger(signer=signer), checked, {})
            self._texts = (folder / RECEIPTS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
            for line in checked:
                if "end" in line:
                    self.last = (*line["end"], line["site_signature"])
        self._resumes = self.last is not None

    def check(self, answer: ReplyMessage, site: PublicIdentity) -> None:
        """Check where a site's ledger stands: signed by the site, and never back from where it stood.

        Args:
            answer: What the site said.
            site: Who must have signed it.

        Raises:
            IntegrityError: The head is missing, not signed by the site, went back, or does not have a new line for a
                new answer, nor one that was written while the hub was stopped.
        """
        if not answer.head or not is_head_of(site, (answer.length, answer.head, answer.head_signature)):
            raise IntegrityError(f"the reply of site {site.name!r} comes without the signed head of its ledger")
        length, last, _ = self.last or (0, "", "")
        if answer.length < length or (answer.length == length and answer.head != last):
            raise IntegrityError(
                f"the ledger of site {site.name!r} went back: it has {answer.length} lines, and had {length}",
                hint="Its folder was copied back or replaced: its operator must put the newest copy back",
            )
        if self._is_new(answer) and answer.length == length and not self._missed:
            raise IntegrityError(f"the answer of site {site.name!r} is not a line of its ledger")

    def _is_new(self, answer: ReplyMessage) -> bool:
        return answer.status == "answer" and bool(answer.request) and answer.request not in self._issued

    def returned(self, head: Head, site: PublicIdentity) -> None:
        """Take note of a head that a peer remembers: the site may not stand before it any more.

        Args:
            head: What came in.
            site: Who must have signed it; any other head says nothing.
        """
        if (self.last is None or head[0] > self.last[0]) and is_head_of(site, head):
            self._missed += 0 if self.last is None else head[0] - self.last[0]
            self.last = head

    def acknowledge(self, answer: ReplyMessage) -> None:
        """Counter-sign where the site's ledger stands, once for each request that is a line of it.

        Args:
            answer: What the site said; it was checked.
        """
        grown, is_new = answer.length - (self.last[0] if self.last else 0), self._is_new(answer)
        if self._resumes:  # a hub that was stopped did not see the answers that were under way
            self._missed, self._resumes = max(0, self._missed + grown - is_new), False
        elif is_new and not grown:
            self._missed -= 1
        self.last = (answer.length, answer.head, answer.head_signature)
        self._chain.length, self._chain.head = answer.length, answer.head
        if answer.request:
            self.issue(_Heads(answer), [self._chain], LedgerContext(what="", request=answer.request))

    def after(self, known: int | None) -> bytes:
        """The lines a site that has `known` of them lacks; some more when that is not known."""
        start = max(0, len(self._texts) - RECEIPTS_AT_ONCE) if known is None else known
        return "".join(self._texts[start : start + RECEIPTS_AT_ONCE]).encode()

    def _ends(self, chains: Sequence[Chain]) -> str:
        """The site's ledger is not here: the receipt itself says where it stood."""
        (chain,) = chains
        return f',"end":[{chain.length},"{chain.head}"]'

    def _write(self, line: str) -> None:
        super()._write(line)
        self._texts.append(line)


@dataclass
class RemoteEngine:
    """Drives a plan over a carrier. Sites judge the plan themselves, when its first request reaches them."""

    carrier: Carrier
    approved: ApprovedPlan
    streams: Streams
    hub: Identity
    sites: Mapping[str, PublicIdentity]
    parties: Mapping[str, PublicIdentity]
    """Who takes part without rows: a key-holder. Asked by name, alone, and indispensable."""
    plan: bytes
    """The plan as JSON: every site hashes it, compares, and reads its parameters from it."""
    peers: bytes
    """The public identities of all parties, one per line."""
    ledger: Ledger
    """The hub's own ledger of what it received."""
    receipts: Receipts
    quorum: float
    deadline: float
    site_receipts: Mapping[str, SiteReceipts]
    watch: Callable[[Ask], None] = lambda _: None
    """Called with every request before it goes out."""
    costs: Costs = field(default_factory=Costs)
    excluded: list[Excluded] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    inputs: PublicInputs = field(default_factory=PublicInputs)
    _known_receipts: dict[str, int] = field(default_factory=dict)
    _has_plan: set[str] = field(default_factory=set)
    """Sites that were sent the plan."""
    _chains: dict[str, Chain] = field(default_factory=dict)

    def approve(self, claims: Claims, *, tasks: Sequence[str] = ()) -> tuple[str, ...]:
        """Every site is asked; each judges the plan before it answers its first request, and may refuse it then."""
        del claims, tasks  # a site works out both itself, from the plan
        fingerprint = self.approved.schema.fingerprint()
        for name, identity in {**self.sites, **self.parties}.items():
            record = json.loads(public_text(identity))
            binding = {"received_from": identity.fingerprint, "schema": fingerprint, "identity": record}
            secret = self.streams.bytes("received", name)
            self._chains[name] = self.ledger.open_chain(name, secret=secret, binding=binding)
        self.declared = dict.fromkeys(self.sites, UNDECLARED)
        return tuple(self.sites)

    @property
    def rows_outside(self) -> int:
        """Real sites keep that to themselves; their own ledgers tell it."""
        return 0

    def inject_faults(self, faults: Faults) -> None:
        """Real sites have faults of their own."""
        if faults != Faults():
            raise ConfigError("sites.faults is for simulations", hint="Drop it, or use --engine local")

    def checkpoint(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Nothing: sites keep what they need themselves."""
        return {}

    def restore(self, states: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Sites did not forget."""
        del states

    def exchange(self, ask: Ask) -> Replies:
        """Send each site a message for every request of an exchange, together, and collect the replies that count."""
        asks = [ask]
        while (then := asks[-1].then) is not None:
            asks.append(then)
        posted = [self._post(each, first=each is ask) for each in asks]
        messages = {name: join_messages([written[name] for _, _, written in posted]) for name in ask.to}
        began = perf_counter()
        came, missing = self.carrier.carry(messages, deadline=self.deadline)
        self.costs.longest_exchange = max(self.costs.longest_exchange, perf_counter() - began)
        replied = {name: split_messages(data) for name, data in came.items()}
        settled = []
        for place, (each, (requests, numbers, _)) in enumerate(zip(asks, posted, strict=True)):
            own = {name: parts[place] for name, parts in replied.items() if len(parts) == len(asks)}
            settled.append(self._settle(each, requests, numbers, own, missing))
        for replies, following in pairwise(settled):
            replies.then = following
        return settled[0]

    def _post(self, ask: Ask, *, first: bool) -> tuple[dict[str, Request], dict[str, str], dict[str, bytes]]:
        """The requests of an exchange, the numbers of their messages, and the messages. The first brings the plan."""
        self.watch(ask)
        requests = self._requests(ask)
        self.inputs.take(next(iter(requests.values())))
        messages = {name: self._message(name, request, first=first) for name, request in requests.items()}
        numbers = {name: message.fresh for name, message in messages.items()}
        return requests, numbers, {name: write_request(message, self.hub) for name, message in messages.items()}

    def _settle(
        self,
        ask: Ask,
        requests: Mapping[str, Request],
        numbers: Mapping[str, str],
        came: Mapping[str, bytes],
        missing: Mapping[str, str],
    ) -> Replies:
        """Read what came, write it down, and judge whether it is enough."""
        excluded = [Excluded(name, "dropped", missing.get(name, "no answer")) for name in ask.to if name not in came]
        answers, stray = self._read_replies(requests, numbers, {name: came[name] for name in ask.to if name in came})
        excluded += stray
        self._has_plan |= set(answers)
        left_out, names, encoded = self._write_down(ask, requests, answers)
        excluded += left_out
        self._count(requests, answers)
        kept, body, bad = validate_ask(names, encoded, ask, self.declared)
        excluded += bad
        for item in excluded:
            if item.kind not in {"refused", "failed"}:  # those two stand in the ledger already
                ledger_context = LedgerContext(what=ask.task.name, round=ask.round)
                self.ledger.note(self._chains[item.site], ledger_context, reason=item.reason)
        if ask.to[0] in self.parties:
            return _consulted(ask, kept, body, excluded)
        self.excluded += excluded
        if len(kept) < least_answers(self.quorum, len(ask.to)):
            give_up(ask, len(kept), excluded)
        return Replies(kept, body, excluded)

    def _read_replies(
        self, requests: Mapping[str, Request], numbers: Mapping[str, str], came: Mapping[str, bytes]
    ) -> tuple[dict[str, ReplyMessage], list[Excluded]]:
        """The replies that belong to these requests, and who sent something else."""
        read: dict[str, ReplyMessage] = {}
        answers: dict[str, ReplyMessage] = {}
        stray: list[Excluded] = []
        for name, data in came.items():
            try:
                read[name] = read_reply(data, site=self._everyone[name])
                self._take_returned(read[name])
            except KohortError as error:
                stray.append(Excluded(name, "stray", error.message))
        for name, reply in read.items():  # what peers return of a site is known before its own head is judged
            try:
                answers[name] = self._opened(name, reply, numbers[name], requests[name])
            except KohortError as error:
                stray.append(Excluded(name, "stray", error.message))
        return answers, stray

    def _requests(self, ask: Ask) -> dict[str, Request]:
        """One request for all, or one each; the same the local engine makes, hash for hash."""
        if ask.each is None:
            return dict.fromkeys(ask.to, ask.request(self.approved, self.streams, ask.payload))
        return {name: ask.request(self.approved, self.streams, ask.each[name], name) for name in ask.to}

    def _heads(self) -> bytes:
        """The newest signed heads of all parties."""
        return head_lines((name, kept.last) for name, kept in self.site_receipts.items() if kept.last is not None)

    def _message(self, name: str, request: Request, *, first: bool) -> RequestMessage:
        known = name in self._has_plan or not first
        return RequestMessage(
            site=name,
            fresh=fresh_number(),
            run=request.run,
            plan_hash=request.plan_hash,
            schema=self.approved.schema.fingerprint(),
            columns=canonical(list(self.approved.schema.columns)),
            task=request.task,
            round=request.round,
            attempt=request.attempt,
            nonce=request.nonce,
            body=request.encoded,
            plan=b"" if known else self.plan,
            peers=b"" if known else self.peers,
            heads=b"" if known else self._heads(),
            receipts=self.site_receipts[name].after(self._known_receipts.get(name)) if first else b"",
        )

    @property
    def _everyone(self) -> dict[str, PublicIdentity]:
        return {**self.sites, **self.parties}

    def _take_returned(self, reply: ReplyMessage) -> None:
        """Heads of its peers' ledgers that a site remembers, from before this hub's receipts perhaps."""
        known = self._everyone
        for name, head in reply.seen.items():
            if name in known:
                self.site_receipts[name].returned(read_head(head), known[name])

    def _opened(self, name: str, answer: ReplyMessage, number: str, request: Request) -> ReplyMessage:
        """A site's reply to this very request; its receipt is written before anything is made of it."""
        if answer.fresh != number:
            raise IntegrityError(f"site {name!r} answered another message")
        if (answer.status == "answer" or answer.request) and answer.request != request.digest:
            raise IntegrityError(f"site {name!r} answered another request")
        if answer.head or answer.status != "failed":  # a site whose disk failed can sign no head, and sends nothing
            receipts = self.site_receipts[name]
            receipts.check(answer, self._everyone[name])
            receipts.acknowledge(answer)
        self._known_receipts[name] = answer.receipts
        return answer

    def _write_down(
        self, ask: Ask, requests: Mapping[str, Request], answers: Mapping[str, ReplyMessage]
    ) -> tuple[list[Excluded], list[str], list[bytes]]:
        """The hub's ledger lines of an exchange, and who answered with what."""
        excluded: list[Excluded] = []
        failures: list[Failure] = []
        names: list[str] = []
        encoded: list[bytes] = []
        lines: dict[str, list[Chain]] = {}
        for name, answer in answers.items():
            chain, request = self._chains[name], requests[name]
            ledger_context = LedgerContext(
                what=request.task,
                to=answer.to,
                via=answer.via,
                request=request.digest,
                round=request.round,
                site_head=_signed_head(answer),
            )
            if answer.status == "answer":
                try:
                    claim = parse_guarantee(dict(answer.guarantee))
                except IntegrityError as error:
                    excluded.append(Excluded(name, "excluded", error.message))
                    continue
                self._write_release(chain, ledger_context, claim, answer)
                lines.setdefault(request.digest, []).append(chain)
                names.append(name)
                encoded.append(answer.body)
            elif answer.status == "refused":
                self._write_refusal(chain, ledger_context, answer)
                if answer.request:
                    lines.setdefault(request.digest, []).append(chain)
                excluded.append(Excluded(name, "refused", _said(answer)))
            else:
                self.ledger.note(chain, ledger_context._replace(to="hub"), reason=answer.code)
                failures.append(Failure(name, _said(answer), tampered=answer.status == "tampered", code=answer.code))
                excluded.append(Excluded(name, "failed", _said(answer)))
        for digest, chains in lines.items():
            self.receipts.issue(self.ledger, chains, LedgerContext(what=ask.task.name, request=digest, round=ask.round))
        stop_if_tampered(failures)
        return excluded, names, encoded

    def _write_release(
        self, chain: Chain, ledger_context: LedgerContext, claim: Guarantee, reply: ReplyMessage
    ) -> None:
        """The line of a release; what came before an interruption is charged once."""
        known = self.ledger.has_answered(chain, ledger_context, reply.body)
        self.ledger.record(
            [chain],
            ledger_context,
            guarantees=[claim],
            rows=[reply.rows],
            payloads=[reply.body],
            refusals=[None],
        )
        if isinstance(claim, DP) and not known:
            chain.budget.charge(claim, to=reply.to, what=ledger_context.what, round=ledger_context.round)

    def _write_refusal(self, chain: Chain, ledger_context: LedgerContext, reply: ReplyMessage) -> None:
        """The line of a refusal: of this request or, without a ledger head, of the plan as a whole."""
        if not reply.request:
            ledger_context = LedgerContext(
                what=f"{self.approved.method}.plan", request=self.approved.plan_hash, site_head=_signed_head(reply)
            )
        self.ledger.refuse(chain, ledger_context, guarantee=Public(what="nothing"), reason=reply.code)

    def _count(self, requests: Mapping[str, Request], answers: Mapping[str, ReplyMessage]) -> None:
        """Bytes of payloads, as the ledgers list them; seconds as the sites measured them."""
        sent = {name: len(request.encoded) for name, request in requests.items()}
        self.costs.bytes_down += sum(sent.values())
        self.costs.bytes_up += sum(len(answer.body) for answer in answers.values())
        moved = [len(answer.body) + sent[name] for name, answer in answers.items()]
        self.costs.most_bytes_a_site += max(moved, default=0)
        times = [answer.seconds for name, answer in answers.items() if name in self.sites]
        self.costs.key_holder += sum(answer.seconds for name, answer in answers.items() if name in self.parties)
        self.costs.slowest_site += max(times, default=0.0)
        self.costs.sites += sum(times)


def _signed_head(answer: ReplyMessage) -> str:
    """The signed head of the site's ledger as it stands in the hub's own; empty without one."""
    return canonical([answer.length, answer.head, answer.head_signature]) if answer.head else ""


def _said(answer: ReplyMessage) -> str:
    """What the hub knows about a refusal or a failure; the reason is the site's own."""
    known = CODES.get(answer.code, "it gave no reason")
    return f"{known} ({answer.code or answer.status}); its own ledger says why"


def _consulted(
    ask: Ask, kept: Sequence[str], body: EncodedReplies | list[bytes], excluded: Sequence[Excluded]
) -> Replies:
    """The answer of a party without rows. There is no quorum of one: what it refuses or cannot do ends the run."""
    if not excluded:
        return Replies(kept, body)
    against = excluded[0]
    message = f"{against.site!r} does not answer {ask.task.name!r}: {against.reason}"
    if against.kind in {"dropped", "stray"}:
        raise SiteError(message, hint="Start it, then go on with --resume")
    raise RefusedError(message)
