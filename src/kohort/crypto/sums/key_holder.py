"""The key-holder: a party apart from the hub and the sites that can open totals and nothing else.

For every sum it makes a key pair, offers the public half under its signature, opens one total, and destroys the secret
half. A site and the key-holder share a tag that nobody else knows: both derive it from the site's exchange key and a
fresh one in the offer, so it never travels. A site puts its tag into two slots of every ciphertext. The tags add up
with the numbers, and the key-holder opens only if they are the sum over exactly the claimed sites.

Guarantee: hub and sites hold public keys alone. A total that lacks a claimed site, holds one twice, mixes in a
ciphertext of another sum, or covers fewer than `min_sites` rostered sites does not open (a wrong one passes with
probability below 2^-40). Assumed: hub and key-holder do not collude. Not proven: that a site, or the hub by adding
numbers it knows, told the truth; the tag detects a wrong set of sites.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.identity.parties import Identity, PairKeys, PublicIdentity
from kohort.crypto.sums.he import SEED, Ring, SecretKey, Slots
from kohort.crypto.sums.packing import TAGS, Packing
from kohort.crypto.sums.scheme import MIN_SITES, Integers, SumContext, Trust
from kohort.errors import IntegrityError, RefusedError
from kohort.rng import Streams

__all__ = ["KeyHolder", "KeyOffer", "Tags", "read_offer", "tags_of"]

Tags = NDArray[np.object_]
_HEAD = Struct("<64sIH")
_PURPOSE = "keys of a sum"


@dataclass(frozen=True)
class KeyOffer:
    """What the key-holder tells everybody about one sum: a public key, its own keys for this sum, and its minimum."""

    public: bytes
    holder: PublicIdentity
    min_sites: int
    digest: bytes


_Opening = tuple[str, str, int]
"""One task in one round of one run: opened once, over whichever sites, or two totals would show the difference."""


@dataclass
class _Keys:
    packing: Packing
    secret: SecretKey
    identity: Identity
    offer: bytes


@dataclass
class KeyHolder:
    """The keys of the sums that are under way, and which were opened."""

    identity: Identity
    streams: Streams
    find_site: Callable[[str], PublicIdentity | None]
    """The key-holder's own roster: whoever is not on it counts for nothing."""
    min_sites: int = MIN_SITES
    _pending: dict[_Opening, _Keys] = field(default_factory=dict, repr=False)
    _closed: set[_Opening] = field(default_factory=set, repr=False)

    def offer(self, ring: Ring, context: SumContext) -> bytes:
        """A public key for this sum, signed. Asked again before the total was opened, the same one."""
        opening, packing = _opening_of(context), Packing.of(ring, context)  # a sum that cannot be exact gets no key
        if opening in self._closed:
            raise RefusedError("this sum was opened already, and its key destroyed", hint="Begin a new round")
        known = self._pending.get(opening)
        if known is not None and known.packing != packing:
            raise RefusedError("the same sum was begun over other sites or numbers", hint="Begin a new round")
        if known is None:
            self._refuse_strangers(context, context.sites)
            if self.identity.name in context.index:
                raise RefusedError("the key-holder cannot be one of the sites whose numbers are added")
            known = self._pending[opening] = self._keys(packing)
        return known.offer

    def open(self, ring: Ring, context: SumContext, claimed: Sequence[str], totals: Sequence[bytes]) -> Integers:
        """The sum over the claimed sites, once; whatever comes of it, the key is gone."""
        opening, packing = _opening_of(context), Packing.of(ring, context)
        keys = self._pending.get(opening)
        if keys is None or keys.packing != packing:
            raise RefusedError("there is no key for this sum; it was opened already, or never begun")
        del self._pending[opening]
        self._closed.add(opening)
        try:
            self._refuse_strangers(context, claimed)
            if len(totals) != packing.ciphertexts:
                raise IntegrityError(f"a sum of {packing.ciphertexts} ciphertexts came with {len(totals)}")
            slots = np.stack([keys.secret.open(total, sites=len(context.sites)) for total in totals])
            self._check_tags(keys, claimed, slots[:, packing.payload_slots :])
            return packing.unpack(np.ascontiguousarray(slots[:, : packing.payload_slots]))
        finally:
            keys.secret.destroy()

    def _keys(self, packing: Packing) -> _Keys:
        ring, context = packing.ring, packing.context
        name = _place(ring, context).hex()
        secret = SecretKey(ring, self.streams.bytes("sum key", name, length=SEED))
        identity = self.identity.for_run(self.streams.bytes("sum tags", name))
        exchange = identity.public.exchange
        body = _HEAD.pack(bytes(64), self.min_sites, len(exchange))[64:] + exchange + secret.public
        signature = self.identity.sign(_to_sign(ring, context, body), purpose=_PURPOSE)
        return _Keys(packing, secret, identity, signature + body)

    def _refuse_strangers(self, context: SumContext, claimed: Sequence[str]) -> None:
        unique = set(claimed)
        if len(unique) != len(claimed) or not unique <= context.index.keys():
            raise IntegrityError("the list of sites in a sum cannot be right")
        least = max(MIN_SITES, self.min_sites)
        if len(unique) < least:
            raise RefusedError(
                f"{len(unique)} sites are in the sum, the key-holder opens none below {least}", hint="Add sites"
            )
        strangers = [name for name in claimed if self.find_site(name) is None]
        if strangers:
            raise RefusedError(
                f"the key-holder does not know site {strangers[0]!r}", hint="Put it on the key-holder's roster"
            )

    def _check_tags(self, keys: _Keys, claimed: Sequence[str], found: Slots) -> None:
        packing, offer = keys.packing, _parsed(keys.offer, self.identity.public)
        wanted: Tags = np.zeros((packing.ciphertexts, TAGS), dtype=object)
        for name in claimed:
            site = self.find_site(name)
            if site is None:
                raise RefusedError(f"the key-holder does not know site {name!r}")
            wanted = wanted + tags_of(keys.identity.agreed_with(site), name, offer, packing)
        difference = wanted - found.astype(object)
        if packing.ring.tag_modulus:
            difference %= packing.ring.tag_modulus
        if difference.any():
            raise IntegrityError(
                "the tags in a total are not those of the claimed sites; it was altered, or holds other sites",
                hint="Nothing was opened. Begin the sum again, and distrust the hub if it happens twice",
            )


