"""What a signature is for. One key signs many kinds of statements; the purpose is part of what is signed.

Guarantee: a signature that was made for one purpose holds for no other, because no two purposes begin the signed bytes
alike. Every signature of the library is made for one purpose of this list.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Purpose", "for_purpose"]


class Purpose(StrEnum):
    """All purposes of signatures, by the kind of statement."""

    REQUEST = "question to a site"
    """A request message of the hub to a site."""
    REPLY = "answer of a site"
    """A reply message of a site to the hub."""
    LEDGER_HEAD = "ledger head"
    """Where ledger chains end: in `head.json`, in a reply, and in the sites' part of a receipt."""
    RECEIPT = "receipt"
    """The hub's counter-signature on the ends of sites' chains."""
    RESULT = "result"
    """The closing line of a run: the hashes of its files."""
    HANDOVER = "ledger hand-over"
    """The ledger line with which an old key names its successor."""
    ROSTER = "roster"
    INVITATION = "invitation"
    REGISTRATION = "registration"
    DOMAINS = "domains"
    """A signed update of declared domains."""
    ROTATION = "rotation"
    RUN_KEY = "run key"
    SUM_RUN_KEY = "run key of a secure sum"
    SUM_KEYS = "keys of a sum"
    ROUNDED_TOTAL = "rounded total"
    """What a key-holder made of a total of pair counts, for sites that rely on it."""
    GROUP_SECRET = "group secret"  # noqa: S105 - a purpose, not a password
    SEALED = "sealed message"


def for_purpose(purpose: str, message: bytes) -> bytes:
    """The bytes that are signed when `message` is signed for `purpose`.

    Args:
        purpose: One of `Purpose`.
        message: The statement.

    Returns:
        A prefix that belongs to the purpose alone, then the statement.
    """
    return b"kohort " + purpose.encode() + b"\0" + message
