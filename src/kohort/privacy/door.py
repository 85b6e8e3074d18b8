"""The door: the one function every release passes.

It compares the release with the step of the contract that was asked for, asks the site's policy, writes the ledger
line, and only then lets the bytes out. A refused release leaves a ledger
line and no byte. Many sites may pass in one call; each is judged by its own policy and written to its own chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kohort.privacy.contract import Step
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, KAnonymous, KKm, Raw
from kohort.privacy.ledger.ledger import Chain, Ledger, LedgerContext
from kohort.privacy.policy import Policy

__all__ = ["Refusal", "SiteAtDoor", "door"]

_COUNTS_ROWS = (Aggregate, Raw)
_METRICS_SHARE_THE_CLAIM = (Aggregate, KAnonymous, KKm, Raw)


class SiteAtDoor(Protocol):
    """The attributes of a site that the door reads."""

    name: str
    policy: Policy
    chain: Chain

    @property
    def count(self) -> int:
        """How many rows the site holds."""
        ...


@dataclass(frozen=True)
class Refusal:
    """A release that was refused, the reason, which stays at the site, and the word that may leave it."""

    site: str
    reason: str
    code: str = "policy"


def door(
    sites: Sequence[SiteAtDoor],
    payloads: Sequence[bytes | memoryview],
    *,
    ledger: Ledger,
    ledger_context: LedgerContext,
    guarantees: Sequence[Guarantee],
    rows: Sequence[int],
    step: Step,
    said: Sequence[int] | None = None,
    metrics: Sequence[str] = (),
    unasked: Sequence[int | None] = (),
) -> list[Refusal | None]:
    """Judge each release, write it down, and say whether it may leave.

    Guarantee: a payload whose entry is None has a ledger line that describes it. A payload with a Refusal has a refusal
    line and must be dropped by the caller, who holds no other way to send it.

    Args:
        sites: The sites that want to send something, in the order of their ledger lines.
        payloads: The bytes of each site.
        ledger: Where the sites' chains are written.
        ledger_context: Task, recipient and request.
        guarantees: What each site claims of its payload.
        rows: How many rows each payload was computed from.
        step: The step of the sites' contract that the payloads answer.
        said: How many rows the lines and claims that leave say instead, where a domain hides how many took part; the
            policy judges `rows`.
        metrics: Names of the plain numbers in the payloads, which some guarantees do not cover.
        unasked: For steps that send rows, how many rows of each payload may not leave by what their persons agreed to;
            None where the release does not say which rows it holds.

    Returns:
        None for each site whose payload may leave, a Refusal for the others.

    Raises:
        IntegrityError: A site would answer the same request a second time with different bytes.
        ResourceError: The ledger could not be written; nothing may leave then.
    """
    asking = _Asking(ledger_context, step, metrics)
    refusals: list[str | None] = []
    disagreed = [_no_consent(refused) for refused in unasked] or [None] * len(sites)
    policy: Policy | None = None
    claim: Guarantee | None = None
    judged = held = -1
    objection: str | None = None
    for site, payload, guarantee, count, refused in zip(sites, payloads, guarantees, rows, disagreed, strict=True):
        if isinstance(guarantee, DP):
            # The same bytes for the same request (a resumed run) may leave again: their cost is charged already.
            is_again = ledger.has_answered(site.chain, ledger_context, payload)
            refusals.append(None if is_again else refused or asking.charge(site, guarantee, count))
            continue
        # Of simulated sites, many in a row differ in nothing that an objection depends on.
        same = policy is site.policy and claim is guarantee and judged == count and held == site.count
        if not same or step.per_site:
            policy, claim, judged, held = site.policy, guarantee, count, site.count
            objection = asking.objection(site, guarantee, count)
        refusals.append(refused or objection)
    ledger.record(
        [site.chain for site in sites],
        ledger_context,
        guarantees=guarantees if said is None else list(map(_with_rows, guarantees, said)),
        rows=rows if said is None else said,
        payloads=payloads,
        refusals=refusals,
    )
    if refusals.count(None) == len(refusals):
        return [None] * len(refusals)
    return [
        None if reason is None else Refusal(site.name, reason) for site, reason in zip(sites, refusals, strict=True)
    ]


def _with_rows(guarantee: Guarantee, said: int) -> Guarantee:
    """A claim of an aggregate over as many rows as are said."""
    return Aggregate(rows=said) if isinstance(guarantee, Aggregate) and guarantee.rows != said else guarantee


def _no_consent(refused: int | None) -> str | None:
    """The reason why rows without their persons' consent may not leave; None if all agreed."""
    if refused is None:
        return "rows would leave, persons were asked for consent, and the release does not say which rows it holds"
    return f"{refused} rows would leave without their persons' consent" if refused else None


@dataclass(frozen=True)
class _Asking:
    """What sites were asked for, by whom, and which plain numbers their answers hold."""

    ledger_context: LedgerContext
    step: Step
    metrics: Sequence[str]

    def objection(self, site: SiteAtDoor, guarantee: Guarantee, rows: int) -> str | None:
        """The reason why a release may not leave; None if it may."""
        asked, policy = self.ledger_context, site.policy
        if not self.step.allows(guarantee, asked.to, site.name):
            return f"the release claims {guarantee.kind}, which is weaker than what the plan's contract says"
        if not 0 <= rows <= site.count:
            return f"the release speaks of {rows} rows, the site holds {site.count}"
        if isinstance(guarantee, _COUNTS_ROWS) and guarantee.rows != rows:
            return f"the claim speaks of {guarantee.rows} rows, the release of {rows}"
        if self.metrics and not isinstance(guarantee, _METRICS_SHARE_THE_CLAIM):
            private = [name for name in self.metrics if name not in policy.public]
            if private:
                return f"{', '.join(private)} would leave in clear and the policy does not declare it public"
        if not isinstance(guarantee, DP):
            return policy.judge(guarantee, task=asked.what)
        budget = site.chain.budget
        if budget.is_again(guarantee, to=asked.to, what=asked.what, round=asked.round):
            return f"round {asked.round} was answered before, and fresh noise for it is not paid for"
        return policy.judge(guarantee, task=asked.what, total=budget.after(guarantee), paid=budget.paid_by(guarantee))

    def charge(self, site: SiteAtDoor, guarantee: DP, rows: int) -> str | None:
        """The reason why a noisy release may not leave; None if it may, and its cost is charged then."""
        reason = self.objection(site, guarantee, rows)
        if reason is None:
            asked = self.ledger_context
            site.chain.budget.charge(guarantee, to=asked.to, what=asked.what, round=asked.round)
        return reason
