"""The signer of ledgers, receipts and results that belongs to an identity."""

from __future__ import annotations

import json
from typing import Any

from kohort.crypto.identity.keys import public_text
from kohort.crypto.identity.parties import Identity
from kohort.privacy.ledger.signing import Signer

__all__ = ["signer_of"]


def signer_of(identity: Identity) -> Signer:
    """The signer that belongs to an identity of the standard suite.

    Args:
        identity: Whose key signs.

    Returns:
        The signer; what it signs names the identity.
    """
    key: Any = identity.signing_key
    return Signer(key, json.loads(public_text(identity.public)))
