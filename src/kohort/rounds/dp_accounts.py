"""Privacy accounting at the sites: the noise each phase needs, and what all of them together spend.

Guarantee: the noise of every phase is calibrated for each site, from the rows it will use, and errs on the private
side. One ledger line reserves the budget of the whole plan before any row is trained on, and every later release names
that account. A run that stops early has still paid for the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TypedDict

from kohort.errors import RefusedError
from kohort.privacy.contract import Step
from kohort.privacy.dp.account import Charge, Shares, SiteAccount, total_cost
from kohort.privacy.dp.accounting import (
    Accountant,
    Event,
    PureEvent,
    calibrate,
    check_budget,
    epsilon_of,
    grid_rate,
)
from kohort.privacy.dp.budget import account_name
from kohort.privacy.dp.histogram import DomainBudget
from kohort.privacy.guarantee import DP
from kohort.protocol.enrolment import DomainState
from kohort.protocol.hub import Ask, Expect
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import PURE, DPSection, RowPart, SecureSumSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.phase_rows import rows_of
from kohort.tables.domain import undeclared_columns

__all__ = [
    "RESERVE",
    "Shares",
    "SiteAccount",
    "account_of",
    "answer_once",
    "claim_of",
    "domain_budget",
    "planned_claims",
    "reserve",
    "reserve_step",
    "shared_sigma",
    "shares_of",
    "spends",
    "total_claim",
]

PARTS: dict[RowPart, str] = {"all": "all rows", "low": "low-risk rows", "high": "high-risk rows"}
_HALVES: dict[RowPart, tuple[RowPart, ...]] = {"all": ("low", "high"), "low": ("low",), "high": ("high",)}


_ROUNDING = 1 + 1e-9


def shares_of(site: Site, named: Sequence[str], colluders: int) -> Shares:
    """How the sites of a secure sum share the noise. Only sites on this site's own roster count.

    Args:
        site: The site that asks.
        named: The sites that the hub names.
        colluders: How many of them may collude with the hub.

    Returns:
        The noise shares.

    Raises:
        RefusedError: Too few honest shares would remain.
    """
    asked = (site.find_peer, tuple(named), colluders)
    state = site.state(AccountState)
    known = state.shares
    if known is not None and known[0] == asked:  # cached: same roster, same names
        return known[1]
    on_roster = sum(name == site.name or site.find_peer(name) is not None for name in named)
    shares = Shares(on_roster, colluders)
    if shares.needed < 1:
        raise RefusedError(
            f"{on_roster} sites on the roster, of which {colluders} may collude, are too few to share the noise",
            hint="Trust more sites, or lower method.secure.colluders",
        )
    state.shares = (asked, shares)
    return shares


@dataclass
class AccountState(TaskState):
    """A site's privacy account of one run."""

    account: SiteAccount | None = None
    claim: tuple[SiteAccount, DP] | None = None
    """Cache: the claim of a release under the account."""
    shares: tuple[object, Shares] | None = None
    """Cache: roster, names and colluders, and the noise shares that follow."""
    answered: dict[tuple[str, int], str] = field(default_factory=dict)
    """The request answered per task and round; a different request for the same round is refused."""


def spends(phase: TrainingPhase, secure: SecureSumSection | None = None) -> DPSection | None:
    """The budget that a phase spends at the sites.

    Args:
        phase: The phase.
        secure: The plan's secure-sum section, if any.

    Returns:
        The budget; None when the phase has none, or when the hub alone adds the noise.
    """
    return None if phase.dp is None or (phase.dp.mechanism == "hub" and secure is None) else phase.dp


