"""Privacy accounting at the sites: the noise each phase needs, and what all of them together spend.

Guarantee: the noise of every phase is calibrated for each site and errs on the private side. It is judged from the rows
that the site declared, those outside the domain included, so that no answer depends on which rows a domain has; rows
are sampled at the same rate. One ledger line reserves the budget of the whole plan before any row is trained on, and
every later release names that account. A run that stops early has still paid for the whole plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from kohort.errors import RefusedError
from kohort.privacy.contract import Step
from kohort.privacy.dp.account import Shares, SiteAccount
from kohort.privacy.dp.accounting import check_budget, epsilon_of
from kohort.privacy.dp.budget import account_name
from kohort.privacy.guarantee import DP
from kohort.protocol.enrolment import declared_rows
from kohort.protocol.hub import Ask, Expect
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import PURE, SecureSumSection
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.phase_rows import reported_rows
from kohort.rounds.plan_account import (
    PlanAccount,
    domain_budget,
    plan_account,
    planned_claims,
    shared_sigma,
    spends,
    total_claim,
)

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
    plan = plan_account(approved, counts=lambda phase: reported_rows(site, phase))
    if plan.relation == "replace-one" and site.table.low_by_row and plan.parts != {"all"}:
        raise RefusedError(
            "a replaced row may be of another risk, and nothing is known of output and objective perturbation then",
            hint='Set rows = "all" in these phases',
        )
    void = False
    for number, phase in enumerate(approved.phases, 1):
        dp = spends(phase, approved.secure)
        if dp is not None:
            void |= check_budget(
                epsilon=dp.epsilon,
                delta=dp.delta,
                units=reported_rows(site, phase),
                allow_large_delta=dp.allow_large_delta,
                pure=dp.mechanism in PURE,
                where=f"phase {number}: " if len(approved.phases) > 1 else "",
            )
    epsilon, delta = plan.total(disjoint=site.table.low_by_row)
    return SiteAccount(
        name=account_name(approved.run, approved.plan_hash),
        sigmas=plan.sigmas,
        judge_sigma=plan.judge_sigma,
        events=plan.events,
        epsilon=epsilon,
        delta=delta,
        before=plan.before,
        unit=plan.unit,
        relation=plan.relation,
        scope=plan.scope,
        accountant=plan.accountant,
        void=void,
        overlap=plan.overlap,
        **_trust(site, approved.secure, named, plan, delta),
    )


def _trust(
    site: Site, secure: SecureSumSection | None, named: Sequence[str], plan: PlanAccount, delta: float
) -> _Trust:
    """Under a secure sum: whom the guarantee relies on, and the epsilon that remains if all others collude."""
    if secure is None:
        return {"trust": "", "epsilon_all": None}
    shares = shares_of(site, named, secure.colluders)
    trust = f"at most {shares.colluders} of {shares.sites} sites collude with the hub, {shares.quorum} answer"
    if secure.sum == "none":
        trust = "the hub, which sees every site's own share"
    alone = plan.alone(shares)
    return {"trust": trust, "epsilon_all": epsilon_of(alone, delta, accountant=plan.accountant)}


class _Trust(TypedDict):
    trust: str
    epsilon_all: float | None


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
    # How many of them lie within the domain is not said.
    return Release(payload=Payload(metrics={"rows": declared_rows(site)}), guarantee=claim, rows=site.count)


RESERVE = Task(name="dp.reserve", one=_reserve)


def reserve(sites: tuple[str, ...]) -> Ask:
    """The request that lets the sites reserve the plan's budget. Sites that cannot or refuse are left out.

    Args:
        sites: The sites to ask.

    Returns:
        The request.
    """
    return Ask(task=RESERVE, to=sites, expect=Expect(metrics=("rows",)))


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
