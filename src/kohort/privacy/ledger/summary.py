"""Totals of a ledger by site and recipient: the smallest k and l, the largest t, and what spent privacy budget.

Reports and comparisons take the figures of a run from its ledger, never from `run.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.errors import IntegrityError
from kohort.privacy.claim_words import claim_in_words
from kohort.privacy.dp.budget import dp_facts
from kohort.privacy.guarantee import DP, KAnonymous, KKm, parse_guarantee
from kohort.privacy.ledger.ledger import LEDGER_FILE, Ledger
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import find_ledger, read_lines, verify_ledger

__all__ = ["SentTotal", "figures_of_ledger", "spent_by_site", "summarise", "with_ledger_figures"]


@dataclass
class SentTotal:
    """What one site sent to one recipient for one task under one kind of guarantee: weakest values and sums."""

    site: str
    recipient: str
    via: str
    what: str
    kind: str
    guarantee: str = ""
    releases: int = 0
    refusals: int = 0
    rows: int = 0
    size: int = 0
    k: int | None = None
    l: int | None = None  # noqa: E741 - the literature's own letter
    t: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def summarise(folder: Path) -> list[SentTotal]:
    """Add up a ledger. The lines are not verified.

    Args:
        folder: A run folder, or a ledger folder.

    Returns:
        One total for each (site, recipient, carrier, task, kind of guarantee).

    Raises:
        ConfigError: The folder holds no ledger.
        IntegrityError: A line is malformed.
    """
    try:
        return _total(read_lines(find_ledger(folder) / "ledger.jsonl"))
    except (KeyError, TypeError) as error:  # nothing was verified, so a line may hold anything
        raise IntegrityError("the ledger holds a malformed line", hint="Check it with: kohort ledger verify") from error


def _total(lines: Iterable[dict[str, Any]]) -> list[SentTotal]:
    totals: dict[tuple[str, ...], SentTotal] = {}
    for line in lines:
        if line["event"] not in {"release", "refusal"}:
            continue
        claim = parse_guarantee(line["guarantee"])
        place = (line["site"], line["to"], line["via"], line["what"], claim.kind)
        total = totals.setdefault(place, SentTotal(*place))
        if line["event"] == "refusal":
            total.refusals += 1
            continue
        total.guarantee = claim.shown
        total.releases += 1
        total.rows = max(total.rows, line["rows"])
        total.size += line["size"]
        if isinstance(claim, KAnonymous):
            before = claim.t if total.k is None else total.t
            total.t = None if before is None or claim.t is None else max(before, claim.t)
            total.k = claim.k if total.k is None else min(total.k, claim.k)
            total.l = claim.l if total.l is None else min(total.l, claim.l)
        elif isinstance(claim, KKm):
            total.k = claim.k if total.k is None else min(total.k, claim.k)
        elif isinstance(claim, DP):
            epsilon, delta = claim.spent
            total.epsilon = (total.epsilon or 0.0) + epsilon
            total.delta = (total.delta or 0.0) + delta
    return list(totals.values())


def spent_by_site(folder: Path) -> dict[str, list[DP]]:
    """Verify a run's ledger and collect the claims that spent privacy budget.

    Args:
        folder: The run folder, or its ledger folder.

    Returns:
        By site, the claims that charged its budget, in the order of the ledger.

    Raises:
        ConfigError: The folder holds no ledger.
        IntegrityError: The ledger does not verify.
    """
    verify_ledger(folder)
    found: dict[str, list[DP]] = {}
    for line in read_lines(find_ledger(folder) / "ledger.jsonl"):
        if line["event"] == "release":
            claim = parse_guarantee(line["guarantee"])
            if isinstance(claim, DP) and claim.spends:
                found.setdefault(line["site"], []).append(claim)
    return found


def figures_of_ledger(ledger: Ledger) -> dict[str, Any]:
    """The figures of a ledger.

    Args:
        ledger: The ledger, with all its lines.

    Returns:
        `disclosed` and `bytes_up`; where something was spent, also `epsilon`, `delta`, `unit` and `dp`.
    """
    disclosed = ledger.disclosures()
    figures: dict[str, Any] = {
        "disclosed": [item.to_mapping() for item in disclosed],
        "bytes_up": sum(item.size for item in disclosed),
    }
    claims = [claim for claim in ledger.claims() if isinstance(claim, DP)]
    if claims:
        spent = [chain.budget for chain in ledger.chains.values()]
        figures |= {
            "epsilon": max(budget.epsilon for budget in spent),
            "delta": max(budget.delta for budget in spent),
            "unit": claims[0].unit,
            "dp": dp_facts(claims),
        }
    return figures


def with_ledger_figures(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run's JSON object with the figures of its ledger in the place of those of `run.json`.

    Noise that a hub added itself stands in no site's ledger; only then epsilon stays what the run says, and the run's
    `dp` names the hub as the one to be trusted.

    Args:
        run: The JSON object of the run.
        folder: Its folder, whose ledger was verified.

    Returns:
        The object, changed in `disclosed`, which also says each guarantee in words, `bytes.up`, `epsilon`, `delta`,
        `unit` and `dp`.

    Raises:
        IntegrityError: A line is malformed.
    """
    ledger = Ledger(signer=Signer.from_secret(bytes(32)))
    ledger.adopt(list(read_lines(find_ledger(folder) / LEDGER_FILE)))
    figures = figures_of_ledger(ledger)
    for item, claim in zip(figures["disclosed"], ledger.claims(), strict=True):
        item["in_words"] = claim_in_words(claim, to=item["recipient"])
    up = figures.pop("bytes_up")
    moved = run.get("bytes")
    return {**run, **figures, **({"bytes": {**moved, "up": up}} if isinstance(moved, dict) else {})}
