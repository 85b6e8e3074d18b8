"""The privacy account of a plan: every noisy release of its phases as events, and what all of them cost one unit.

Hub, policy and site compute it here, from the approved plan alone; a site adds the rows of each phase, on which the
sampling rate of batches depends. Before those are known, a phase of sampled batches counts with its whole budget.

What is proved, and what is refused:

- All phases hide the same unit. A guarantee for a person says nothing of a row, and that of a site nothing of a person.
- All phases have one relation of neighbours. Output and objective perturbation are private where a unit is replaced;
  Gaussian noise beside them is then twice as large, and sampled batches are refused.
- A person may have rows at `overlap` sites. Where each site adds its own noise to whole batches, that is `overlap`
  times as many releases; in a secure sum, a total to which one person adds `overlap` times as much; sampled batches of
  different sites compose by adding up, so each site takes its part of epsilon and delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.dp.account import Charge, Shares, total_cost
from kohort.privacy.dp.accounting import (
    Accountant,
    AnyEvent,
    Event,
    PrivateEvent,
    Relation,
    calibrate,
    describe,
    grid_rate,
)
from kohort.privacy.dp.histogram import DomainBudget
from kohort.privacy.guarantee import DP, Guarantee
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import PURE, DPSection, JudgeSection, RowPart, SecureSumSection, TrainingPhase
from kohort.tables.domain import undeclared_columns

__all__ = [
    "PlanAccount",
    "domain_budget",
    "plan_account",
    "planned_claims",
    "shared_sigma",
    "spends",
    "total_claim",
    "with_total_claim",
]

Counts = Callable[[TrainingPhase], int]
PARTS: dict[RowPart, str] = {"all": "all rows", "low": "rows of low risk", "high": "rows of high risk"}
KEPT = "rows that sites kept; rows sent to the hub: no guarantee"
_HALVES: dict[RowPart, tuple[RowPart, ...]] = {"all": ("low", "high"), "low": ("low",), "high": ("high",)}


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
        whole sites are protected, a person may be at several sites, or a phase has no delta that could pay for a
        threshold.
    """
    budgets = [dp for phase in approved.phases if (dp := spends(phase, approved.secure)) is not None]
    is_open = bool(undeclared_columns(approved.schema)) or not approved.schema.columns
    barred = any(dp.unit == "site" or dp.mechanism in PURE or dp.overlap > 1 for dp in budgets)
    if not is_open or not budgets or barred:
        return None
    return DomainBudget(
        epsilon=min(dp.epsilon for dp in budgets),
        delta=min(dp.delta for dp in budgets),
        share=min(dp.domain_share for dp in budgets),
    )


@dataclass(frozen=True)
class PlanAccount:
    """The charges of a plan at one site, phase by phase, and what they cost together."""

    charges: tuple[Charge | None, ...]
    """One per phase; None for a phase that spends nothing at the site."""
    judge: Charge | None
    """The query that compares models on rows of high risk."""
    learned: DomainBudget | None
    unit: str
    relation: Relation
    scope: str
    accountant: Accountant
    overlap: int

    @cached_property
    def _paid(self) -> tuple[Charge, ...]:
        return tuple(charge for charge in (*self.charges, self.judge) if charge is not None)

    @cached_property
    def _beside(self) -> tuple[Charge, ...]:
        if self.learned is None:
            return ()
        epsilon, delta = self.learned.cost
        return (Charge(epsilon=epsilon, delta=delta, events=self.learned.events, part="all"),)

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise multiplier of each phase; 0 where a site adds no Gaussian noise."""
        return tuple(0.0 if charge is None else charge.sigma for charge in self.charges)

    @property
    def judge_sigma(self) -> float:
        """Noise multiplier of the query that compares models; 0 when there is none."""
        return 0.0 if self.judge is None else self.judge.sigma

    @property
    def parts(self) -> set[str]:
        """The rows that are charged."""
        return {charge.part for charge in self._paid}

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Everything that one unit is exposed to."""
        return tuple(event for charge in (*self._paid, *self._beside) for event in charge.events)

    @property
    def before(self) -> tuple[float, float]:
        """Epsilon and delta that learning the domains paid first."""
        return (0.0, 0.0) if self.learned is None else self.learned.cost

    def total(self, *, disjoint: bool) -> tuple[float, float]:
        """Epsilon and delta of the whole plan.

        Args:
            disjoint: Whether each row alone decides whether its risk is low.

        Returns:
            The smallest proved epsilon at the sum of the deltas.
        """
        return total_cost(
            self._paid,
            self.accountant,
            disjoint=disjoint,
            unit=self.unit,
            beside=self._beside,
            relation=self.relation,
        )

    @property
    def planned(self) -> tuple[float, float]:
        """What the plan may spend at most: the budget it names, or of several what they compose to."""
        epsilon, delta = self.total(disjoint=False)
        return (self._paid[0].epsilon, delta) if len(self._paid) == 1 else (epsilon, delta)

    def alone(self, shares: Shares) -> tuple[AnyEvent, ...]:
        """What the site's own shares of the noise are worth if everybody else shows theirs.

        Args:
            shares: How the sites share the noise.

        Returns:
            The same releases with the noise of one site.
        """
        own: list[AnyEvent] = []
        for charge in (*self._paid, *self._beside):
            for event in charge.events:
                sigma = charge.sigma or (event.sigma if isinstance(event, Event) else 0.0)
                own.append(replace(event, sigma=sigma / sqrt(shares.needed)) if isinstance(event, Event) else event)
        return tuple(own)


