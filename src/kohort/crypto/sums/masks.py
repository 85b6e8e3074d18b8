"""`masks`: a sum by double masking (Bonawitz et al., CCS 2017), of which only the total over the survivors opens.

Each site hides its vector under a mask of its own and one mask with every other site; the masks of pairs cancel in the
sum. For each sum a site makes a fresh self seed and a fresh wrap key, shares both among all members, and deposits the
keys of its pair masks at the hub, encrypted under the wrap key. If its vector arrives, the members open its self seed;
if it does not, they open its wrap key; never both. Nothing that is shared outlives one sum.

The members exchange keys once per run (`mask_keys`). Then each sum has four steps of its own:

0. shares: sealed shares of both secrets for every member, the deposit, and commitments to both secrets;
1. vector: the hub names the sites whose shares and deposits arrived, the masking list. A site masks with every one of
   them, or refuses. The list is part of the masks' keys;
2. confirmations: the hub names the survivors, once. A site confirms them to each other survivor;
3. opening: a site that holds confirmations of the same two lists by `threshold` survivors, its own included, hands out
   one share for each site on the masking list.

Shares do not ride along with the message before: that costs one message more per sum, and keeps each sum by itself.

Guarantee: a lying hub with at most `colluders` sites learns the total over at least max(threshold, colluders + 2, the
plan's quorum, the site's own minimum) survivors, once, computed by sites that saw the same public inputs; it learns
nothing else. A lying site can change the total: honesty is not proven.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from kohort.crypto.sums.mask_hub import MaskingHub
from kohort.crypto.sums.mask_keys import MOST_SITES, MaskKeys, derive, hash_parts, least_sites, share_claim
from kohort.crypto.sums.mask_messages import (
    BOX,
    CONFIRMED,
    MAC,
    NONCE,
    PAIR_SHARE,
    ROUND_KEY,
    SharesMessage,
    box_header,
    commitment,
    list_hash,
    own_mask,
    pair_mask,
    round_name,
    unpack_places,
)
from kohort.crypto.sums.mask_streams import draw_residues, masked
from kohort.crypto.sums.scheme import (
    CONFIRMATIONS,
    NO_NOTE,
    HubSide,
    Integers,
    Members,
    Places,
    SessionKeys,
    SiteSide,
    SumContext,
    SumScheme,
    Trust,
)
from kohort.crypto.sums.shamir import LIMBS, split, split_secret
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.guarantee import Guarantee, Public
from kohort.rng import Streams

__all__ = ["SCHEME", "Masks"]


class _MaskingSite:
    """One site's part. Its secrets stay here; it masks once, confirms once and opens once."""

    def __init__(self, context: SumContext, streams: Streams, trust: Trust, keys: MaskKeys) -> None:
        if not keys.digest or keys.members != context.sites:
            raise RefusedError("a secure sum is over other sites than those its keys were agreed with")
        self.context = context
        self.keys = keys
        self.index = keys.index
        self.threshold = keys.threshold
        self.least = max(self.threshold, least_sites(trust))
        self.transcript = context.transcript
        self.streams = streams
        self.round_keys: dict[int, bytes] = {}
        """The key of the masks with each other member in this sum."""
        self.own_shares: Integers | None = None
        """The shares of its own secrets that the site keeps."""
        self.masking: Places | None = None
        """Who masks with whom; set when the vector leaves."""
        self.shares: Integers = np.zeros((0, PAIR_SHARE), dtype=np.uint64)
        """One row per site on the masking list: its shares that were sealed to this site."""
        self.survivors: Places | None = None
        """The list that this site confirmed."""
        self.opened = False

    def claim(self, step: int, rows: int) -> Guarantee:
        """Confirmations are public; everything else is protected by the sum."""
        del rows
        if step == 2:
            return Public(what=CONFIRMATIONS)
        return self.keys.claim

    def reply(self, step: int, inbox: bytes, vector: Integers | None) -> bytes:
        """The site's message at `step`."""
        match step:
            case 0:
                return self._share()
            case 1:
                return self._mask(inbox, vector)
            case 2:
                return self._confirm(inbox)
            case 3:
                return self._open(inbox)
            case _:
                raise IntegrityError("a secure sum by masks has four steps")

    def _secret(self, what: str) -> bytes:
        """A secret of this sum alone; after a restart the same one."""
        return self.streams.bytes("masks", self.keys.digest.hex(), self.transcript.hex(), what)

    def _share(self) -> bytes:
        """Share both secrets of this sum among all members, and deposit the round keys."""
        if self.own_shares is not None:
            raise IntegrityError("the shares of a secure sum were asked for a second time")
        seed, wrap, count = self._secret("self seed"), self._secret("wrap key"), len(self.keys.members)
        drawn = draw_residues(self._secret("coefficients"), (self.threshold - 1) * PAIR_SHARE)
        limbs = np.concatenate([split_secret(seed), split_secret(wrap)])
        shares = split(limbs, count, self.threshold, drawn.reshape(self.threshold - 1, PAIR_SHARE))
        name = round_name(self.context)
        self.own_shares = shares[self.index]
        self.round_keys = {other: derive(pair.secret, b"round key", name) for other, pair in self.keys.pairs.items()}
        deposit = b"".join(self.round_keys.get(place, bytes(ROUND_KEY)) for place in range(count))
        header = box_header(self.keys.digest, self.transcript, self.index, self.index)
        rows = shares.astype("<u8", copy=False)
        boxes = b"".join(
            bytes(BOX) if place == self.index else self._seal(place, rows[place].tobytes()) for place in range(count)
        )
        return SharesMessage(
            threshold=self.threshold,
            session=self.keys.digest,
            seed_commitment=commitment(b"self seed", self.transcript, seed),
            wrap_commitment=commitment(b"wrap key", self.transcript, wrap),
            deposit=AESGCM(wrap).encrypt(NONCE, deposit, header),
            boxes=np.frombuffer(boxes, dtype=np.uint8).reshape(count, BOX),
        ).pack()

    def _seal(self, recipient: int, content: bytes) -> bytes:
        cipher = AESGCM(derive(self.keys.pairs[recipient].seal_to, b"box", self.transcript))
        return cipher.encrypt(NONCE, content, box_header(self.keys.digest, self.transcript, self.index, recipient))

    def _unseal(self, sender: int, box: bytes) -> bytes:
        cipher = AESGCM(derive(self.keys.pairs[sender].seal_from, b"box", self.transcript))
        header = box_header(self.keys.digest, self.transcript, sender, self.index)
        try:
            return cipher.decrypt(NONCE, box, header)
        except InvalidTag as error:
            raise IntegrityError(
                f"the share of site {self.keys.members[sender]!r} was altered, is of another sum, or comes from a site "
                "that was told other public inputs"
            ) from error

    def _mask(self, inbox: bytes, vector: Integers | None) -> bytes:
        """Read the shares of all sites on the masking list, and send the vector under the masks with all of them."""
        if vector is None or len(vector) != self.context.length:
            raise IntegrityError("a site takes part in a secure sum with a vector of the agreed length")
        if self.own_shares is None or self.masking is not None:
            raise IntegrityError("a vector is masked once, after its shares were made")
        masking, boxes = unpack_places(inbox, len(self.keys.members))
        self._check_list(masking)
        self.shares = self._read_shares(masking, boxes, self.own_shares)
        self.masking = masking
        listed = list_hash(self.keys.digest, self.transcript, masking)
        pairs = {int(place): self._pair_mask(int(place), listed) for place in masking if place != self.index}
        hidden = masked(
            vector,
            plus=[own_mask(self._secret("self seed"), listed), *(key for at, key in pairs.items() if at > self.index)],
            minus=[key for place, key in pairs.items() if place < self.index],
            modulus=self.context.modulus,
        )
        return hidden.astype("<u8", copy=False).tobytes()

    def _pair_mask(self, other: int, listed: bytes) -> bytes:
        return pair_mask(self.round_keys[other], listed)

    def _check_list(self, places: Places) -> None:
        """A masking list, or one of survivors, must hold this site and enough others."""
        if self.index not in places:
            raise IntegrityError("a list of sites in a secure sum cannot be right: this site is not on it")
        if len(places) < self.least:
            raise RefusedError(f"{len(places)} sites are left in a secure sum, {self.least} are needed to open it")

    def _among(self, places: Places) -> NDArray[np.bool_]:
        """Which members a list names."""
        named = np.zeros(len(self.keys.members), dtype=np.bool_)
        named[places] = True
        return named

    def _read_shares(self, masking: Places, boxes: bytes, own: Integers) -> Integers:
        """One row per site on the list; a box that is missing or wrong ends this site's part."""
        if len(boxes) != BOX * (len(masking) - 1):
            raise RefusedError("a site on the list of a secure sum has no share for this site")
        at = 0
        rows = []
        for place in masking.tolist():
            if place == self.index:
                rows.append(own.astype("<u8", copy=False).tobytes())
            else:
                rows.append(self._unseal(place, boxes[at : at + BOX]))
                at += BOX
        return np.frombuffer(b"".join(rows), dtype="<u8").reshape(len(masking), PAIR_SHARE)

    def _confirm(self, inbox: bytes) -> bytes:
        """Confirm one survivor list to each other site on it."""
        if self.masking is None:
            raise IntegrityError("survivors of a secure sum came in before a vector left")
        if self.survivors is not None:
            raise IntegrityError("a second survivor list came in for the same sum")
        survivors, rest = unpack_places(inbox, len(self.keys.members))
        if rest or not self._among(self.masking)[survivors].all():
            raise IntegrityError("the survivor list of a secure sum cannot be right: it names a site that did not mask")
        self._check_list(survivors)
        self.survivors = survivors
        others = [place for place in survivors.tolist() if place != self.index]
        text = self._confirmed_text(self.masking, survivors)
        return b"".join(
            _mac(self.keys.pairs[other].confirm_to, self._route(self.index, other) + text) for other in others
        )

    def _confirmed_text(self, masking: Places, survivors: Places) -> bytes:
        return hash_parts(b"survivors", masking.tobytes(), survivors.tobytes())

    def _route(self, sender: int, recipient: int) -> bytes:
        return box_header(self.keys.digest, self.transcript, sender, recipient)

    def _open(self, inbox: bytes) -> bytes:
        """Hand out one share for each site on the masking list, if enough survivors confirmed the same lists."""
        if self.masking is None or self.survivors is None or self.opened:
            raise IntegrityError("a secure sum opens once, after its survivors were confirmed")
        confirmed = 1 + self._count_confirmations(inbox, self.masking, self.survivors)
        if confirmed < self.threshold:
            raise IntegrityError(
                f"{confirmed} sites confirmed the survivors of a secure sum, {self.threshold} must: "
                "wait for the missing ones"
            )
        self.opened = True
        survived = self._among(self.survivors)[self.masking]
        shares = np.where(survived[:, None], self.shares[:, :LIMBS], self.shares[:, LIMBS:])
        self.shares, self.round_keys = self.shares[:0], {}
        return shares.astype("<u8", copy=False).tobytes()

    def _count_confirmations(self, inbox: bytes, masking: Places, survivors: Places) -> int:
        """How many other survivors confirmed the lists that this site masked with and confirmed."""
        if len(inbox) % CONFIRMED.itemsize:
            raise IntegrityError("the confirmations of a secure sum have another size")
        text = self._confirmed_text(masking, survivors)
        counted = self._may_confirm(survivors)
        found = 0
        for record in np.frombuffer(inbox, dtype=CONFIRMED):
            sender = int(record["sender"])
            if sender not in counted:
                continue
            wanted = _mac(self.keys.pairs[sender].confirm_from, self._route(sender, self.index) + text)
            if hmac.compare_digest(wanted, record["mac"].tobytes()):
                counted.remove(sender)
                found += 1
        return found

    def _may_confirm(self, survivors: Places) -> set[int]:
        """Whose confirmation counts: survivors, all of which this site masked with, each once."""
        return set(survivors.tolist()) - {self.index}


