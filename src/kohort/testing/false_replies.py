"""A lying site or key-holder among honest ones: what leaves those is what the contract says, and nobody learns more.

For every reply that a party gave in the recorded honest run, replies are generated that no honest party gives: every
field changed, lists shortened and repeated, what another party said, what it said itself before, forged totals,
malformed bodies, other claims and words. Each is told once, signed by the liar, in a run of its own with fresh servers;
the hub carries the protocol on. Then, whatever the lie:

- the hub's process ends with an error of its own, or with a result, never otherwise;
- every reply of every honest party is held to the contract (`kohort.testing.watch`);
- a twin of the victim with other row values gives the same words to the same requests;
- nothing that reaches the liar shows the canary row;
- no opened total, less what the liar contributed, and no difference of two totals, is a single site's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import KEY_HOLDER, Integers
from kohort.crypto.sums.session import SiteSession, SumPart
from kohort.errors import KohortError
from kohort.privacy.guarantee import Aggregate, Public, Raw, parse_guarantee
from kohort.protocol.wire import decode, encode
from kohort.rounds import summing
from kohort.runs.run import run
from kohort.testing.canary import shows_canary
from kohort.testing.checks import ContractViolation
from kohort.testing.lies import bodies_of_none, other_payloads
from kohort.testing.recorded import VICTIM, Exchange, HonestRun, RecordedSites
from kohort.testing.watch import Victim, Watch, handed_back
from kohort.transport.messages import ReplyMessage

__all__ = ["LIAR", "FalseReply", "Sums", "every_false_reply", "run_with"]

LIAR = "a-first"
"""The site that lies. It is not the victim."""


@dataclass(frozen=True)
class FalseReply:
    """What a party says instead of one of its replies, or from there on."""

    name: str
    place: int
    """How many replies it gives before it lies."""
    fields: Mapping[str, Any]
    onward: bool = False
    """Whether it lies in all later replies, too."""

    def said(self, place: int, reply: ReplyMessage) -> ReplyMessage:
        """What it says.

        Args:
            place: How many replies it gave before.
            reply: What it would say honestly.

        Returns:
            The reply.
        """
        return replace(reply, **self.fields) if place == self.place or (self.onward and place > self.place) else reply


def every_false_reply(honest: HonestRun, party: str) -> Iterator[FalseReply]:
    """Everything a party can say in place of each of its honest replies.

    Args:
        honest: The recorded run.
        party: A site, or the key-holder.

    Yields:
        The lies.
    """
    script = honest.script(party)
    for place, exchange in enumerate(script):
        called = f"{party}, reply {place} ({exchange.asked.task}, round {exchange.asked.round})"
        for name, body in _bodies(honest, script, place):
            yield FalseReply(f"{called}: {name}", place, {"body": body})
        for name, fields in _heads(exchange.reply).items():
            yield FalseReply(f"{called}: {name}", place, fields)
            if fields.get("status"):
                yield FalseReply(f"{called}: {name}, from there on", place, fields, onward=True)
        yield FalseReply(f"{called}: this body, from there on", place, {"body": exchange.reply.body}, onward=True)


def _bodies(honest: HonestRun, script: list[Exchange], place: int) -> Iterator[tuple[str, bytes]]:
    """Other bodies: changed, malformed, of the same party at another time, of another party at the same time."""
    own = script[place]
    if own.reply.status == "answer":
        yield from ((name, encode(payload)) for name, payload in other_payloads(decode(own.reply.body)))
    yield from bodies_of_none(own.reply.body).items()
    for other in (place - 1, place + 1):
        if 0 <= other < len(script):
            yield f"the body of reply {other}", script[other].reply.body
    asked = (own.asked.task, own.asked.round)
    for exchange in honest.served.exchanges:
        same = (exchange.asked.task, exchange.asked.round) == asked and exchange.site not in {own.site, KEY_HOLDER}
        if same and exchange.reply.body != own.reply.body and len(exchange.asked.body) == len(own.asked.body):
            yield f"what {exchange.site} says", exchange.reply.body


def _heads(reply: ReplyMessage) -> dict[str, dict[str, Any]]:
    """Other words, claims and heads around the same body."""
    silent = {"body": b"", "guarantee": {}, "rows": 0, "via": ""}
    weak = Aggregate(rows=10**6)
    return {
        "a refusal": {"status": "refused", "code": "policy", **silent},
        "a failure": {"status": "failed", "code": "failed", **silent},
        "an alarm": {"status": "tampered", "code": "tampered", **silent},
        "a word of its own": {"status": "failed", "code": "19.9173", **silent},
        "an unknown status": {"status": "perhaps"},
        "a weaker claim": {"guarantee": {"kind": weak.kind, "rows": weak.rows}},
        "a public claim": {"guarantee": {"kind": Public.kind, "what": "anything"}},
        "a claim of no kind": {"guarantee": {"kind": "certain"}},
        "no claim": {"guarantee": {}},
        "more rows": {"rows": 10**12},
        "fewer rows than none": {"rows": -1},
        "rows of text": {"rows": "many"},
        "another recipient": {"to": "peers"},
        "another request": {"request": "0" * 64},
        "another number": {"fresh": "0" * 32},
        "another name": {"site": VICTIM},
        "a head of its own": {"head": "0" * 64, "length": reply.length + 1},
        "a shorter ledger": {"length": 0},
        "a length of text": {"length": "long"},
        "receipts beyond all": {"receipts": 10**12},
        "receipts of text": {"receipts": "all"},
        "heads of peers that are numbers": {"seen": {VICTIM: 7}},
        "heads of peers of noise": {"seen": {VICTIM: ["x", None, {}], "nobody": []}},
        "heads of peers ahead of them": {"seen": {VICTIM: [10**9, "0" * 64, "0" * 128]}},
        "heads of peers signed by nobody": {"seen": {VICTIM: [10**9, "not a hash", "not a signature"]}},
        "time without end": {"seconds": 1e308},
    }


@dataclass
class Sums:
    """The vectors that parties contributed to secure sums, and the totals that the hub opened."""

    vectors: dict[tuple[str, str, int], Integers] = field(default_factory=dict)
    """By site, task and round."""
    totals: list[Integers] = field(default_factory=list)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen while the block runs."""
        begin, made = SiteSession.begin, summing.Total

        def listening(session: SiteSession, *parts: Any) -> SumPart:
            part = begin(session, *parts)
            part.side.reply = self._listen(part.side.reply, (session.name, parts[2], part.context.round))  # type: ignore[method-assign]
            return part

        def opened(values: Integers, *about: Any) -> summing.Total:
            self.totals.append(values.copy())
            return made(values, *about)

        with patch.object(SiteSession, "begin", listening), patch.object(summing, "Total", opened):
            yield

    def _listen(self, reply: Callable[..., bytes], which: tuple[str, str, int]) -> Callable[..., bytes]:
        def listening(step: int, inbox: bytes, vector: Integers | None = None) -> bytes:
            if vector is not None:
                self.vectors[which] = vector.copy()
            return reply(step, inbox, vector)

        return listening

    def shown(self, liar: str) -> tuple[str, str, int] | None:
        """Whose vector a total shows, alone or together with the liar's own vectors or with another total.

        Args:
            liar: Who knows its own vectors.

        Returns:
            Site, task and round of the vector; None when no total shows one.
        """
        own = [vector for (site, _, _), vector in self.vectors.items() if site == liar]
        secret = {_key(vector): which for which, vector in self.vectors.items() if which[0] != liar and vector.any()}
        known = [*self.totals, *own]
        for place, total in enumerate(self.totals):
            for other in (np.zeros_like(total), *known[:place], *known[place + 1 :]):
                for left in _differences(total, other):
                    if _key(left) in secret:
                        return secret[_key(left)]
        return None


