"""What choosing among several runs costs: every run looked at the rows, so all of them are paid for, not the best one.

The claims come from the runs' ledgers. A site's cost is the composition of all that its rows were used for, at the sum
of the deltas; the figure told is the worst site's.

Guarantee: an upper bound under the claims as the ledgers have them. Measuring the runs on test rows is not part of it:
those rows get no protection from noise in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kohort.privacy.dp.accounting import epsilon_of, parse_events
from kohort.privacy.dp.composition import Relation
from kohort.privacy.guarantee import DP, parse_guarantee
from kohort.privacy.ledger.verify import find_ledger, read_lines, verify_ledger

__all__ = ["Cost", "cost_of_choice", "spent_by_site"]

Claims = Mapping[str, Sequence[DP]]
"""By site, the claims that took from its budget."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a choice among runs cost the site that paid most."""

    runs: int
    epsilon: float
    delta: float
    unit: str
    scope: str
    void: bool

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "how": "composition of all runs"}


def spent_by_site(folder: Path) -> dict[str, list[DP]]:
    """The claims in a run's ledger, verified first, that took from a site's budget."""
    verify_ledger(folder)
    found: dict[str, list[DP]] = {}
    for line in read_lines(find_ledger(folder) / "ledger.jsonl"):
        if line["event"] == "release":
            claim = parse_guarantee(line["guarantee"])
            if isinstance(claim, DP) and claim.spends:
                found.setdefault(line["site"], []).append(claim)
    return found


def cost_of_choice(runs: Sequence[Claims]) -> Cost | None:
    """The cost of looking at all these runs; None where none of them claims differential privacy."""
    by_site: dict[str, list[DP]] = {}
    for run in runs:
        for site, claims in run.items():
            by_site.setdefault(site, []).extend(claims)
    if not by_site:
        return None
    # Many sites have the very same claims; composing is slow, so each list is judged once.
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
    """Epsilon at the sum of the deltas: by one account where all events speak of the same thing, else the sum."""
    delta = sum(claim.delta for claim in claims)
    added = sum(claim.spent[0] for claim in claims)
    alike = len({(claim.unit, claim.relation) for claim in claims}) == 1
    # A claim that charges only part of its epsilon, or describes no event, has no account to compose with others.
    whole = all(claim.event and claim.spent[0] == claim.epsilon for claim in claims)
    if not (alike and whole) or not 0 < delta < 1:
        return added, delta
    events = [event for claim in claims for event in parse_events(claim.event)]
    relation = cast(Relation, claims[0].relation)
    return min(added, epsilon_of(events, delta, relation=relation)), delta


def _each(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
