"""A site's privacy account of one run: its charges, their total cost, and the guarantee they justify.

Nothing here knows sites, tasks or plans: `rounds.dp_accounts` makes charges from an approved plan and a site's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kohort.privacy.dp.accounting import Accountant, AnyEvent, Relation, compose_parallel, describe, epsilon_of
from kohort.privacy.guarantee import DP

__all__ = ["QUORUM", "Charge", "Shares", "SiteAccount", "total_cost"]

QUORUM = 0.9
"""Share of the sites that must answer in a round of a secure sum for their noise together to be enough."""


@dataclass(frozen=True)
class Shares:
    """How the sites of a secure sum share the noise: each adds a part, and `needed` parts make the planned noise."""

    sites: int
    colluders: int

    @property
    def quorum(self) -> int:
        """How many sites must answer in a round."""
        return ceil(QUORUM * self.sites - 1e-9)

    @property
    def needed(self) -> int:
        """Honest noise shares that remain when the colluders subtract theirs."""
        return self.quorum - self.colluders


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The privacy cost of one phase, or of the query that compares models, taken alone.

    `part` names the rows it uses: "all", "low" or "high" risk. `sigma` is the noise multiplier that a site uses for it,
    0 where the noise is not Gaussian. It differs from that of the events where a person is at several sites.
    """

    epsilon: float
    delta: float
    events: tuple[AnyEvent, ...]
    part: str
    sigma: float = 0.0
    covers_beside: bool = False
    """Whether `epsilon` covers the charges that every row bears, too."""


@dataclass(frozen=True, kw_only=True)
class SiteAccount:
    """A site's privacy account in one run: the noise of every phase, and the total epsilon and delta."""

    name: str
    sigmas: tuple[float, ...]
    """Noise multiplier of each phase; 0 where a phase adds no noise at the site."""
    judge_sigma: float
    """Noise multiplier of the query that compares models; 0 when there is none."""
    events: tuple[AnyEvent, ...]
    epsilon: float
    delta: float
    unit: str
    relation: Relation
    scope: str
    accountant: str
    void: bool
    overlap: int = 1
    """At how many sites one person may have rows."""
    trust: str = ""
    epsilon_all: float | None = None
    before: tuple[float, float] = (0.0, 0.0)
    """Epsilon and delta that learning the domains paid into the account before the rest is reserved."""

    def claim(self, *, reserving: bool, simulated: bool) -> DP:
        """The guarantee of a release under this account.

        Args:
            reserving: Whether this release pays for the whole plan; later releases cost nothing more.
            simulated: Whether the noise comes from a seeded generator, so that it protects nobody.

        Returns:
            The claim for the door and the ledger.
        """
        return DP(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            relation=self.relation,
            event=describe(self.events),
            scope=self.scope,
            simulated=simulated,
            accountant=self.accountant,
            account=self.name,
            charge=self.epsilon - self.before[0] if reserving else 0.0,
            delta_charge=self.delta - self.before[1] if reserving and self.before[1] else None,
            void=self.void,
            trust=self.trust,
            epsilon_all=self.epsilon_all,
            overlap=self.overlap,
        )


def total_cost(
    charges: Sequence[Charge],
    accountant: Accountant,
    *,
    disjoint: bool,
    unit: str,
    beside: Sequence[Charge] = (),
    relation: Relation = "add-or-remove-one",
) -> tuple[float, float]:
    """The total cost of several charges: composed where they use the same rows, in parallel on disjoint parts.

    Args:
        charges: The cost of each phase, and of the query that compares models.
        accountant: The privacy accountant that composes them.
        disjoint: Whether each row alone decides which part it is in; parallel composition needs that.
        unit: The unit of privacy: row, person or site.
        beside: Charges that every row bears, whichever part it is in.
        relation: Which tables count as neighbours. A row that is replaced may change its part, so that parts then
            compose like releases from the same rows.

    Returns:
        Epsilon and delta of the whole plan.
    """
    parts = {charge.part for charge in charges}
    apart = disjoint and "all" not in parts and relation == "add-or-remove-one"
    groups = [[charge for charge in charges if charge.part == part] for part in parts] if apart else [list(charges)]
    sums = []
    for group in groups:
        whole = [*group, *beside]
        delta = sum(charge.delta for charge in whole)
        events = [event for charge in whole for event in charge.events]
        added = group if any(charge.covers_beside for charge in group) else whole
        # Both are upper bounds, so the smaller one holds.
        epsilon = min(
            epsilon_of(events, delta, accountant=accountant, relation=relation),
            sum(charge.epsilon for charge in added),
        )
        sums.append((epsilon, delta))
    return compose_parallel(sums, disjoint=apart, unit=unit)
