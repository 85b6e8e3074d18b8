"""The set-up of sums by masks: every member announces a fresh key, signed by its identity, and all agree on a session.

A run key is an X25519 key made for one run. Its announcement is signed over run, plan, the plan's site list and the
site's name, so it holds for this run and this site alone. From the announcements of all members each pair of members
derives, once per run, a pair secret and keys for sealing and for confirmations, with different keys in each direction:
keyed BLAKE2b extracts from the exchanged secret under the session digest, then expands.

Guarantee: whoever is not on a site's roster gets no key; the hub cannot replace, repeat or leave out an announcement
without ending up with another session digest, under which no key of any two honest members fits. The same holds for a
note of 32 bytes that each site signs with its key.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cached_property, lru_cache
from struct import Struct
from typing import NamedTuple

from kohort.crypto.identity.parties import PublicIdentity
from kohort.crypto.suites import SIGNATURE, find_suite
from kohort.crypto.sums.scheme import MIN_SITES, NO_NOTE, Members, Trust
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.guarantee import SecureSum
from kohort.purposes import Purpose
from kohort.rng import Streams

__all__ = [
    "MOST_SITES",
    "MaskKeys",
    "MaskPairKeys",
    "derive",
    "hash_parts",
    "is_signed",
    "least_sites",
    "threshold_for",
]

MOST_SITES = 500
"""All pairs share masks, so the messages of a sum grow with the square of the members."""
_PURPOSE = Purpose.SUM_RUN_KEY
_KEY = 32
_NOTE = len(NO_NOTE)
_PAIR = Struct("<II")


def threshold_for(members: int, colluders: int) -> int:
    """How many members must confirm and open: any two such groups share a member that does not collude.

    Args:
        members: The members of the session, whoever answers today.
        colluders: How many of them may collude with the hub.

    Returns:
        max(floor(2n/3), floor((n + colluders)/2)) + 1.
    """
    return max(2 * members // 3, (members + colluders) // 2) + 1


def least_sites(trust: Trust) -> int:
    """The fewest sites that a total may be over, whatever the session.

    Args:
        trust: The numbers of the approved plan and of the site's policy.

    Returns:
        The number, 3 or more: a total over fewer sites would show too much of a single site's numbers.
    """
    return max(MIN_SITES, trust.colluders + 2, trust.min_sites, trust.quorum)


def share_claim(members: int, colluders: int) -> SecureSum:
    """What a site's part of a sum by masks claims.

    Args:
        members: The members of the session.
        colluders: How many of them may collude with the hub.

    Returns:
        The claim.
    """
    threshold = threshold_for(members, colluders)
    return SecureSum(sites=members, threshold=threshold, colluders=colluders, opens="hub: the total")


def hash_parts(*parts: bytes) -> bytes:
    """A hash of several byte strings, each preceded by its length, so that no two lists share a hash.

    Args:
        parts: The byte strings.

    Returns:
        32 bytes (BLAKE2b).
    """
    framed = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(framed, digest_size=32).digest()


def derive(secret: bytes, purpose: bytes, binding: bytes, *, size: int = _KEY) -> bytes:
    """A key for one purpose and one binding: BLAKE2b keyed with the secret.

    Args:
        secret: The secret, at most 64 bytes.
        purpose: What the key is for, at most 16 bytes.
        binding: What the key is bound to, any number of bytes.
        size: Bytes of the key, at most 64.

    Returns:
        The key.
    """
    return hashlib.blake2b(binding, digest_size=size, key=secret, person=purpose).digest()


class MaskPairKeys(NamedTuple):
    """What a site shares with one other member of a session."""

    secret: bytes
    """From this the keys of their masks are derived."""
    seal_to: bytes
    seal_from: bytes
    confirm_to: bytes
    confirm_from: bytes

    def __repr__(self) -> str:
        return "MaskPairKeys(...)"


class MaskKeys:
    """One site's keys in the sums of one run.

    Args:
        session: The run, the plan and the sites of the plan.
        name: The site's name.
        streams: The site's randomness, from which its run key comes.
        trust: Whom the site relies on.
        note: 32 bytes that the site signs with its key, for the others: the digest of its book of openings.
    """

    def __init__(self, session: Members, name: str, streams: Streams, trust: Trust, note: bytes = NO_NOTE) -> None:
        self.name = name
        self.trust = trust
        self.suite = find_suite(trust.identity.suite)
        self.members: tuple[str, ...] = ()
        self.digest = b""
        """The session digest; empty until the members agreed."""
        self.pairs: dict[int, MaskPairKeys] = {}
        """Keys with each other member, by its place."""
        self.notes: tuple[bytes, ...] = ()
        """What each member signed with its key, in the members' order."""
        self._run, self._plan = session.run.encode(), session.plan_hash.encode()
        self._roster = hash_parts(*(site.encode() for site in session.members))
        self._bound = hash_parts(self._run, self._plan, self._roster)
        secret = streams.bytes("masks", "run key", session.run, session.plan_hash, length=48)
        self._key = self.suite.exchange_key(secret)
        public = self.suite.public(self._key) + note
        self._announcement = public + trust.identity.sign(self._signed_text(name, public), purpose=_PURPOSE)

    @property
    def announcement(self) -> bytes:
        """The run key and the identity's signature."""
        return self._announcement

    @property
    def index(self) -> int:
        """The site's place among the members."""
        return self.members.index(self.name)

    @property
    def threshold(self) -> int:
        """How many members must confirm and open."""
        return threshold_for(len(self.members), self.trust.colluders)

    @cached_property
    def claim(self) -> SecureSum:
        """What its parts of the sums claim, once the members agreed."""
        return share_claim(len(self.members), self.trust.colluders)

    def agree(self, members: tuple[str, ...], inbox: bytes) -> bytes:
        """Take the announcements of all members, once; see `SessionKeys.agree`."""
        if self.digest:
            raise IntegrityError("the members of a secure sum agreed on keys before")
        self._check_members(members)
        announced = self._split(members, inbox)
        for member, announcement in zip(members, announced, strict=True):
            self._check_announcement(member, announcement)
        signed = [announcement[:-SIGNATURE] for announcement in announced]
        ordered = [part for member, key in zip(members, signed, strict=True) for part in (member.encode(), key)]
        keys = [text[:-_NOTE] for text in signed]
        self.members, self.notes = members, tuple(text[-_NOTE:] for text in signed)
        self.digest = hash_parts(b"session of masks", self._run, self._plan, self._roster, *ordered)
        own = self.index
        self.pairs = {place: self._pair(own, place, key) for place, key in enumerate(keys) if place != own}
        return self.digest

    def _check_members(self, members: tuple[str, ...]) -> None:
        """Refuse lists that are too short or too long, and strangers."""
        if self.name not in members or len(set(members)) != len(members):
            raise RefusedError(f"site {self.name!r} is not among the members of a secure sum, or one is listed twice")
        if len(members) > MOST_SITES:
            raise RefusedError(
                f"masks add up at most {MOST_SITES} sites, and {len(members)} take part",
                hint='Use method.secure.sum = "bfv"',
            )
        least = least_sites(self.trust)
        if len(members) < least:
            raise RefusedError(f"{len(members)} sites agree on the keys of a secure sum, {least} are needed")
        strangers = [member for member in members if member != self.name and self.trust.find_peer(member) is None]
        if strangers:
            raise RefusedError(
                f"{len(strangers)} sites of a secure sum are not on this site's roster, such as {strangers[0]!r}",
                hint="Ask for their fingerprints, then: kohort site trust NAME FINGERPRINT",
            )

    def _split(self, members: tuple[str, ...], inbox: bytes) -> list[bytes]:
        """One announcement per member; all are of this site's suite, so they have its size."""
        size = len(self._announcement)
        if len(inbox) != size * len(members):
            raise IntegrityError("the keys of a secure sum are not one announcement per member")
        return [inbox[at : at + size] for at in range(0, len(inbox), size)]

    def _check_announcement(self, member: str, announcement: bytes) -> None:
        if member == self.name:
            if not hmac.compare_digest(announcement, self._announcement):
                raise IntegrityError("the hub changed the key that this site announced for a secure sum")
            return
        peer = self.trust.find_peer(member)
        key, signature = announcement[:-SIGNATURE], announcement[-SIGNATURE:]
        if peer is None or not is_signed(peer, self._signed_text(member, key), signature):
            raise IntegrityError(f"the key that came in for site {member!r} is not signed by it for this run")

    def _signed_text(self, name: str, key: bytes) -> bytes:
        return hash_parts(self._bound, name.encode(), key)

    def _pair(self, own: int, other: int, key: bytes) -> MaskPairKeys:
        """The keys with one member. The places of both are in them: a copied run key gives other keys."""
        try:
            shared = self.suite.agree(self._key, key)
        except ValueError as error:
            raise IntegrityError(f"the key of site {self.members[other]!r} is not valid") from error
        low, high = (own, other) if own < other else (other, own)
        root = derive(self.digest, b"pair of sites", shared + _PAIR.pack(low, high), size=2 * _KEY)
        directed = root[_KEY:]
        out = derive(directed, b"direction", _PAIR.pack(own, other), size=2 * _KEY)
        back = derive(directed, b"direction", _PAIR.pack(other, own), size=2 * _KEY)
        return MaskPairKeys(root[:_KEY], out[:_KEY], back[:_KEY], out[_KEY:], back[_KEY:])


@lru_cache(maxsize=2 * MOST_SITES)
def is_signed(peer: PublicIdentity, text: bytes, signature: bytes) -> bool:
    """Whether a peer signed an announcement.

    Results are remembered, so that simulated sites of one process check each signature once.

    Args:
        peer: The peer's long-term identity.
        text: The announced bytes.
        signature: The signature that came with them.

    Returns:
        True if the peer signed exactly these bytes as an announcement of a run key.
    """
    return peer.signed(text, signature, purpose=_PURPOSE)
