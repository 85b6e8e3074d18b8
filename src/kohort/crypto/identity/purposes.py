"""Sign and verify with an identity, for one purpose of `kohort.purposes`."""

from __future__ import annotations

from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.purposes import Purpose, for_purpose

__all__ = ["Purpose", "for_purpose", "sign", "verify"]


def sign(identity: Identity, purpose: Purpose, data: bytes) -> bytes:
    """Sign `data` for `purpose`.

    Args:
        identity: Who signs.
        purpose: What the signature is for; it holds for nothing else.
        data: The statement.

    Returns:
        The signature, 64 bytes.
    """
    return identity.sign(data, purpose=Purpose(purpose))


def verify(signer: PublicIdentity, purpose: Purpose, data: bytes, signature: bytes) -> bool:
    """Whether `signer` signed exactly `data`, for exactly `purpose`.

    Args:
        signer: Who must have signed it.
        purpose: What it must have been signed for.
        data: The statement.
        signature: What came with it.

    Returns:
        True if the signature holds; False for malformed signatures, too.
    """
    return signer.signed(data, signature, purpose=Purpose(purpose))
