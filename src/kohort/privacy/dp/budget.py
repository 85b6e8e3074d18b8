"""What a data set has spent of its privacy, over all runs and recipients, and which plans paid for themselves.

A plan reserves its whole budget with its first private release, because stopping early does not give anything back.
Its later releases name the account that was paid. Nothing here ever decreases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from kohort.errors import ConfigError
from kohort.privacy.guarantee import DP, parse_guarantee

__all__ = ["Budget", "account_name", "budget_of", "dp_facts"]


def account_name(run: str, plan_hash: str, part: str = "") -> str:
    """The account a plan of a run pays into; `part` tells the accounts of one plan apart."""
    return f"{run}/{plan_hash[:16]}" + (f"/{part}" if part else "")


@dataclass
class Budget:
    """Epsilon spent by recipient, delta spent, and (epsilon, delta) paid by account."""

    spent: dict[str, float] = field(default_factory=dict)
    delta: float = 0.0
    paid: dict[str, tuple[float, float]] = field(default_factory=dict)
    answered: dict[str, set[tuple[str, str, int]]] = field(default_factory=dict)
    """Recipient, task and round of every release an account covers."""

    @property
    def epsilon(self) -> float:
        """All that was spent, whoever received it: recipients may share what they learn."""
        return sum(self.spent.values())

    def charge(self, claim: DP, *, to: str, what: str = "", round: int = 0) -> None:
        """Take what `claim` spends, and remember for which question. The caller has judged it."""
        if claim.account:
            self.answered.setdefault(claim.account, set()).add((to, what, round))
        if not claim.spends:
            return
        epsilon, delta = claim.spent
        self.spent[to] = self.spent.get(to, 0.0) + epsilon
        self.delta += delta
        if claim.account:
            before = self.paid_by(claim)
            self.paid[claim.account] = (before[0] + epsilon, before[1] + delta)

    def is_again(self, claim: DP, *, to: str, what: str, round: int) -> bool:
        """Whether an account would answer a question twice for one payment: fresh noise for it was not paid for."""
        return not claim.spends and (to, what, round) in self.answered.get(claim.account, ())

    def add(self, other: Budget) -> None:
        """Take in what was spent elsewhere."""
        for recipient, epsilon in other.spent.items():
            self.spent[recipient] = self.spent.get(recipient, 0.0) + epsilon
        self.delta += other.delta
        for account, (epsilon, delta) in other.paid.items():
            before = self.paid.get(account, (0.0, 0.0))
            self.paid[account] = (before[0] + epsilon, before[1] + delta)
        for account, questions in other.answered.items():
            self.answered.setdefault(account, set()).update(questions)

    def paid_by(self, claim: DP) -> tuple[float, float]:
        """What the account of `claim` has paid so far; a claim without an account has paid nothing."""
        return self.paid.get(claim.account, (0.0, 0.0)) if claim.account else (0.0, 0.0)

    def without(self, account: str) -> tuple[float, float]:
        """(epsilon, delta) spent on everything but `account` and its parts."""
        own = [paid for name, paid in self.paid.items() if name == account or name.startswith(f"{account}/")]
        return (
            max(0.0, self.epsilon - fsum(epsilon for epsilon, _ in own)),
            max(0.0, self.delta - fsum(delta for _, delta in own)),
        )


def budget_of(lines: Iterable[Mapping[str, Any]], *, site: str) -> Budget:
    """What the ledger lines of one site spent: how a site that keeps its ledgers knows its budget in the next run."""
    budget = Budget()
    for line in lines:
        if line["event"] == "release" and line["site"] == site:
            claim = parse_guarantee(line["guarantee"])
            if isinstance(claim, DP):
                budget.charge(claim, to=line["to"], what=line["what"], round=line["round"])
    return budget


def dp_facts(claims: Sequence[DP]) -> dict[str, Any]:
    """What stands beside a run's epsilon: its scope, how it was accounted, and what other accounts of it say."""
    from kohort.privacy.dp.accounting import AnyEvent, epsilon_of, parse_events

    weakest = min(claims, key=lambda claim: claim.strength)
    try:
        events: Sequence[AnyEvent] = parse_events(weakest.event)
        beside = {kind: epsilon_of(events, weakest.delta, accountant=kind) for kind in ("rdp", "basic") if events}
    except ConfigError:  # a mechanism of its own, described in its own words
        beside = {}
    return {
        "scope": "; ".join(dict.fromkeys(claim.scope for claim in claims)),
        "accountant": weakest.accountant,
        "rdp": beside.get("rdp"),
        "basic": beside.get("basic"),
        "simulated": any(claim.simulated for claim in claims),
        "void": any(claim.void for claim in claims),
        "epsilon_all": max((claim.epsilon_all for claim in claims if claim.epsilon_all is not None), default=None),
    }
