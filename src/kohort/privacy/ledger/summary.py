"""Totals of a ledger by site and recipient: the smallest k and l, the largest t, and the sum of epsilon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.errors import IntegrityError
from kohort.privacy.guarantee import DP, KAnonymous, KKm, parse_guarantee
from kohort.privacy.ledger.verify import find_ledger, read_lines

__all__ = ["Total", "summarise"]


@dataclass
class Total:
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


def summarise(folder: Path) -> list[Total]:
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


def _total(lines: Iterable[dict[str, Any]]) -> list[Total]:
    totals: dict[tuple[str, ...], Total] = {}
    for line in lines:
        if line["event"] not in {"release", "refusal"}:
            continue
        claim = parse_guarantee(line["guarantee"])
        place = (line["site"], line["to"], line["via"], line["what"], claim.kind)
        total = totals.setdefault(place, Total(*place))
        if line["event"] == "refusal":
            total.refusals += 1
            continue
        total.guarantee = claim.shown
        total.releases += 1
        total.rows = max(total.rows, line["rows"])
        total.size += line["size"]
        if isinstance(claim, KAnonymous):
            total.k = claim.k if total.k is None else min(total.k, claim.k)
            total.l = claim.l if total.l is None else min(total.l, claim.l)
            total.t = claim.t if total.t is None or claim.t is None else max(total.t, claim.t)
        elif isinstance(claim, KKm):
            total.k = claim.k if total.k is None else min(total.k, claim.k)
        elif isinstance(claim, DP):
            epsilon, delta = claim.spent
            total.epsilon = (total.epsilon or 0.0) + epsilon
            total.delta = (total.delta or 0.0) + delta
    return list(totals.values())
