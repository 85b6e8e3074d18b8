"""A secret that all sites of a group know and the hub does not.

Every site contributes 32 bytes, sealed to each peer with a fresh key; the secret is a hash over all contributions.
Before it is used, the sites compare a hash of what they derived: a hub that kept a contribution from somebody is
noticed.

Steps: 0 keys, 1 sealed contributions, 2 hash of the secret, 3 comparison.

Guarantee: the hub alone learns nothing about the secret; a hub with one colluding site learns it all.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.guarantee import Encrypted, Guarantee, Public
from kohort.rng import Streams

__all__ = ["KEYS_CLAIM", "SEALED_CLAIM", "STEPS", "GroupHub", "GroupSite"]

STEPS = 4
SEALED_CLAIM = Encrypted(scheme="x25519-chacha20poly1305", opens="the other sites")
KEYS_CLAIM = Public(what="keys of a group secret")
_KEY, _BOX, _HASH = Struct("<I32s"), Struct("<I48s"), Struct("<I32s")


def _digest(*parts: bytes) -> bytes:
    framed = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(framed, digest_size=32, person=b"kohort-group").digest()


def _each(data: bytes, record: Struct) -> dict[int, bytes]:
    if len(data) % record.size:
        raise IntegrityError("a message about the group's secret is cut short")
    return dict(record.iter_unpack(data))


@dataclass
class GroupSite:
    """One site's part. `secret` is there after the last step."""

    sites: tuple[str, ...]
    name: str
    binding: bytes
    """What the secret is for: run, plan, round. Another use has another secret."""
    streams: Streams
    secret: bytes | None = None
    keys: dict[int, bytes] = field(default_factory=dict)
    shared: dict[int, bytes] = field(default_factory=dict)
    derived: bytes = b""

    def __post_init__(self) -> None:
        if self.name not in self.sites or len(set(self.sites)) != len(self.sites):
            raise RefusedError("the list of sites that share a secret cannot be right")
        if len(self.sites) < 3:
            raise RefusedError(
                "fewer than three sites would count each other's rows", hint="Add sites, or count locally"
            )
        self.index = self.sites.index(self.name)
        self.key = X25519PrivateKey.from_private_bytes(self.streams.bytes("group", self.binding.hex(), "key"))
        self.contribution = self.streams.bytes("group", self.binding.hex(), "contribution")

    def claim(self, step: int) -> Guarantee:
        """Contributions are sealed to the other sites; keys and hashes are public."""
        if step == 1:
            return SEALED_CLAIM
        return KEYS_CLAIM

    def reply(self, step: int, inbox: bytes) -> bytes:
        """The site's message at `step`."""
        match step:
            case 0:
                return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            case 1:
                self.keys = _each(inbox, _KEY)
                peers = [index for index in self.keys if index != self.index]
                if len(peers) < 2:
                    raise RefusedError("fewer than three sites are left to share a secret")
                return b"".join(_BOX.pack(peer, self._seal(peer, self.index, peer)) for peer in peers)
            case 2:
                return self._derive(inbox)
            case 3:
                return self._compare(inbox)
            case _:
                raise IntegrityError("a group's secret is made in four steps")

    def _box(self, peer: int, sender: int, receiver: int) -> ChaCha20Poly1305:
        """One key for one direction of one pair: it seals a single message, so a fixed nonce is safe."""
        if peer not in self.shared:  # both directions come from one exchange
            try:
                self.shared[peer] = self.key.exchange(X25519PublicKey.from_public_bytes(self.keys[peer]))
            except ValueError as error:
                raise IntegrityError("a key that came in for the group's secret is not valid") from error
        return ChaCha20Poly1305(_digest(b"box", self.shared[peer], self.binding, f"{sender}>{receiver}".encode()))

    def _seal(self, peer: int, sender: int, receiver: int) -> bytes:
        return self._box(peer, sender, receiver).encrypt(bytes(12), self.contribution, self.binding)

    def _derive(self, inbox: bytes) -> bytes:
        contributions = {self.index: self.contribution}
        for sender, sealed in _each(inbox, _BOX).items():
            if sender not in self.keys:
                raise IntegrityError("a contribution came in from a site that is no peer")
            try:
                contributions[sender] = self._box(sender, sender, self.index).decrypt(bytes(12), sealed, self.binding)
            except InvalidTag as error:
                raise IntegrityError(f"the contribution of site {self.sites[sender]!r} was altered") from error
        if len(contributions) < 3:
            raise RefusedError("fewer than three sites are left to share a secret")
        ordered = [index.to_bytes(4, "little") + contributions[index] for index in sorted(contributions)]
        self.derived = _digest(b"secret", self.binding, *ordered)
        return _digest(b"transcript", self.derived)

    def _compare(self, inbox: bytes) -> bytes:
        own = _digest(b"transcript", self.derived)
        others = _each(inbox, _HASH)
        if len(others) < 3 or not all(hmac.compare_digest(own, other) for other in others.values()):
            raise IntegrityError("the sites did not derive the same secret; somebody kept a contribution back")
        self.secret = self.derived
        return b""


@dataclass
class GroupHub:
    """The hub's part: it routes what it cannot read."""

    sites: tuple[str, ...]

    def route(self, step: int, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """What each site gets next."""
        places = {site: index for index, site in enumerate(self.sites)}
        by_index = {places[site]: data for site, data in replies.items()}
        if step == 0:
            message = b"".join(_KEY.pack(index, key) for index, key in sorted(by_index.items()) if len(key) == 32)
        elif step == 2:
            message = b"".join(_HASH.pack(index, made) for index, made in sorted(by_index.items()) if len(made) == 32)
        elif step == 1:
            inboxes: dict[int, list[bytes]] = {index: [] for index in by_index}
            for sender, data in sorted(by_index.items()):
                for receiver, sealed in _each(data, _BOX).items():
                    if receiver in inboxes:
                        inboxes[receiver].append(_BOX.pack(sender, sealed))
            return {self.sites[index]: b"".join(parts) for index, parts in inboxes.items()}
        else:
            return {}
        return dict.fromkeys((self.sites[index] for index in sorted(by_index)), message)
