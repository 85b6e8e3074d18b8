"""What makes a secure sum quick gives the same numbers as the slow, obvious way, and lets nothing more out."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reference.shamir import interpolate, share
from tests.support.masks import Federation

from kohort.crypto.counting import Fingerprints, _places, table
from kohort.crypto.sums import mask_streams, masks
from kohort.crypto.sums.mask_keys import threshold_for
from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.modular import (
    P61,
    RunningSum,
    add,
    join_halves,
    matrix_product,
    multiply,
    split_limbs,
    subtract,
)
from kohort.crypto.sums.shamir import LIMBS, combine, join_secret, split, split_secret

TOP = 2**64 - 1
words = st.integers(0, TOP) | st.sampled_from([0, 1, P61 - 1, P61, P61 + 1, 2**61, TOP])
below_61_bits = st.integers(0, 2**61 - 1) | st.sampled_from([0, P61 - 1, P61])


def plain_mask(key: bytes, length: int, modulus: int) -> list[int]:
    """One mask by itself, on Python's integers."""
    raw = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    drawn = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)]
    return [word % 2**61 % modulus for word in drawn] if modulus else drawn


@given(st.lists(st.lists(words, min_size=3, max_size=3), max_size=30), st.sampled_from([0, P61]))
@example([[TOP, P61, 2**61]] * 30, P61)  # as large as numbers get, again and again
def test_a_running_sum_is_the_sum_of_residues(added: list[list[int]], modulus: int) -> None:
    running = RunningSum(np.array([0, P61 - 1, TOP], dtype=np.uint64), modulus)
    for numbers in added:
        running.add(np.array(numbers, dtype=np.uint64))
    for place, start in enumerate([0, P61 - 1, TOP]):
        terms = [numbers[place] % 2**61 if modulus else numbers[place] for numbers in added]
        assert int(running.value()[place]) == (start + sum(terms)) % (modulus or 2**64)


def test_a_running_sum_leaves_what_it_adds_alone() -> None:
    start, added = np.array([5], dtype=np.uint64), np.array([TOP], dtype=np.uint64)
    running = RunningSum(start, P61)
    running.add(added)
    assert (int(start[0]), int(added[0])) == (5, TOP)
    first = running.value()
    running.add(added)
    assert int(first[0]) == 5  # 61 bits of ones are the prime, which is nothing


@given(st.lists(st.tuples(below_61_bits, below_61_bits), min_size=1, max_size=20))
def test_products_and_halves_equal_pythons(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array(side, dtype=np.uint64) for side in zip(*pairs, strict=True))
    assert multiply(left, right).tolist() == [a * b % P61 for a, b in pairs]
    if (left < P61).all() and (right < P61).all():
        assert add(left, right, P61).tolist() == [(a + b) % P61 for a, b in pairs]
        assert subtract(left, right, P61).tolist() == [(a - b) % P61 for a, b in pairs]
    assert join_halves(left, right).tolist() == [(a * 2**31 + b) % P61 for a, b in pairs]


