"""The privacy cost of hyper-parameter tuning: every run used the rows, so all of them are paid for, not the best one.

The claims come from the runs' ledgers (`kohort.privacy.ledger.summary`). A site's cost is the composition of everything
its rows were used for, at the sum of the deltas; the cost reported is that of the site that spent most.

Guarantee: an upper bound under the claims in the ledgers. It does not cover evaluating the runs on test rows, which get
no protection from noise in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import DP

__all__ = ["Cost", "cost_of_choice"]

Claims = Mapping[str, Sequence[DP]]
"""By site, the claims that spent part of its budget."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The privacy cost of choosing among runs, for the site that spent most."""

    runs: int
    epsilon: float
    delta: float
    unit: str
    scope: str
    void: bool

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "how": "composition of all runs"}


def cost_of_choice(runs: Sequence[Claims]) -> Cost | None:
    """The privacy cost of trying all these runs and choosing one.

    Args:
        runs: Each run's claims by site.

    Returns:
        The cost of the site that spent most; None when no run claims differential privacy.
    """
    by_site: dict[str, list[DP]] = {}
    for number, run in enumerate(runs):
        for site, claims in run.items():
            # Runs may have been named alike; each pays for itself.
            own = [replace(claim, account=f"{claim.account}#{number}") if claim.account else claim for claim in claims]
            by_site.setdefault(site, []).extend(own)
    if not by_site:
        return None
    # Many sites have equal claims and composing is slow, so each distinct list is composed once.
    bounds = {claims: _composed(claims) for claims in {tuple(claims) for claims in by_site.values()}}
    worst = max(bounds, key=lambda claims: bounds[claims])
    every = [claim for claims in by_site.values() for claim in claims]
    epsilon, delta = bounds[worst]
    return Cost(
        runs=len(runs),
        epsilon=epsilon,
        delta=delta,
        unit=" or ".join(_each(claim.unit for claim in every)),
        scope=" or ".join(_each(claim.scope for claim in every)),
        void=any(claim.void for claim in every),
    )


def _composed(claims: Sequence[DP]) -> tuple[float, float]:
    budget = Budget()
    for claim in claims:
        budget.charge(claim, to="")
    return budget.epsilon, budget.delta


def _each(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
