"""Evidence records: one per kind of release, with a status and figures, as output checkers read them.

The layout follows the results file of ACRO (SACRO's tool for output checking): `results` by identifier, each with
`status`, `type`, `sdc`, `command`, `summary` and `comments`. `pass`: nothing of a single row or site is readable under
the guarantee; `review`: a person has to look; `fail`: rows left as they are. A status is no release decision.
"""

from __future__ import annotations

from typing import Any, Final

from kohort.report.runs import AttackRow, DisclosureRow, Run

__all__ = ["evidence_records"]

_PASS: Final = frozenset({"public", "secure-sum", "encrypted", "dp"})
_ROWS: Final = frozenset({"k-anonymous", "k-km"})
_THRESHOLDS: Final = ("min_cell", "min_rows", "min_k", "min_l", "max_t", "min_sum_sites", "epsilon", "delta")


def evidence_records(run: Run, plan: dict[str, Any]) -> dict[str, Any]:
    """The evidence of one run.

    Args:
        run: The run; its ledger was verified.
        plan: Its plan.

    Returns:
        A JSON object.
    """
    policy = plan.get("policy", {})
    records = [_of_release(run, item) for item in run.disclosed] + [_of_attack(run, one) for one in run.attacks]
    return {
        "version": "kohort-evidence-1",
        "ledger_head": run.ledger_head,
        "ledger_signed_by": run.ledger.signed_by if run.ledger else "",
        "thresholds": {name: policy[name] for name in _THRESHOLDS if name in policy},
        "results": {f"output_{number}": {"uid": f"output_{number}", **record} for number, record in enumerate(records)},
    }


def _of_release(run: Run, item: DisclosureRow) -> dict[str, Any]:
    return {
        "status": _status(item),
        "type": "release",
        "properties": {"method": run.method, "recipient": item.recipient, "kind": item.kind},
        "sdc": {"rows": item.rows, "releases": item.releases, "bytes": item.size, "guarantee": item.guarantee},
        "command": f"{run.method}: {item.what}",
        "summary": item.in_words or item.guarantee,
        "outcome": item.label,
        "comments": [],
        "exception": "",
    }


def _status(item: DisclosureRow) -> str:
    if item.kind in _PASS or (item.kind in _ROWS and "verified=True" in item.guarantee):
        return "pass"
    return "fail" if item.kind == "raw" else "review"


def _of_attack(run: Run, one: AttackRow) -> dict[str, Any]:
    status = "review" if one.verdict != "no better than guessing" else "pass"
    return {
        "status": status,
        "type": "attack",
        "properties": {"method": run.method, "on": one.on, "by": one.by, "family": one.family},
        "sdc": {"success": one.success, "guess": one.guess, "interval": one.interval, "measure": one.measure},
        "command": f"kohort audit: {one.attack}",
        "summary": one.verdict,
        "outcome": one.verdict,
        "comments": [one.note] if one.note else [],
        "exception": "",
    }
