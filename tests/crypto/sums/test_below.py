"""Totals below a threshold: proven without being shown, and a total that is not below convinces nobody."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.crypto.sums.below import contribution, is_below, length_of, prove, totals_of
from kohort.crypto.sums.modular import P61

SECRET, TRANSCRIPT, SITES = bytes(range(32)), b"t" * 32, ("a", "b", "c")
PUBLIC = b"p"


def opened(counts: list[list[int]], least: int, *, salt: bytes = b"") -> np.ndarray:
    total = np.zeros(length_of(len(counts[0]), least), dtype=np.uint64)
    for site, own in zip(SITES, counts, strict=True):
        drawn = hashlib.blake2b(site.encode() + salt, digest_size=32).digest()
        total = (total + contribution(SECRET, TRANSCRIPT, site, own, least=least, randomness=drawn)) % np.uint64(P61)
    return total


def convinces(counts: list[list[int]], least: int) -> bool:
    number = len(counts[0])
    proof = prove(opened(counts, least), PUBLIC, counts=number, least=least)
    return is_below(SECRET, TRANSCRIPT, PUBLIC, SITES, proof, counts=number, least=least)


@given(
    st.integers(1, 7).flatmap(
        lambda number: st.lists(st.lists(st.integers(0, 5), min_size=number, max_size=number), min_size=3, max_size=3)
    ),
    st.integers(1, 12),
)
def test_a_proof_convinces_exactly_where_all_totals_are_below(counts: list[list[int]], least: int) -> None:
    totals = np.sum(counts, axis=0)
    assert sorted(totals_of(opened(counts, least), len(totals))) == sorted(totals.tolist())
    assert convinces(counts, least) == bool((totals < least).all())


def test_other_numbers_sites_and_sums_convince_nobody() -> None:
    counts, least = [[1, 0], [2, 3], [0, 0]], 5
    proof = prove(opened(counts, least), PUBLIC, counts=2, least=least)
    assert is_below(SECRET, TRANSCRIPT, PUBLIC, SITES, proof, counts=2, least=least)
    changed = proof.copy()
    changed[2] = (changed[2] + np.uint64(1)) % np.uint64(P61)
    assert not is_below(SECRET, TRANSCRIPT, PUBLIC, SITES, changed, counts=2, least=least)
    assert not is_below(SECRET, TRANSCRIPT, PUBLIC, SITES[:2], proof, counts=2, least=least)
    assert not is_below(SECRET, b"u" * 32, PUBLIC, SITES, proof, counts=2, least=least)
    assert not is_below(SECRET, TRANSCRIPT, b"q", SITES, proof, counts=2, least=least)
    assert not is_below(SECRET, TRANSCRIPT, PUBLIC, SITES, proof[:-1], counts=2, least=least)
    assert not is_below(SECRET, TRANSCRIPT, PUBLIC, SITES, proof.astype(np.int64), counts=2, least=least)


@pytest.mark.parametrize("low", [[[0], [0], [0]], [[1], [1], [1]]])
def test_a_proof_does_not_say_how_many_there_are(low: list[list[int]]) -> None:
    """With other masks the same total gives other numbers; every coefficient spreads over the whole range."""
    proofs = [prove(opened(low, 4, salt=bytes([salt])), PUBLIC, counts=1, least=4).tolist() for salt in range(200)]
    for numbers in zip(*proofs, strict=True):
        assert len(set(numbers)) == len(numbers)
        assert 0.35 < np.mean([number > P61 // 2 for number in numbers]) < 0.65
