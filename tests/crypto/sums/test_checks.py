"""Pads, weights and checks of encrypted sums: uniform, exact, bound to the sum, and known to nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.crypto.identity.parties import Identity
from kohort.crypto.suites import expand
from kohort.crypto.sums.checks import BOX, SEED_OF_WEIGHTS, SiteSecret, weights_of
from kohort.crypto.sums.he import BFV, CKKS
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.residues import LARGEST_MODULUS, Weights, centred, uniform
from kohort.crypto.sums.scheme import SumContext
from kohort.errors import IntegrityError, RefusedError

PRIMES = [BFV.plain_modulus, 8589905921, *CKKS.check_moduli, 13, 2**39 + 1]
SITES = tuple(f"site-{number}" for number in range(4))
HOLDER, SITE, OTHER = (Identity.from_secret(name, name.encode() * 32) for name in ("holder", "site-0", "site-1"))


def packing(**changes: Any) -> Packing:
    about = SumContext(run="run", round=0, request="plan:task", sites=SITES, length=9, view=b"view")
    return Packing.of(BFV, replace(about, **changes))


@pytest.mark.parametrize("changes", [{"bits": 1}, {"bits": 65}, {"modulus": 5}, {"modulus": 5, "bits": 1}])
def test_other_numbers_than_words_and_residues_have_no_layout(changes: dict[str, int]) -> None:
    for bits in (2, 64):
        assert packing(bits=bits).context.bits == bits
    with pytest.raises(RefusedError, match="signed numbers of 2 to 64 bits"):
        packing(**changes)


def secret(here: Identity = SITE, there: Identity = HOLDER, **changes: Any) -> SiteSecret:
    made = SiteSecret(here.agreed_with(there.public), "standard", "site-0", b"offer", packing())
    return replace(made, **changes)


@pytest.mark.parametrize("prime", PRIMES)
def test_uniform_residues_are_those_words_of_the_stream_that_are_small_enough(prime: int) -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key, bits = bytes(range(32)), prime.bit_length()
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 4000))
    words = [int.from_bytes(stream[at : at + 8], "little") % 2**bits for at in range(0, len(stream), 8)]
    wanted = [word for word in words if word < prime][:1000]
    assert uniform(key, 1000, prime).tolist() == wanted
    assert uniform(key, 0, prime).tolist() == []


def test_residues_have_no_bias() -> None:
    # Below 13, of words of 4 bits: reducing instead of rejecting would make 0, 1 and 2 twice as frequent.
    counts = np.bincount(uniform(bytes(32), 130_000, 13), minlength=13)
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


@given(
    prime=st.sampled_from(PRIMES),
    rows=st.integers(1, 3),
    slots=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    extreme=st.booleans(),
)
def test_products_are_those_of_python_integers(prime: int, rows: int, slots: int, seed: int, extreme: bool) -> None:
    key = seed.to_bytes(32, "little")
    made = Weights(key, (rows, slots), (prime, prime))
    weights = [[low + (high << 20) for low, high in half.astype(np.int64).transpose(0, 2, 1).reshape(-1, 2).tolist()]
               for half in made._halves]  # fmt: skip
    vector = np.random.default_rng(seed).integers(-prime // 2, prime // 2, (rows, slots))
    if extreme:
        vector[:] = prime - 1
    wanted = [sum(r * int(v) for r, v in zip(own, vector.reshape(-1), strict=True)) % prime for own in weights]
    assert made.products(vector) == wanted
    assert all(0 <= r < prime for own in weights for r in own)


def test_products_of_full_ciphertexts_of_the_largest_residues_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    prime = BFV.plain_modulus
    monkeypatch.setattr(
        "kohort.crypto.sums.residues.uniform", lambda _, count, modulus: np.full(count, modulus - 1, dtype=np.int64)
    )
    made = Weights(bytes(32), (3, 4096), (prime,))
    assert made.products(np.full((3, 4096), prime - 1)) == [3 * 4096 * (prime - 1) ** 2 % prime]
    for shape, modulus in (((1, 8192), prime), ((1, 4096), LARGEST_MODULUS + 15)):
        with pytest.raises(ValueError, match="not exact"):
            Weights(bytes(32), shape, (modulus,))


@given(number=st.integers(-(2**50), 2**50), prime=st.sampled_from(PRIMES))
def test_centred_residues(number: int, prime: int) -> None:
    (found,) = centred(np.array([number]), prime).tolist()
    assert (found - number) % prime == 0
    assert abs(found) <= prime // 2


def test_site_and_key_holder_derive_the_same_and_nobody_else_does() -> None:
    own, theirs = secret(), secret(HOLDER, SITE)
    assert np.array_equal(own.pads(), theirs.pads())
    assert own.offsets() == theirs.offsets()
    assert theirs.open(own.seal(bytes(SEED_OF_WEIGHTS))) == bytes(SEED_OF_WEIGHTS)
    assert len(own.seal(bytes(SEED_OF_WEIGHTS))) == BOX
    for stranger in (secret(OTHER, SITE), secret(OTHER, HOLDER)):
        _differs(own, stranger)


@pytest.mark.parametrize(
    "changes",
    [
        {"site": "site-1"},
        {"offer": b"another"},
        {"packing": packing(view=b"other")},
        {"packing": packing(round=1)},
        {"packing": packing(run="other")},
        {"packing": packing(request="plan:other")},
        {"packing": packing(sites=SITES[:3])},
    ],
    ids=str,
)
def test_what_they_derive_is_bound_to_site_offer_and_transcript(changes: dict[str, Any]) -> None:
    _differs(secret(), secret(**changes))


def _differs(one: SiteSecret, two: SiteSecret) -> None:
    assert not (one.pads() == two.pads()).any()
    assert all(left != right for left, right in zip(one.offsets(), two.offsets(), strict=True))
    with pytest.raises(IntegrityError, match="another site or sum"):
        two.open(one.seal(bytes(SEED_OF_WEIGHTS)))


def test_pads_cover_every_slot_of_every_ciphertext_and_never_repeat() -> None:
    long = secret(packing=packing(length=9000))
    pads = long.pads()
    assert pads.shape == (3, 4096)
    assert len(np.unique(pads)) == pads.size
    assert pads.min() >= 0
    assert pads.max() < BFV.plain_modulus


def test_weights_are_bound_to_the_sum_and_differ_for_each_check() -> None:
    vector = np.arange(packing().ring.slots)[np.newaxis]
    seeds = (bytes(32), bytes(31) + b"\1")
    sums = [packing(), packing(view=b"other"), packing(round=1), packing(sites=SITES[:3])]
    found = [tuple(weights_of(seed, about).products(vector)) for seed in seeds for about in sums]
    assert len({number for pair in found for number in pair}) == 2 * len(found)


def test_an_offset_is_of_sixteen_bytes_for_each_prime() -> None:
    """Site and key-holder of different versions must derive the same, and fewer bytes would have a bias."""
    made = secret()
    moduli = made.packing.ring.check_moduli
    data = expand(made.pair.salting, b"sum check" + made._bound, 16 * len(moduli))
    by_hand = [int.from_bytes(data[16 * at : 16 * at + 16], "little") % modulus for at, modulus in enumerate(moduli)]
    assert made.offsets() == by_hand
    assert len(set(by_hand)) > 1
