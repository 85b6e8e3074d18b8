"""The engine that drives a protocol, and the one that runs every site in this process.

An engine carries bytes: it turns an Ask into requests, collects the replies that passed the sites' doors, validates
them, and gives the valid ones to the protocol. It counts every byte it carried; the ledgers list exactly those.
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
from kohort.privacy.policy import after_refusal
from kohort.protocol.answers import Answers, Failure, answer
from kohort.protocol.faults import Faults, absent_sites, byzantine_sites
from kohort.protocol.hub import Ask, Excluded, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.protocol.validate import validate, validate_ask
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
"""How many sites are asked at a time when the protocol processes replies as they come in (`Ask.take`)."""
Claims = Callable[[Site], Sequence[Guarantee]]
"""From a site to everything that the plan will claim there."""


@dataclass
class Costs:
    """Bytes carried and seconds used by a run.

    When many sites answer in one call, each site's share of the time is estimated by its rows.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    most_bytes_a_site: int = 0
    slowest_site: float = 0.0
    sites: float = 0.0
    hub: float = 0.0
    key_holder: float = 0.0
    longest_exchange: float = 0.0
    """Seconds from sending a request to remote sites until the engine stopped waiting; 0 within one process."""


class Engine(Protocol):
    """What drives a protocol: it carries requests to the sites, wherever they are, and their replies back."""

    costs: Costs
    excluded: list[Excluded]
    """Sites whose answers did not count, and why."""
    declared: dict[str, int]
    """Rows each site declared when it enrolled."""
    inputs: PublicInputs
    """What every site was told, as far as it is in force."""

    @property
    def rows_outside(self) -> int:
        """Rows outside the agreed domain that take no part, as far as this process can know: those of its own sites."""
        ...

    def approve(self, claims: Claims, *, tasks: Sequence[str] = ()) -> tuple[str, ...]:
        """Let every site's policy judge what the plan will ask, before any byte leaves.

        Args:
            claims: What a site will be asked to release.
            tasks: The tasks it will be asked for.

        Returns:
            The sites that agree and take part.

        Raises:
            RefusedError: Too few agree.
        """
        ...

    def inject_faults(self, faults: Faults) -> None:
        """Fault injection: drop-outs, stragglers and Byzantine sites from now on, in simulations."""
        ...

    def checkpoint(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The sites' states for a checkpoint; nothing of sites that store their state themselves."""
        ...

    def restore(self, states: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Take up what `checkpoint` returned."""
        ...

    def exchange(self, ask: Ask) -> Replies:
        """Send a request to the sites and return their validated replies.

        Args:
            ask: What to ask, and whom.

        Returns:
            The replies, and the sites that were left out.
        """
        ...


def drive(
    protocol: Generator[Ask | RoundEnd, Any, T], engine: Engine, *, observe: Callable[[RoundEnd], None] = lambda _: None
) -> T:
    """Run a protocol to its end. Time spent in the protocol counts as the hub's; time in `observe` counts as nobody's.

    Args:
        protocol: The generator of a method's protocol.
        engine: What carries its requests.
        observe: Called with every finished round.

    Returns:
        What the protocol returned.
    """
    reply: Replies | None = None
    while True:
        began = perf_counter()
        try:
            step = protocol.send(reply)
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
    """All sites in this process: in one call where a task supports it, otherwise one by one.

    Guarantee: both ways give the same bytes.
    """

    sites: dict[str, Site]
    approved: ApprovedPlan
    streams: Streams
    receipts: Receipts
    quorum: float = 0.5
    """Smallest share of the asked sites that must give a valid reply for the run to go on."""
    many: bool = True
    costs: Costs = field(default_factory=Costs)
    excluded: list[Excluded] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    """Row count that each site declared when it enrolled; a reply that claims more is excluded."""
    faults: Faults = field(default_factory=Faults)
    deadline: float = inf
    """Seconds a site has for its reply; later replies are left out (stragglers)."""
    inputs: PublicInputs = field(default_factory=PublicInputs)
    """What every site was told, as far as it is in force."""
    parties: dict[str, Site] = field(default_factory=dict)
    """Parties without rows, such as a key-holder. Each is asked alone, by name; no faults are injected into them."""

    @property
    def rows_outside(self) -> int:
        """Rows outside the agreed domain, which take no part."""
        return sum(rows - self.sites[name].count for name, rows in self.declared.items() if name in self.sites)

    def inject_faults(self, faults: Faults) -> None:
        """Fault injection: drop-outs, stragglers and Byzantine sites, from now on.

        Args:
            faults: What goes wrong, and how often.
        """
        self.faults = faults
        for name, byzantine in byzantine_sites(faults, tuple(self.sites), self.streams).items():
            self.sites[name].byzantine = byzantine

    def approve(self, claims: Claims, *, tasks: Sequence[str] = ()) -> tuple[str, ...]:
        """Let every site's policy judge all claims of the plan before any byte leaves.

        Args:
            claims: From a site to everything the plan will claim there.
            tasks: Further task names that each site must be willing to answer.

        Returns:
            The sites that agree; only these take part.

        Raises:
            RefusedError: Fewer sites agree than the quorum.
        """
        agreed = []
        plan_task = f"{self.approved.method}.plan"
        self.declared = {name: site.count for name, site in self.sites.items()}
        find_peer = _roster_of(self)
        for site in (*self.parties.values(), *self.sites.values()):
            site.approved = self.approved
            site.find_peer = find_peer
        for site in self.sites.values():
            against = first_objection(site, claims(site), [plan_task, *tasks])
            if against is not None:
                claim, reason = against
                ledger_context = LedgerContext(what=plan_task, request=self.approved.plan_hash)
                site.ledger.refuse(site.chain, ledger_context, guarantee=claim, reason=reason)
                self.excluded.append(Excluded(site.name, "refused", reason))
            else:
                agreed.append(site.name)
        if len(agreed) < least_answers(self.quorum, len(self.sites)):
            reason = self.excluded[-1].reason if self.excluded else "there are no sites"
            phases = self.approved.phase_budgets if "policy.epsilon" in reason or "policy.delta" in reason else ""
            raise RefusedError(
                f"{len(self.sites) - len(agreed)} of {len(self.sites)} sites refuse the plan: {reason}{phases}",
                hint=after_refusal(reason, rows=min((self.declared[one.site] for one in self.excluded), default=None)),
            )
        return tuple(agreed)

    def checkpoint(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The sites' states to store in a checkpoint: arrays by site and name."""
        return {name: kept for name, site in self.sites.items() if (kept := site.states.checkpoint())}

    def restore(self, states: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Restore the sites' states.

        Args:
            states: What `checkpoint` returned.
        """
        for name, state in states.items():
            self.sites[name].states.restore(state)

    def exchange(self, ask: Ask) -> Replies:
        """Send a request to the sites and return their validated replies. See `Engine.exchange`.

        Every site's reply passes its door once. Each group of sites that is asked in one request gets one receipt.

        Raises:
            RefusedError: Policies refused so often that the quorum is missed, or a party refused.
            SiteError: Fewer sites answered than the quorum.
            IntegrityError: A site found that what it was sent had been tampered with.
        """
        replies = self._exchange(ask)
        if ask.then is not None:
            replies.then = self.exchange(ask.then)
        return replies

    def _exchange(self, ask: Ask) -> Replies:
        if len(ask.to) == 1 and ask.to[0] in self.parties:
            return self._consult(ask)
        absent = absent_sites(self.faults, ask.to, self.streams, task=ask.task.name, round_number=ask.round)
        excluded = [Excluded(site, kind, f"no answer before the deadline ({kind})") for site, kind in absent.items()]
        asked = tuple([self.sites[name] for name in ask.to if name not in absent])
        if ask.take is None:
            kept, body, slowest, most = self._collect(asked, ask, "", excluded)
        else:
            kept, body, slowest, most = self._hand_over(ask.take, asked, ask, excluded)
        # Sites work and transfer in parallel, so an exchange takes as long as the slowest of them.
        self.costs.most_bytes_a_site += most
        self.costs.slowest_site += slowest
        for item in excluded:
            if item.kind not in {"refused", "unmet", "failed"}:  # these are in the ledger already
                site = self.sites[item.site]
                site.ledger.note(site.chain, LedgerContext(what=ask.task.name, round=ask.round), reason=item.reason)
        self.excluded += excluded
        if len(kept) < least_answers(self.quorum, len(ask.to)):
            give_up(ask, len(kept), excluded)
        return Replies(kept, body, excluded, taken=ask.take is not None)

    def _collect(
        self, sites: tuple[Site, ...], ask: Ask, part: str, excluded: list[Excluded]
    ) -> tuple[Sequence[str], EncodedReplies | list[bytes], float, int]:
        """The sites with valid replies, the replies, the slowest site's seconds, and the most bytes of one site.

        Adds the other sites to `excluded`. `part` distinguishes the requests of one Ask that is sent in parts.
        """
        answers, most = self._ask(sites, ask, part)
        self.costs.sites += answers.seconds
        names, encoded, late = self._punctual(answers)
        if answers.refusals or answers.failures:
            stop_if_tampered(answers.failures)
            excluded += [Excluded(refusal.site, "refused", refusal.reason) for refusal in answers.refusals]
            # A budget that a site cannot keep is refused, as one that its policy forbids; a site that cannot meet a
            # rule about its rows takes no part.
            unmet = "refused" if ask.task.name.startswith("dp.") else "unmet"
            excluded += [
                Excluded(failure.site, unmet if failure.code == "refused" else "failed", failure.reason)
                for failure in answers.failures
            ]
        good, body, bad = validate_ask(names, encoded, ask, self.declared)
        excluded += late
        excluded += bad
        return good, body, answers.slowest, most

    def _hand_over(
        self, take: Callable[[str, Payload], None], sites: tuple[Site, ...], ask: Ask, excluded: list[Excluded]
    ) -> tuple[list[str], list[bytes], float, int]:
        """As `_collect`, for a few sites at a time; the protocol processes each group's replies before the next."""
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
        """The answers of `sites`, and the most bytes that one of them sent and received."""
        if ask.each is None:
            return self._carry(sites, ask, ask.payload, part)
        answers = [self._carry((site,), ask, ask.each[site.name], site.name) for site in sites]
        return Answers.joined([part for part, _ in answers]), max((most for _, most in answers), default=0)

    def _consult(self, ask: Ask) -> Replies:
        """Ask a party without rows. The run cannot go on without its answer."""
        joined, _ = self._ask(tuple(self.parties[name] for name in ask.to), ask, "")
        self.costs.key_holder += joined.seconds
        stop_if_tampered(joined.failures)
        against = [item.reason for item in joined.refusals] + [item.reason for item in joined.failures]
        if against:
            raise RefusedError(f"{ask.to[0]!r} does not answer {ask.task.name!r}: {against[0]}")
        kept, body, bad = validate([site.name for site in joined.sites], joined.encoded, ask.expect, {})
        if bad:
            raise IntegrityError(f"the reply of {bad[0].site!r} to {ask.task.name!r} is invalid: {bad[0].reason}")
        return Replies(kept, body)

    def _punctual(self, answers: Answers) -> tuple[Sequence[str], EncodedReplies | list[bytes], list[Excluded]]:
        """The answers that came before the deadline, and the stragglers."""
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
        """The answers of `sites`, and the most bytes that one of them sent and received.

        `alone` becomes part of the nonce: it keeps the requests and receipts of sites apart that are asked one by one.
        """
        request = ask.request(self.approved, self.streams, payload, alone)
        self.inputs.take(request)
        answers = answer(sites, request, many=self.many)
        most = self._count(sites, request, answers)
        chains = tuple([site.chain for site in answers.sites])
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

    It refers to the engine weakly: a reference cycle would keep all sites' rows in memory until garbage collection.
    """
    known = ref(engine)

    def find_peer(name: str) -> PublicIdentity | None:
        here = known()
        found = None if here is None else here.sites.get(name) or here.parties.get(name)
        return None if found is None else found.identity.public

    return find_peer


def least_answers(quorum: float, asked: int) -> int:
    """How many of the asked sites must give a valid reply.

    Args:
        quorum: The share that must, from 0 to 1.
        asked: How many were asked.

    Returns:
        The number, at least 1.
    """
    return max(1, ceil(quorum * asked - 1e-9))  # 0.07 * 100 is a little above 7


def give_up(ask: Ask, kept: int, excluded: Sequence[Excluded]) -> NoReturn:
    """End a run in which too few sites answered.

    Args:
        ask: The request.
        kept: How many sites gave a valid reply.
        excluded: The other sites, with reasons; the first reason is reported.

    Raises:
        RefusedError: All of them refused by policy, or none can meet the privacy that was asked for.
        SiteError: Some failed, dropped out or were late.
    """
    reason = excluded[0].reason if excluded else "none answered"
    message = f"{kept} of {len(ask.to)} sites answered {ask.task.name!r} in round {ask.round}, fewer than the quorum"
    if excluded and all(item.kind in {"refused", "unmet"} for item in excluded):
        raise RefusedError(f"{message}: {reason}", hint="Lower what the plan asks for, or change the sites' policies")
    raise SiteError(f"{message}: {reason}", hint="Repair the sites that the ledger names, or lower sites.quorum")


def stop_if_tampered(failures: Sequence[Failure]) -> None:
    """End a run in which messages between sites were changed, replayed or redirected.

    Args:
        failures: The sites that could not answer.

    Raises:
        IntegrityError: One of them received a message that failed its integrity check.
    """
    for failure in failures:
        if failure.tampered:
            raise IntegrityError(f"site {failure.site!r} received a message that was tampered with: {failure.reason}")


def first_objection(site: Site, claims: Sequence[Guarantee], tasks: Sequence[str]) -> tuple[Guarantee, str] | None:
    """The first planned claim that a site's policy refuses.

    What this run spent before it was interrupted is part of the plan's claims, so it is not counted twice.

    Args:
        site: The site.
        claims: Everything the plan will claim at this site.
        tasks: The tasks that the claims are made under.

    Returns:
        The claim and the reason; None when the policy allows all of them.
    """
    approved = site.approved
    own = "" if approved is None else account_name(approved.run, approved.plan_hash)
    budget = site.chain.budget.without(own)
    for claim in claims:
        paid, total = (0.0, 0.0), None
        if isinstance(claim, DP):
            paid, total = budget.paid_by(claim), budget.after(claim)
        for task in tasks:
            reason = site.policy.judge(claim, task=task, total=total, paid=paid)
            if reason is not None:
                return claim, reason
        if isinstance(claim, DP):
            budget.charge(claim, to="")
    return None
