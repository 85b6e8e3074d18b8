"""Masks as long as a vector, from short keys: made block by block, so that they never leave the processor's cache.

Guarantee: a mask is AES-256 in counter mode under a key that is used for nothing else; without the key it cannot be
told from random residues.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from kohort.crypto.sums.modular import RunningSum, residues, subtract
from kohort.crypto.sums.scheme import Integers

__all__ = ["draw_residues", "masked"]

_COUNTER = modes.CTR(bytes(16))
_BLOCK = 8192
"""Numbers masked at a time: few enough that zeros, stream and sums stay in the processor's cache."""
_ZEROS = bytes(8 * _BLOCK)


def masked(vector: Integers, plus: Iterable[bytes], minus: Iterable[bytes], modulus: int) -> Integers:
    """`vector` with the masks of the keys in `plus` added and those in `minus` taken off.

    A mask is AES-256 in counter mode under its key, which is used for nothing else, read as pseudo-random residues.

    Args:
        vector: Residues modulo `modulus`.
        plus: Keys of the masks to add, 32 bytes each.
        minus: Keys of the masks to take off.
        modulus: 2^61 - 1, or 0 for 2^64.

    Returns:
        The residues after masking, in a new array.
    """
    adding, taking = ([_keystream(key) for key in keys] for keys in (plus, minus))
    out = np.empty(len(vector), dtype=np.uint64)
    room = bytearray(8 * min(_BLOCK, len(vector)) + 16)  # the cipher wants up to a block more than it writes
    written = np.frombuffer(room, dtype="<u8")
    for start in range(0, len(vector), _BLOCK):
        plain = vector[start : start + _BLOCK]
        words = written[: len(plain)]
        zeros = _ZEROS[: 8 * len(plain)]
        added, taken = RunningSum(plain, modulus), RunningSum(np.zeros_like(plain), modulus)
        for total, streams in ((added, adding), (taken, taking)):
            for stream in streams:
                stream.update_into(zeros, room)
                total.add(words)
        out[start : start + _BLOCK] = subtract(added.value(), taken.value(), modulus)
    return out


def draw_residues(key: bytes, count: int) -> Integers:
    """Pseudo-random residues modulo 2^61 - 1.

    Args:
        key: 32 bytes that are used for nothing else.
        count: How many.

    Returns:
        The residues.
    """
    return residues(np.frombuffer(_keystream(key).update(bytes(8 * count)), dtype="<u8"))


def _keystream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES256(key), _COUNTER).encryptor()
