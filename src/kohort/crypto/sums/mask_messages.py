"""What travels in a sum by masks, and the keys and texts that hub and sites derive alike."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.mask_keys import derive, hash_parts
from kohort.crypto.sums.scheme import SumContext
from kohort.crypto.sums.shamir import LIMBS
from kohort.errors import IntegrityError

__all__ = [
    "BOX",
    "CONFIRMED",
    "MAC",
    "NONCE",
    "PAIR_SHARE",
    "ROUND_KEY",
    "Shares",
    "box_header",
    "commitment",
    "is_commitment",
    "list_hash",
    "own_mask",
    "pack_places",
    "pair_mask",
    "round_name",
    "unpack_places",
]

ROUND_KEY, MAC, _TAG = 32, 16, 16
PAIR_SHARE = 2 * LIMBS
"""Numbers in a box: a share of the self seed, then one of the wrap key."""
BOX = 8 * PAIR_SHARE + _TAG
NONCE = bytes(12)
"""Every key encrypts one message."""
CONFIRMED: np.dtype[Any] = np.dtype([("sender", "<u4"), ("mac", f"V{MAC}")])
_HEAD = Struct("<I32s32s32s")
_ROUTE = Struct("<II")
_COUNT = Struct("<I")


@dataclass(frozen=True, eq=False)
class Shares:
    """A site's first message of a sum."""

    threshold: int
    """How many shares open, as the site computed it from the approved plan."""
    session: bytes
    """The session digest."""
    seed_commitment: bytes
    wrap_commitment: bytes
    deposit: bytes
    """Its round keys with all members, encrypted under the wrap key."""
    boxes: NDArray[np.uint8]
    """One sealed box per member, in order; the row of the site itself is zero."""

    def pack(self) -> bytes:
        """The message."""
        head = _HEAD.pack(self.threshold, self.session, self.seed_commitment, self.wrap_commitment)
        return head + self.deposit + self.boxes.tobytes()

    @classmethod
    def unpack(cls, message: bytes, members: int) -> Shares:
        """Read the message of a sum over so many members.

        Raises:
            IntegrityError: It has another size.
        """
        begin, size = _HEAD.size + ROUND_KEY * members + _TAG, BOX * members
        if len(message) != begin + size:
            raise IntegrityError("the shares of a secure sum have another size")
        boxes = np.frombuffer(message, dtype=np.uint8, offset=begin).reshape(members, BOX)
        threshold, session, seed, wrap = _HEAD.unpack_from(message)
        return cls(
            threshold=threshold,
            session=session,
            seed_commitment=seed,
            wrap_commitment=wrap,
            deposit=message[_HEAD.size : begin],
            boxes=boxes,
        )


def pack_places(places: NDArray[np.uint32], rest: bytes = b"") -> bytes:
    """A list of members by their places, and what follows it."""
    return _COUNT.pack(len(places)) + places.astype("<u4", copy=False).tobytes() + rest


def unpack_places(message: bytes, members: int) -> tuple[NDArray[np.uint32], bytes]:
    """The places of a list, growing and each below `members`, and what follows it.

    Raises:
        IntegrityError: They are not.
    """
    if len(message) >= _COUNT.size:
        (count,) = _COUNT.unpack_from(message)
        end = _COUNT.size + 4 * count
        if 0 < count <= members and len(message) >= end:
            places = np.frombuffer(message, dtype="<u4", offset=_COUNT.size, count=count)
            if (places[1:] > places[:-1]).all() and places[-1] < members:
                return places, message[end:]
    raise IntegrityError("a list of sites in a secure sum cannot be right")


def round_name(context: SumContext) -> bytes:
    """What names the round keys of a sum: the task and the round. Two sums of one round have different keys."""
    return hash_parts(context.request.encode(), context.round.to_bytes(8, "little", signed=True))


def box_header(session: bytes, transcript: bytes, sender: int, recipient: int) -> bytes:
    """What a box or a confirmation is bound to besides its content."""
    return session + transcript + _ROUTE.pack(sender, recipient)


def commitment(what: bytes, transcript: bytes, secret: bytes) -> bytes:
    """What a site says beforehand of a secret that may be recovered."""
    return hash_parts(b"commitment", what, transcript, secret)


def list_hash(session: bytes, transcript: bytes, masking: NDArray[np.uint32]) -> bytes:
    """What masks are bound to: the session, the transcript and the list of sites that mask with each other."""
    return hash_parts(b"masking list", session, transcript, masking.tobytes())


def own_mask(seed: bytes, listed: bytes) -> bytes:
    """The key of a site's own mask."""
    return derive(seed, b"own mask", listed)


def pair_mask(round_key: bytes, listed: bytes) -> bytes:
    """The key of the mask of a pair."""
    return derive(round_key, b"pair mask", listed)


def is_commitment(made: bytes, what: bytes, transcript: bytes, secret: bytes) -> bool:
    """Whether a recovered secret is the one that was committed to."""
    return hmac.compare_digest(made, commitment(what, transcript, secret))