def domain_budget(approved: ApprovedPlan) -> DomainBudget | None:
    """What learning the domains of undeclared columns takes from the plan's budget.

    Args:
        approved: The approved plan.

    Returns:
        The smallest epsilon and delta of its phases, and the share; None where nothing is learned, or nothing can be:
        whole sites are protected, or a phase has no delta that could pay for a threshold.
    """
    budgets = [dp for phase in approved.phases if (dp := spends(phase, approved.secure)) is not None]
    is_open = bool(undeclared_columns(approved.schema)) or not approved.schema.columns
    if not is_open or not budgets or any(dp.unit == "site" or dp.mechanism in PURE for dp in budgets):
        return None
    return DomainBudget(
        epsilon=min(dp.epsilon for dp in budgets),
        delta=min(dp.delta for dp in budgets),
        share=min(dp.domain_share for dp in budgets),
    )


def _sigma(approved: ApprovedPlan, dp: DPSection, *, rate: float, steps: int) -> float:
    """The noise multiplier of a phase; what learning the domains took is part of the phase's budget."""
    learned, delta = domain_budget(approved), dp.delta
    if learned is not None:
        delta *= 1 - learned.share
    before = [] if learned is None else [learned.event]
    return calibrate(epsilon=dp.epsilon, delta=delta, rate=rate, steps=steps, accountant=dp.accountant, before=before)


def shared_sigma(approved: ApprovedPlan, *, steps: int) -> float:
    """The noise multiplier of totals over all sites. It depends on no site's rows, so it is the same at every site.

    Args:
        approved: The approved plan.
        steps: How many noisy totals its first phase opens.

    Returns:
        The multiplier; 0 without a budget.
    """
    dp = approved.phase(0).dp
    return 0.0 if dp is None else _sigma(approved, dp, rate=1.0, steps=steps)


def account_of(site: Site) -> SiteAccount:
    """The site's privacy account, which the task `RESERVE` opens.

    Args:
        site: The site.

    Returns:
        The account.

    Raises:
        RefusedError: The budget has not been reserved yet.
    """
    account = site.state(AccountState).account
    if account is None:
        raise RefusedError("a noisy release was requested before its privacy budget was reserved")
    return account


def _open(site: Site, approved: ApprovedPlan, named: Sequence[str]) -> SiteAccount:
    phases, secure = approved.phases, approved.secure
    sigmas: list[float] = []
    charges: list[Charge] = []
    void = False
    for phase in phases:
        dp = spends(phase, secure)
        if dp is None:
            sigmas.append(0.0)
            continue
        rows = rows_of(site, phase)
        void |= check_budget(
            epsilon=dp.epsilon,
            delta=dp.delta,
            units=rows.count,
            allow_large_delta=dp.allow_large_delta,
            pure=dp.mechanism in PURE,
        )
        charge = _charge(approved, phase, dp, rows.count)
        sigmas.append(charge.event.sigma if isinstance(charge.event, Event) else 0.0)
        charges.append(charge)
    judge, judge_sigma = approved.judge, 0.0
    if judge is not None and judge.rows == "high":
        judge_sigma = calibrate(epsilon=judge.epsilon, delta=judge.delta, rate=1.0, steps=1)
        event = Event(sigma=judge_sigma)
        charges.append(Charge(epsilon=judge.epsilon, delta=judge.delta, event=event, part="high"))
    if not charges:
        raise RefusedError("the approved plan has no privacy budget to reserve")
    accountant: Accountant = next((phase.dp.accountant for phase in phases if phase.dp is not None), "pld")
    unit = _unit(phases)
    learned = domain_budget(approved)
    beside = [] if learned is None else [_domain_charge(learned)]
    epsilon, delta = total_cost(charges, accountant, disjoint=site.table.low_by_row, unit=unit, beside=beside)
    return SiteAccount(
        name=account_name(approved.run, approved.plan_hash),
        sigmas=tuple(sigmas),
        judge_sigma=judge_sigma,
        events=tuple(charge.event for charge in (*charges, *beside)),
        epsilon=epsilon,
        delta=delta if learned is None else delta + learned.threshold_delta,
        before=(0.0, 0.0) if learned is None else learned.cost,
        unit=unit,
        scope=_scope(phases),
        accountant=accountant,
        void=void,
        **_trust(site, secure, named, (charges[0], *beside), accountant),
    )


