"""The door: the one function every release passes.

It asks the site's policy, writes the ledger line, and only then hands the bytes on. A refused release leaves a line and
no byte. Many sites pass in one call, each judged by its own policy and written to its own chain: the batch is a loop
over the same checks, never a way around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from kohort.privacy.guarantee import DP, Aggregate, Guarantee, KAnonymous, KKm, Raw
from kohort.privacy.ledger.ledger import Chain, Ledger, LedgerContext
from kohort.privacy.policy import Policy

__all__ = ["Company", "Keeper", "Refusal", "door"]

_METRICS_SHARE_THE_CLAIM = (Aggregate, KAnonymous, KKm, Raw)


class Keeper(Protocol):
    """What the door needs of a site."""

    name: str
    policy: Policy
    chain: Chain

    @property
    def count(self) -> int:
        """How many rows the site holds."""
        ...


K_co = TypeVar("K_co", bound=Keeper, covariant=True)


class Company(tuple[K_co, ...]):
    """Sites that pass together, round after round; what never changes of them is gathered once."""

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What is kept of them as a company; nothing in it may hold on to them."""
        return {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple([site.name for site in self])

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """Their ledger chains."""
        return tuple([site.chain for site in self])


@dataclass(frozen=True)
class Refusal:
    """A release that stayed inside, and why."""

    site: str
    reason: str


def door(
    sites: Sequence[Keeper],
    parcels: Sequence[bytes | memoryview],
    *,
    ledger: Ledger,
    ledger_context: LedgerContext,
    guarantees: Sequence[Guarantee],
    rows: Sequence[int],
    metrics: Sequence[str] = (),
) -> list[Refusal | None]:
    """Judge, write down, let out: the result tells for each site whether its parcel may travel.

    Guarantee: a parcel whose entry is None has a ledger line that describes it; a parcel with a Refusal has a refusal
    line and must be dropped by the caller, who holds no other way to send it.
    """
    # Judging the same case again gives the same verdict, unless it spends a budget. These compare their members by
    # identity first, so sites that make the same claims every round are judged in full once.
    case = (
        [site.policy for site in sites],
        tuple(guarantees),
        tuple(rows),
        [site.count for site in sites],
        ledger_context.what,
        metrics,
    )
    if case == ledger.passed:
        ledger.record(_chains_of(sites), ledger_context, guarantees=guarantees, rows=rows, parcels=parcels)
        return [None] * len(sites)
    verdicts = _judge_each(
        sites, parcels, ledger=ledger, ledger_context=ledger_context, guarantees=guarantees, rows=rows, metrics=metrics
    )
    spends_never = not any(isinstance(guarantee, DP) for guarantee in guarantees)
    ledger.passed = case if spends_never and not any(verdicts) else None
    return verdicts


def _chains_of(sites: Sequence[Keeper]) -> Sequence[Chain]:
    return sites.chains if isinstance(sites, Company) else [site.chain for site in sites]


def _judge_each(
    sites: Sequence[Keeper],
    parcels: Sequence[bytes | memoryview],
    *,
    ledger: Ledger,
    ledger_context: LedgerContext,
    guarantees: Sequence[Guarantee],
    rows: Sequence[int],
    metrics: Sequence[str],
) -> list[Refusal | None]:
    """The door without its memory: site by site, the lines in the order of the sites."""
    verdicts: list[Refusal | None] = []
    allowed: list[int] = []

    def let_out() -> None:
        if len(allowed) == len(sites):
            ledger.record(_chains_of(sites), ledger_context, guarantees=guarantees, rows=rows, parcels=parcels)
        elif allowed:
            ledger.record(
                [sites[i].chain for i in allowed],
                ledger_context,
                guarantees=[guarantees[i] for i in allowed],
                rows=[rows[i] for i in allowed],
                parcels=[parcels[i] for i in allowed],
            )
        allowed.clear()

    for index, (site, guarantee) in enumerate(zip(sites, guarantees, strict=True)):
        chain = site.chain
        # An answer that left before the run was interrupted leaves again as it was: the same noise costs nothing twice.
        if isinstance(guarantee, DP) and ledger.has_answered(chain, ledger_context, parcels[index]):
            allowed.append(index)
            verdicts.append(None)
            continue
        case = (site.policy, guarantee, rows[index], site.count, ledger_context.what, metrics)
        if case == chain.passed and not _asks_again(
            chain, guarantee, ledger_context
        ):  # in another company the last time
            reason = None
        else:
            reason = _reason_against(site, guarantee, rows[index], ledger_context, metrics)
            spends = isinstance(guarantee, DP) and guarantee.spends
            chain.passed = case if reason is None and not spends else None
        if reason is None:
            allowed.append(index)
            verdicts.append(None)
            if isinstance(guarantee, DP):
                chain.budget.charge(
                    guarantee, to=ledger_context.to, what=ledger_context.what, round=ledger_context.round
                )
        else:
            let_out()  # lines stand in the order of the sites, as when they are asked one by one
            ledger.refuse(site.chain, ledger_context, guarantee=guarantee, reason=reason)
            verdicts.append(Refusal(site.name, reason))
    let_out()
    return verdicts


def _reason_against(
    site: Keeper, guarantee: Guarantee, rows: int, ledger_context: LedgerContext, metrics: Sequence[str]
) -> str | None:
    if not 0 <= rows <= site.count:
        return f"the release speaks of {rows} rows, the site holds {site.count}"
    if isinstance(guarantee, Aggregate | Raw) and guarantee.rows != rows:
        return f"the claim speaks of {guarantee.rows} rows, the release of {rows}"
    policy = site.policy
    if metrics and not isinstance(guarantee, _METRICS_SHARE_THE_CLAIM):
        private = [name for name in metrics if name not in policy.public]
        if private:
            return f"{', '.join(private)} would leave in clear and the policy does not declare it public"
    if not isinstance(guarantee, DP):
        return policy.judge(guarantee, task=ledger_context.what)
    if _asks_again(site.chain, guarantee, ledger_context):
        return f"round {ledger_context.round} was answered before, and fresh noise for it is not paid for"
    budget = site.chain.budget
    return policy.judge(
        guarantee,
        task=ledger_context.what,
        spent=budget.epsilon,
        spent_delta=budget.delta,
        paid=budget.paid_by(guarantee),
    )


def _asks_again(chain: Chain, guarantee: Guarantee, ledger_context: LedgerContext) -> bool:
    return isinstance(guarantee, DP) and chain.budget.is_again(
        guarantee, to=ledger_context.to, what=ledger_context.what, round=ledger_context.round
    )