def _key(vector: Integers) -> tuple[int, bytes]:
    return len(vector), vector.astype(np.uint64).tobytes()


def _differences(one: Integers, other: Integers) -> Iterator[Integers]:
    """One vector less another, modulo 2^64 and, where both are residues, modulo 2^61 - 1."""
    if one.shape != other.shape:
        return
    yield one.astype(np.uint64) - other.astype(np.uint64)
    prime = np.uint64(P61)
    if (one < prime).all() and (other < prime).all():
        yield (one + (prime - other)) % prime


def run_with(honest: HonestRun, party: str, lie: FalseReply) -> None:
    """Run the plan with a party that lies once, and hold everybody else to the contract.

    Args:
        honest: The recorded run.
        party: Who lies.
        lie: What it says.

    Raises:
        ContractViolation: The lie got something, or ended a process.
    """

    def alter(name: str, place: int, reply: ReplyMessage) -> ReplyMessage:
        return lie.said(place, reply) if name == party else reply

    served, sums = RecordedSites(alter=alter, population=honest.served.population), Sums()
    try:
        with sums.heard():
            run(honest.plan, seed=honest.seed, backend=served)
    except KohortError:
        pass  # a liar may spoil a run
    except Exception as error:
        raise _violation(honest, lie, f"{type(error).__name__} ends the hub's process") from error
    _hold_to_contract(honest, served, party, lie)
    shown = sums.shown(party) if honest.approved.sums_securely else None
    if shown is not None:
        raise _violation(honest, lie, f"a total of {shown[1]!r} shows the vector of {shown[0]}")
    _compare_twin(honest, served, lie)


def _hold_to_contract(honest: HonestRun, served: RecordedSites, party: str, lie: FalseReply) -> None:
    """What leaves honest parties is what the contract allows, and no row of theirs reaches the liar."""
    if not served.exchanges:
        raise _violation(honest, lie, "the run with a liar asked nobody anything, so nothing was held to the contract")
    watches: dict[str, Watch] = {}
    for exchange in served.exchanges:
        if exchange.site != party:
            watch = watches.setdefault(exchange.site, Watch(honest, exchange.site))
            watch.judge(exchange.asked, exchange.reply, lie.name)
        elif shows_canary(exchange.asked.body) and not _is_plain(honest):
            raise _violation(honest, lie, "a request to the liar holds a value of a single row of another site")


def _is_plain(honest: HonestRun) -> bool:
    """Whether rows leave as they are."""
    claims = (parse_guarantee(dict(exchange.reply.guarantee)) for exchange in honest.served.exchanges)
    return any(isinstance(claim, Raw) for claim in claims)


def _compare_twin(honest: HonestRun, served: RecordedSites, lie: FalseReply) -> None:
    """A site with other row values gives the same words to what the victim was asked, until it is handed its own."""
    twin = Victim(honest, VICTIM, other_rows=True)
    for exchange in served.exchanges:
        if exchange.site != VICTIM:
            continue
        if exchange.asked.task == handed_back(honest, VICTIM):
            return
        reply = twin.ask(exchange.asked, lie.name)
        said, wanted = (reply.status, reply.code), (exchange.reply.status, exchange.reply.code)
        if said != wanted:
            text = f"{exchange.asked.task!r} gets {wanted} or {said}, although only row values differ"
            raise _violation(honest, lie, text)


def _violation(honest: HonestRun, lie: FalseReply, text: str) -> ContractViolation:
    return ContractViolation(f"{honest.name}: {text} (lie: {lie.name})")