def plan_account(approved: ApprovedPlan, *, counts: Counts | None = None) -> PlanAccount:
    """The account of an approved plan.

    Args:
        approved: The approved plan.
        counts: How many rows a site has for a phase; None before that is known.

    Returns:
        The account.

    Raises:
        ConfigError: The plan mixes units or mechanisms that no proof covers together.
        RefusedError: The plan spends nothing, or no noise keeps a budget.
    """
    phases, secure, judge = approved.phases, approved.secure, approved.judge
    spending = [dp for phase in phases if (dp := spends(phase, secure)) is not None]
    judged = judge is not None and judge.rows == "high"
    if not spending and not judged:
        raise RefusedError("the approved plan has no privacy budget to reserve")
    unit, overlap = _unit(spending), max((dp.overlap for dp in spending), default=1)
    if unit == "person" and approved.schema.columns and not approved.schema.identifiers:
        raise ConfigError('dp.unit = "person" needs a column that tells persons apart', hint="Name it in data.person")
    if judged and unit == "site":
        raise ConfigError(
            "rows of high risk judge with noise that hides a row, and the phases hide whole sites",
            hint='Set method.judge.rows = "low", or another dp.unit',
        )
    relation = _relation(approved)
    maker = _Maker(approved, relation, domain_budget(approved), overlap, counts)
    if overlap > 1 and undeclared_columns(approved.schema):
        raise ConfigError(
            "domains are learned per site, and dp.overlap says that a person may be at several",
            hint="Declare the categories and bounds of all columns",
        )
    return PlanAccount(
        charges=tuple(
            None if spends(phase, secure) is None else maker.charge(number) for number, phase in enumerate(phases)
        ),
        judge=maker.judged(judge) if judged and judge is not None else None,
        learned=maker.learned,
        unit=unit,
        relation=relation,
        scope=_scope(phases, secure, judge),
        accountant=next((dp.accountant for dp in spending), "pld"),
        overlap=overlap,
    )


