"""Residues below a modulus, and products of vectors of them, against whole numbers of any size."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kohort.crypto.suites import expand
from kohort.crypto.sums.residues import LARGEST_MODULUS, Weights, centred, uniform

KEY = bytes(range(32))
SLOTS = 4096
PRIME = 1_099_511_627_689
"""The largest prime below 2^40."""


def by_hand(key: bytes, count: int, modulus: int) -> list[int]:
    """The words of the stream, cut to the bits of the modulus; those that are not below it are left out."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 40 * count))
    octets = [stream[at : at + 8] for at in range(0, len(stream), 8)]
    words = [int.from_bytes(word, "little") % 2 ** modulus.bit_length() for word in octets]
    return [word for word in words if word < modulus]


@pytest.mark.parametrize("modulus", [2, 3, 64, 97, 2**20 + 7, PRIME])
def test_residues_are_the_first_words_of_the_stream_below_the_modulus(modulus: int) -> None:
    assert uniform(KEY, 50, modulus).tolist() == by_hand(KEY, 50, modulus)[:50]


def test_no_residues_are_none() -> None:
    assert uniform(KEY, 0, 97).tolist() == []


@pytest.mark.parametrize("modulus", [7, 8, 97])
def test_centred_residues_lie_on_both_sides_of_nothing(modulus: int) -> None:
    numbers = np.arange(-3 * modulus, 3 * modulus)
    found = centred(numbers, modulus)
    assert ((found - numbers) % modulus == 0).all()
    assert found.max() == modulus // 2
    assert found.min() == modulus // 2 - modulus + 1


def test_products_are_exact_for_the_most_slots_and_the_largest_residues() -> None:
    """Every residue at its largest: a product that lost a digit anywhere would differ."""
    seed, shape, moduli = b"s" * 32, (2, SLOTS), (PRIME, PRIME, 97)
    weights = Weights(seed, shape, moduli)
    for slots in (np.full(shape, PRIME - 1), np.arange(2 * SLOTS).reshape(shape) * 7919 - 10**9):
        wanted = []
        for place, modulus in enumerate(moduli):
            drawn = uniform(expand(seed, b"sum weights" + bytes([place]), 32), 2 * SLOTS, modulus)
            pairs = zip(slots.reshape(-1).tolist(), drawn.tolist(), strict=True)
            wanted.append(sum(slot * weight for slot, weight in pairs) % modulus)
        assert weights.products(slots) == wanted
    assert weights.products(slots)[0] != weights.products(slots)[1]  # equal primes have different weights


def test_sizes_whose_products_are_not_exact_are_refused() -> None:
    assert LARGEST_MODULUS == 2**40
    Weights(KEY, (1, SLOTS), (LARGEST_MODULUS,))
    for shape, modulus in (((1, SLOTS + 1), PRIME), ((1, 8), LARGEST_MODULUS + 1), ((1, SLOTS + 1), 2**41)):
        with pytest.raises(ValueError, match="are not exact"):
            Weights(KEY, shape, (97, modulus))
