"""The key-holder: a party apart from the hub and the sites that can open totals and nothing else.

For every sum it makes a key pair and draws the seed of the check's weights, offers the public half under its signature
with the seed sealed for every site, opens one total, and destroys the secret half. It opens only if the check holds for
exactly the claimed sites (`kohort.crypto.sums.checks`), and keeps a book of what it offered and opened (`key_book`).

Guarantee: hub and sites hold public keys alone. A total that lacks a claimed site, holds one twice or in part, mixes in
a ciphertext of another sum, or covers fewer than `min_sites` rostered sites does not open (a wrong one passes with
probability below 2^-40). By exact encryption that holds also against a hub with sites on its side, because slots are
padded; by approximate encryption it holds against a hub without a site. A failed check ends the run. Assumed: hub and
key-holder do not collude. Not proven: that a site told the truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np

from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.sums.checks import BOX, SEED_OF_WEIGHTS, SiteSecret, weights_of
from kohort.crypto.sums.he import SEED, Ring, SecretKey, Slots
from kohort.crypto.sums.key_book import KeyBook, SumName
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.residues import centred
from kohort.crypto.sums.scheme import MIN_SITES, Integers, SumContext, Trust
from kohort.errors import IntegrityError, RefusedError
from kohort.purposes import Purpose
from kohort.rng import Streams

__all__ = ["KeyHolder", "KeyOffer", "Offered", "least_sites", "read_inbox"]

_HEAD = Struct("<64sIH")
_PURPOSE = Purpose.SUM_KEYS


class Offered(NamedTuple):
    """What the key-holder gives the hub for one sum: the offer for everybody, and a box for each site."""

    offer: bytes
    boxes: bytes
    """The seed of the check's weights, sealed for each site in the sum's order."""

    def inbox(self, place: int) -> bytes:
        """What the site at a place of the list gets."""
        return self.boxes[place * BOX : (place + 1) * BOX] + self.offer


@dataclass(frozen=True)
class KeyOffer:
    """What the key-holder tells everybody about one sum: a public key, its own keys for this sum, and its minimum."""

    public: bytes
    holder: PublicIdentity
    min_sites: int
    digest: bytes


def least_sites(trust: Trust) -> int:
    """The fewest sites of a total that a site takes part in: by the protocol, the approved plan and its own policy.

    Args:
        trust: Whom the site relies on.

    Returns:
        The number.
    """
    return max(MIN_SITES, trust.colluders + 2, trust.quorum, trust.min_sites)


@dataclass
class _Keys:
    packing: Packing
    secret: SecretKey
    identity: Identity
    seed: bytes
    least: int
    offered: Offered

    def of_site(self, site: PublicIdentity) -> SiteSecret:
        """What the key-holder and one site derive for this sum."""
        offer = _parsed(self.offered.offer, self.identity.public)
        return SiteSecret(self.identity.agreed_with(site), site.suite, site.name, offer.digest, self.packing)


@dataclass
class KeyHolder:
    """The keys of the sums that are under way, and the book of those before.

    Guarantee: no total over fewer sites than `min_sites`, or than the offer of that sum says, is opened.
    """

    identity: Identity
    streams: Streams
    find_site: Callable[[str], PublicIdentity | None]
    """The key-holder's own roster: whoever is not on it counts for nothing."""
    min_sites: int = MIN_SITES
    book: KeyBook = field(default_factory=KeyBook)
    _pending: dict[SumName, _Keys] = field(default_factory=dict, repr=False)

    def offer(self, ring: Ring, context: SumContext, *, least: int = 0) -> Offered:
        """A public key for this sum, signed. Asked again before the total was opened, the same one.

        Args:
            ring: The scheme of the approved plan.
            context: What binds the sum.
            least: The fewest sites of its total, where that shall be more than the key-holder's own minimum.

        Returns:
            The offer and the sites' boxes.

        Raises:
            RefusedError: The sum was opened, was begun with another context, is over strangers or too few sites, or its
                run ended with a failed check.
            IntegrityError: The list of sites cannot be right.
        """
        name, packing = _name_of(context), Packing.of(ring, context)  # a sum that cannot be exact gets no key
        known = self._pending.get(name)
        if known is not None and known.packing != packing:
            raise RefusedError(
                "the same sum was begun over other sites, numbers or public inputs", hint="Begin a new round"
            )
        if known is None:
            least = max(MIN_SITES, self.min_sites, least)
            sites = self._rostered(context, context.sites, least)
            if self.identity.name in context.index:
                raise RefusedError("the key-holder cannot be one of the sites whose numbers are added")
            self.book.offer(name, _place(ring, context))
            known = self._pending[name] = self._keys(packing, sites, least)
        return known.offered

    def open(self, ring: Ring, context: SumContext, claimed: Sequence[str], totals: Sequence[bytes]) -> Integers:
        """The sum over the claimed sites, once; whatever comes of it, the key is gone.

        Args:
            ring: The scheme of the approved plan.
            context: What binds the sum.
            claimed: The sites whose vectors are said to be in the total.
            totals: The ciphertexts of the total.

        Returns:
            The total.

        Raises:
            RefusedError: There is no key for this sum, or too few sites are in it.
            IntegrityError: The check does not hold for the claimed sites; nothing more of this run is opened.
        """
        name, packing = _name_of(context), Packing.of(ring, context)
        keys = self._pending.get(name)
        if keys is None or keys.packing != packing:
            raise RefusedError("there is no key for this sum; it was opened already, or never begun")
        del self._pending[name]
        try:
            self.book.open(name)  # before anything of the total is known
            sites = self._rostered(context, claimed, keys.least)
            if len(totals) != packing.ciphertexts:
                raise IntegrityError(f"a sum of {packing.ciphertexts} ciphertexts came with {len(totals)}")
            slots = np.stack([keys.secret.open(total, sites=len(context.sites)) for total in totals])
            return packing.unpack(_checked(keys, sites, slots))
        except IntegrityError:
            self._end(context.run)
            raise
        finally:
            keys.secret.destroy()

    def _keys(self, packing: Packing, sites: Sequence[PublicIdentity], least: int) -> _Keys:
        ring, context = packing.ring, packing.context
        name = _place(ring, context).hex()
        secret = SecretKey(ring, self.streams.bytes("sum key", name, length=SEED))
        identity = self.identity.for_run(self.streams.bytes("sum exchange", name))
        seed = self.streams.bytes("sum weights", name, length=SEED_OF_WEIGHTS)
        exchange = identity.public.exchange
        body = _HEAD.pack(bytes(64), least, len(exchange))[64:] + exchange + secret.public
        signature = self.identity.sign(_to_sign(ring, context, body), purpose=_PURPOSE)
        keys = _Keys(packing, secret, identity, seed, least, Offered(signature + body, b""))
        keys.offered = keys.offered._replace(boxes=b"".join(keys.of_site(site).seal(seed) for site in sites))
        return keys

    def _rostered(self, context: SumContext, claimed: Sequence[str], least: int) -> list[PublicIdentity]:
        """The identities of the claimed sites: each once, all of this sum, all on the roster, and enough of them."""
        unique = set(claimed)
        if len(unique) != len(claimed) or not unique <= context.index.keys():
            raise IntegrityError("the list of sites in a sum cannot be right")
        if len(unique) < least:
            raise RefusedError(
                f"{len(unique)} sites are in the sum, the key-holder opens none below {least}", hint="Add sites"
            )
        found = []
        for name in claimed:
            site = self.find_site(name)
            if site is None:
                raise RefusedError(
                    f"the key-holder does not know site {name!r}", hint="Put it on the key-holder's roster"
                )
            found.append(site)
        return found

    def _end(self, run: str) -> None:
        """A check failed: destroy all keys of the run, and offer and open nothing more of it."""
        for name in [name for name in self._pending if name.run == run]:
            self._pending.pop(name).secret.destroy()
        self.book.end(run)