@dataclass(frozen=True)
class _Maker:
    """Makes the charges of a plan."""

    approved: ApprovedPlan
    relation: Relation
    learned: DomainBudget | None
    overlap: int
    counts: Counts | None

    def charge(self, number: int) -> Charge:
        """The charge of a phase; its noise is calibrated here. What is refused names the phase, of several."""
        try:
            return self._charge(number)
        except RefusedError as error:
            if len(self.approved.phases) == 1 or error.message.startswith("phase "):
                raise
            raise RefusedError(f"phase {number + 1}: {error.message}", hint=error.hint, code=error.code) from error

    def _charge(self, number: int) -> Charge:
        phase = self.approved.phase(number)
        dp = phase.dp
        assert dp is not None  # noqa: S101 - asked for phases that spend
        if dp.mechanism in PURE:
            if phase.train.rounds != 1:
                raise RefusedError(
                    f"phase {number + 1}: {dp.mechanism} perturbation releases once, but the phase has "
                    f"{phase.train.rounds} rounds",
                    hint="Set the phase's rounds to 1",
                )
            if self.approved.secure is not None:
                raise RefusedError(
                    "output and objective perturbation add noise that sites cannot share", hint="Remove method.secure"
                )
            pure = PrivateEvent(epsilon=dp.epsilon, relation="replace-one")
            return Charge(epsilon=dp.epsilon, delta=0.0, events=(pure,), part=phase.rows)
        delta = dp.delta * (1.0 if self.learned is None else 1 - self.learned.share)
        steps, rate = self._steps(phase, dp)
        if rate is None:
            whole = PrivateEvent(epsilon=dp.epsilon, delta=delta, relation=self.relation)
            return self._charged(dp, delta, (whole,), phase.rows, 0.0)
        if rate == 1:
            return self._full_batch(dp, delta, steps, phase)
        return self._sampled(dp, delta, steps, rate, phase)

    def _steps(self, phase: TrainingPhase, dp: DPSection) -> tuple[int, float | None]:
        """Noisy steps of a phase, and their sampling rate; None where it is not known yet."""
        if dp.mechanism == "ftrl":
            return self._single_pass(phase)
        rounds = 1 if dp.mechanism == "statistics" else phase.train.rounds
        if dp.mechanism != "dp-sgd":
            return rounds, 1.0
        if phase.train.batch and self.counts is None:
            return rounds, None
        steps, rate = phase.steps_and_rate(0 if self.counts is None else self.counts(phase))
        return rounds * steps, min(rate, dp.sample)

    def _single_pass(self, phase: TrainingPhase) -> tuple[int, float]:
        """Each unit is in one round, and all rounds together are one Gaussian mechanism."""
        rounds = phase.train.rounds
        if self.counts is not None and rounds > (count := self.counts(phase)):
            raise RefusedError(
                f"{rounds} rounds are more than the {count} rows at hand, each of which is in one round",
                hint="Lower the phase's rounds, or raise sites.min_rows",
            )
        return 1, 1.0

    def _full_batch(self, dp: DPSection, delta: float, steps: int, phase: TrainingPhase) -> Charge:
        shared = self.approved.secure is not None and not phase.topology  # peers add no shares
        copies = 1 if shared else self.overlap
        sigma = self._sigma(dp, dp.epsilon, delta, rate=1.0, steps=steps * copies)
        event = Event(sigma=sigma, steps=steps * copies)
        return self._charged(dp, delta, (event,), phase.rows, sigma * self.overlap if shared else sigma)

    def _sampled(self, dp: DPSection, delta: float, steps: int, rate: float, phase: TrainingPhase) -> Charge:
        if self.overlap > 1 and self.approved.secure is not None and not phase.topology:
            raise ConfigError(
                "nothing is proved of one person's rows at several sites that are sampled into one total",
                hint="Drop dp.sample, or dp.overlap",
            )
        epsilon, own = dp.epsilon / self.overlap, delta / self.overlap
        sigma = self._sigma(dp, epsilon, own, rate=rate, steps=steps)
        elsewhere = (PrivateEvent(epsilon=epsilon, delta=own),) * (self.overlap - 1)
        event = Event(sigma=sigma, rate=grid_rate(rate), steps=steps)
        return self._charged(dp, delta, (event, *elsewhere), phase.rows, sigma)

    def _charged(self, dp: DPSection, delta: float, events: tuple[AnyEvent, ...], part: str, sigma: float) -> Charge:
        covers = self.learned is not None
        return Charge(epsilon=dp.epsilon, delta=delta, events=events, part=part, sigma=sigma, covers_beside=covers)

    def _sigma(self, dp: DPSection, epsilon: float, delta: float, *, rate: float, steps: int) -> float:
        """The noise multiplier; what learning the domains took is part of the phase's budget."""
        before = [] if self.learned is None else [self.learned.event]
        return calibrate(
            epsilon=epsilon,
            delta=delta,
            rate=rate,
            steps=steps,
            accountant=dp.accountant,
            before=before,
            relation=self.relation,
        )

    def judged(self, judge: JudgeSection) -> Charge:
        """The charge of the query that compares models: one number per site."""
        sigma = calibrate(
            epsilon=judge.epsilon, delta=judge.delta, rate=1.0, steps=self.overlap, relation=self.relation
        )
        event = Event(sigma=sigma, steps=self.overlap)
        return Charge(epsilon=judge.epsilon, delta=judge.delta, events=(event,), part="high", sigma=sigma)


