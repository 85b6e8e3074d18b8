"""Changes that a run's signer makes to its folder himself: rows whose last day is over, and sites that left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kohort.errors import IntegrityError
from kohort.privacy.ledger.results import amend_results
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import read_head
from kohort.privacy.ledger.verify_results import BoundResults, verify_results

__all__ = ["changing_results"]


@contextmanager
def changing_results(folder: Path, *, signer: Signer, reason: str) -> Iterator[None]:
    """Around a change of a run folder: a line with the reason and the new hashes is signed when files changed.

    Only a folder that was sound before is signed again, and only by its own signer: whoever changed it in secret is
    not covered up. The change itself happens in any case, because rows must go when their time is over.

    Args:
        folder: The run folder.
        signer: Who makes the change.
        reason: What is changed, and why; never a cell.
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
