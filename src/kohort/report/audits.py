"""Audits beside runs: the findings that `kohort audit` wrote to a file, for the runs whose ledgers they name.

Guarantee: an audit of another run is not shown. An audit is no part of a run folder and no ledger signs it; a report
says that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.errors import ConfigError, IntegrityError
from kohort.files import write_atomic
from kohort.report.measured import Calibration, GroupScores, MeasuredRisk
from kohort.report.runs import AttackRow

__all__ = ["AUDIT_FILE", "with_audits", "write_audits"]

AUDIT_FILE: Final = "audit.json"
"""In a folder of several runs: what attacks on them found."""


def write_audits(path: Path, audits: Iterable[Mapping[str, Any]]) -> None:
    """Write audits for a report.

    Args:
        path: The file.
        audits: The JSON objects of `kohort audit`.
    """
    write_atomic(path, (json.dumps({"audits": list(audits)}, indent=1, allow_nan=False) + "\n").encode())


def with_audits(runs: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Runs with the attacks of an audit file.

    Args:
        runs: The JSON objects of runs.
        path: The audit file.

    Returns:
        The runs; those the file has an audit of have its findings under `attacks`, and what it measured under `risk`,
        `calibration` and `groups`.

    Raises:
        ConfigError: The file cannot be read, or is about none of the runs.
        IntegrityError: It is damaged.
    """
    found = _read(path)
    matched = [{**run, **found.get(str(run.get("ledger_head")), {"attacks": []})} for run in runs]
    if not any(run["attacks"] for run in matched):
        raise ConfigError(f"{path} is an audit of other runs", hint="Audit this run: kohort audit DIR --out FILE")
    return matched


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What audits found by the head of a ledger; findings on two runs together belong to neither."""
    from pydantic import TypeAdapter, ValidationError

    try:
        raw = json.loads(path.read_bytes())
        audits = [audit for audit in raw["audits"] if len(audit["ledger_heads"]) == 1]
        found = {audit["ledger_heads"][0]: _of_run(audit) for audit in audits}
        TypeAdapter(dict[str, _Audited]).validate_python(found)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", hint="Write it with: kohort audit DIR --out FILE") from error
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise IntegrityError(f"{path} is not an audit", hint="Write it again: kohort audit DIR --out FILE") from error
    return found


@dataclass(frozen=True, kw_only=True)
class _Audited:
    """What a report takes of an audit."""

    attacks: list[AttackRow]
    risk: MeasuredRisk | None = None
    calibration: Calibration | None = None
    groups: list[GroupScores] | None = None


def _of_run(audit: Mapping[str, Any]) -> dict[str, Any]:
    measured = {name: audit[name] for name in ("risk", "calibration", "groups") if audit.get(name) is not None}
    return {"attacks": audit["findings"], **measured}
