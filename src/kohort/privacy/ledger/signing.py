"""Ed25519 signatures over ledger heads, receipts and results, each for its purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kohort.purposes import Purpose, for_purpose

__all__ = ["Signer", "signature_holds"]


@dataclass(frozen=True)
class Signer:
    """A private signing key. It signs and shows its public half; it cannot be read out."""

    _key: Ed25519PrivateKey = field(repr=False)
    identity: Mapping[str, str] = field(default_factory=dict)
    """The public record of the identity it belongs to, if it belongs to one."""

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

    @property
    def record(self) -> dict[str, str]:
        """What a signed statement says of its signer: the identity or, without one, the public key."""
        return dict(self.identity) or {"signing": self.public}

    def sign(self, message: bytes, *, purpose: Purpose) -> str:
        """Sign a message.

        Args:
            message: The exact bytes to sign.
            purpose: What the signature is for; it holds for nothing else.

        Returns:
            The signature in hexadecimal.
        """
        return self._key.sign(for_purpose(purpose, message)).hex()


def signature_holds(public: str, message: bytes, signature: str, *, purpose: Purpose | None) -> bool:
    """Verify a signature.

    Args:
        public: The signer's public key in hexadecimal.
        message: The bytes that were signed.
        signature: The signature in hexadecimal.
        purpose: What it was signed for; None for what was written before signatures had purposes.

    Returns:
        Whether the signature is valid; False for malformed input, too.
    """
    signed = message if purpose is None else for_purpose(purpose, message)
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), signed)
    except (InvalidSignature, ValueError):
        return False
    return True
