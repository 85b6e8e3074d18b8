"""The figures of a run that its ledger holds: what left, under which claim, and what was spent.

Reports and comparisons take them from the ledger, never from `run.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kohort.privacy.dp.budget import dp_facts
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.ledger import LEDGER_FILE, Ledger
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import find_ledger, read_lines

__all__ = ["figures_of_ledger", "with_ledger_figures"]


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
        The object, changed in `disclosed`, `bytes.up`, `epsilon`, `delta`, `unit` and `dp`.

    Raises:
        IntegrityError: A line is malformed.
    """
    ledger = Ledger(signer=Signer.from_secret(bytes(32)))
    ledger.adopt(list(read_lines(find_ledger(folder) / LEDGER_FILE)))
    figures = figures_of_ledger(ledger)
    up = figures.pop("bytes_up")
    moved = run.get("bytes")
    return {**run, **figures, **({"bytes": {**moved, "up": up}} if isinstance(moved, dict) else {})}
