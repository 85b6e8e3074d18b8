"""Engines drive plans. This one holds every site in the same process.

An engine carries bytes: it turns an Ask into requests, collects what the sites let out through their doors, has it
validated, and gives the plan what is left. It counts every byte it carried, and the ledgers list exactly those.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar
from weakref import ref

from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.dp.budget import account_name
from kohort.privacy.guarantee import DP, Guarantee
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.privacy.ledger.receipts import Receipts
from kohort.protocol.faults import Faults, absent_sites, byzantine_sites
from kohort.protocol.hub import Ask, Excluded, Replies, RoundEnd
from kohort.protocol.plan import ApprovedPlan
from kohort.protocol.site import Answers, Failure, Site, answer
from kohort.protocol.task import Request
from kohort.protocol.validate import validate
from kohort.protocol.wire import EncodedReplies, Payload
from kohort.rng import Streams

if TYPE_CHECKING:
    from kohort.crypto.sealed import PublicIdentity

__all__ = [
    "Claims",
    "Costs",
    "Engine",
    "LocalEngine",
    "drive",
    "first_objection",
    "give_up",
    "least_answers",
    "stop_if_tampered",
]

T = TypeVar("T")
AT_A_TIME = 64
"""Replies that are held at a time where a plan takes them as they come."""
Claims = Callable[[int], Sequence[Guarantee]]


@dataclass
class Costs:
    """What a run took: bytes as carried, seconds as measured (a site's part of a joint call by its rows)."""

    bytes_up: int = 0
    bytes_down: int = 0
    most_bytes_a_site: int = 0
    slowest_site: float = 0.0
    sites: float = 0.0
    hub: float = 0.0
    key_holder: float = 0.0
    longest_exchange: float = 0.0
    """From sending a question to other machines until no more answers were waited for; 0 in one process."""


class Engine(Protocol):
    """What `drive` needs: exchanges, and what they cost."""

    costs: Costs

    def exchange(self, ask: Ask) -> Replies:
        """Carry a question to the sites and the validated answers back."""
        ...


def drive(
    plan: Generator[Ask | RoundEnd, Any, T], engine: Engine, *, observe: Callable[[RoundEnd], None] = lambda _: None
) -> T:
    """Run a plan to its end. What the plan itself computes is the hub's time; `observe` is nobody's."""
    reply: Replies | None = None
    while True:
        began = perf_counter()
        try:
            step = plan.send(reply)
        except StopIteration as end:
            engine.costs.hub += perf_counter() - began
            result: T = end.value
            return result
        engine.costs.hub += perf_counter() - began
        reply = None
        if isinstance(step, RoundEnd):
            observe(step)
        else:
            reply = engine.exchange(step)
            if step.take is not None and not reply.taken:
                began = perf_counter()
                for site, payload in zip(reply.sites, reply.payloads(), strict=True):
                    step.take(site, payload)
                engine.costs.hub += perf_counter() - began


@dataclass
class LocalEngine:
    """All sites in this process: many at once where a task can, one by one where it cannot. Same bytes either way."""

    sites: dict[str, Site]
    approved: ApprovedPlan
    streams: Streams
    receipts: Receipts
    quorum: float = 0.5
    """Smallest share of the asked sites whose answers must count for the run to go on."""
    many: bool = True
    costs: Costs = field(default_factory=Costs)
    excluded: list[Excluded] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    """Rows each site declared when it enrolled; replies may not speak of more."""
    faults: Faults = field(default_factory=Faults)
    deadline: float = inf
    """Seconds a site has for an answer; a later one is left out. A site's part of a joint call goes by its rows."""
    parties: dict[str, Site] = field(default_factory=dict)
    """Who takes part without rows: a key-holder. Asked by name, alone; never dropped, late or lying."""

    def inject_faults(self, faults: Faults) -> None:
        """Let simulated sites drop out, be late or lie from now on."""
        self.faults = faults
        for name, byzantine in byzantine_sites(faults, tuple(self.sites), self.streams).items():
            self.sites[name].byzantine = byzantine

    def approve(self, claims: Claims, *, tasks: Sequence[str] = ()) -> tuple[str, ...]:
        """Let every site judge what the plan will ask, before any byte leaves; the sites that agree take part."""
        agreed = []
        plan = f"{self.approved.method}.plan"
        self.declared = {name: site.count for name, site in self.sites.items()}
        find_peer = _roster_of(self)
        for site in (*self.parties.values(), *self.sites.values()):
            site.approved = self.approved
            site.find_peer = find_peer
        for site in self.sites.values():
            against = first_objection(site, claims(site.count), [plan, *tasks])
            if against is not None:
                claim, reason = against
                ledger_context = LedgerContext(what=plan, request=self.approved.plan_hash)
                site.ledger.refuse(site.chain, ledger_context, guarantee=claim, reason=reason)
                self.excluded.append(Excluded(site.name, "refused", reason))
            else:
                agreed.append(site.name)
        if len(agreed) < least_answers(self.quorum, len(self.sites)):
            reason = self.excluded[-1].reason if self.excluded else "there are no sites"
            raise RefusedError(
                f"{len(self.sites) - len(agreed)} of {len(self.sites)} sites refuse the plan: {reason}",
                hint="Ask for less, or change [policy] where you own the sites",
            )
        return tuple(agreed)

    def kept(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What a checkpoint must hold of the sites."""
        return {name: kept for name, site in self.sites.items() if (kept := site.states.checkpoint())}

    def put_back(self, kept: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """The inverse of `kept`."""
        for name, state in kept.items():
            self.sites[name].states.restore(state)

    def exchange(self, ask: Ask) -> Replies:
        """One question, one door passage a site, one receipt (or a few, when the replies are taken as they come)."""
        replies = self._exchange(ask)
        if ask.then is not None:
            replies.then = self.exchange(ask.then)
        return replies

    def _exchange(self, ask: Ask) -> Replies:
        if len(ask.to) == 1 and ask.to[0] in self.parties:
            return self._consult(ask)
        absent = absent_sites(self.faults, ask.to, self.streams, task=ask.task.name, round_number=ask.round)
        excluded = [Excluded(site, kind, f"no answer before the deadline ({kind})") for site, kind in absent.items()]
        asked = tuple(self.sites[name] for name in ask.to if name not in absent)
        if ask.take is None:
            kept, body, slowest, most = self._collect(asked, ask, "", excluded)
        else:
            kept, body, slowest, most = self._hand_over(ask.take, asked, ask, excluded)
        # Sites work and transfer side by side, so an exchange takes as long as the slowest of them.
        self.costs.most_bytes_a_site += most
        self.costs.slowest_site += slowest
        for item in excluded:
            if item.kind not in {"refused", "failed"}:  # those two stand in the ledger already
                site = self.sites[item.site]
                site.ledger.note(site.chain, LedgerContext(what=ask.task.name, round=ask.round), reason=item.reason)
        self.excluded += excluded
        if len(kept) < least_answers(self.quorum, len(ask.to)):
            give_up(ask, len(kept), excluded)
        return Replies(kept, body, excluded, taken=ask.take is not None)

    def _collect(
        self, sites: tuple[Site, ...], ask: Ask, part: str, excluded: list[Excluded]
    ) -> tuple[Sequence[str], EncodedReplies | list[bytes], float, int]:
        """Who answered well, and what; seconds of the slowest and the most bytes of one. Adds the others to `excluded`.

        `part` names a part of a larger question.
        """
        answers, most = self._ask(sites, ask, part)
        self.costs.sites += answers.seconds
        names, encoded, late = self._punctual(answers)
        if answers.refusals or answers.failures:
            stop_if_tampered(answers.failures)
            excluded += [Excluded(refusal.site, "refused", refusal.reason) for refusal in answers.refusals]
            excluded += [Excluded(failure.site, "failed", failure.reason) for failure in answers.failures]
        good, body, bad = validate(names, encoded, ask.expect, self.declared)
        excluded += late
        excluded += bad
        return good, body, answers.slowest, most

    def _hand_over(
        self, take: Callable[[str, Payload], None], sites: tuple[Site, ...], ask: Ask, excluded: list[Excluded]
    ) -> tuple[list[str], list[bytes], float, int]:
        """As `_collect`, a few sites at a time; the plan works on their replies at once, and that is the hub's time."""
        kept: list[str] = []
        slowest, most = 0.0, 0
        for start in range(0, max(1, len(sites)), AT_A_TIME):
            part = sites[start : start + AT_A_TIME]
            good, body, longest, largest = self._collect(part, ask, f"from {start}" if start else "", excluded)
            slowest, most = max(slowest, longest), max(most, largest)
            kept += good
            began = perf_counter()
            for site, payload in zip(good, Replies(good, body).payloads(), strict=True):
                take(site, payload)
            self.costs.hub += perf_counter() - began
        return kept, [], slowest, most

    def _ask(self, sites: tuple[Site, ...], ask: Ask, part: str) -> tuple[Answers, int]:
        """The answers of `sites`, and the most bytes one of them moved. `part` names a part of a larger question."""
        if ask.each is None:
            return self._carry(sites, ask, ask.payload, part)
        answers = [self._carry((site,), ask, ask.each[site.name], site.name) for site in sites]
        return Answers.joined([part for part, _ in answers]), max((most for _, most in answers), default=0)

    def _consult(self, ask: Ask) -> Replies:
        """Ask a party without rows. There is no quorum of one: what it refuses or cannot do ends the run."""
        joined, _ = self._ask(tuple(self.parties[name] for name in ask.to), ask, "")
        self.costs.key_holder += joined.seconds
        stop_if_tampered(joined.failures)
        against = [item.reason for item in joined.refusals] + [item.reason for item in joined.failures]
        if against:
            raise RefusedError(f"{ask.to[0]!r} does not answer {ask.task.name!r}: {against[0]}")
        kept, body, bad = validate([site.name for site in joined.sites], joined.encoded, ask.expect, {})
        if bad:
            raise IntegrityError(f"{bad[0].site!r} answered {ask.task.name!r} with something else: {bad[0].reason}")
        return Replies(kept, body)

    def _punctual(self, answers: Answers) -> tuple[Sequence[str], EncodedReplies | list[bytes], list[Excluded]]:
        """The answers that came before the deadline, and the sites whose answers did not."""
        names = [site.name for site in answers.sites]
        if self.deadline == inf or answers.slowest <= self.deadline:
            return names, answers.encoded, []
        times = answers.times
        kept = [index for index, took in enumerate(times) if took <= self.deadline]
        encoded = answers.encoded
        late = [name for name, took in zip(names, times, strict=True) if took > self.deadline]
        return (
            [names[index] for index in kept],
            encoded.take(kept) if isinstance(encoded, EncodedReplies) else [encoded[index] for index in kept],
            [Excluded(name, "late", "the answer came after the deadline") for name in late],
        )

    def _carry(self, sites: tuple[Site, ...], ask: Ask, payload: Payload, alone: str = "") -> tuple[Answers, int]:
        """The answers of `sites`, and the most bytes one of them moved. `alone` names the one site of its own request.

        Two sites may be asked the same thing, each for itself: the name keeps their requests and receipts apart.
        """
        request = Request(
            run=self.approved.run,
            plan_hash=self.approved.plan_hash,
            task=ask.task.name,
            round=ask.round,
            attempt=0,
            nonce=self.streams.bytes("nonce", ask.task.name, ask.round, alone, length=12).hex(),
            payload=payload,
        )
        answers = answer(sites, request, many=self.many)
        most = self._count(sites, request, answers)
        chains = tuple(site.chain for site in answers.sites)
        if answers.refusals:
            refused = {refusal.site for refusal in answers.refusals}
            chains += tuple([site.chain for site in sites if site.name in refused])
        if chains:
            self.receipts.issue(sites[0].ledger, chains, request.ledger_context)
        return answers, most

    def _count(self, sites: Sequence[Site], request: Request, answers: Answers) -> int:
        encoded = answers.encoded
        if isinstance(encoded, EncodedReplies):  # all of one size
            largest, total = encoded.layout.size if len(encoded) else 0, encoded.layout.size * len(encoded)
        else:
            sizes = [len(data) for data in encoded]
            largest, total = max(sizes, default=0), sum(sizes)
        down = len(request.encoded)
        self.costs.bytes_up += total
        self.costs.bytes_down += down * len(sites)
        return largest + down


def _roster_of(engine: LocalEngine) -> Callable[[str], PublicIdentity | None]:
    """The roster of every simulated site: the plan's sites, and its key-holder.

    It does not keep the engine: a site that held it would keep all sites' rows in memory until Python looks for cycles.
    """
    known = ref(engine)

    def find_peer(name: str) -> PublicIdentity | None:
        here = known()
        found = None if here is None else here.sites.get(name) or here.parties.get(name)
        return None if found is None else found.identity.public

    return find_peer


def least_answers(quorum: float, asked: int) -> int:
    """How many of `asked` sites must answer."""
    return max(1, ceil(quorum * asked - 1e-9))  # 0.07 * 100 is a little above 7


def give_up(ask: Ask, kept: int, excluded: Sequence[Excluded]) -> NoReturn:
    """End a run in which too few sites answered, with the reason of the first that did not."""
    reason = excluded[0].reason if excluded else "none answered"
    message = f"{kept} of {len(ask.to)} sites answered {ask.task.name!r} in round {ask.round}, fewer than the quorum"
    if excluded and all(item.kind == "refused" for item in excluded):
        raise RefusedError(f"{message}: {reason}", hint="The sites' policies forbid it; ask for less")
    raise SiteError(f"{message}: {reason}", hint="Mend the sites that are named in the ledger, or lower sites.quorum")


def stop_if_tampered(failures: Sequence[Failure]) -> None:
    """End a run in which somebody between the sites changed, repeated or redirected what they were handed."""
    for failure in failures:
        if failure.tampered:
            raise IntegrityError(f"site {failure.site!r} was handed something else than it should: {failure.reason}")


def first_objection(site: Site, claims: Sequence[Guarantee], tasks: Sequence[str]) -> tuple[Guarantee, str] | None:
    """The first claim the site's policy will not let out under one of these tasks, and why.

    What this run paid before it was interrupted is part of what the plan claims, so it does not count twice.
    """
    approved = site.approved
    own = "" if approved is None else account_name(approved.run, approved.plan_hash)
    spent, spent_delta = site.chain.budget.without(own)
    paid: dict[str, tuple[float, float]] = {}
    for claim in claims:
        account = claim.account if isinstance(claim, DP) else ""
        for task in tasks:
            reason = site.policy.judge(
                claim, task=task, spent=spent, spent_delta=spent_delta, paid=paid.get(account, (0.0, 0.0))
            )
            if reason is not None:
                return claim, reason
        if isinstance(claim, DP):
            epsilon, delta = claim.spent
            spent, spent_delta = spent + epsilon, spent_delta + delta
            if account:
                before = paid.get(account, (0.0, 0.0))
                paid[account] = (before[0] + epsilon, before[1] + delta)
    return None