def _domain_charge(learned: DomainBudget) -> Charge:
    """The noise of the counts; their threshold has a delta of its own."""
    return Charge(epsilon=learned.cost[0], delta=learned.noise_delta, event=learned.event, part="all")


def _charge(approved: ApprovedPlan, phase: TrainingPhase, dp: DPSection, count: int) -> Charge:
    """The noise of a whole phase at a site with `count` rows."""
    if dp.mechanism in PURE:
        if phase.train.rounds != 1:
            raise RefusedError(
                f"{dp.mechanism} perturbation releases once, but the phase has {phase.train.rounds} rounds",
                hint="Set the phase's rounds to 1",
            )
        return Charge(epsilon=dp.epsilon, delta=0.0, event=PureEvent(epsilon=dp.epsilon), part=phase.rows)
    steps, rate = (1 if dp.mechanism == "statistics" else phase.train.rounds), 1.0
    if dp.mechanism == "dp-sgd":
        steps_per_round, rate = phase.steps_and_rate(count)
        steps *= steps_per_round
    sigma = _sigma(approved, dp, rate=rate, steps=steps)
    event = Event(sigma=sigma, rate=grid_rate(rate), steps=steps)
    learned = domain_budget(approved)
    delta = dp.delta * (1.0 if learned is None else 1 - learned.share)
    return Charge(epsilon=dp.epsilon, delta=delta, event=event, part=phase.rows)


def _trust(
    site: Site,
    secure: SecureSumSection | None,
    named: Sequence[str],
    charges: Sequence[Charge],
    accountant: Accountant,
) -> _Trust:
    """Under a secure sum: whom the guarantee relies on, and the epsilon that remains if all others collude."""
    if secure is None:
        return {"trust": "", "epsilon_all": None}
    shares = shares_of(site, named, secure.colluders)
    alone, delta = [], charges[0].delta
    for event in (charge.event for charge in charges):
        if not isinstance(event, Event):
            raise RefusedError(
                "output and objective perturbation add noise that sites cannot share", hint="Remove method.secure"
            )
        alone.append(Event(sigma=event.sigma / sqrt(shares.needed), rate=event.rate, steps=event.steps))
    trust = f"at most {shares.colluders} of {shares.sites} sites collude with the hub, {shares.quorum} answer"
    if secure.sum == "none":
        trust = "the hub, which sees every site's own share"
    return {"trust": trust, "epsilon_all": epsilon_of(alone, delta, accountant=accountant)}


class _Trust(TypedDict):
    trust: str
    epsilon_all: float | None


def _unit(phases: tuple[TrainingPhase, ...]) -> str:
    """The weakest unit of all phases: protecting a row does not protect a person."""
    units = {phase.dp.unit for phase in phases if phase.dp is not None} or {"row"}
    return next(unit for unit in ("row", "person", "site") if unit in units)


def _scope(phases: tuple[TrainingPhase, ...]) -> str:
    """Which rows the account's epsilon covers, and which it does not.

    A row that any phase trains on without a budget has no guarantee, whatever noise the other phases add.
    """
    bare = _halves(phase for phase in phases if phase.dp is None)
    covered = _halves(phase for phase in phases if phase.dp is not None) - bare
    said = PARTS[_part_of(covered)] if covered else "no rows"
    return f"{said}; {PARTS[_part_of(bare)]}: none" if bare else said


def _halves(phases: Iterable[TrainingPhase]) -> set[RowPart]:
    return {half for phase in phases for half in _HALVES[phase.rows]}


def _part_of(halves: set[RowPart]) -> RowPart:
    return next(part for part, members in _HALVES.items() if set(members) == halves)


def claim_of(site: Site, *, reserving: bool = False) -> DP:
    """The guarantee of a release under the site's account. Cached: the same object in every round.

    Args:
        site: The site.
        reserving: Whether this release pays for the whole plan.

    Returns:
        The claim for the door and the ledger.

    Raises:
        RefusedError: The budget has not been reserved yet.
    """
    account = account_of(site)
    state = site.state(AccountState)
    known = state.claim
    if known is not None and known[0] is account and not reserving:
        return known[1]
    claim = account.claim(reserving=reserving, simulated=not site.streams.is_secure)
    if not reserving:
        state.claim = (account, claim)
    return claim


