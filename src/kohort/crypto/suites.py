"""The two sets of algorithms that identities and sealed messages are made of.

`standard`: Ed25519, X25519, ChaCha20-Poly1305. `fips`: ECDSA and ECDH on P-256, AES-256-GCM. Both derive keys with
HKDF-SHA256, sign deterministically, and give signatures of 64 bytes, one for each message and key.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kohort.errors import ConfigError, nearest

__all__ = ["SIGNATURE", "SUITES", "Aead", "PrivateKey", "Suite", "expand", "extract", "find_suite"]

SIGNATURE = 64
PrivateKey = Ed25519PrivateKey | X25519PrivateKey | ec.EllipticCurvePrivateKey
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256's group (FIPS 186-4, D.1.2.3)


class Aead(Protocol):
    """A cipher that notices changes."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """Ciphertext and tag."""
        ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """The plain text; InvalidTag if anything was changed."""
        ...


class Suite(Protocol):
    """Keys, signatures, agreement and encryption of one suite. Public keys are bytes; a malformed one is ValueError."""

    name: str
    code: int

    def signing_key(self, secret: bytes) -> PrivateKey:
        """The signing key of 48 secret bytes."""
        ...

    def exchange_key(self, secret: bytes) -> PrivateKey:
        """The exchange key of 48 secret bytes."""
        ...

    def public(self, key: PrivateKey) -> bytes:
        """The public half."""
        ...

    def check(self, signing: bytes, exchange: bytes) -> None:
        """ValueError unless both are public keys of this suite."""
        ...

    def sign(self, key: PrivateKey, message: bytes) -> bytes:
        """A signature of SIGNATURE bytes; the same message gets the same one."""
        ...

    def verifies(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of `public` signed exactly `message`. Malformed input is a no."""
        ...

    def agree(self, key: PrivateKey, public: bytes) -> bytes:
        """The secret both sides of an exchange get; ValueError for a key that is none."""
        ...

    def cipher(self, key: bytes) -> Aead:
        """The cipher under a 32-byte key."""
        ...


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract with SHA-256 (RFC 5869).

    Args:
        salt: The salt, any number of bytes; it need not be secret.
        secret: The input keying material.

    Returns:
        A key of 32 bytes for `expand`.
    """
    return hmac.digest(salt, secret, "sha256")


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869).

    Args:
        key: A uniform key, such as one from `extract`.
        info: What the result is for; different texts give independent bytes.
        length: Bytes to make, up to 8,160.

    Returns:
        The bytes.
    """
    made = block = b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes((counter,)), "sha256")
        made += block
    return made[:length]


@lru_cache(maxsize=4096)
def _ed25519(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(maxsize=4096)
def _p256(public: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)


class _Standard:
    name, code = "standard", 1

    def signing_key(self, secret: bytes) -> PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(secret[:32])

    def exchange_key(self, secret: bytes) -> PrivateKey:
        return X25519PrivateKey.from_private_bytes(secret[:32])

    def public(self, key: PrivateKey) -> bytes:
        return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def check(self, signing: bytes, exchange: bytes) -> None:
        Ed25519PublicKey.from_public_bytes(signing)
        X25519PublicKey.from_public_bytes(exchange)

    def sign(self, key: PrivateKey, message: bytes) -> bytes:
        if not isinstance(key, Ed25519PrivateKey):
            raise TypeError("not a signing key of this suite")
        return key.sign(message)

    def verifies(self, public: bytes, message: bytes, signature: bytes) -> bool:
        try:
            _ed25519(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def agree(self, key: PrivateKey, public: bytes) -> bytes:
        if not isinstance(key, X25519PrivateKey):
            raise TypeError("not an exchange key of this suite")
        return key.exchange(X25519PublicKey.from_public_bytes(public))

    def cipher(self, key: bytes) -> Aead:
        return ChaCha20Poly1305(key)


class _Fips:
    name, code = "fips", 2

    def signing_key(self, secret: bytes) -> PrivateKey:
        # 384 bits modulo the order: the bias is below 2^-128.
        return ec.derive_private_key(int.from_bytes(secret, "big") % (_ORDER - 1) + 1, ec.SECP256R1())

    exchange_key = signing_key

    def public(self, key: PrivateKey) -> bytes:
        return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def check(self, signing: bytes, exchange: bytes) -> None:
        _p256(signing)
        _p256(exchange)

    def sign(self, key: PrivateKey, message: bytes) -> bytes:
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("not a signing key of this suite")
        r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
        return r.to_bytes(32, "big") + min(s, _ORDER - s).to_bytes(32, "big")

    def verifies(self, public: bytes, message: bytes, signature: bytes) -> bool:
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        if len(signature) != SIGNATURE or s > _ORDER // 2:  # (r, -s) would be a second signature of the same message
            return False
        try:
            _p256(public).verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    def agree(self, key: PrivateKey, public: bytes) -> bytes:
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("not an exchange key of this suite")
        return key.exchange(ec.ECDH(), _p256(public))

    def cipher(self, key: bytes) -> Aead:
        return AESGCM(key)


SUITES: dict[str, Suite] = {suite.name: suite for suite in (_Standard(), _Fips())}


def find_suite(name: str) -> Suite:
    """The suite called `name`.

    Args:
        name: "standard" or "fips".

    Returns:
        The suite.

    Raises:
        ConfigError: There is no such suite.
    """
    if name not in SUITES:
        raise ConfigError(f"unknown suite {name!r}", hint=nearest(name, SUITES))
    return SUITES[name]
