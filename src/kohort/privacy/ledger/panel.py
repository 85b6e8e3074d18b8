"""Sites that release together, round after round: their next ledger lines, one each.

What stays the same of the lines (names, claims, row counts, sizes) is made once. Few lines are put together and hashed
one by one with `hashlib`; many at once in the compiled batch. Guarantee: the same bytes either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter, is_
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kohort.privacy.guarantee import Guarantee
from kohort.privacy.ledger.hashing import KEY_BLOCK, batch_pays, joined_bytes, kernel, keyed_states, plain_states

if TYPE_CHECKING:
    from kohort.privacy.ledger.ledger import Chain

__all__ = ["Panel"]

_UNKEYED = hashlib.blake2b(digest_size=32)  # copying a fresh state costs a fifth of making one
_PREVIOUS, _RECEIPT, _CLAIM, _DIGEST, _HASH, _END = ',"prev":"', '","receipt":"', '",', '"', ',"hash":"', '"}\n'
_LONGEST_NUMBER = 20
_length, _head, _receipt = attrgetter("length"), attrgetter("head"), attrgetter("receipt")

Pieces = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Panel:
    """Chains whose next lines are releases under `guarantees`, of `rows` rows and `sizes` bytes each."""

    def __init__(
        self,
        chains: Sequence[Chain],
        guarantees: Sequence[Guarantee],
        rows: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        self.chains, self.guarantees, self.rows = tuple(chains), tuple(guarantees), tuple(rows)
        self.sizes = list(sizes)
        self._openings = [f'{{"site":{chain.name_text},"seq":' for chain in chains]
        self._claims = [
            f',"guarantee":{guarantee.text},"rows":{count},"size":{size},"digest":"'
            for guarantee, count, size in zip(guarantees, rows, sizes, strict=True)
        ]
        self._batch: _Batch | None = None
        # A line quotes the one before it, so a chain that stands here twice cannot be written side by side; and the
        # batch wants a key before every text, and a text behind every key.
        is_whole = min(sizes, default=0) > 0 and all(chain.secret for chain in chains)
        self._can_batch = is_whole and len(set(map(id, chains))) == len(chains)

    def fits(
        self, chains: Sequence[Chain], guarantees: Sequence[Guarantee], rows: Sequence[int], sizes: list[int]
    ) -> bool:
        """Whether these are the very same sites and claims: equal ones may be written otherwise, as 1 and 1.0 are."""
        return (
            _are_same(chains, self.chains)
            and _are_same(guarantees, self.guarantees)
            and (rows is self.rows or tuple(rows) == self.rows)
            and sizes == self.sizes
        )

    def write(
        self, common: str, parcels: Sequence[bytes | memoryview], *, is_next: bool = False
    ) -> tuple[bytes | memoryview, bytes]:
        """The next line of every chain, and the hashes they end with; the chains then end with them.

        `is_next` says that no chain was written to since this panel wrote last.
        """
        if self._can_batch and batch_pays(len(self.chains)):
            if self._batch is None:
                self._batch = _Batch(self.chains, self._openings, self._claims, self.sizes)
                is_next = False
            return self._batch.write(common, parcels, is_next=is_next)
        lines, hashes = [], []
        middle = _CLAIM + common
        for chain, opening, claim, parcel in zip(self.chains, self._openings, self._claims, parcels, strict=True):
            state = chain.key.copy()  # `chain.digest` without the call
            state.update(parcel)
            body = (
                f"{opening}{chain.length}{_PREVIOUS}{chain.head}{_RECEIPT}{chain.receipt}{middle}"
                f"{claim}{state.hexdigest()}{_DIGEST}"
            )
            state = _UNKEYED.copy()
            state.update(body.encode())
            chain.head = head = state.hexdigest()
            chain.length += 1
            hashes.append(head)
            lines.append(f"{body}{_HASH}{head}{_END}")
        return "".join(lines).encode(), "".join(hashes).encode()


class _Batch:
    """The same, side by side: what the compiled functions take, and the places they write to."""

    def __init__(
        self, chains: Sequence[Chain], openings: Sequence[str], claims: Sequence[str], sizes: Sequence[int]
    ) -> None:
        count = len(chains)
        self._chains = chains
        self._openings, self._claims = _pieces(openings), _pieces(claims)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._keyed = keyed_states([chain.secret for chain in chains])
        self._plain = plain_states(count)
        self._places = np.empty((4, count), dtype=np.int64)
        self._links = tuple(map(_bytes_of, (_PREVIOUS, _RECEIPT, "", _DIGEST, _HASH, _END)))
        self._numbers = np.empty(count, dtype=np.int64)
        self._previous = np.empty(64 * count, dtype=np.uint8)
        self._lines = np.empty(0, dtype=np.uint8)

    def write(self, common: str, parcels: Sequence[bytes | memoryview], *, is_next: bool) -> tuple[memoryview, bytes]:
        if is_next:
            self._numbers += 1
        else:
            self._numbers[:] = list(map(_length, self._chains))
            self._previous[:] = _bytes_of("".join(map(_head, self._chains)))
        chains, count = self._chains, len(self._chains)
        receipts = _pieces_of_receipts(list(map(_receipt, chains)))
        previous, receipt, _, *rest = self._links
        links = (previous, receipt, _bytes_of(_CLAIM + common), *rest)
        a_line = _LONGEST_NUMBER + 3 * 64 + sum(map(len, links))
        most = count * a_line + len(self._openings[0]) + len(receipts[0]) + len(self._claims[0])
        if len(self._lines) < most:
            self._lines = np.empty(most, dtype=np.uint8)
        parts = (self._openings, self._numbers, self._previous, receipts, self._claims, links)
        texts = (joined_bytes(parcels), self._starts, self._sizes)
        used = kernel().write_lines(self._lines, parts, self._places, *texts, self._keyed, self._plain, KEY_BLOCK)
        hashes = self._previous.tobytes()
        text = hashes.decode()
        heads = [text[start : start + 64] for start in range(0, 64 * count, 64)]
        for chain, head in zip(chains, heads, strict=True):
            chain.head = head
            chain.length += 1
        return memoryview(self._lines.data)[:used], hashes


def _are_same(given: Sequence[object], known: tuple[object, ...]) -> bool:
    """Whether the members are the same objects; a tuple that comes again has the same members still."""
    return given is known or (len(given) == len(known) and all(map(is_, given, known)))


def _bytes_of(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _pieces(texts: Sequence[str]) -> Pieces:
    """All texts, one behind the other, and where each of them ends."""
    encoded = [text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded)), dtype=np.int64, count=len(encoded))
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def _pieces_of_receipts(texts: Sequence[str]) -> Pieces:
    """As `_pieces`, and quicker when all have the same receipt, as sites that took part together have."""
    if texts.count(texts[0]) < len(texts):
        return _pieces(texts)
    encoded = texts[0].encode()
    return np.frombuffer(encoded * len(texts), dtype=np.uint8), np.arange(1, len(texts) + 1) * len(encoded)