def _mac(key: bytes, text: bytes) -> bytes:
    return derive(key, b"confirmation", text, size=MAC)


class Masks(SumScheme):
    """Double masking."""

    name: ClassVar[str] = "masks"
    steps: ClassVar[int] = 4
    contributes_at: ClassVar[int] = 1
    among_peers: ClassVar[bool] = True
    sets_up: ClassVar[bool] = True
    most_sites: ClassVar[int | None] = MOST_SITES

    def session_keys(
        self, session: Members, name: str, streams: Streams, trust: Trust, note: bytes = NO_NOTE
    ) -> SessionKeys:
        """The keys of the site called `name`."""
        return MaskKeys(session, name, streams, trust, note)

    def site_side(
        self,
        context: SumContext,
        name: str,
        streams: Streams,
        trust: Trust | None = None,
        keys: SessionKeys | None = None,
    ) -> SiteSide:
        """The part of the site called `name`."""
        if trust is None or not isinstance(keys, MaskKeys) or keys.name != name:
            raise RefusedError(
                f"site {name!r} agreed on no keys, so it has nobody to mask with",
                hint="A sum by masks begins with the exchange of keys",
            )
        return _MaskingSite(context, streams, trust, keys)

    def hub_side(self, context: SumContext, groups: Sequence[tuple[str, ...]] = ()) -> HubSide:
        """The hub's part."""
        return MaskingHub(context, groups)

    def claim(self, sites: int, rows: int, *, colluders: int = 1) -> Guarantee:
        """A share of the sum."""
        del rows
        return share_claim(sites, colluders)


SCHEME = Masks()
