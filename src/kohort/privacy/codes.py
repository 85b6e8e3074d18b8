"""The words with which a site refuses or fails: one of a fixed list, and nothing else.

The reason stays in the site's own ledger. A text that named a count or a value would be an oracle: a hub that asks
often enough, with inputs of its choice, reads single persons from it.
"""

from __future__ import annotations

from kohort.errors import IntegrityError, KohortError, RefusedError

__all__ = ["CODES", "code_of"]

CODES = {
    "approval": "its operator did not approve the plan, or withdrew the approval",
    "contract": "the approved plan does not ask for this now",
    "policy": "its policy forbids it",
    "schema": "its columns, roles, kinds or bounds are not those of the plan",
    "roster": "its roster changed since the run began: a key was revoked or rotated, and a new run is needed",
    "limits": "a limit that its operator set is reached",
    "version": "the kohort installed there reads the plan differently",
    "refused": "it refused",
    "failed": "it could not answer",
    "tampered": "a message failed its integrity check there",
}
"""What each word means, for the operator of the hub."""


def code_of(error: KohortError) -> str:
    """The one word about an error that may leave a site.

    Args:
        error: What went wrong.

    Returns:
        A key of `CODES`.
    """
    if error.code in CODES:
        return error.code
    if isinstance(error, IntegrityError):
        return "tampered"
    return "refused" if isinstance(error, RefusedError) else "failed"
