"""The privacy budget a data set has spent over all runs and recipients, and the accounts it was paid into.

A plan reserves its whole budget with its first private release: stopping early refunds nothing. Later releases name the
account that was paid. No total here ever decreases.

Guarantee: the total over all runs is one composition of everything that was released, by privacy loss distributions, at
the sum of the deltas. Claims that describe no event, and claims for different units, are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import exp, fsum
from typing import Any, cast

from kohort.errors import ConfigError
from kohort.privacy.dp.events import AnyEvent, Relation, parse_events
from kohort.privacy.guarantee import DP

__all__ = ["Budget", "Payment", "account_name", "composed", "dp_facts"]

_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Payment:
    """What one account, or one release without an account, has cost."""

    epsilon: float
    delta: float
    unit: str
    relation: Relation
    events: tuple[AnyEvent, ...] = ()
    """Everything it paid for; empty where the claim describes no event that can be composed."""

    @classmethod
    def of(cls, claim: DP) -> Payment:
        """The payment of a claim that stands for itself."""
        epsilon, delta = claim.spent
        whole = claim.account or (epsilon, delta) == (claim.epsilon, claim.delta)
        unit = f"{claim.unit}/{claim.overlap}"
        return cls(epsilon, delta, unit, cast(Relation, claim.relation), _events_of(claim) if whole else ())

    def topped_up(self, claim: DP) -> Payment:
        """The payment after a further one into the same account, whose claim describes all of it."""
        new = Payment.of(claim)
        added = replace(new, epsilon=self.epsilon + new.epsilon, delta=self.delta + new.delta)
        same = new.events and (new.unit, new.relation) == (self.unit, self.relation)
        covered = same and self.events and Counter(self.events) <= Counter(new.events)
        # More paid than the claim says: something was released a second time, which its events do not list.
        return added if covered and added.epsilon <= claim.epsilon * _ROUNDING else replace(added, events=())


def _events_of(claim: DP) -> tuple[AnyEvent, ...]:
    try:
        return parse_events(claim.event)
    except ConfigError:  # the method described its mechanism in free text
        return ()


def composed(payments: Iterable[Payment]) -> tuple[float, float]:
    """The cost of several payments together.

    Args:
        payments: What was paid.

    Returns:
        Epsilon and delta: one composition per unit where the events are known, added up over units and over payments
        that describe no event.
    """
    by_unit: dict[str, list[Payment]] = {}
    opaque = []
    for payment in payments:
        if payment.events:
            by_unit.setdefault(payment.unit, []).append(payment)
        else:
            opaque.append((payment.epsilon, payment.delta))
    totals = [*opaque, *map(_of_one_unit, by_unit.values())]
    return fsum(epsilon for epsilon, _ in totals), fsum(delta for _, delta in totals)


def _of_one_unit(payments: Sequence[Payment]) -> tuple[float, float]:
    from kohort.privacy.dp.accounting import epsilon_of

    if len(payments) == 1:
        return payments[0].epsilon, payments[0].delta
    relations = {payment.relation for payment in payments}
    added = [_as_replaced(payment) if len(relations) > 1 else (payment.epsilon, payment.delta) for payment in payments]
    epsilon, delta = fsum(one for one, _ in added), fsum(one for _, one in added)
    relation: Relation = "replace-one" if "replace-one" in relations else "add-or-remove-one"
    events = [event for payment in payments for event in payment.events]
    if delta >= 1:
        return epsilon, delta
    try:
        return min(epsilon, epsilon_of(events, delta, relation=relation)), delta
    except ConfigError:  # sampled steps where a unit is replaced: group privacy is all that is proved
        return epsilon, delta


def _as_replaced(payment: Payment) -> tuple[float, float]:
    """Epsilon and delta where a unit is replaced: for a claim of removed units, group privacy of two."""
    if payment.relation == "replace-one":
        return payment.epsilon, payment.delta
    return 2 * payment.epsilon, (1 + exp(min(payment.epsilon, 700.0))) * payment.delta


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
    """Epsilon paid per recipient, (epsilon, delta) paid per account, and what everything costs together."""

    spent: dict[str, float] = field(default_factory=dict)
    """Plain sums per recipient, for summaries; recipients may share what they learn, so no limit is judged by them."""
    paid: dict[str, tuple[float, float]] = field(default_factory=dict)
    answered: dict[str, set[tuple[str, str, int]]] = field(default_factory=dict)
    """Recipient, task and round of every release, by account."""
    payments: dict[str, Payment] = field(default_factory=dict)
    """By account; releases without an account are numbered."""

    @property
    def epsilon(self) -> float:
        """Total epsilon over all runs and recipients, because recipients may share what they learn."""
        return composed(self.payments.values())[0]

    @property
    def delta(self) -> float:
        """Total delta over all runs and recipients."""
        return composed(self.payments.values())[1]

    def after(self, claim: DP) -> tuple[float, float]:
        """Total epsilon and delta if a release with this claim left now.

        Args:
            claim: The guarantee of the release.

        Returns:
            The totals; unchanged by a claim that spends nothing.
        """
        payments = dict(self.payments)
        self._pay(payments, claim)
        return composed(payments.values())

    @staticmethod
    def _pay(payments: dict[str, Payment], claim: DP) -> None:
        if not claim.spends:
            return
        name = claim.account or _free_name(payments)
        before = payments.get(name)
        payments[name] = Payment.of(claim) if before is None else before.topped_up(claim)

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
        self._pay(self.payments, claim)
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
        for name, payment in other.payments.items():
            self.payments[name if name not in self.payments else _free_name(self.payments)] = payment
        for account, (epsilon, delta) in other.paid.items():
            before = self.paid.get(account, (0.0, 0.0))
            self.paid[account] = (before[0] + epsilon, before[1] + delta)
        for account, questions in other.answered.items():
            self.answered.setdefault(account, set()).update(questions)

    def paid_by(self, claim: DP) -> tuple[float, float]:
        """Epsilon and delta already paid into the account of `claim`; zero for a claim without an account."""
        return self.paid.get(claim.account, (0.0, 0.0)) if claim.account else (0.0, 0.0)

    def without(self, account: str) -> Budget:
        """What was spent outside `account` and the accounts named `account`/PART.

        Args:
            account: The name of an account.

        Returns:
            A budget of its own.
        """
        others = {
            name: payment
            for name, payment in self.payments.items()
            if name != account and not name.startswith(f"{account}/")
        }
        return Budget(payments=others)


def _free_name(payments: Mapping[str, Payment]) -> str:
    """A name for a release without an account."""
    return next(name for number in count(len(payments)) if (name := f"#{number}") not in payments)


def dp_facts(claims: Sequence[DP]) -> dict[str, Any]:
    """The facts that reports show beside a run's epsilon.

    Args:
        claims: All DP claims of the run, at least one.

    Returns:
        Scope, accountant, whom the claim relies on, caveats, and the weakest claim's epsilon by the "rdp" and "basic"
        accountants (None where its events cannot be parsed).
    """
    from kohort.privacy.dp.accounting import Accountant, epsilon_of

    weakest = min(claims, key=lambda claim: claim.strength)
    events, relation = _events_of(weakest), cast(Relation, weakest.relation)
    others: tuple[Accountant, ...] = ("rdp", "basic") if events else ()
    beside = {kind: epsilon_of(events, weakest.delta, accountant=kind, relation=relation) for kind in others}
    return {
        "scope": "; ".join(dict.fromkeys(claim.scope for claim in claims)),
        "whom": weakest.whom,
        "accountant": weakest.accountant,
        "rdp": beside.get("rdp"),
        "basic": beside.get("basic"),
        "simulated": any(claim.simulated for claim in claims),
        "void": any(claim.void for claim in claims),
        "trust": weakest.trust,
        "epsilon_all": max((claim.epsilon_all for claim in claims if claim.epsilon_all is not None), default=None),
    }
