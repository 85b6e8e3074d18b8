"""The hub's part of a sum by masks: it passes boxes and confirmations on, adds vectors, and takes the masks out.

The hub holds no key. It knows the session only by what sites send: sealed boxes, deposits that it cannot read, masked
vectors, confirmations, and at the end one share per site on the masking list.

Guarantee: a total is returned only if every secret that was recovered for it is the one its site committed to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from kohort.crypto.sums.mask_messages import (
    CONFIRMED,
    MAC,
    NONCE,
    ROUND_KEY,
    SharesMessage,
    box_header,
    is_commitment,
    list_hash,
    own_mask,
    pack_places,
    pair_mask,
)
from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.modular import P61, RunningSum
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.crypto.sums.shamir import LIMBS, combine, join_secret
from kohort.errors import IntegrityError, SiteError

__all__ = ["MaskingHub"]


class MaskingHub:
    """Takes replies one at a time; see `HubSide`.

    Args:
        context: What binds the sum.
        groups: Sites that are in the total together or not at all: a group of which a member is missing is left out
            before any vector is sent.
    """

    def __init__(self, context: SumContext, groups: Sequence[tuple[str, ...]] = ()) -> None:
        self.context = context
        self.groups = [frozenset(context.index[name] for name in group) for group in groups]
        self.shares: dict[int, SharesMessage] = {}
        self.added = RunningSum(np.zeros(context.length, dtype=np.uint64), context.modulus)
        self.survivors: dict[int, None] = {}
        """In the order in which vectors came in."""
        self.confirmations: dict[int, NDArray[np.void]] = {}
        """By sender: one confirmation per survivor, in order; its own row is empty."""
        self.opened: dict[int, Integers] = {}
        """By sender: a row per site on the masking list."""
        self.result: Integers | None = None

    def take(self, step: int, site: str, reply: bytes) -> None:
        """Take one site's reply."""
        index = self.context.index[site]
        match step:
            case 0:
                self._take_shares(index, reply)
            case 1:
                self._take_vector(index, reply)
            case 2:
                self._take_confirmations(index, reply)
            case _:
                self._take_opened(index, reply)

    def inboxes(self, step: int) -> Mapping[str, bytes]:
        """What each site gets next; after the last step the masks come out."""
        match step:
            case 0:
                return self._by_name(self._boxes())
            case 1:
                self._require(len(self.survivors), "sent a vector")
                self._require_whole_groups()
                return self._by_name(dict.fromkeys(self.survivors, pack_places(_places(self.survivors))))
            case 2:
                self._require(len(self.confirmations), "confirmed the survivors")
                return self._by_name(self._confirmed())
            case _:
                self._require(len(self.opened), "sent shares to open the total")
                self._unmask()
                return {}

    def total(self) -> tuple[Integers, tuple[str, ...]]:
        """The opened sum and the survivors in it."""
        if self.result is None:
            raise SiteError("the secure sum was not opened")
        return self.result, tuple(self.context.sites[index] for index in sorted(self.survivors))

    @property
    def threshold(self) -> int:
        """How many sites must confirm and open, as all sites say alike."""
        return next(iter(self.shares.values())).threshold

    @property
    def session(self) -> bytes:
        """The session digest, as all sites say alike."""
        return next(iter(self.shares.values())).session

    def _require(self, count: int, what: str) -> None:
        """Nobody opens anew, so too few answers end the sum."""
        if not self.shares or count < self.threshold:
            needed = f", {self.threshold} must" if self.shares else ""
            raise SiteError(
                f"{count} of {len(self.context.sites)} sites {what} in a secure sum{needed}",
                hint="Begin a new run when the missing sites answer again",
            )

    def _require_whole_groups(self) -> None:
        """A site that is missing now, after the others sent vectors, would be shown by the next total without it."""
        missing = [index for index in self.shares if index not in self.survivors]
        if self.groups and missing:
            names = ", ".join(self.context.sites[index] for index in sorted(missing))
            raise SiteError(
                f"a secure sum without a budget cannot lose a site once vectors are sent: {names}",
                hint="Begin a new run when it answers again, or set a budget",
            )

    def _by_name(self, messages: Mapping[int, bytes]) -> dict[str, bytes]:
        return {self.context.sites[index]: messages[index] for index in sorted(messages)}

    def _take_shares(self, index: int, reply: bytes) -> None:
        shares = SharesMessage.unpack(reply, len(self.context.sites))
        if self.shares and (shares.threshold, shares.session) != (self.threshold, self.session):
            raise IntegrityError(f"site {self.context.sites[index]!r} shares its secrets in another session")
        self.shares[index] = shares

    def _boxes(self) -> dict[int, bytes]:
        """The masking list, and for each site on it the boxes of the others."""
        self._require(len(self.shares), "shared their secrets")
        if self.groups:
            whole = frozenset[int]().union(*(group for group in self.groups if group <= self.shares.keys()))
            self.shares = {index: shares for index, shares in self.shares.items() if index in whole}
            self._require(len(self.shares), "are in groups of which all shared their secrets")
        masking = _places(self.shares)
        boxes = np.stack([self.shares[int(sender)].boxes for sender in masking])
        return {
            int(recipient): pack_places(masking, np.delete(boxes[:, recipient], row, axis=0).tobytes())
            for row, recipient in enumerate(masking)
        }

    def _take_vector(self, index: int, reply: bytes) -> None:
        if index not in self.shares or index in self.survivors:
            raise IntegrityError(f"site {self.context.sites[index]!r} sent a vector that was not asked for")
        if len(reply) != 8 * self.context.length:
            raise IntegrityError(f"site {self.context.sites[index]!r} sent a vector of another length")
        vector = np.frombuffer(reply, dtype="<u8")
        if self.context.modulus and (vector >= P61).any():
            raise IntegrityError(f"site {self.context.sites[index]!r} sent numbers outside the agreed range")
        self.added.add(vector)
        self.survivors[index] = None

    def _take_confirmations(self, index: int, reply: bytes) -> None:
        others = len(self.survivors) - 1
        if index not in self.survivors or len(reply) != MAC * others:
            raise IntegrityError(f"site {self.context.sites[index]!r} confirmed other survivors")
        place = sorted(self.survivors).index(index)
        padded = reply[: MAC * place] + bytes(MAC) + reply[MAC * place :]
        self.confirmations[index] = np.frombuffer(padded, dtype=f"V{MAC}")

    def _confirmed(self) -> dict[int, bytes]:
        """For each site that confirmed, the confirmations of the others that are meant for it."""
        survivors, senders = sorted(self.survivors), sorted(self.confirmations)
        macs = np.stack([self.confirmations[sender] for sender in senders])
        messages = {}
        for place, recipient in enumerate(survivors):
            if recipient in self.confirmations:
                records = np.empty(len(senders), dtype=CONFIRMED)
                records["sender"], records["mac"] = senders, macs[:, place]
                messages[recipient] = records[records["sender"] != recipient].tobytes()
        return messages

    def _take_opened(self, index: int, reply: bytes) -> None:
        if index not in self.confirmations or len(reply) != 8 * LIMBS * len(self.shares):
            raise IntegrityError(f"site {self.context.sites[index]!r} sent shares of other sites")
        numbers = np.frombuffer(reply, dtype="<u8").reshape(len(self.shares), LIMBS)
        if (numbers >= P61).any():
            raise IntegrityError(f"site {self.context.sites[index]!r} sent shares outside the agreed range")
        self.opened[index] = numbers

    def _unmask(self) -> None:
        """Recover the self seeds of survivors and the wrap keys of those who dropped, and take their masks out."""
        senders = sorted(self.opened)[: self.threshold]
        masking = _places(self.shares)
        stacked = np.stack([self.opened[sender] for sender in senders])
        limbs = combine(senders, stacked.reshape(len(senders), -1)).reshape(len(masking), LIMBS)
        listed = list_hash(self.session, self.context.transcript, masking)
        plus: list[bytes] = []
        minus: list[bytes] = []
        for row, index in enumerate(masking.tolist()):
            secret = self._recovered(index, limbs[row])
            if index in self.survivors:
                minus.append(own_mask(secret, listed))
            else:
                for other, key in self._round_keys(index, secret).items():
                    (plus if other > index else minus).append(pair_mask(key, listed))
        self.result = masked(self.added.value(), plus=plus, minus=minus, modulus=self.context.modulus)

    def _recovered(self, index: int, limbs: Integers) -> bytes:
        """The secret of a site that was opened, if it is the one the site committed to."""
        shares, secret = self.shares[index], join_secret(limbs)
        what, made = (
            (b"self seed", shares.seed_commitment) if index in self.survivors else (b"wrap key", shares.wrap_commitment)
        )
        if secret is None or not is_commitment(made, what, self.context.transcript, secret):
            raise IntegrityError(
                f"the secret recovered for site {self.context.sites[index]!r} is not the one it committed to"
            )
        return secret

    def _round_keys(self, index: int, wrap: bytes) -> dict[int, bytes]:
        """The keys of the masks that a dropped site shares with each survivor, from its deposit."""
        header = box_header(self.session, self.context.transcript, index, index)
        try:
            keys = AESGCM(wrap).decrypt(NONCE, self.shares[index].deposit, header)
        except InvalidTag as error:
            raise IntegrityError(f"the deposit of site {self.context.sites[index]!r} was altered") from error
        return {other: keys[ROUND_KEY * other : ROUND_KEY * (other + 1)] for other in self.survivors}


def _places(members: Mapping[int, object]) -> NDArray[np.uint32]:
    return np.asarray(sorted(members), dtype="<u4")
