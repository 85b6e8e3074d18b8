"""A run folder and the run's signed closing line: every command that reads the folder checks it against the line first,
and its signer alone changes both together.

Hashes of all files, the ledger's among them, and two signatures: no chain is walked, so that a prediction does not wait
for the lines of a thousand sites. `verify_ledger` checks the lines themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kohort.errors import IntegrityError
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.results import amend_results
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import read_head
from kohort.privacy.ledger.verify_results import BEFORE, BoundResults, verify_results

__all__ = ["UNKNOWN_SIGNER", "CheckedRun", "changing_results", "check_run_folder"]

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


@contextmanager
def changing_results(folder: Path, *, signer: Signer, reason: str) -> Iterator[None]:
    """Sign the results of a run folder again around a change of its files, with a line that gives the reason.

    Only a folder that was sound before is signed again, and only by its own signer: whoever changed it in secret is not
    covered up. The change itself happens in any case, because rows must go when their time is over.

    Args:
        folder: The run folder.
        signer: Who makes the change.
        reason: What is changed, and why; never a cell.

    Yields:
        Nothing; the change happens within.
    """
    before = _state(folder, signer)
    yield
    if before is not None and _state(folder, signer) is None:
        amend_results(folder, signer=signer, run=before.run, number=before.lines, prev=before.last, reason=reason)


def _state(folder: Path, signer: Signer) -> BoundResults | None:
    """What the folder's closing line covers, if this signer signed it and all files are as it says."""
    try:
        head, signed_by = read_head(folder / "ledger" / "head.json")
        bound = verify_results(folder / "ledger", signer=signed_by, before=head["version"] == 1)
    except (IntegrityError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return bound if bound.files and signed_by.key == signer.public else None