def _require_paid(site: Site) -> None:
    """Refuse noise that the ledger has not paid for: a reservation that the door refused opens no account."""
    claim = claim_of(site)
    epsilon, delta = site.chain.budget.paid_by(claim)
    if epsilon * _ROUNDING < claim.epsilon or delta * _ROUNDING < claim.delta:
        raise RefusedError("a noisy release was requested whose privacy budget was not paid")


def answer_once(site: Site, request: Request) -> None:
    """Refuse a different request for a round that was answered: two noisy answers together reveal more than one.

    Args:
        site: The site.
        request: The request; repeating the first one of its round is allowed.

    Raises:
        RefusedError: Another request of the same task and round was answered.
    """
    _require_paid(site)
    first = site.state(AccountState).answered.setdefault((request.task, request.round), request.digest)
    if first != request.digest:
        raise RefusedError(
            f"round {request.round} of {request.task!r} was already answered to a different request",
            hint="A noisy release is made once per round: start a new run",
        )


def _reserve(site: Site, request: Request) -> Release:
    """Open the account, once per run. The approved plan says what to reserve."""
    del request  # the approved plan says who may take part
    state = site.state(AccountState)
    if state.account is None:
        state.account = _open(site, site.plan, site.plan.sites)
    claim = claim_of(site, reserving=True)
    enrolled = site.state(DomainState).rows  # how many of them lie within the domain is not said
    rows = site.count if enrolled is None else enrolled
    return Release(payload=Payload(metrics={"rows": rows}), guarantee=claim, rows=site.count)


RESERVE = Task(name="dp.reserve", one=_reserve)


def reserve(sites: tuple[str, ...]) -> Ask:
    """The request that lets the sites reserve the plan's budget. Sites that cannot or refuse are left out.

    Args:
        sites: The sites to ask.

    Returns:
        The request.
    """
    return Ask(task=RESERVE, to=sites, expect=Expect(metrics=("rows",)))


def total_claim(approved: ApprovedPlan) -> DP:
    """The most a plan spends at a site in all its phases, by basic composition.

    Args:
        approved: The approved plan.

    Returns:
        A claim that no release of the plan may exceed.
    """
    claims = planned_claims(approved.phases, approved.secure)
    spent = [(claim.epsilon, claim.delta) for claim in claims]
    judge = approved.judge
    if judge is not None and judge.rows == "high":
        spent.append((judge.epsilon, judge.delta))
    return DP(
        epsilon=sum(epsilon for epsilon, _ in spent),
        delta=sum(delta for _, delta in spent),
        unit=_unit(approved.phases),
    )


def reserve_step(approved: ApprovedPlan) -> Step:
    """The reservation of the plan's budget.

    Args:
        approved: The approved plan, which has a budget.

    Returns:
        The step, once per run.
    """
    claim = total_claim(approved)
    return Step(
        task=RESERVE.name,
        says=f"that epsilon {claim.epsilon:g} and delta {claim.delta:g} are reserved, and your row count",
        claims=(claim,),
        required=True,
    )


def planned_claims(phases: tuple[TrainingPhase, ...], secure: SecureSumSection | None = None) -> list[DP]:
    """What a plan spends at most at any site, one claim per phase. Policies judge it before the run begins.

    Args:
        phases: The plan's phases.
        secure: The plan's secure-sum section, if any.

    Returns:
        The claims of the phases that spend budget at the sites.
    """
    return [
        DP(
            epsilon=dp.epsilon,
            delta=dp.delta,
            unit=dp.unit,
            scope=PARTS[phase.rows],
            accountant=dp.accountant,
        )
        for phase in phases
        if (dp := spends(phase, secure)) is not None
    ]
