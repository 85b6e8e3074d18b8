"""Who seals and signs: a site's private identity, and what others may know of it.

Guarantee: a signature holds for the purpose it was made for and no other; a private key shows in no text of its object;
the secret that two sites share is computed once for each pair of identity objects.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from struct import Struct

from kohort.crypto.suites import PrivateKey, expand, extract, find_suite
from kohort.errors import ConfigError, IntegrityError
from kohort.purposes import for_purpose

__all__ = ["Identity", "PairKeys", "PublicIdentity"]

_SIZE = Struct(">H")


@dataclass(frozen=True)
class PublicIdentity:
    """What others may know of a site: its name and both public keys."""

    name: str
    signing: bytes
    exchange: bytes
    suite: str = "standard"

    def __post_init__(self) -> None:
        try:
            find_suite(self.suite).check(self.signing, self.exchange)
        except ValueError as error:
            raise IntegrityError(
                f"the public keys of {self.name!r} are malformed", hint="Ask the site's operator for its identity again"
            ) from error

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over suite and both keys, as hex."""
        parts = (b"kohort identity", self.suite.encode(), self.signing, self.exchange)
        return hashlib.sha256(b"".join(_SIZE.pack(len(part)) + part for part in parts)).hexdigest()

    def signed(self, message: bytes, signature: bytes, *, purpose: str) -> bool:
        """Whether this identity signed exactly `message`, for `purpose`."""
        return find_suite(self.suite).verifies(self.signing, for_purpose(purpose, message), signature)


@dataclass(frozen=True, eq=False, slots=True)
class PairKeys:
    """What two identities share: from one the keys of messages come, from the other their salts."""

    sealing: bytes = field(repr=False)
    salting: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class Identity:
    """A site's private side: it signs, and it agrees on secrets with peers."""

    name: str
    suite: str
    signing_key: PrivateKey = field(repr=False)
    exchange_key: PrivateKey = field(repr=False)
    _agreed: dict[bytes, PairKeys] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def from_secret(cls, name: str, secret: bytes, *, suite: str = "standard") -> Identity:
        """The identity that belongs to a secret of at least 32 bytes; in simulation the secret is a named stream."""
        keys = find_suite(suite)
        signing, exchange = _derived(secret, b"signing"), _derived(secret, b"exchange")
        return cls(name, suite, keys.signing_key(signing), keys.exchange_key(exchange))

    @classmethod
    def generate(cls, name: str, *, suite: str = "standard") -> Identity:
        """A new identity, from the operating system's randomness."""
        return cls.from_secret(name, os.urandom(48), suite=suite)

    def for_run(self, secret: bytes | None = None) -> Identity:
        """The same signer with a fresh exchange key, to be used in one run and never stored.

        `secret` makes it deterministic, for simulation; without one it comes from the operating system.
        """
        made = _derived(os.urandom(48) if secret is None else secret, b"run exchange")
        return replace(self, exchange_key=find_suite(self.suite).exchange_key(made))

    @cached_property
    def public(self) -> PublicIdentity:
        """The public side."""
        keys = find_suite(self.suite)
        return PublicIdentity(self.name, keys.public(self.signing_key), keys.public(self.exchange_key), self.suite)

    def sign(self, message: bytes, *, purpose: str) -> bytes:
        """A signature of 64 bytes that holds for this purpose only."""
        return find_suite(self.suite).sign(self.signing_key, for_purpose(purpose, message))

    def agreed_with(self, peer: PublicIdentity) -> PairKeys:
        """The keys this identity shares with `peer`."""
        if peer.exchange not in self._agreed:
            if peer.suite != self.suite:
                raise ConfigError(
                    f"{self.name!r} uses suite {self.suite!r} and {peer.name!r} uses {peer.suite!r}",
                    hint="Give both sites keys of the same suite",
                )
            try:
                shared = find_suite(self.suite).agree(self.exchange_key, peer.exchange)
            except ValueError as error:
                raise IntegrityError(
                    f"the exchange key of {peer.name!r} is not usable", hint="Ask the site's operator for a new key"
                ) from error
            keys = expand(extract(b"kohort sealed " + self.suite.encode(), shared), b"pair", 64)
            self._agreed[peer.exchange] = PairKeys(keys[:32], keys[32:])
        return self._agreed[peer.exchange]


def _derived(secret: bytes, purpose: bytes) -> bytes:
    if len(secret) < 32:
        raise ConfigError("an identity's secret needs at least 32 bytes")
    return expand(extract(b"kohort identity", secret), purpose, 48)
