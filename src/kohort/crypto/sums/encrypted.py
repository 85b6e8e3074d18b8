"""Sums by encryption: sites encrypt under a key-holder's key, the hub adds what it cannot read, the key-holder opens.

One message per site: its packed integers with their check, padded where the scheme allows it, encrypted. The hub adds
ciphertexts as they come in and holds the total alone. A site that does not answer is simply not in the set that the hub
claims.

Guarantee: the hub sees ciphertexts and the opened total; the key-holder opens totals and is never
sent a site's ciphertext. A site's numbers are hidden while hub and key-holder do not collude, and while at least two of
the sites in a total collude with neither. By approximate encryption that holds against a hub without a site on its side
(`kohort.crypto.sums.checks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import ClassVar
from zlib import crc32

import numpy as np

from kohort.crypto.sums.checks import SiteSecret, weights_of
from kohort.crypto.sums.he import SEED, CiphertextSum, PublicKey, Ring, Slots
from kohort.crypto.sums.key_holder import least_sites, read_inbox
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.residues import centred
from kohort.crypto.sums.scheme import (
    MIN_SITES,
    HubSide,
    Integers,
    Places,
    SessionKeys,
    SiteSide,
    SumContext,
    SumScheme,
    Trust,
)
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.guarantee import Guarantee, SecureSum
from kohort.rng import Streams

__all__ = ["EncryptedHub", "EncryptedSum", "join_ciphertexts", "split_ciphertexts", "sum_claim"]

_LENGTH = Struct("<I")


def join_ciphertexts(ciphertexts: Iterable[bytes]) -> bytes:
    """Ciphertexts as one message, with a checksum: damage too small for the check to show is noticed as well.

    Args:
        ciphertexts: Each as the library wrote it.

    Returns:
        The message.
    """
    body = b"".join(_LENGTH.pack(len(item)) + item for item in ciphertexts)
    return body + _LENGTH.pack(crc32(body))


def split_ciphertexts(data: bytes) -> list[bytes]:
    """The inverse of `join_ciphertexts`.

    Args:
        data: The message.

    Returns:
        The ciphertexts in it; none of them is read yet.

    Raises:
        IntegrityError: The message is cut short or altered.
    """
    body, found, at = memoryview(data)[: -_LENGTH.size], [], 0
    if len(data) < _LENGTH.size or _LENGTH.pack(crc32(body)) != data[-_LENGTH.size :]:
        raise IntegrityError("a message of ciphertexts is cut short or altered")
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise IntegrityError("a message of ciphertexts is cut short")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise IntegrityError("a message of ciphertexts is cut short")
        found.append(bytes(body[at : at + length]))
        at += length
    return found


def sum_claim(ring: Ring, sites: int, least: int) -> SecureSum:
    """What a site claims for its ciphertext: fewer than `least` never open, and two of those must stay honest.

    Without pads a hub that knows the check's weights, from a site, could pass a part of a vector off as the total.

    Args:
        ring: The scheme.
        sites: How many sites the sum is over.
        least: The fewest that a total is opened over.

    Returns:
        The claim.
    """
    limit = "" if ring.plain_modulus else "; against a hub without a site"
    return SecureSum(
        sites=sites,
        threshold=least,
        colluders=least - 2 if ring.plain_modulus else 0,
        opens=f"key-holder: the total, encrypted with {ring.name}{limit}",
    )


@dataclass
class _EncryptingSite:
    """One site's part: it holds the public key, and what it and the key-holder derive for this sum."""

    packing: Packing
    name: str
    streams: Streams
    trust: Trust
    survivors: Places | None = None

    def __post_init__(self) -> None:
        context = self.packing.context
        if self.name not in context.index or len(context.index) != len(context.sites):
            raise RefusedError("the list of sites in a secure sum cannot be right")
        least = least_sites(self.trust)
        if len(context.sites) < least:
            raise RefusedError(
                f"{len(context.sites)} sites are in the sum, this site takes part in none below {least}",
                hint="Add sites, or lower policy.min_sum_sites",
            )

    def claim(self, step: int, rows: int) -> Guarantee:
        """The one message is a share of the sum."""
        del step, rows
        return sum_claim(self.packing.ring, len(self.packing.context.sites), least_sites(self.trust))

    def reply(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        """The encrypted vector, for an offer that the trusted key-holder made for this sum."""
        if step != 0 or vector is None:
            raise IntegrityError("an encrypted sum has one step, and a site sends its vector in it")
        packing, ring = self.packing, self.packing.ring
        offer, secret, seed = read_inbox(packing, inbox, self.name, self.trust)
        slots = _protected(packing, secret, seed, vector)
        key = _public_key(ring, offer.public)
        return join_ciphertexts(
            key.encrypt(row, sites=len(packing.context.sites), seed=self._seed(offer.digest, number, row))
            for number, row in enumerate(slots)
        )

    def _seed(self, offer: bytes, number: int, row: Slots) -> bytes:
        """Randomness that no two different plaintexts share, whatever a hub asks for again and again."""
        secret = self.streams.bytes("encrypted sum", self.packing.context.transcript.hex())
        digest = hashlib.blake2b(key=secret, digest_size=SEED)
        digest.update(offer + number.to_bytes(4, "little") + row.tobytes())
        return digest.digest()


_public_key = lru_cache(maxsize=2)(PublicKey)
"""Simulated sites of one sum share the key, which they would all read alike."""


def _protected(packing: Packing, secret: SiteSecret, seed: bytes, vector: Integers) -> Slots:
    """The slots of a vector with its check s = <r, v> + u, and with the site's pads where slots can be padded."""
    slots, moduli = packing.pack(vector), packing.ring.check_moduli
    products = weights_of(seed, packing).products(slots)
    slots.reshape(-1)[-packing.checks :] = [
        (product + offset) % modulus
        for product, offset, modulus in zip(products, secret.offsets(), moduli, strict=True)
    ]
    padding = packing.ring.plain_modulus
    return centred(slots + secret.pads(), padding) if padding else slots


@dataclass
class EncryptedHub:
    """The hub's part: adds, claims, and is told the total. It holds no key at all."""

    packing: Packing
    claimed: dict[str, None] = field(default_factory=dict)
    """The sites in the total so far, in order."""
    result: Integers | None = None

    def __post_init__(self) -> None:
        self._totals = [CiphertextSum(self.packing.ring) for _ in range(self.packing.ciphertexts)]

    def take(self, step: int, site: str, reply: bytes) -> None:
        """Add one site's ciphertexts."""
        del step
        if site not in self.packing.context.index or site in self.claimed:
            raise IntegrityError(f"site {site!r} has no part in this sum")
        try:
            parts = split_ciphertexts(reply)
            if len(parts) != len(self._totals):
                raise IntegrityError(f"{len(parts)} ciphertexts came to a sum of {len(self._totals)}")
            for total, item in zip(self._totals, parts, strict=True):
                total.add(item)
        except IntegrityError as error:
            raise IntegrityError(f"site {site!r}: {error.message}", hint=error.hint) from error
        self.claimed[site] = None

    def inboxes(self, step: int) -> Mapping[str, bytes]:
        """Nothing goes back to the sites."""
        del step
        return {}

    def totals(self) -> list[bytes]:
        """What the key-holder is asked to open."""
        return [total.ciphertext() for total in self._totals]

    def set_total(self, total: Integers) -> None:
        """Take the total that the key-holder opened."""
        if total.shape != (self.packing.context.length,) or total.dtype != np.uint64:
            raise IntegrityError("the key-holder opened a total of another length")
        self.result = total

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        """The opened sum and the sites in it."""
        if self.result is None:
            raise SiteError("the encrypted sum was not opened")
        return self.result, tuple(self.claimed)


class EncryptedSum(SumScheme):
    """A sum by one scheme, in ciphertexts of the size that suits it."""

    steps: ClassVar[int] = 1
    contributes_at: ClassVar[int] = 0
    key_holder: ClassVar[bool] = True
    ring: ClassVar[Ring]

    def site_side(
        self,
        context: SumContext,
        name: str,
        streams: Streams,
        trust: Trust | None = None,
        keys: SessionKeys | None = None,
    ) -> SiteSide:
        """The part of the site called `name`."""
        del keys
        if trust is None:
            raise RefusedError(
                f"site {name!r} knows no key-holder, so it encrypts nothing",
                hint="Name a key-holder and put it on the site's roster, or use masks",
            )
        return _EncryptingSite(Packing.of(self.ring, context), name, streams, trust)

    def hub_side(self, context: SumContext, groups: Sequence[tuple[str, ...]] = ()) -> HubSide:
        """The hub's part."""
        del groups
        return self.encrypted_hub(context)

    def claim(self, sites: int, rows: int, *, colluders: int = 1) -> Guarantee:
        """A share of the sum."""
        del rows
        return sum_claim(self.ring, sites, max(MIN_SITES, colluders + 2))

    def encrypted_hub(self, context: SumContext) -> EncryptedHub:
        """The hub's part, by its own type."""
        return EncryptedHub(Packing.of(self.ring, context))
