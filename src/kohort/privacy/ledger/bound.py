"""What every command that reads a run folder checks first: the folder against the run's signed closing line.

Hashes of all files, the ledger's among them, and two signatures: no chain is walked, so that a prediction does not wait
for the lines of a thousand sites. `verify_ledger` checks the lines themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kohort.errors import IntegrityError
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify import read_head
from kohort.privacy.ledger.verify_results import BEFORE, verify_results

__all__ = ["UNKNOWN_SIGNER", "CheckedRun", "check_run_folder"]

UNKNOWN_SIGNER: Final = (
    "consistent, signer unknown: nobody whom this machine knows signed the run; pin its signer with "
    "kohort ledger verify --key FINGERPRINT"
)


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """A run folder whose files are as they were signed."""

    signed_by: str = ""
    """Whose signature was checked; empty when the signer is not known."""
    notes: tuple[str, ...] = ()
    """What a reader must be told: an unknown signer, or a folder written before results were bound."""


def check_run_folder(folder: Path, *, pins: Pins | None = None) -> CheckedRun:
    """Check every file of a finished run.

    Args:
        folder: The run folder.
        pins: Whose signature is known here.

    Returns:
        Whose signature was checked, and what a reader must be told.

    Raises:
        IntegrityError: A file was changed, removed or added, the run is not finished, or its ledger is missing; the
            message names the file.
    """
    place = folder / "ledger"
    if not (place / "head.json").is_file():
        raise IntegrityError(
            f"{place / 'head.json'} is missing: nothing says what the run's files were",
            hint="Restore the run's ledger folder, or run the plan again",
        )
    try:
        head, signer = read_head(place / "head.json")
        bound = verify_results(place, signer=signer, before=head["version"] == 1)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"the ledger in {place} holds values of the wrong type") from error
    if not bound.files and BEFORE not in bound.notes:
        raise IntegrityError(f"the run in {folder} is not finished", hint="Resume it with: kohort run --resume")
    signed_by = (pins or Pins()).whose(signer)
    return CheckedRun(signed_by=signed_by, notes=(*(() if signed_by else (UNKNOWN_SIGNER,)), *bound.notes))
