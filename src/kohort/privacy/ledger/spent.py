"""The differential-privacy claims of a run's ledger that spent part of a site's budget."""

from __future__ import annotations

from pathlib import Path

from kohort.privacy.guarantee import DP, parse_guarantee
from kohort.privacy.ledger.verify import find_ledger, read_lines, verify_ledger

__all__ = ["spent_by_site"]


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
