"""Ed25519 signatures over ledger heads and receipts."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

__all__ = ["Signer", "signature_holds"]


@dataclass(frozen=True)
class Signer:
    """A private signing key. It signs and shows its public half; it cannot be read out."""

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_secret(cls, secret: bytes) -> Signer:
        """Derive the key from a secret.

        Args:
            secret: 32 bytes.

        Returns:
            The signer; the same secret gives the same key.
        """
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def public(self) -> str:
        """The public key in hexadecimal."""
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, message: bytes) -> str:
        """Sign a message.

        Args:
            message: The exact bytes to sign.

        Returns:
            The signature in hexadecimal.
        """
        return self._key.sign(message).hex()


def signature_holds(public: str, message: bytes, signature: str) -> bool:
    """Verify a signature.

    Args:
        public: The signer's public key in hexadecimal.
        message: The bytes that were signed.
        signature: The signature in hexadecimal.

    Returns:
        Whether the signature is valid; False for malformed input, too.
    """
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True