def _checked(keys: _Keys, sites: Sequence[PublicIdentity], slots: Slots) -> Slots:
    """The slots of a total without pads, if the check holds for exactly these sites."""
    packing = keys.packing
    moduli, padding = packing.ring.check_moduli, packing.ring.plain_modulus
    offsets, pads = [0] * packing.checks, np.zeros(packing.shape, dtype=np.int64)
    for site in sites:
        secret = keys.of_site(site)
        offsets = [sum(pair) for pair in zip(offsets, secret.offsets(), strict=True)]
        if padding:
            pads += secret.pads()  # residues below 2^40 of fewer sites than 2^23
    opened = centred(slots - pads % padding, padding) if padding else slots.copy()
    flat = opened.reshape(-1)
    found = flat[-packing.checks :].tolist()
    flat[-packing.checks :] = 0
    products = weights_of(keys.seed, packing).products(opened)
    if not _holds(found, products, offsets, moduli):
        raise IntegrityError(
            "the check of a total does not hold for the claimed sites; it was altered, or holds other sites",
            hint="Nothing was opened, and the run is over. Find out who altered it before you start another one",
        )
    return opened


def _holds(found: Sequence[int], products: Sequence[int], offsets: Sequence[int], moduli: Sequence[int]) -> bool:
    """Whether S = <r, V> + (sum of u) modulo every prime."""
    parts = zip(found, products, offsets, moduli, strict=True)
    return all((check - product - offset) % modulus == 0 for check, product, offset, modulus in parts)


