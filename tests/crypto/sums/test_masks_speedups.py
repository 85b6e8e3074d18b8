"""What makes a secure sum quick gives the same numbers as the slow, obvious way, and lets nothing more out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.sums import routed

from kohort.crypto.counting import Fingerprints, _places, table
from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums import mask_streams, masks
from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.masks import SCHEME, threshold_for
from kohort.crypto.sums.modular import P61, RunningSum, join_halves, multiply
from kohort.crypto.sums.scheme import HubSide, SiteSide, SumContext, Trust
from kohort.crypto.sums.shamir import PRIME, combine, split
from kohort.errors import IntegrityError, KohortError
from kohort.rng import Streams

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


@given(st.integers(2, 12), st.integers(0, 8), st.integers(0, PRIME - 1), st.randoms(use_true_random=False))
def test_sharing_is_the_polynomial_and_opening_lagranges_formula(
    threshold: int, extra: int, secret: int, random: object
) -> None:
    draw = random.randrange  # type: ignore[attr-defined]
    points = sorted(random.sample(range(1, 3000), threshold + extra))  # type: ignore[attr-defined]
    coefficients = [draw(PRIME) for _ in range(threshold - 1)]
    shares = split(secret, points, threshold, coefficients)
    for point in points:
        terms = [number * pow(point, power, PRIME) for power, number in enumerate([secret, *coefficients])]
        assert shares[point] == sum(terms) % PRIME
    changed = {point: draw(2**128) for point in points}  # whatever came in: the same number as by the formula
    used, found = points[:threshold], 0
    for point in used:
        weight = 1
        for other in used:
            if other != point:
                weight = weight * other * pow(other - point, -1, PRIME) % PRIME
        found = (found + changed[point] * weight) % PRIME
    assert combine(changed, threshold) == found
    assert combine(shares, threshold) == secret


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


def made_context(count: int, **changed: object) -> SumContext:
    base = SumContext(run="r", round=1, request="q", sites=tuple(f"s{i}" for i in range(count)), length=4, modulus=P61)
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]


@cache
def identity(site: str) -> Identity:
    return Identity.from_secret(site, Streams.seeded(7).bytes("identity", site))


def site_side(made: SumContext, site: str) -> SiteSide:
    trust = Trust(identity(site), None, 3, lambda name: identity(name).public)
    return SCHEME.site_side(made, site, Streams.seeded(made.sites.index(site)), trust)


def begin(made: SumContext, until: int) -> tuple[dict[str, SiteSide], HubSide, dict[str, bytes]]:
    """All sites and the hub, before step `until`, and what each site has in its inbox."""
    sides = {site: site_side(made, site) for site in made.sites}
    hub, inboxes = SCHEME.hub_side(made), dict.fromkeys(made.sites, b"")
    vector = np.arange(made.length, dtype=np.uint64)
    for step in range(until):
        replies = {site: sides[site].reply(step, inbox, vector) for site, inbox in inboxes.items()}
        inboxes = routed(hub, step, replies)
    return sides, hub, inboxes


@pytest.mark.parametrize(
    "changed", [{"run": "other"}, {"round": 2}, {"request": "other"}, {"length": 5}, {"modulus": 0}]
)
def test_seals_are_bound_to_the_whole_of_a_sum(changed: dict[str, object]) -> None:
    """Even with the same keys: a message of one sum is refused in another."""
    sides, _, inboxes = begin(made_context(4), until=1)
    side = sides["s0"]
    side.binding = made_context(4, **changed).transcript  # type: ignore[attr-defined]
    with pytest.raises(IntegrityError, match="altered"):
        side.reply(1, inboxes["s0"], np.zeros(4, dtype=np.uint64))


def signatures(data: bytes) -> dict[int, bytes]:
    return dict(masks._SIGNED.iter_unpack(data))


def packed(found: dict[int, bytes]) -> bytes:
    return b"".join(masks._SIGNED.pack(index, signature) for index, signature in found.items())


Change = Callable[[dict[int, bytes]], bytes]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: packed({**found, 0: found[1]}),  # another's signature for our own
        lambda found: packed({**found, 0: bytes(64)}),
        lambda found: packed({index: signature for index, signature in found.items() if index != 0}),
        lambda found: packed({**found, 3: found[4]}),
        lambda found: masks._SIGNED.pack(1, found[1]) * 9,  # one signer, many times
        lambda found: packed({index + 9: signature for index, signature in found.items()}),  # nobody's
    ],
)
def test_shares_open_only_for_as_many_signers_as_the_threshold(change: Change) -> None:
    sides, _, inboxes = begin(made_context(6), until=3)
    found = dict(list(signatures(inboxes["s0"]).items())[: threshold_for(6)])
    assert 0 in found  # our own is among them, and checked like the others
    with pytest.raises(IntegrityError, match="signed the survivors"):
        sides["s0"].reply(3, change(found), None)
    assert sides["s0"].reply(3, packed(found), None)  # exactly the threshold opens


@pytest.mark.parametrize("survivors", [b"\0\0\0\0\1", b"", bytes(8), np.array([0, 1, 2, 77], dtype="<u4").tobytes()])
def test_a_survivor_list_that_cannot_be_right_is_refused(survivors: bytes) -> None:
    sides, _, _ = begin(made_context(4), until=2)
    with pytest.raises(KohortError):
        sides["s0"].reply(2, survivors, None)


def test_coefficients_are_uniform_enough_and_differ_by_seed_use_and_sum() -> None:
    seen: set[int] = set()
    drawn = 0
    for request in ("q", "other"):
        for place in range(3):
            side = site_side(made_context(30, request=request), f"s{place}")
            for what in ("pair", "self"):
                made = side._coefficients(what)  # type: ignore[attr-defined]
                assert len(made) == threshold_for(30) - 1
                assert all(0 <= number < PRIME for number in made)
                seen.update(made)
                drawn += len(made)
    assert len(seen) == drawn
    ones = sum(number.bit_count() for number in seen) / (127 * drawn)
    assert abs(ones - 0.5) < 5 * 0.5 / (127 * drawn) ** 0.5
