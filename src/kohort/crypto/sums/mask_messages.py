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
    "SharesMessage",
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
class SharesMessage:
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
    def unpack(cls, message: bytes, members: int) -> SharesMessage:
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
    """A list of members by their places, and what follows it.

    Args:
        places: Place of each listed member in the session, rising.
        rest: Bytes that follow the list.

    Returns:
        The number of places, the places with 4 bytes each, and the rest.
    """
    return _COUNT.pack(len(places)) + places.astype("<u4", copy=False).tobytes() + rest


def unpack_places(message: bytes, members: int) -> tuple[NDArray[np.uint32], bytes]:
    """Read a list of members, and what follows it.

    Args:
        message: A message that `pack_places` made.
        members: Number of members of the session.

    Returns:
        The places, rising and each below `members`, and the bytes that follow.

    Raises:
        IntegrityError: The list is empty or cut short, or a place is out of order or out of range.
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
    """The name that the round keys of a sum are derived for: task and round. Two sums of one round have different keys.

    Args:
        context: The context of the sum.

    Returns:
        32 bytes.
    """
    return hash_parts(context.request.encode(), context.round.to_bytes(8, "little", signed=True))


def box_header(session: bytes, transcript: bytes, sender: int, recipient: int) -> bytes:
    """The data that a sealed box or a confirmation is authenticated with, besides its content.

    Args:
        session: Digest of the session.
        transcript: Digest of the sum and its public inputs.
        sender: Place of the sender in the session.
        recipient: Place of the recipient.

    Returns:
        The header.
    """
    return session + transcript + _ROUTE.pack(sender, recipient)


def commitment(what: bytes, transcript: bytes, secret: bytes) -> bytes:
    """A commitment to a secret that may be recovered from shares later.

    Args:
        what: Which of the site's secrets it is.
        transcript: Digest of the sum and its public inputs.
        secret: The secret.

    Returns:
        32 bytes, for `is_commitment`.
    """
    return hash_parts(b"commitment", what, transcript, secret)


def list_hash(session: bytes, transcript: bytes, masking: NDArray[np.uint32]) -> bytes:
    """The digest that masks are bound to: session, transcript and the list of sites that mask with each other.

    Args:
        session: Digest of the session.
        transcript: Digest of the sum and its public inputs.
        masking: Places of these sites in the session, rising.

    Returns:
        32 bytes.
    """
    return hash_parts(b"masking list", session, transcript, masking.tobytes())


def own_mask(seed: bytes, listed: bytes) -> bytes:
    """The key of a site's self mask.

    Args:
        seed: The site's self seed of this sum.
        listed: The digest from `list_hash`.

    Returns:
        32 bytes.
    """
    return derive(seed, b"own mask", listed)


def pair_mask(round_key: bytes, listed: bytes) -> bytes:
    """The key of the mask that two sites share.

    Args:
        round_key: The pair's round key.
        listed: The digest from `list_hash`.

    Returns:
        32 bytes.
    """
    return derive(round_key, b"pair mask", listed)


def is_commitment(made: bytes, what: bytes, transcript: bytes, secret: bytes) -> bool:
    """Whether a recovered secret is the one that a site committed to.

    Args:
        made: The commitment.
        what: Which of the site's secrets it is.
        transcript: Digest of the sum and its public inputs.
        secret: The recovered secret.

    Returns:
        True if it is; compared in constant time.
    """
    return hmac.compare_digest(made, commitment(what, transcript, secret))