@pytest.mark.parametrize("modulus", [0, P61])
@given(length=st.integers(1, 40), plus=st.integers(0, 12), minus=st.integers(0, 12), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_masks_by_blocks_are_the_masks_one_by_one(modulus: int, length: int, plus: int, minus: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    keys = [generator.bytes(32) for _ in range(plus + minus)]
    vector = generator.integers(0, modulus or 2**64, length, dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_streams, "_BLOCK", 7)  # most vectors end within a block
        made = masked(vector, keys[:plus], keys[plus:], modulus)
    wanted = [int(number) for number in vector]
    for number, key in enumerate(keys):
        sign = 1 if number < plus else -1
        wanted = [
            (own + sign * mask) % (modulus or 2**64)
            for own, mask in zip(wanted, plain_mask(key, length, modulus), strict=True)
        ]
    assert made.tolist() == wanted


def test_masks_go_on_over_the_block_that_is_used() -> None:
    length = mask_streams._BLOCK + 3
    key = bytes(range(32))
    made = masked(np.zeros(length, dtype=np.uint64), [key], [], P61)
    assert made.tolist() == plain_mask(key, length, P61)
    assert len(set(made.tolist())) > length - 3  # no block repeats the one before


residue_matrices = st.tuples(st.integers(1, 6), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32))


@given(residue_matrices)
@example((2, 2048, 2, 0))  # the longest sum that is exact
def test_matrix_products_equal_pythons(shape: tuple[int, int, int, int]) -> None:
    rows, terms, columns, seed = shape
    generator = np.random.default_rng(seed)
    left = generator.integers(P61 - 3 if seed % 2 == 0 else 0, P61, (rows, terms), dtype=np.uint64)
    right = generator.integers(P61 - 3 if seed % 2 == 0 else 0, P61, (terms, columns), dtype=np.uint64)
    wanted = (left.astype(object) @ right.astype(object)) % P61
    assert matrix_product(split_limbs(left), right).tolist() == wanted.tolist()


def test_a_matrix_product_that_is_not_exact_is_refused() -> None:
    ones = np.ones((1, 2049), dtype=np.uint64)
    with pytest.raises(ValueError, match="not exact"):
        matrix_product(split_limbs(ones), ones.T)


@given(st.integers(2, 12), st.integers(0, 8), st.binary(min_size=32, max_size=32), st.integers(0, 2**32))
@example(2, 1, b"\xff" * 32, 0)
def test_sharing_is_the_polynomial_and_opening_lagranges_formula(
    threshold: int, extra: int, secret: bytes, seed: int
) -> None:
    generator, count = np.random.default_rng(seed), threshold + extra
    limbs = split_secret(secret)
    assert join_secret(limbs) == secret
    coefficients = generator.integers(0, P61, (threshold - 1, LIMBS), dtype=np.uint64)
    shares = split(limbs, count, threshold, coefficients)
    for recipient in range(count):
        own = [share(int(limbs[at]), coefficients[:, at].tolist(), recipient + 1) for at in range(LIMBS)]
        assert shares[recipient].tolist() == own
    chosen = sorted(generator.permutation(count)[:threshold].tolist())
    assert join_secret(combine(chosen, shares[chosen])) == secret
    changed = generator.integers(0, P61, (threshold, LIMBS), dtype=np.uint64)  # whatever came in: as by the formula
    points = [recipient + 1 for recipient in chosen]
    by_formula = [interpolate(dict(zip(points, changed[:, at].tolist(), strict=True))) for at in range(LIMBS)]
    assert combine(chosen, changed).tolist() == by_formula


def test_one_share_below_the_threshold_fits_every_secret() -> None:
    """Two of three shares say nothing: for each secret there is a third share with which they give it."""
    coefficients = np.array([[11], [12]], dtype=np.uint64)
    first, second, _ = split(np.array([5], dtype=np.uint64), 3, 3, coefficients)[:, 0].tolist()
    for secret in (5, 6, P61 - 1):
        third = (secret - 3 * first + 3 * second) % P61  # Lagrange: 3 y1 - 3 y2 + y3
        assert interpolate({1: first, 2: second, 3: third}) == secret
    shares = split(split_secret(b"s" * 32), 3, 3, np.full((2, LIMBS), 9, dtype=np.uint64))
    assert join_secret(combine([0, 1], shares[:2])) != b"s" * 32


def test_limbs_of_no_secret_are_told_apart() -> None:
    for limbs in ([2**60, 0, 0, 0, 0], [0, 0, 0, 0, 2**16], [P61 - 1] * 5):
        assert join_secret(np.array(limbs, dtype=np.uint64)) is None
    with pytest.raises(ValueError, match="threshold"):
        split(split_secret(bytes(32)), 2, 3, np.zeros((2, LIMBS), dtype=np.uint64))
    with pytest.raises(ValueError, match="threshold"):
        split(split_secret(bytes(32)), 3, 3, np.zeros((1, LIMBS), dtype=np.uint64))


@given(st.lists(st.integers(1, P61 - 1), min_size=1, max_size=40), st.integers(1, 30), st.integers(0, 2**32))
def test_a_table_is_the_sum_over_its_keys(f: list[int], size: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    h = generator.integers(1, P61, len(f), dtype=np.uint64)
    counts = generator.integers(1, 1000, len(f))
    prints = Fingerprints(np.array(f, dtype=np.uint64), h)
    wanted = [[0] * (3 * size) for _ in range(4)]
    for places in _places(prints.f, 3 * size):
        for place, first, second, count in zip(places, f, h.tolist(), counts.tolist(), strict=True):
            for row, number in zip(wanted, (count, count * first, count * first * first, count * second), strict=True):
                row[place] = (row[place] + number) % P61
    assert table(prints, counts, 3 * size).reshape(4, -1).tolist() == wanted


def test_coefficients_are_uniform_enough_and_differ_by_site_and_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    real = masks.split

    def watch(limbs: np.ndarray, count: int, threshold: int, coefficients: np.ndarray) -> np.ndarray:
        assert coefficients.shape == (threshold - 1, 2 * LIMBS)
        drawn.append(coefficients.ravel())
        return real(limbs, count, threshold, coefficients)

    monkeypatch.setattr(masks, "split", watch)
    made = Federation(12).set_up()
    for request in ("q", "other"):
        for name in made.names[:3]:
            made.side(name, made.context(request=request)).reply(0, b"", None)
    numbers = [int(number) for part in drawn for number in part]
    assert len(set(numbers)) == len(numbers) == 6 * 10 * (threshold_for(12, 1) - 1)
    assert max(numbers) < P61
    ones = sum(number.bit_count() for number in numbers) / (61 * len(numbers))
    assert abs(ones - 0.5) < 5 * 0.5 / (61 * len(numbers)) ** 0.5
