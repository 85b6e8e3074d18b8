"""A secret that all sites of a group know and the hub does not.

Every site contributes 32 bytes. It seals them to the long-term key of each peer on its own roster, and signs a
commitment to them; the secret is a hash over all contributions. Before it is used, the sites compare a hash of what
they derived: a hub that kept a contribution from somebody, or formed two groups, is noticed.

Steps: 0 sealed contributions, 1 hash of the secret, 2 comparison.

Guarantee: the hub alone learns nothing about the secret, because no key in use comes from it; a hub with one colluding
site learns it all. A site takes part only where it has every other site of the list on its roster. Boxes and hashes are
bound to what the secret is for, to sender and, for boxes, to recipient.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct

from cryptography.exceptions import InvalidTag

from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.suites import SIGNATURE, Aead, expand, find_suite
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.guarantee import Encrypted, Guarantee, Public
from kohort.purposes import Purpose
from kohort.rng import Streams

__all__ = ["KEYS_CLAIM", "SEALED_CLAIM", "STEPS", "GroupHub", "GroupSite", "least_agreed"]

STEPS = 3
MIN_SITES = 3
SEALED_CLAIM = Encrypted(scheme="x25519-chacha20poly1305", opens="the other sites")
KEYS_CLAIM = Public(what="hashes of a group secret")
_CONTENT = Struct("<32sQ")
"""A contribution, and the number that its sender tells the other sites."""
_BOX, _HASH = Struct(f"<I{_CONTENT.size + 16}s{SIGNATURE}s"), Struct("<I32s")
_PURPOSE = Purpose.GROUP_SECRET


def _digest(*parts: bytes) -> bytes:
    framed = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(framed, digest_size=32, person=b"kohort-group").digest()


def _each(data: bytes, record: Struct) -> list[tuple]:  # type: ignore[type-arg]
    if len(data) % record.size:
        raise IntegrityError("a message about the group's secret is cut short")
    return list(record.iter_unpack(data))


def least_agreed(sites: int, colluders: int) -> int:
    """How many sites must derive the same secret, so that two such groups always share an honest site.

    Args:
        sites: Number of sites in the group.
        colluders: How many of them may collude with the hub.

    Returns:
        The number, 3 or more; above `sites` where no agreement is possible.
    """
    return max(MIN_SITES, colluders + 2, 2 * sites // 3 + 1, (sites + colluders) // 2 + 1)


@dataclass
class GroupSite:
    """One site's part. `secret` is there after the last step.

    Args:
        sites: Who shares the secret, in order.
        name: This site.
        binding: What the secret is for: run, plan, count, stage. Another use has another secret.
        streams: The site's randomness.
        identity: The site's long-term keys.
        find_peer: The site's roster.
        colluders: How many sites may collude with the hub.
        number: A number that the other sites get with the contribution, sealed.

    Raises:
        RefusedError: Too few sites, a list that cannot be right, or a site that is not on the roster.
    """

    sites: tuple[str, ...]
    name: str
    binding: bytes
    streams: Streams = field(repr=False)
    identity: Identity
    find_peer: Callable[[str], PublicIdentity | None]
    colluders: int = 1
    number: int = 0
    secret: bytes | None = field(default=None, repr=False)
    derived: bytes = field(default=b"", repr=False)
    numbers: dict[str, int] = field(default_factory=dict)
    """What each contributor told, this site included."""

    def __post_init__(self) -> None:
        if self.name not in self.sites or len(set(self.sites)) != len(self.sites):
            raise RefusedError("the list of sites that share a secret cannot be right")
        if len(self.sites) < max(MIN_SITES, self.colluders + 2):
            raise RefusedError("fewer than three sites, or no more than may collude, would count each other's rows")
        self.index = self.sites.index(self.name)
        self.peers = {index: self._on_roster(name) for index, name in enumerate(self.sites) if index != self.index}
        self.contribution = self.streams.bytes("group", self.binding.hex(), "contribution")

    def _on_roster(self, name: str) -> PublicIdentity:
        peer = self.find_peer(name)
        if peer is None:
            raise RefusedError(
                f"site {name!r} is not on this site's roster, so it gets no secret",
                hint=f"Ask for its fingerprint, then: kohort site trust {name} FINGERPRINT",
            )
        return peer

    def claim(self, step: int) -> Guarantee:
        """Contributions are sealed to the other sites; hashes are public."""
        return SEALED_CLAIM if step == 0 else KEYS_CLAIM

    def reply(self, step: int, inbox: bytes) -> bytes:
        """The site's message at `step`.

        Args:
            step: From 0.
            inbox: What the hub sent for this step.

        Returns:
            Boxes for the peers, a hash, or nothing.

        Raises:
            RefusedError: Too few contributions came in.
            IntegrityError: What came in was altered, repeated or out of order, or the sites derived different secrets.
        """
        match step:
            case 0:
                return b"".join(self._seal(peer) for peer in self.peers)
            case 1:
                return self._derive(inbox)
            case 2:
                return self._compare(inbox)
            case _:
                raise IntegrityError("a group's secret is made in three steps")

    @cached_property
    def _signature(self) -> bytes:
        return self.identity.sign(self._commitment(self.index, self.contribution, self.number), purpose=_PURPOSE)

    def _commitment(self, sender: int, contribution: bytes, number: int) -> bytes:
        return _digest(b"commitment", self.binding, self.sites[sender].encode(), _CONTENT.pack(contribution, number))

    def _cipher(self, peer: int, sender: int, receiver: int) -> Aead:
        """One key for one direction of one pair: it seals a single message, so a fixed nonce is safe."""
        route = _digest(self.binding, self.sites[sender].encode(), self.sites[receiver].encode())
        key = expand(self.identity.agreed_with(self.peers[peer]).sealing, b"group secret" + route, 32)
        return find_suite(self.identity.suite).cipher(key)

    def _seal(self, peer: int) -> bytes:
        content = _CONTENT.pack(self.contribution, self.number)
        sealed = self._cipher(peer, self.index, peer).encrypt(bytes(12), content, self.binding)
        return _BOX.pack(peer, sealed, self._signature)

    def _open(self, sender: int, sealed: bytes, signature: bytes) -> tuple[bytes, int]:
        """A peer's contribution, and what it tells, if both are the peer's own."""
        if sender not in self.peers:
            raise IntegrityError("a contribution came in from a site that is no peer")
        altered = f"the contribution of site {self.sites[sender]!r} was altered"
        try:
            content = self._cipher(sender, sender, self.index).decrypt(bytes(12), sealed, self.binding)
        except InvalidTag as error:
            raise IntegrityError(altered) from error
        contribution, number = _CONTENT.unpack(content)
        signed = self._commitment(sender, contribution, number)
        if not self.peers[sender].signed(signed, signature, purpose=_PURPOSE):
            raise IntegrityError(altered)
        return contribution, number

    def _derive(self, inbox: bytes) -> bytes:
        if self.derived:
            raise IntegrityError("contributions to a group's secret came in a second time")
        contents = {self.index: (self.contribution, self.number)}
        for sender, sealed, signature in _each(inbox, _BOX):
            if sender in contents:
                raise IntegrityError("a contribution to a group's secret came in twice")
            contents[sender] = self._open(sender, sealed, signature)
        self._require(len(contents))
        self.numbers = {self.sites[index]: number for index, (_, number) in sorted(contents.items())}
        ordered = [index.to_bytes(4, "little") + _CONTENT.pack(*contents[index]) for index in sorted(contents)]
        self.derived = _digest(b"secret", self.binding, *ordered)
        return self._hash_of(self.index)

    def _hash_of(self, sender: int) -> bytes:
        """What `sender` sends when it derived the same: nobody without the secret can make it, or another's of it."""
        return _digest(b"transcript", self.derived, self.sites[sender].encode())

    def _require(self, count: int) -> None:
        least = least_agreed(len(self.sites), self.colluders)
        if count < least:
            raise RefusedError(f"{count} of {len(self.sites)} sites are left to share a secret, {least} are needed")

    def _compare(self, inbox: bytes) -> bytes:
        if not self.derived:
            raise IntegrityError("hashes of a group's secret came in before its contributions")
        others = dict(_each(inbox, _HASH))
        contributors = {index for index, name in enumerate(self.sites) if name in self.numbers}
        agreed = [
            sender in contributors and hmac.compare_digest(self._hash_of(sender), made)
            for sender, made in others.items()
        ]
        if not all(agreed):
            raise IntegrityError("the sites did not derive the same secret; somebody kept a contribution back")
        self._require(len({*others, self.index}))
        self.secret = self.derived
        return b""


@dataclass
class GroupHub:
    """The hub's part: it routes what it cannot read."""

    sites: tuple[str, ...]

    def route(self, step: int, replies: Mapping[str, bytes]) -> dict[str, bytes]:
        """What each site gets next.

        Args:
            step: The step that was answered.
            replies: The sites' messages.

        Returns:
            Messages by site; none after the last step.
        """
        places = {site: index for index, site in enumerate(self.sites)}
        by_index = {places[site]: data for site, data in sorted(replies.items(), key=lambda item: places[item[0]])}
        if step == 0:
            inboxes: dict[int, list[bytes]] = {index: [] for index in by_index}
            for sender, data in by_index.items():
                for receiver, sealed, signature in _each(data, _BOX):
                    if receiver in inboxes:
                        inboxes[receiver].append(_BOX.pack(sender, sealed, signature))
            return {self.sites[index]: b"".join(parts) for index, parts in inboxes.items()}
        if step == 1:
            message = b"".join(_HASH.pack(index, made) for index, made in by_index.items() if len(made) == 32)
            return dict.fromkeys((self.sites[index] for index in by_index), message)
        return {}
