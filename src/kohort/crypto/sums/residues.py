"""Residues modulo primes below 2^40: uniform ones from a key, and products of vectors of them.

Guarantee: `uniform` is AES-256 in counter mode under a key that is used for nothing else, by rejection, so residues
have no bias at all. `Weights.products` is exact: residues are cut into halves of 20 bits, and no sum of products of
halves within a ciphertext reaches 2^53, up to which float64 holds every integer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from kohort.crypto.suites import expand

__all__ = ["LARGEST_MODULUS", "Weights", "centred", "uniform"]

LARGEST_MODULUS = 1 << 40
_HALF = 20
_MOST_SLOTS = 1 << 12
"""Slots of a ciphertext: so many products of two halves stay below 2^53."""
_COUNTER = modes.CTR(bytes(16))


def uniform(key: bytes, count: int, modulus: int) -> NDArray[np.int64]:
    """Pseudo-random residues, each exactly uniform.

    Args:
        key: 32 bytes that are used for nothing else.
        count: How many.
        modulus: What they are below; words of the stream that are not, cut to its bits, are left out.

    Returns:
        The residues; the same for the same key.
    """
    stream = Cipher(algorithms.AES256(key), _COUNTER).encryptor()
    mask = np.int64((1 << modulus.bit_length()) - 1)
    found: list[NDArray[np.int64]] = []
    missing = count
    while missing:
        words = np.frombuffer(stream.update(bytes(8 * missing)), dtype="<i8") & mask
        good = words < modulus
        found.append(words if good.all() else words[good])
        missing -= len(found[-1])
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *found])


def centred(numbers: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """The residues nearest to 0: between -(modulus - 1) / 2 and (modulus - 1) / 2.

    Args:
        numbers: Any whole numbers.
        modulus: An odd modulus.

    Returns:
        One residue per number.
    """
    residues = numbers % modulus
    return np.where(residues > modulus // 2, residues - modulus, residues)


class Weights:
    """Secret random weights of all slots, once for each of several primes; products with them are the check of a sum.

    Args:
        seed: The secret they come from.
        shape: Ciphertexts, and slots of each.
        moduli: The primes; equal ones have different weights.
    """

    def __init__(self, seed: bytes, shape: tuple[int, int], moduli: Sequence[int]) -> None:
        if shape[1] > _MOST_SLOTS or max(moduli) > LARGEST_MODULUS:
            raise ValueError("products of so many or so large residues are not exact")
        self._moduli = tuple(moduli)
        self._halves = [
            _halves(uniform(expand(seed, b"sum weights" + bytes([place]), 32), shape[0] * shape[1], modulus), shape)
            for place, modulus in enumerate(self._moduli)
        ]

    def products(self, slots: NDArray[np.int64]) -> list[int]:
        """The inner products of a vector with the weights of each prime.

        Args:
            slots: The vector, one row a ciphertext.

        Returns:
            One residue for each prime.
        """
        vectors = {modulus: _halves(slots % modulus, slots.shape) for modulus in dict.fromkeys(self._moduli)}
        found = []
        for modulus, weights in zip(self._moduli, self._halves, strict=True):
            parts = np.matmul(vectors[modulus], weights.transpose(0, 2, 1)).astype(np.int64).astype(object).sum(axis=0)
            joined = (parts[1, 1] << 2 * _HALF) + ((parts[0, 1] + parts[1, 0]) << _HALF) + parts[0, 0]
            found.append(int(joined) % modulus)
        return found


def _halves(residues: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Low and high halves of residues, as [ciphertext, half, slot]."""
    rows = residues.reshape(shape)
    return np.stack([rows & np.int64((1 << _HALF) - 1), rows >> np.int64(_HALF)], axis=1).astype(np.float64)
