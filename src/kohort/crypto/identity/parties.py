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

__all__ = ["Identity", "PairKeys", "PublicIdentity", "bound_to"]

_SIZE, _LONG_SIZE = Struct(">H"), Struct(">Q")


def bound_to(*texts: str) -> str:
    """The hash of what is trusted together with an identity's keys.

    Args:
        *texts: For a site its node key, for a hub its address and its authority's certificate.

    Returns:
        64 hexadecimal digits.
    """
    parts = [text.encode() for text in ("kohort bound", *texts)]
    return hashlib.sha256(b"".join(_LONG_SIZE.pack(len(part)) + part for part in parts)).hexdigest()


@dataclass(frozen=True)
class PublicIdentity:
    """What others may know of a site or a hub: its name, both public keys, and what else is trusted with them."""

    name: str
    signing: bytes
    exchange: bytes
    suite: str = "standard"
    bound: str = ""
    """`bound_to` of what else is trusted with these keys: a site's node key, a hub's address and authority. Empty where
    there is nothing else, as in simulations."""

    def __post_init__(self) -> None:
        try:
            find_suite(self.suite).check(self.signing, self.exchange)
            if self.bound and (len(self.bound) != 64 or not set(self.bound) <= set("0123456789abcdef")):
                raise ValueError("no hash")
        except ValueError as error:
            raise IntegrityError(
                f"the public keys of {self.name!r} are malformed", hint="Ask the site's operator for its identity again"
            ) from error

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over suite, both keys and what they are bound to, as hex: it covers everything that is trusted."""
        parts = [b"kohort identity", self.suite.encode(), self.signing, self.exchange]
        parts += [self.bound.encode()] if self.bound else []
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
    bound: str = ""
    """As in `PublicIdentity`."""
    _agreed: dict[bytes, PairKeys] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def from_secret(cls, name: str, secret: bytes, *, suite: str = "standard") -> Identity:
        """The identity that belongs to a secret of at least 32 bytes; in simulation the secret is a named stream."""
        keys = find_suite(suite)
        signing, exchange = _derived(secret, b"signing"), _derived(secret, b"exchange")
        return cls(name, suite, keys.signing_key(signing), keys.exchange_key(exchange))

    @classmethod
    def generate(cls, name: str, *, suite: str = "standard", bound: str = "") -> Identity:
        """A new identity, from the operating system's randomness.

        Args:
            name: Whose it is.
            suite: Which algorithms it uses.
            bound: `bound_to` of what is trusted together with it; empty for nothing.

        Returns:
            The identity.
        """
        return replace(cls.from_secret(name, os.urandom(48), suite=suite), bound=bound)

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
        signing, exchange = keys.public(self.signing_key), keys.public(self.exchange_key)
        return PublicIdentity(self.name, signing, exchange, self.suite, self.bound)

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
