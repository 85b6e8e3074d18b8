"""`masks`: a sum by double masking (Bonawitz et al., CCS 2017), of which only the total over the survivors opens.

Each site hides its vector under a mask of its own and one mask with each neighbour; the neighbours' masks cancel in the
sum. Seeds are Shamir-shared among the neighbours, so that the masks of sites that drop out can be removed. For each
neighbour a site hands out either the pairwise share (it dropped) or the self share (it answered), never both, and only
for a survivor list that enough neighbours signed: a hub that lies about who survived gets nothing.

Sites know each other by their own rosters, so shares are sealed before a word was exchanged, and travel with the fresh
keys of this sum. Every seal covers its sender's fresh keys: a hub that swaps keys, or invents a site, is found out.

Steps: 0 keys and shares, 1 masked vectors, 2 signatures over the survivors, 3 shares of the seeds to remove.

Guarantee: the hub, with fewer than `threshold` of a site's neighbours colluding, learns the sum over at least
max(3, colluders + 2) survivors on a site's roster, and nothing else about it. A vector that arrives after its site was
declared dropped stays masked by the self mask. Masks, seeds and seals are of keys made for this sum alone. Strangers
get no share and count for nothing. A lying site can change the total: honesty is not proven.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.modular import P61, RunningSum
from kohort.crypto.sums.scheme import (
    CONFIRMATIONS,
    MIN_SITES,
    HubSide,
    Integers,
    SessionKeys,
    SiteSide,
    SumContext,
    SumScheme,
    Trust,
)
from kohort.crypto.sums.shamir import PRIME, combine, split
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.guarantee import Guarantee, Public, SecureSum
from kohort.privacy.ledger.signing import Signer, signature_holds
from kohort.rng import Streams

if TYPE_CHECKING:
    from kohort.crypto.identity.parties import PublicIdentity

__all__ = ["SCHEME", "Masks", "neighbours_of", "threshold_for"]

ALL_PAIRS, NEIGHBOURS, SPARSE_THRESHOLD = 100, 80, 29
_SEED, _KEY = 16, 32
_KEYS = Struct("<32s32s32s")
"""What a site announces: the key of its pairwise masks, the commitment to its self seed, the key it signs with."""
_SEALED = Struct("<I48s")
_DELIVERED = Struct(f"<I{_KEYS.size}s48s")
_OPENED = Struct("<IB16s")
_SIGNED = Struct("<I64s")
_INDEX, _ROUTE = Struct("<I"), Struct("<II")
_NONCE = bytes(12)
"""Every seal has a key of its own, which seals one message."""


def neighbours_of(count: int, seed: bytes) -> list[tuple[int, ...]]:
    """Who masks with whom: everybody up to 100 sites; above, 80 neighbours each on a ring shuffled by a public seed."""
    return list(_graph(count, seed))


@lru_cache(maxsize=8)
def _graph(count: int, seed: bytes) -> tuple[tuple[int, ...], ...]:
    if count <= ALL_PAIRS:
        return tuple(tuple(other for other in range(count) if other != site) for site in range(count))
    order = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little"))).permutation(count)
    reach = [step for step in range(-NEIGHBOURS // 2, NEIGHBOURS // 2 + 1) if step]
    found: list[tuple[int, ...]] = [()] * count
    for place, site in enumerate(order):
        found[site] = tuple(sorted(int(order[(place + step) % count]) for step in reach))
    return tuple(found)


def threshold_for(count: int) -> int:
    """How many shares open a seed: above two thirds of all sites, or 29 of the 80 neighbours."""
    return SPARSE_THRESHOLD if count > ALL_PAIRS else 2 * count // 3 + 1


def colluders_for(count: int) -> int:
    """How many sites may collude with a hub that lies about survivors: below a third of all; a tenth when sparse."""
    return count // 10 if count > ALL_PAIRS else (count + 2) // 3 - 1


def least_survivors(count: int) -> int:
    """Fewer survivors would show too much of each other's numbers, so nothing opens."""
    return max(MIN_SITES, colluders_for(count) + 2)


def _hash(*parts: bytes) -> bytes:
    framed = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(framed, digest_size=32).digest()


def _private(seed: bytes, purpose: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_hash(b"x25519", purpose, seed))


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise IntegrityError("a key that came in for a secure sum is not valid") from error


