"""The privacy budget a data set has spent over all runs and recipients, and the accounts it was paid into.

A plan reserves its whole budget with its first private release: stopping early refunds nothing. Later releases name the
account that was paid. No total here ever decreases.
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
    """The name of the account that a plan pays into.

    Args:
        run: The run's identifier.
        plan_hash: The hash of the approved plan.
        part: Distinguishes several accounts of one plan; empty for the only one.

    Returns:
        The account's name, as the ledger shows it.
    """
    return f"{run}/{plan_hash[:16]}" + (f"/{part}" if part else "")


@dataclass
class Budget:
    """Epsilon spent per recipient, total delta spent, and (epsilon, delta) paid per account."""

    spent: dict[str, float] = field(default_factory=dict)
    delta: float = 0.0
    paid: dict[str, tuple[float, float]] = field(default_factory=dict)
    answered: dict[str, set[tuple[str, str, int]]] = field(default_factory=dict)
    """Recipient, task and round of every release, by account."""

    @property
    def epsilon(self) -> float:
        """Total epsilon over all recipients, because recipients may share what they learn."""
        return sum(self.spent.values())

    def charge(self, claim: DP, *, to: str, what: str = "", round: int = 0) -> None:
        """Record what a release spends. The caller has already checked it against the policy.

        Args:
            claim: The guarantee of the release.
            to: Its recipient.
            what: The task that made it.
            round: The round it belongs to.
        """
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
        """Whether this account already answered the same task and round, and the new release would pay nothing.

        A second answer would carry fresh noise, which reveals more than the account has paid for.

        Args:
            claim: The guarantee of the new release.
            to: Its recipient.
            what: The task that made it.
            round: The round it belongs to.

        Returns:
            True when the release must be refused.
        """
        return not claim.spends and (to, what, round) in self.answered.get(claim.account, ())

    def add(self, other: Budget) -> None:
        """Add what was spent elsewhere, such as in earlier runs.

        Args:
            other: The other budget; it is not changed.
        """
        for recipient, epsilon in other.spent.items():
            self.spent[recipient] = self.spent.get(recipient, 0.0) + epsilon
        self.delta += other.delta
        for account, (epsilon, delta) in other.paid.items():
            before = self.paid.get(account, (0.0, 0.0))
            self.paid[account] = (before[0] + epsilon, before[1] + delta)
        for account, questions in other.answered.items():
            self.answered.setdefault(account, set()).update(questions)

    def paid_by(self, claim: DP) -> tuple[float, float]:
        """Epsilon and delta already paid into the account of `claim`; zero for a claim without an account."""
        return self.paid.get(claim.account, (0.0, 0.0)) if claim.account else (0.0, 0.0)

    def without(self, account: str) -> tuple[float, float]:
        """(epsilon, delta) spent outside `account` and the accounts named `account`/PART."""
        own = [paid for name, paid in self.paid.items() if name == account or name.startswith(f"{account}/")]
        return (
            max(0.0, self.epsilon - fsum(epsilon for epsilon, _ in own)),
            max(0.0, self.delta - fsum(delta for _, delta in own)),
        )


def budget_of(lines: Iterable[Mapping[str, Any]], *, site: str) -> Budget:
    """Add up what one site spent, from the ledger lines of its earlier runs.

    Args:
        lines: Verified ledger lines, of any sites.
        site: The site to count.

    Returns:
        What that site has spent.
    """
    budget = Budget()
    for line in lines:
        if line["event"] == "release" and line["site"] == site:
            claim = parse_guarantee(line["guarantee"])
            if isinstance(claim, DP):
                budget.charge(claim, to=line["to"], what=line["what"], round=line["round"])
    return budget


def dp_facts(claims: Sequence[DP]) -> dict[str, Any]:
    """The facts that reports show beside a run's epsilon.

    Args:
        claims: All DP claims of the run, at least one.

    Returns:
        Scope, accountant, caveats, and the weakest claim's epsilon by the "rdp" and "basic" accountants (None where its
        events cannot be parsed).
    """
    from kohort.privacy.dp.accounting import AnyEvent, epsilon_of, parse_events

    weakest = min(claims, key=lambda claim: claim.strength)
    try:
        events: Sequence[AnyEvent] = parse_events(weakest.event)
        beside = {kind: epsilon_of(events, weakest.delta, accountant=kind) for kind in ("rdp", "basic") if events}
    except ConfigError:  # the method described its mechanism in free text
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
