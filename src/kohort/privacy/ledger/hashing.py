"""Many keyed BLAKE2b digests in one call, for a thousand sites that answer at once.

Guarantee: the very digests of `hashlib`, which stays the reference and does all the work of a single site. The batch is
compiled; it is used only where it pays: for many texts, in a run that has loaded the compiler anyway to train.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["KEY_BLOCK", "ByteRows", "batch_pays", "joined_bytes", "kernel", "keyed_states", "plain_states", "sizes_of"]

KEY_BLOCK = 128
"""Bytes a key counts for: it is hashed before the text, filled up to a block."""
LEAST_TEXTS = 32
"""Fewer are hashed as fast one by one."""
_PARAMETERS = 0x01010020  # one leaf, one level, 32 bytes of digest; the key's length stands in the second byte


class ByteRows(Sequence[memoryview]):
    """Texts of `size` bytes each that lie one behind the other, without copying any."""

    def __init__(self, flat: NDArray[np.uint8], size: int) -> None:
        self.flat = flat
        self.size = size

    def __len__(self) -> int:
        return len(self.flat) // self.size

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> ByteRows: ...
    def __getitem__(self, index: int | slice) -> memoryview | ByteRows:
        if isinstance(index, slice):
            return ByteRows(self.flat.reshape(-1, self.size)[index].reshape(-1), self.size)
        start = range(len(self))[index] * self.size
        return memoryview(self.flat.data)[start : start + self.size]

    def __iter__(self) -> Iterator[memoryview]:
        flat, size = memoryview(self.flat.data), self.size
        return iter([flat[start : start + size] for start in range(0, len(flat), size)])


def batch_pays(texts: int) -> bool:
    """Whether hashing `texts` texts at once is faster; loading the compiler for it alone never is."""
    return texts >= LEAST_TEXTS and "numba" in sys.modules and sys.byteorder == "little"


def kernel() -> Any:
    """The compiled functions."""
    from kohort.privacy.ledger import hashing_kernel

    return hashing_kernel


def sizes_of(texts: Sequence[bytes | memoryview]) -> list[int]:
    """How many bytes each text has."""
    if isinstance(texts, ByteRows):
        return [texts.size] * len(texts)
    return list(map(len, texts))


def joined_bytes(texts: Sequence[bytes | memoryview]) -> NDArray[np.uint8]:
    """All texts, one behind the other; rows of one matrix lie so already. Writable, or it would be compiled anew."""
    if isinstance(texts, ByteRows) and texts.flat.flags.writeable:
        return texts.flat
    return np.frombuffer(bytearray().join(texts), dtype=np.uint8)


def plain_states(count: int) -> NDArray[np.uint64]:
    """The states of `count` hashes of 32 bytes without a key, before any text."""
    states = np.tile(kernel().IV, (count, 1))
    states[:, 0] ^= np.uint64(_PARAMETERS)
    return states


def keyed_states(secrets: Sequence[bytes]) -> NDArray[np.uint64]:
    """The states of hashes with these keys (1 to 64 bytes each), which have taken their `KEY_BLOCK`."""
    states = plain_states(len(secrets))
    states[:, 0] ^= np.array([len(secret) << 8 for secret in secrets], dtype=np.uint64)
    blocks = joined_bytes([secret.ljust(KEY_BLOCK, b"\0") for secret in secrets])
    starts = np.arange(len(secrets)) * KEY_BLOCK
    kernel().absorb(blocks, starts, np.full(len(secrets), KEY_BLOCK), states, 0, False)
    return states
