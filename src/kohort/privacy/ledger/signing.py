"""Ed25519 signatures over ledger heads and receipts."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

__all__ = ["Signer", "signature_holds"]


@dataclass(frozen=True)
class Signer:
    """A private key that can sign and tell its public half, and nothing else."""

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_secret(cls, secret: bytes) -> Signer:
        """The signer of a 32-byte secret."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def public(self) -> str:
        """The public key, as hex."""
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, message: bytes) -> str:
        """A signature, as hex."""
        return self._key.sign(message).hex()


def signature_holds(public: str, message: bytes, signature: str) -> bool:
    """Whether `signature` is the owner of `public`'s over exactly `message`. Malformed input is a no."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True