def _derived(secret: bytes, purpose: bytes, binding: bytes, route: bytes = b"") -> bytes:
    """A key for exactly this purpose, this sum and, if given, this way: BLAKE2b keyed with the secret."""
    return hashlib.blake2b(binding + route, digest_size=32, key=secret, person=purpose).digest()


def _pair_mask(own: X25519PrivateKey, other: bytes, binding: bytes) -> bytes:
    """The key of the mask of exactly this pair in this sum."""
    return _derived(_exchange(own, other), b"pair mask", binding)


def _own_mask(seed: bytes, binding: bytes) -> bytes:
    """The key of a site's own mask in this sum."""
    return _derived(seed, b"own mask", binding)


@dataclass
class _Peer:
    mask_key: bytes
    signing_key: bytes
    shares: tuple[int, int]
    """Shares of the peer's pairwise seed and self seed that it gave to us."""


@dataclass
class _MaskingSite:
    """One site's part. Holds its seeds, never sends them, and opens each peer once at most."""

    context: SumContext
    name: str
    streams: Streams
    trust: Trust
    peers: dict[int, _Peer] = field(default_factory=dict)
    """The neighbours we mask with: on our roster, and their shares came in."""
    survivors: frozenset[int] = frozenset()
    """Of the list we signed: ourselves and the neighbours on it. Of 20,000 sites all of it would fill the memory."""
    opened: bool = False

    def __post_init__(self) -> None:
        if self.name not in self.context.index:
            raise RefusedError(f"site {self.name!r} is not among the sites of this sum")
        if len(self.context.index) != len(self.context.sites):
            raise RefusedError("a site is listed twice in a secure sum")
        if len(self.context.sites) < MIN_SITES:
            raise RefusedError(
                "a secure sum over fewer than three sites would show each other's numbers", hint="Add sites"
            )
        self.index = self.context.index[self.name]
        self.binding = self.context.transcript
        self.threshold = threshold_for(len(self.context.sites))
        self.neighbours = _graph(len(self.context.sites), self.binding)[self.index]
        self.keeps_own = len(self.context.sites) <= ALL_PAIRS
        """Among few sites each also keeps a share of its own seed, so that two thirds of all are enough to open."""
        self.own_share = 0
        names = ("masks", self.binding.hex())  # whatever differs between two sums, their seeds differ, too
        self.pair_seed = self.streams.bytes(*names, "pair", length=_SEED - 1) + b"\0"  # below the prime 2^127 - 1
        self.self_seed = self.streams.bytes(*names, "self", length=_SEED - 1) + b"\0"
        self.mask_key = _private(self.pair_seed, b"mask")
        self.signer = Signer.from_secret(self.streams.bytes(*names, "sign"))
        commitment = _hash(b"self", self.self_seed)
        self.announced = _KEYS.pack(_public(self.mask_key), commitment, bytes.fromhex(self.signer.public))

    def claim(self, step: int, rows: int) -> Guarantee:
        """Signatures are public; everything else is protected by the sum."""
        del rows
        return Public(what=CONFIRMATIONS) if step == 2 else _claim(len(self.context.sites))

    def reply(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        """The site's message at `step`."""
        match step:
            case 0:
                return self._share()
            case 1:
                return self._mask(inbox, vector)
            case 2:
                return self._sign(inbox)
            case 3:
                return self._open(inbox)
            case _:
                raise IntegrityError("a secure sum by masks has four steps")

    def _share(self) -> bytes:
        """Announce this sum's keys, and seal to each neighbour on the roster its shares of our two seeds."""
        known = [index for index in self.neighbours if self._found(index) is not None]
        points = [index + 1 for index in (*known, *((self.index,) if self.keeps_own else ()))]
        if len(points) < self.threshold:
            raise RefusedError(
                f"only {len(known)} other sites of a secure sum are on this site's roster, too few to share seeds with",
                hint="Ask for their fingerprints, then: kohort site trust NAME FINGERPRINT",
            )
        pair = split(int.from_bytes(self.pair_seed, "little"), points, self.threshold, self._coefficients("pair"))
        own = split(int.from_bytes(self.self_seed, "little"), points, self.threshold, self._coefficients("self"))
        self.own_share = own.get(self.index + 1, 0)
        out = [self.announced]
        for index in known:
            content = pair[index + 1].to_bytes(_SEED, "little") + own[index + 1].to_bytes(_SEED, "little")
            cipher = self._cipher(self.index, index, self.announced)
            out.append(_SEALED.pack(index, cipher.encrypt(_NONCE, content, self.binding)))
        return b"".join(out)

    def _found(self, index: int) -> PublicIdentity | None:
        """The lasting keys of a site of this sum, if it is on our roster."""
        return self.trust.find_peer(self.context.sites[index])

    def _coefficients(self, what: str) -> list[int]:
        """Uniform numbers below the prime (256 bits reduced: a bias below 2^-128), drawn out of one named key."""
        key = self.streams.bytes("masks", self.binding.hex(), "shamir", what)
        drawn = hashlib.shake_256(key).digest(32 * (self.threshold - 1))
        return [int.from_bytes(drawn[at : at + 32], "little") % PRIME for at in range(0, len(drawn), 32)]

    def _cipher(self, sender: int, receiver: int, announced: bytes) -> ChaCha20Poly1305:
        """What seals the one message of a way: its key is bound to both sites, this sum and the sender's fresh keys."""
        peer = self._found(receiver if sender == self.index else sender)
        if peer is None or self.index not in {sender, receiver}:
            raise IntegrityError("a share came in from a site that is no peer")
        agreed = self.trust.identity.agreed_with(peer).sealing
        return ChaCha20Poly1305(_derived(agreed, b"seal", self.binding, _ROUTE.pack(sender, receiver) + announced))

    def _mask(self, inbox: bytes, vector: Integers | None) -> bytes:
        """Read the shares that came in, and send the vector under the self mask and the masks with those peers."""
        if vector is None or len(vector) != self.context.length:
            raise IntegrityError("a site takes part in a secure sum with a vector of the agreed length")
        if self.peers:
            raise IntegrityError("shares came in a second time for the same sum")
        for index, announced, sealed in _each(inbox, _DELIVERED):
            if index not in self.neighbours or index in self.peers:
                raise IntegrityError("a share came in from a site that is no peer")
            try:
                content = self._cipher(index, self.index, announced).decrypt(_NONCE, sealed, self.binding)
            except InvalidTag as error:
                raise IntegrityError(f"the share of site {self.context.sites[index]!r} was altered") from error
            shares = (int.from_bytes(content[:_SEED], "little"), int.from_bytes(content[_SEED:], "little"))
            mask_key, _, signing_key = _KEYS.unpack(announced)
            self.peers[index] = _Peer(mask_key, signing_key, shares)
        if len(self.peers) + self.keeps_own < self.threshold:
            raise SiteError(f"only {len(self.peers)} peers shared their seeds, {self.threshold} are needed")
        keys = {index: _pair_mask(self.mask_key, peer.mask_key, self.binding) for index, peer in self.peers.items()}
        hidden = masked(
            vector,
            plus=[_own_mask(self.self_seed, self.binding), *(key for index, key in keys.items() if index > self.index)],
            minus=[key for index, key in keys.items() if index < self.index],
            modulus=self.context.modulus,
        )
        return hidden.astype("<u8", copy=False).tobytes()

    def _sign(self, inbox: bytes) -> bytes:
        """Sign the survivor list, once, if it can be right."""
        listed = [index for (index,) in _each(inbox, _INDEX)]
        survivors = frozenset(listed)
        least = least_survivors(len(self.context.sites))
        if self.survivors:
            raise IntegrityError("a second survivor list came in for the same sum")
        if self.index not in survivors or len(survivors) != len(listed) or max(survivors) >= len(self.context.sites):
            raise IntegrityError("the survivor list of a secure sum cannot be right")
        counted = islice((index for index in listed if index == self.index or self._found(index) is not None), least)
        if sum(1 for _ in counted) < least:
            raise RefusedError(
                f"{len(survivors)} sites are left in the secure sum, {least} of the roster are needed to open it"
            )
        self.survivors = survivors.intersection((self.index, *self.neighbours))  # the others are not ours to open
        self.survivors_text = _hash(b"survivors", self.binding, inbox)
        self.signature = bytes.fromhex(self.signer.sign(self.survivors_text))
        return self.signature

    def _open(self, inbox: bytes) -> bytes:
        """Hand out, for each neighbour, one of its two shares: never both, and only for a list enough peers signed."""
        if not self.survivors or self.opened:
            raise IntegrityError("a secure sum opens once, after its survivors were signed")
        signed: set[int] = set()
        for index, signature in _each(inbox, _SIGNED):
            if len(signed) >= self.threshold:
                break  # enough have signed; checking the rest would cost time and change nothing
            if index not in signed and self._has_signed(index, signature):
                signed.add(index)
        if len(signed) < self.threshold:
            raise IntegrityError(f"{len(signed)} peers signed the survivors of a secure sum, {self.threshold} must")
        self.opened = True
        out = [_OPENED.pack(self.index, True, self.own_share.to_bytes(_SEED, "little"))] if self.keeps_own else []
        for index, peer in self.peers.items():
            survived = index in self.survivors
            out.append(_OPENED.pack(index, survived, peer.shares[1 if survived else 0].to_bytes(_SEED, "little")))
        return b"".join(out)

    def _has_signed(self, index: int, signature: bytes) -> bool:
        """Whether this is the signature of a survivor among the peers, or our own, over the list we signed."""
        if index == self.index:
            return hmac.compare_digest(signature, self.signature)  # signing gives the same bytes each time
        if index not in self.survivors or index not in self.peers:
            return False
        return signature_holds(self.peers[index].signing_key.hex(), self.survivors_text, signature.hex())


def _each(data: bytes, record: Struct) -> list[tuple]:  # type: ignore[type-arg]
    if len(data) % record.size:
        raise IntegrityError("a message of a secure sum is cut short")
    return list(record.iter_unpack(data))


@dataclass
class _MaskingHub:
    """The hub's part: routes sealed shares it cannot read, adds masked vectors, removes the masks left over."""

    context: SumContext
    keys: dict[int, bytes] = field(default_factory=dict)
    """What each site announced."""
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Its sealed shares, by recipient."""
    survivors: dict[int, None] = field(default_factory=dict)
    """Whose vectors are in the sum."""
    signatures: dict[int, bytes] = field(default_factory=dict)
    """Over the list of survivors."""
    self_shares: dict[int, dict[int, int]] = field(default_factory=dict)
    """Shares of the survivors' self seeds, by owner and helper."""
    pair_shares: dict[int, dict[int, int]] = field(default_factory=dict)
    """Shares of the pairwise seeds of those who dropped out."""
    result: Integers | None = None

    def __post_init__(self) -> None:
        self.added = RunningSum(np.zeros(self.context.length, dtype=np.uint64), self.context.modulus)

    def take(self, step: int, site: str, reply: bytes) -> None:
        """Take a site's keys and shares, its masked vector, its signature, or the shares it hands out."""
        index = self.context.index.get(site)
        if index is None or (step == 1 and index in self.survivors):
            raise IntegrityError(f"site {site!r} has no part in this sum")
        match step:
            case 0:
                self._take_shares(index, reply)
            case 1:
                self._take_vector(index, reply)
            case 2:
                if len(reply) == 64:
                    self.signatures[index] = reply
            case _:
                self._take_opened(index, reply)

    def inboxes(self, step: int) -> Mapping[str, bytes]:
        """What each site gets next; after the last step the masks come out."""
        match step:
            case 0:
                return self._by_name({index: self._shares_for(index) for index in self.keys})
            case 1:
                listed = np.asarray(sorted(self.survivors), dtype="<u4").tobytes()
                return self._by_name(dict.fromkeys(self.survivors, listed))
            case 2:
                return self._by_name({index: self._signatures_for(index) for index in self.signatures})
            case _:
                self._unmask()
                return {}

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        """The opened sum and the survivors in it."""
        if self.result is None:
            raise SiteError("the secure sum was not opened")
        return self.result, tuple(self.context.sites[index] for index in sorted(self.survivors))

    def _by_name(self, messages: Mapping[int, bytes]) -> dict[str, bytes]:
        return {self.context.sites[index]: messages[index] for index in sorted(messages)}

    def _take_shares(self, index: int, data: bytes) -> None:
        """A site's keys and sealed shares; one that sends something else takes no part."""
        announced, sealed = data[: _KEYS.size], data[_KEYS.size :]
        if len(announced) == _KEYS.size and len(sealed) % _SEALED.size == 0:
            self.keys[index] = announced
            self.sealed[index] = dict(_each(sealed, _SEALED))

    def _partners(self, index: int) -> list[int]:
        """Who masks with a site: its neighbours that have it on their rosters, and that it has on its own."""
        graph = _graph(len(self.context.sites), self.context.transcript)
        own = self.sealed[index]
        return [other for other in graph[index] if other in own and index in self.sealed.get(other, {})]

    def _shares_for(self, index: int) -> bytes:
        partners = self._partners(index)
        return b"".join(_DELIVERED.pack(other, self.keys[other], self.sealed[other][index]) for other in partners)

    def _signatures_for(self, index: int) -> bytes:
        graph = _graph(len(self.context.sites), self.context.transcript)
        others = [other for other in (index, *graph[index]) if other in self.signatures]
        return b"".join(_SIGNED.pack(other, self.signatures[other]) for other in others)

    def _take_vector(self, index: int, reply: bytes) -> None:
        if len(reply) != 8 * self.context.length:
            raise IntegrityError(f"site {self.context.sites[index]!r} sent a vector of another length")
        vector = np.frombuffer(reply, dtype="<u8")
        if self.context.modulus and (vector >= P61).any():
            raise IntegrityError(f"site {self.context.sites[index]!r} sent numbers outside the agreed range")
        self.added.add(vector)
        self.survivors[index] = None

    def _take_opened(self, helper: int, reply: bytes) -> None:
        for index, survived, share in _each(reply, _OPENED):
            shares = self.self_shares if survived else self.pair_shares
            shares.setdefault(index, {})[helper + 1] = int.from_bytes(share, "little")

    def _unmask(self) -> None:
        """Recover the self seeds of survivors and the pairwise seeds of those who dropped, and take their masks out."""
        binding, modulus = self.context.transcript, self.context.modulus
        own_masks = [_own_mask(self._self_seed(index), binding) for index in self.survivors]
        total = masked(self.added.value(), plus=[], minus=own_masks, modulus=modulus)
        for index in sorted(set(self.keys) - set(self.survivors)):
            partners = sorted(set(self._partners(index)) & set(self.survivors))
            if not partners:
                continue
            key = self._mask_key(index)
            shared = {other: _pair_mask(key, self.keys[other][:_KEY], binding) for other in partners}
            total = masked(
                total,
                plus=[made for other, made in shared.items() if other > index],
                minus=[made for other, made in shared.items() if other < index],
                modulus=modulus,
            )
        self.result = total

    def _self_seed(self, index: int) -> bytes:
        """The self seed of a survivor, if it is the one it committed to."""
        threshold = threshold_for(len(self.context.sites))
        seed = combine(self.self_shares.get(index, {}), threshold).to_bytes(_SEED, "little")
        if not hmac.compare_digest(_hash(b"self", seed), self.keys[index][_KEY : 2 * _KEY]):
            raise self._other_seed(index)
        return seed

    def _mask_key(self, index: int) -> X25519PrivateKey:
        """The mask key of a site that dropped out, if it is the announced one."""
        threshold = threshold_for(len(self.context.sites))
        key = _private(combine(self.pair_shares.get(index, {}), threshold).to_bytes(_SEED, "little"), b"mask")
        if not hmac.compare_digest(_public(key), self.keys[index][:_KEY]):
            raise self._other_seed(index)
        return key

    def _other_seed(self, index: int) -> IntegrityError:
        return IntegrityError(f"the seed recovered for site {self.context.sites[index]!r} is not the announced one")


class Masks(SumScheme):
    """Double masking."""

    name: ClassVar[str] = "masks"
    steps: ClassVar[int] = 4
    contributes_at: ClassVar[int] = 1
    among_peers: ClassVar[bool] = True

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
                f"site {name!r} knows no peers, so it has nobody to mask with",
                hint="Ask for their fingerprints, then: kohort site trust NAME FINGERPRINT",
            )
        return _MaskingSite(context, name, streams, trust)

    def hub_side(self, context: SumContext) -> HubSide:
        """The hub's part."""
        return _MaskingHub(context)

    def claim(self, sites: int, rows: int) -> Guarantee:
        """A share of the sum."""
        del rows
        return _claim(sites)


def _claim(sites: int) -> SecureSum:
    return SecureSum(
        sites=sites, threshold=threshold_for(sites), colluders=colluders_for(sites), opens="hub: the total"
    )


SCHEME = Masks()
