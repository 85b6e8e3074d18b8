"""Read a run that verifies, and write it in one of the formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError
from kohort.files import write_atomic
from kohort.report.audits import with_audits
from kohort.report.exports.annex import assessment_annex
from kohort.report.exports.crate import METADATA, write_crate
from kohort.report.exports.evidence import evidence_records
from kohort.report.exports.hugging_face import hugging_face_card
from kohort.report.runs import Run, check_run, read_runs

__all__ = ["export_run"]


def export_run(
    folder: Path, *, as_: str, out: Path, audit: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write one export of a finished run.

    Args:
        folder: The run folder.
        as_: evidence, crate, card or annex.
        out: Where to.
        audit: An audit file to include.
        say: Takes what a reader must know of the run, such as an unknown signer.

    Returns:
        The files that were written.

    Raises:
        ConfigError: The folder holds several runs, or one that did not finish.
        IntegrityError: The run or its ledger was changed.
    """
    runs = read_runs(folder)
    if len(runs) != 1 or "error" in runs[0]:
        raise ConfigError(f"{folder} is not one finished run", hint="Export the folder of one run")
    raw: list[dict[str, Any]] = list(runs) if audit is None else with_audits(runs, audit)
    run, plan = check_run(raw[0], where=str(folder)), dict(json.loads((folder / "plan.json").read_bytes()))
    for note in run.ledger.notes if run.ledger else ["there was no ledger to verify"]:
        say(note)
    if as_ == "crate":
        files = {
            "evidence.json": _evidence(run, plan),
            "annex.md": assessment_annex(run, plan),
            "model-card.md": hugging_face_card(run, plan, folder),
        }
        write_crate(out, run, folder, files)
        return [*(out / name for name in files), out / METADATA]
    content = {
        "evidence": lambda: _evidence(run, plan),
        "card": lambda: hugging_face_card(run, plan, folder),
        "annex": lambda: assessment_annex(run, plan),
    }[as_]()
    write_atomic(out, content.encode())
    return [out]


def _evidence(run: Run, plan: dict[str, Any]) -> str:
    return json.dumps(evidence_records(run, plan), indent=1, allow_nan=False) + "\n"
