"""Engines drive plans. This one holds every site in the same process.

An engine carries bytes: it turns an Ask into requests, collects what the sites let out through their doors, has it
validated, and gives the plan what is left. It counts every byte it carried, and the ledgers list exactly those.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from time import perf_counter
from typing import Any, Protocol, TypeVar

from kohort.errors import RefusedError, SiteError
from kohort.federation.plan import Ask, Excluded, Mark, Replies
from kohort.federation.setting import Setting
from kohort.federation.site import Answers, Site, answer
from kohort.federation.task import Request
from kohort.federation.trouble import Trouble, absent_sites, liars
from kohort.federation.validate import validate
from kohort.federation.wire import Parcels, Payload
from kohort.privacy.guarantee import DP, Guarantee
from kohort.privacy.ledger import Occasion
from kohort.privacy.receipts import Receipts
from kohort.rng import Streams

__all__ = ["Costs", "Engine", "LocalEngine", "drive"]

T = TypeVar("T")
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


class Engine(Protocol):
    """What `drive` needs: exchanges, and what they cost."""

    costs: Costs

    def exchange(self, ask: Ask) -> Replies:
        """Carry a question to the sites and the validated answers back."""
        ...


def drive(
    plan: Generator[Ask | Mark, Any, T], engine: Engine, *, observe: Callable[[Mark], None] = lambda _: None
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
        if isinstance(step, Mark):
            observe(step)
        else:
            reply = engine.exchange(step)


@dataclass
class LocalEngine:
    """All sites in this process: many at once where a task can, one by one where it cannot. Same bytes either way."""

    sites: dict[str, Site]
    setting: Setting
    streams: Streams
    receipts: Receipts
    quorum: float = 0.5
    """Smallest share of the asked sites whose answers must count for the run to go on."""
    many: bool = True
    costs: Costs = field(default_factory=Costs)
    excluded: list[Excluded] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    """Rows each site declared when it enrolled; replies may not speak of more."""
    trouble: Trouble = field(default_factory=Trouble)
    deadline: float = inf
    """Seconds a site has for an answer; a later one is left out. A site's part of a joint call goes by its rows."""

    def make_trouble(self, trouble: Trouble) -> None:
        """Let simulated sites drop out, be late or lie from now on."""
        self.trouble = trouble
        for name, liar in liars(trouble, tuple(self.sites), self.streams).items():
            self.sites[name].liar = liar

    def approve(self, claims: Claims, *, tasks: Sequence[str] = ()) -> tuple[str, ...]:
        """Let every site judge what the plan will ask, before any byte leaves; the sites that agree take part."""
        agreed = []
        plan = f"{self.setting.method}.plan"
        for site in self.sites.values():
            site.setting = self.setting
            against = _first_objection(site, claims(site.count), [plan, *tasks])
            if against is not None:
                claim, reason = against
                occasion = Occasion(what=plan, request=self.setting.plan_hash)
                site.book.refuse(site.chain, occasion, guarantee=claim, reason=reason)
                self.excluded.append(Excluded(site.name, "refused", reason))
            else:
                agreed.append(site.name)
        if len(agreed) < self._least(len(self.sites)):
            reason = self.excluded[-1].reason if self.excluded else "there are no sites"
            raise RefusedError(
                f"{len(self.sites) - len(agreed)} of {len(self.sites)} sites refuse the plan: {reason}",
                hint="Ask for less, or change [policy] where you own the sites",
            )
        return tuple(agreed)

    def exchange(self, ask: Ask) -> Replies:
        """One question, one door passage a site, one receipt."""
        absent = absent_sites(self.trouble, ask.to, self.streams, task=ask.task.name, round_number=ask.round)
        asked = [self.sites[name] for name in ask.to if name not in absent]
        if ask.each is None:
            answers = [self._carry(asked, ask, ask.payload)]
        else:
            answers = [self._carry([site], ask, ask.each[site.name], site.name) for site in asked]
        # Sites work and transfer side by side, so an exchange takes as long as the slowest of them.
        self.costs.most_bytes_a_site += max((most for _, most in answers), default=0)
        joined = answers[0][0] if len(answers) == 1 else _join([part for part, _ in answers])
        self.costs.slowest_site += max(joined.times, default=0.0)
        self.costs.sites += sum(joined.times)
        excluded = [Excluded(site, kind, f"no answer before the deadline ({kind})") for site, kind in absent.items()]
        excluded += [Excluded(refusal.site, "refused", refusal.reason) for refusal in joined.refusals]
        excluded += [Excluded(failure.site, "failed", failure.reason) for failure in joined.failures]
        on_time, parcels, late = self._punctual(joined)
        kept, body, bad = validate(on_time, parcels, ask.expect, self.declared)
        excluded += late
        excluded += bad
        for item in excluded:
            if item.kind not in {"refused", "failed"}:  # those two stand in the ledger already
                site = self.sites[item.site]
                site.book.note(site.chain, Occasion(what=ask.task.name, round=ask.round), reason=item.reason)
        self.excluded += excluded
        if len(kept) < self._least(len(ask.to)):
            self._give_up(ask, len(kept), excluded)
        return Replies(kept, body, excluded)

    def _punctual(self, answers: Answers) -> tuple[list[str], Parcels | list[bytes], list[Excluded]]:
        """The answers that came before the deadline, and the sites whose answers did not."""
        names = [site.name for site in answers.sites]
        if max(answers.times, default=0.0) <= self.deadline:
            return names, answers.parcels, []
        kept = [index for index, took in enumerate(answers.times) if took <= self.deadline]
        parcels = answers.parcels
        late = [name for name, took in zip(names, answers.times, strict=True) if took > self.deadline]
        return (
            [names[index] for index in kept],
            parcels.take(kept) if isinstance(parcels, Parcels) else [parcels[index] for index in kept],
            [Excluded(name, "late", "the answer came after the deadline") for name in late],
        )

    def _carry(self, sites: Sequence[Site], ask: Ask, payload: Payload, alone: str = "") -> tuple[Answers, int]:
        """The answers of `sites`, and the most bytes one of them moved. `alone` names the one site of its own request.

        Two sites may be asked the same thing, each for itself: the name keeps their requests and receipts apart.
        """
        request = Request(
            run=self.setting.run,
            plan_hash=self.setting.plan_hash,
            task=ask.task.name,
            round=ask.round,
            attempt=0,
            nonce=self.streams.bytes("nonce", ask.task.name, ask.round, alone, length=12).hex(),
            payload=payload,
        )
        answers = answer(sites, request, many=self.many)
        most = self._count(sites, request, answers)
        answered = {refusal.site for refusal in answers.refusals}
        chains = [site.chain for site in answers.sites] + [self.sites[name].chain for name in answered]
        if chains:
            occasion = Occasion(what=request.task, request=request.digest, round=request.round)
            self.receipts.issue(sites[0].book, chains, occasion)
        return answers, most

    def _count(self, sites: Sequence[Site], request: Request, answers: Answers) -> int:
        parcels = answers.parcels
        sizes = (
            [parcels.layout.size] * len(parcels)
            if isinstance(parcels, Parcels)
            else [len(parcel) for parcel in parcels]
        )
        self.costs.bytes_up += sum(sizes)
        self.costs.bytes_down += len(request.encoded) * len(sites)
        return max(sizes, default=0) + len(request.encoded)

    def _least(self, asked: int) -> int:
        return max(1, ceil(self.quorum * asked - 1e-9))  # 0.07 * 100 is a little above 7

    def _give_up(self, ask: Ask, kept: int, excluded: Sequence[Excluded]) -> None:
        reason = excluded[0].reason if excluded else "none answered"
        message = (
            f"{kept} of {len(ask.to)} sites answered {ask.task.name!r} in round {ask.round}, fewer than the quorum"
        )
        if excluded and all(item.kind == "refused" for item in excluded):
            raise RefusedError(f"{message}: {reason}", hint="The sites' policies forbid it; ask for less")
        raise SiteError(
            f"{message}: {reason}", hint="Mend the sites that are named in the ledger, or lower sites.quorum"
        )


def _first_objection(site: Site, claims: Sequence[Guarantee], tasks: Sequence[str]) -> tuple[Guarantee, str] | None:
    """The first claim the site's policy will not let out under one of these tasks, and why."""
    spent = sum(site.chain.spent.values())
    for claim in claims:
        for task in tasks:
            reason = site.policy.judge(claim, task=task, spent=spent)
            if reason is not None:
                return claim, reason
        if isinstance(claim, DP):
            spent += claim.epsilon
    return None


def _join(answers: Sequence[Answers]) -> Answers:
    parcels = [
        bytes(parcel)
        for part in answers
        for parcel in (part.parcels.views() if isinstance(part.parcels, Parcels) else part.parcels)
    ]
    return Answers(
        sites=[site for part in answers for site in part.sites],
        parcels=parcels,
        refusals=[refusal for part in answers for refusal in part.refusals],
        failures=[failure for part in answers for failure in part.failures],
        times=[took for part in answers for took in part.times],
    )