def read_offer(packing: Packing, data: bytes, trust: Trust) -> KeyOffer:
    """The offer, if the trusted key-holder made it for exactly this sum and asks for no fewer sites than this one."""
    if len(data) <= _HEAD.size:
        raise IntegrityError("the offer of a key for a secure sum is cut short")
    if not trust.key_holder.signed(_to_sign(packing.ring, packing.context, data[64:]), data[:64], purpose=_PURPOSE):
        raise IntegrityError(
            f"the key for a secure sum was not made for it by {trust.key_holder.name!r}",
            hint="Somebody between replaced it; nothing was sent",
        )
    offer = _parsed(data, trust.key_holder)
    if offer.min_sites < max(MIN_SITES, trust.min_sites):
        raise RefusedError(
            f"the key-holder opens totals over {offer.min_sites} sites, fewer than this site allows",
            hint="Raise the key-holder's minimum, or lower policy.min_sum_sites",
        )
    return offer


def tags_of(pair: PairKeys, site: str, offer: KeyOffer, packing: Packing) -> Tags:
    """The tags of a site, two for each ciphertext: Python integers below the ring's modulus or a site's headroom."""
    ring, context = packing.ring, packing.context
    limit = ring.tag_modulus or ring.capacity(len(context.sites)) // len(context.sites)
    seed = hmac.digest(pair.salting, b"sum tags" + offer.digest + context.transcript + site.encode(), "sha256")
    made = np.empty((packing.ciphertexts, TAGS), dtype=object)
    for number in range(packing.ciphertexts):
        data = hashlib.blake2b(number.to_bytes(4, "little"), key=seed, digest_size=32).digest()
        made[number] = [int.from_bytes(data[:16], "little") % limit, int.from_bytes(data[16:], "little") % limit]
    return made


def _opening_of(context: SumContext) -> _Opening:
    return (context.run, context.request, context.round)


def _place(ring: Ring, context: SumContext) -> bytes:
    return hashlib.blake2b(ring.title.encode() + context.transcript, digest_size=32).digest()


def _to_sign(ring: Ring, context: SumContext, body: bytes) -> bytes:
    return _place(ring, context) + hashlib.blake2b(body, digest_size=32).digest()


@lru_cache(maxsize=8)
def _parsed(data: bytes, holder: PublicIdentity) -> KeyOffer:
    _, least, length = _HEAD.unpack_from(data)
    exchange, public = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
    fresh = PublicIdentity(holder.name, holder.signing, exchange, holder.suite)
    return KeyOffer(public, fresh, least, hashlib.blake2b(data, digest_size=32).digest())
