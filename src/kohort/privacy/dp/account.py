"""A site's privacy account of one run: charges, what they come to, and the claim made under them.

Nothing here knows sites, tasks or plans: `rounds.dp_accounts` makes charges from an approved plan and a site's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kohort.privacy.dp.accounting import Accountant, Event, PureEvent, compose_parallel, describe, epsilon_of
from kohort.privacy.guarantee import DP

__all__ = ["QUORUM", "Charge", "Shares", "SiteAccount", "total_cost"]

QUORUM = 0.9
"""Share of the sites that must survive a round of a secure sum for its noise to be enough."""


@dataclass(frozen=True)
class Shares:
    """How many shares make the planned noise, out of how many sites."""

    sites: int
    colluders: int

    @property
    def quorum(self) -> int:
        """Survivors a round needs."""
        return ceil(QUORUM * self.sites - 1e-9)

    @property
    def needed(self) -> int:
        """Shares that are there even if the colluders take theirs out."""
        return self.quorum - self.colluders


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one phase, or the one query that judges, costs by itself."""

    epsilon: float
    delta: float
    event: Event | PureEvent
    part: str


@dataclass(frozen=True, kw_only=True)
class SiteAccount:
    """What one site pays in a run: the noise of every phase, and what all of them together spend."""

    name: str
    sigmas: tuple[float, ...]
    """Noise multiplier of each phase; 0 where a phase adds no noise at the site."""
    judge_sigma: float
    """Noise of the one query that judges models; 0 when there is none."""
    events: tuple[Event | PureEvent, ...]
    epsilon: float
    delta: float
    unit: str
    scope: str
    accountant: str
    void: bool
    trust: str = ""
    epsilon_all: float | None = None

    def claim(self, *, reserving: bool, simulated: bool) -> DP:
        """The guarantee of a release under this account.

        Args:
            reserving: Whether this is the release that pays for the whole plan; later ones cost nothing more.
            simulated: Whether the noise comes from a seed, so that it protects nobody.

        Returns:
            The claim for the door and the ledger.
        """
        return DP(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            relation="replace-one" if any(isinstance(e, PureEvent) for e in self.events) else "add-or-remove-one",
            event=describe(self.events),
            scope=self.scope,
            simulated=simulated,
            accountant=self.accountant,
            account=self.name,
            charge=self.epsilon if reserving else 0.0,
            void=self.void,
            trust=self.trust,
            epsilon_all=self.epsilon_all,
        )


def total_cost(charges: Sequence[Charge], accountant: Accountant, *, disjoint: bool, unit: str) -> tuple[float, float]:
    """What all charges come to: composed at once where they touch the same rows, in parallel where they cannot.

    Args:
        charges: What each phase, and the query that judges models, costs by itself.
        accountant: How to compose.
        disjoint: Whether the parts of the rows are told from each row alone, which parallel composition needs.
        unit: Whom the guarantee counts.

    Returns:
        Epsilon and delta of the whole plan.
    """
    parts = {charge.part for charge in charges}
    apart = disjoint and "all" not in parts
    groups = [[charge for charge in charges if charge.part == part] for part in parts] if apart else [list(charges)]
    sums = []
    for group in groups:
        delta = sum(charge.delta for charge in group)
        # One composition of all phases is never worse than adding up their budgets.
        epsilon = min(
            epsilon_of([charge.event for charge in group], delta, accountant=accountant),
            sum(charge.epsilon for charge in group),
        )
        sums.append((epsilon, delta))
    return compose_parallel(sums, disjoint=apart, unit=unit)
