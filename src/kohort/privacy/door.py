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
    refusals: list[str | None] = []
    disagreed = [_no_consent(refused) for refused in unasked] or [None] * len(sites)
    judged: tuple[object, ...] | None = None
    objection: str | None = None
    for site, payload, guarantee, count, refused in zip(sites, payloads, guarantees, rows, disagreed, strict=True):
        # The same bytes for the same request (a resumed run) may leave again: their privacy cost is already charged.
        if isinstance(guarantee, DP) and ledger.has_answered(site.chain, ledger_context, payload):
            refusals.append(None)
            continue
        # All that an objection to one request depends on. Of simulated sites, many in a row have the same; what noise
        # costs depends on each site's own budget.
        case = (count, site.count, guarantee, site.policy, site.name if step.per_site else "")
        if case != judged or isinstance(guarantee, DP):
            judged, objection = case, _objection(site, guarantee, count, ledger_context, step, metrics)
        reason = refused or objection
        if reason is None and isinstance(guarantee, DP):
            where = ledger_context
            site.chain.budget.charge(guarantee, to=where.to, what=where.what, round=where.round)
        refusals.append(reason)
    ledger.record(
        [site.chain for site in sites],
        ledger_context,
        guarantees=guarantees if said is None else list(map(_with_rows, guarantees, said)),
        rows=rows if said is None else said,
        payloads=payloads,
        refusals=refusals,
    )
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


def _objection(
    site: SiteAtDoor,
    guarantee: Guarantee,
    rows: int,
    ledger_context: LedgerContext,
    step: Step,
    metrics: Sequence[str],
) -> str | None:
    """The reason why a release may not leave; None if it may."""
    if not step.allows(guarantee, ledger_context.to, site.name):
        return f"the release claims {guarantee.kind}, which is weaker than what the plan's contract says"
    if not 0 <= rows <= site.count:
        return f"the release speaks of {rows} rows, the site holds {site.count}"
    if isinstance(guarantee, _COUNTS_ROWS) and guarantee.rows != rows:
        return f"the claim speaks of {guarantee.rows} rows, the release of {rows}"
    policy = site.policy
    if metrics and not isinstance(guarantee, _METRICS_SHARE_THE_CLAIM):
        private = [name for name in metrics if name not in policy.public]
        if private:
            return f"{', '.join(private)} would leave in clear and the policy does not declare it public"
    if not isinstance(guarantee, DP):
        return policy.judge(guarantee, task=ledger_context.what)
    budget = site.chain.budget
    if budget.is_again(guarantee, to=ledger_context.to, what=ledger_context.what, round=ledger_context.round):
        return f"round {ledger_context.round} was answered before, and fresh noise for it is not paid for"
    return policy.judge(
        guarantee,
        task=ledger_context.what,
        total=budget.after(guarantee),
        paid=budget.paid_by(guarantee),
    )