def read_inbox(packing: Packing, data: bytes, name: str, trust: Trust) -> tuple[KeyOffer, SiteSecret, bytes]:
    """What came to a site for this sum, if the trusted key-holder made it for exactly this sum and site.

    Args:
        packing: The layout of the sum.
        data: The site's box and the offer.
        name: The site's name.
        trust: Whom the site relies on.

    Returns:
        The offer, what the site and the key-holder derive from it, and the seed of the check's weights.

    Raises:
        IntegrityError: Somebody else made it, or for another sum, site or public inputs.
        RefusedError: The key-holder opens totals over fewer sites than this site allows.
    """
    offer = _read_offer(packing, data[BOX:], trust)
    pair = trust.identity.agreed_with(offer.holder)
    secret = SiteSecret(pair, offer.holder.suite, name, offer.digest, packing)
    return offer, secret, secret.open(data[:BOX])


def _read_offer(packing: Packing, data: bytes, trust: Trust) -> KeyOffer:
    """The offer, if the trusted key-holder made it for exactly this sum and asks for no fewer sites than this one."""
    if len(data) <= _HEAD.size:
        raise IntegrityError("the offer of a key for a secure sum is cut short")
    if not trust.key_holder.signed(_to_sign(packing.ring, packing.context, data[64:]), data[:64], purpose=_PURPOSE):
        raise IntegrityError(
            f"the key for a secure sum was not made for it by {trust.key_holder.name!r}",
            hint="Somebody between replaced it; nothing was sent",
        )
    offer = _parsed(data, trust.key_holder)
    if offer.min_sites < least_sites(trust):
        raise RefusedError(
            f"the key-holder opens totals over {offer.min_sites} sites, fewer than this site allows",
            hint="Raise the key-holder's minimum, or lower policy.min_sum_sites",
        )
    return offer


def _name_of(context: SumContext) -> SumName:
    return SumName(context.run, context.request, context.round)


def _place(ring: Ring, context: SumContext) -> bytes:
    return hashlib.blake2b(ring.title.encode() + context.transcript, digest_size=32).digest()


def _to_sign(ring: Ring, context: SumContext, body: bytes) -> bytes:
    """What the offer's signature covers: scheme, run, plan, task, round, members, public inputs, and the key."""
    return _place(ring, context) + hashlib.blake2b(body, digest_size=32).digest()


@lru_cache(maxsize=8)
def _parsed(data: bytes, holder: PublicIdentity) -> KeyOffer:
    _, least, length = _HEAD.unpack_from(data)
    exchange, public = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
    fresh = PublicIdentity(holder.name, holder.signing, exchange, holder.suite, holder.bound)
    return KeyOffer(public, fresh, least, hashlib.blake2b(data, digest_size=32).digest())