def _unit(spending: Iterable[DPSection]) -> str:
    units = {(dp.unit, dp.overlap) for dp in spending} or {("row", 1)}
    if len(units) > 1:
        raise ConfigError(
            "the phases hide different units, and no account covers both",
            hint="Give all phases the same dp.unit and dp.overlap",
        )
    return next(iter(units))[0]


def _relation(approved: ApprovedPlan) -> Relation:
    """Whether a neighbour lacks a unit or has another one in its place."""
    budgets = [(number, phase, phase.dp) for number, phase in enumerate(approved.phases, 1) if phase.dp is not None]
    pure = [number for number, _, dp in budgets if dp.mechanism in PURE]
    if not pure:
        return "add-or-remove-one"
    sampled = [
        number for number, phase, dp in budgets if dp.mechanism == "dp-sgd" and (phase.train.batch or dp.sample < 1)
    ]
    if sampled:
        raise ConfigError(
            f"phases {pure[0]} and {sampled[0]} use different neighbouring relations (replace, remove); "
            "no account covers both",
            hint="Set the phase's batch = 0, or use one mechanism in all phases",
        )
    return "replace-one"


def _scope(phases: tuple[TrainingPhase, ...], secure: SecureSumSection | None, judge: JudgeSection | None) -> str:
    """Which rows the account's epsilon covers, and which it does not.

    A row that any phase uses without noise at the site has no guarantee, whatever noise the other phases add; nor has
    one that was sent to a hub which trains beside the sites.
    """
    if any(phase.hub_rows for phase in phases):
        return KEPT
    bare = _halves(phase for phase in phases if spends(phase, secure) is None)
    if judge is not None and judge.rows == "low":
        bare.add("low")
    covered = _halves(phase for phase in phases if phase.dp is not None)
    if judge is not None and judge.rows == "high":
        covered.add("high")
    covered -= bare
    said = PARTS[_part_of(covered)] if covered else "no rows"
    return f"{said}; {PARTS[_part_of(bare)]}: no guarantee" if bare else said


def _halves(phases: Iterable[TrainingPhase]) -> set[RowPart]:
    return {half for phase in phases for half in _HALVES[phase.rows]}


def _part_of(halves: set[RowPart]) -> RowPart:
    return next(part for part, members in _HALVES.items() if set(members) == halves)


def shared_sigma(approved: ApprovedPlan, number: int = 0) -> float:
    """The noise multiplier of totals over all sites. It depends on no site's rows, so it is the same at every site.

    Args:
        approved: The approved plan.
        number: The phase, from 0.

    Returns:
        The multiplier of the phase; 0 without a budget.
    """
    return 0.0 if approved.phase(number).dp is None else plan_account(approved).sigmas[number]


def total_claim(approved: ApprovedPlan) -> DP:
    """The most a plan spends at any site in all its phases.

    Args:
        approved: The approved plan.

    Returns:
        A claim that no release of the plan may exceed.
    """
    plan = plan_account(approved)
    epsilon, delta = plan.planned
    return DP(
        epsilon=epsilon,
        delta=delta,
        unit=plan.unit,
        relation=plan.relation,
        accountant=plan.accountant,
        overlap=plan.overlap,
    )


def with_total_claim(approved: ApprovedPlan, claims: Iterable[Guarantee]) -> list[Guarantee]:
    """The claims of a method, those of single phases replaced by that of the whole plan.

    Args:
        approved: The approved plan.
        claims: What the method says it claims.

    Returns:
        What policies judge before a run begins.
    """
    listed = list(claims)
    if not any(isinstance(claim, DP) for claim in listed):
        return listed
    whole = replace(total_claim(approved), event=describe(plan_account(approved).events))
    return [whole, *(claim for claim in listed if not isinstance(claim, DP))]


def planned_claims(phases: tuple[TrainingPhase, ...], secure: SecureSumSection | None = None) -> list[DP]:
    """What each phase of a plan spends at most at any site, phase by phase.

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
            scope=KEPT if phase.hub_rows else PARTS[phase.rows],
            accountant=dp.accountant,
            overlap=dp.overlap,
        )
        for phase in phases
        if (dp := spends(phase, secure)) is not None
    ]
