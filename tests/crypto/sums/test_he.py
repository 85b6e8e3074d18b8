"""Encryption: exact totals, the noise formula against what the library measures, and what does not open."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.crypto.sums import he
from kohort.crypto.sums.he import BFV, CKKS, SEED, CiphertextSum, PublicKey, Ring, SecretKey
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.scheme import SumContext
from kohort.errors import IntegrityError, RefusedError

SMALL_BFV, SMALL_CKKS = BFV.smaller, CKKS.smaller
assert SMALL_BFV is not None
assert SMALL_CKKS is not None
RINGS: list[Ring] = [BFV, CKKS, SMALL_BFV, SMALL_CKKS]


def seed(*words: object) -> bytes:
    return hashlib.blake2b(repr(words).encode(), digest_size=SEED).digest()


def context(sites: int, length: int = 7, *, modulus: int = 0, bits: int = 40) -> SumContext:
    names = tuple(f"site-{number}" for number in range(sites))
    return SumContext(run="r", round=0, request="p:t", sites=names, length=length, modulus=modulus, bits=bits)


def draw(ring: Ring, sites: int, number: int) -> np.ndarray:
    """Slots at, and up to, the largest a site may contribute."""
    largest = ring.capacity(sites) // sites
    made = np.random.default_rng(number).integers(-largest, largest, ring.slots, endpoint=True)
    made[:8], made[8:16] = largest, -largest
    return made


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_a_total_is_exact_up_to_the_last_unit_of_headroom(ring: Ring) -> None:
    sites, secret, added = 24, SecretKey(ring, seed("k")), CiphertextSum(ring)
    public = PublicKey(ring, secret.public)
    total = np.zeros(ring.slots, dtype=np.int64)
    for number in range(sites):
        slots = draw(ring, sites, number)
        total += slots
        added.add(public.encrypt(slots, sites=sites, seed=seed(number)))
    assert np.array_equal(secret.open(added.ciphertext(), sites=sites), total)


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_the_error_has_the_deviation_the_formulas_count_on(ring: Ring) -> None:
    # The coefficients of c0 + c1 s - m are what the noise budget is about; seen through the library's own decryption.
    sites = 1
    secret = SecretKey(ring, seed("noise"))
    public, api = PublicKey(ring, secret.public), he._api()
    made = he._ciphertext(ring, public.encrypt(draw(ring, sites, 0), sites=sites, seed=seed("e")))
    if ring.name == "bfv":
        # Largest of so many normal errors: about 3.9 deviations; the budget is whole bits below log2(q / (2 t error)).
        wanted = np.log2(2.0 ** ring.prime_bits[0] / (2 * ring.plain_modulus) / (3.9 * ring.deviation))
        assert abs(secret._opener.invariant_noise_budget(made) - wanted) < 1.5
        return
    plain = api.Plaintext()
    secret._opener.decrypt(made, plain)
    found = np.asarray(api.CKKSEncoder(he._context(ring)).decode_double(plain))
    assert isinstance(ring, he._Ckks)
    measured = np.std(found - draw(ring, sites, 0)) * ring.scale(sites)
    assert measured == pytest.approx(np.sqrt(ring.degree / 2) * ring.deviation, rel=0.1)
    assert ring.scale(sites) >= 32 * measured * 0.9


def test_twenty_thousand_additions_are_exact() -> None:
    # 96 different ciphertexts, 7 times each, doubled five times: 21,504. Equal ones add up to more error than different
    # ones, so this is harder than as many sites would be.
    sites = 96 * 7 * 2**5
    secret, added, total = SecretKey(BFV, seed("many")), CiphertextSum(BFV), np.zeros(BFV.slots, dtype=np.int64)
    public, largest = PublicKey(BFV, secret.public), BFV.capacity(sites) // sites
    for number in range(96):
        slots = np.random.default_rng(number).integers(-largest, largest, BFV.slots, endpoint=True)
        made = public.encrypt(slots, sites=sites, seed=seed("many", number))
        for _ in range(7):
            added.add(made)
            total += slots
    for _ in range(5):
        added.add(added.ciphertext())
        total *= 2
    assert np.array_equal(secret.open(added.ciphertext(), sites=sites), total)
    assert BFV.noise(sites) > 2


def test_the_small_size_holds_the_error_of_twenty_thousand_sites_and_its_formula_is_right() -> None:
    # 96 different ciphertexts, 15 times each, have the error of 96 x 15^2 = 21,600 different ones.
    sites, ring = 96 * 15**2, SMALL_BFV
    assert ring.is_good_for(sites)
    secret, added, total = SecretKey(ring, seed("many")), CiphertextSum(ring), np.zeros(ring.slots, dtype=np.int64)
    public, largest = PublicKey(ring, secret.public), ring.capacity(sites) // (96 * 15)
    for number in range(96):
        slots = np.random.default_rng(number).integers(-largest, largest, ring.slots, endpoint=True)
        made = public.encrypt(slots, sites=sites, seed=seed("many", number))
        for _ in range(15):
            added.add(made)
            total += slots
    assert np.array_equal(secret.open(added.ciphertext(), sites=sites), total)
    left = secret._opener.invariant_noise_budget(he._ciphertext(ring, added.ciphertext()))
    # The formula leaves room for 9 deviations; the largest of 2048 is at 3.7, which is log2(9 / 3.7) = 1.3 bits better,
    # the prime is nearly a bit above its bound, and bits are whole.
    assert 0 < left + 1 - ring.noise(sites) < 4


def test_more_sites_than_the_budget_is_good_for_are_refused() -> None:
    BFV.check(20_000)
    CKKS.check(20_000)
    with pytest.raises(RefusedError, match="noise budget"):
        BFV.check(5_000_000)
    with pytest.raises(RefusedError, match="noise budget of bfv N=2048"):
        SMALL_BFV.check(40_000)
    with pytest.raises(RefusedError, match="no room on the grid"):
        CKKS.check(50_000)


@pytest.mark.parametrize(("ring", "heavy"), [(CKKS, 6.0), (CKKS.smaller, 4.5)], ids=["N=4096", "N=2048"])
def test_the_error_of_ckks_has_the_tails_that_its_grid_is_made_for(ring: Any, heavy: float) -> None:
    """One product per slot (Laplace, a kurtosis of 6), or two (4.5); a normal error would have 3, and a grid made for
    that called one honest total of eighty altered."""
    errors = []
    for key in range(24):
        secret, added = SecretKey(ring, seed("tails", key)), CiphertextSum(ring)
        public = PublicKey(ring, secret.public)
        for site in range(4):
            added.add(public.encrypt(np.zeros(ring.slots, np.int64), sites=4, seed=seed("tails", key, site)))
        plain = he._api().Plaintext()
        secret._opener.decrypt(he._ciphertext(ring, added.ciphertext()), plain)
        errors.append(np.asarray(he._encoder(ring).decode_double(plain)) * ring.scale(4))
    found = np.concatenate(errors)
    predicted = np.sqrt(ring.slots * 4) * ring.deviation
    assert found.std() == pytest.approx(predicted, rel=0.1)
    assert np.mean(found**4) / np.mean(found**2) ** 2 == pytest.approx(heavy, rel=0.2)
    for times in (3, 4):
        tail = np.exp(-np.sqrt(2) * times) if ring is CKKS else (1 + times) * np.exp(-2 * times)
        assert np.mean(np.abs(found) > times * predicted) <= 1.5 * tail


def test_each_ring_has_the_narrowest_grid_that_its_tails_allow() -> None:
    assert (CKKS.grid, CKKS.smaller.grid) == (43, 33)


def false_alarm(ring: Ring) -> float:
    """How likely, at most, an honest total has a slot farther from an integer than the ring tolerates."""
    deviations = ring.tolerance * ring.grid
    if ring is CKKS:
        return float(ring.slots * np.exp(-np.sqrt(2) * deviations))
    return float(ring.slots * (1 + deviations) * np.exp(-2 * deviations))


def test_honest_ckks_totals_are_not_called_altered() -> None:
    for ring in (CKKS, CKKS.smaller):
        assert false_alarm(ring) < 2.0**-30
        for sites in (3, 200, 2_000, 20_000):
            deviation = np.sqrt(ring.slots * sites) * ring.deviation / ring.scale(sites)
            assert ring.tolerance / deviation >= ring.tolerance * ring.grid * (1 - 1e-12)


def test_a_total_past_its_budget_does_not_open_as_something_else() -> None:
    secret, added = SecretKey(BFV, seed("past")), CiphertextSum(BFV)
    added.add(PublicKey(BFV, secret.public).encrypt(draw(BFV, 3, 1), sites=3, seed=seed("past")))
    for _ in range(18):  # the error doubles with the numbers, far beyond what three sites would add
        added.add(added.ciphertext())
    with pytest.raises(IntegrityError, match="noise budget"):
        secret.open(added.ciphertext(), sites=3)


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(ring: Ring) -> None:
    assert SecretKey(ring, seed(1)).public == SecretKey(ring, seed(1)).public
    assert SecretKey(ring, seed(1)).public != SecretKey(ring, seed(2)).public
    public, slots = PublicKey(ring, SecretKey(ring, seed(1)).public), draw(ring, 3, 0)
    first = public.encrypt(slots, sites=3, seed=seed("a"))
    assert first == public.encrypt(slots, sites=3, seed=seed("a"))
    assert first != public.encrypt(slots, sites=3, seed=seed("b"))
    assert len(first) < 65_700 * ring.degree // 4096


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_every_size_has_128_bits_of_security(ring: Ring) -> None:
    # Largest sums of prime bits for ternary secrets: homomorphicencryption.org standard (2018), table 1, 128 bits.
    assert sum(ring.prime_bits) <= {2048: 54, 4096: 109}[ring.degree]
    assert he._context(ring).parameters_set()


def test_the_secret_and_the_public_error_come_from_different_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes | None] = []
    real = he._seeded
    monkeypatch.setattr(he, "_seeded", lambda ring, own: used.append(own) or real(ring, own))
    SecretKey(BFV, seed("streams"))
    seeds = [own for own in used if own is not None]
    assert len(seeds) == len(set(seeds)) == 2


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
@pytest.mark.parametrize("harm", ["empty", "cut", "header", "foreign", "huge"])
def test_a_ciphertext_that_is_none_is_refused(ring: Ring, harm: str) -> None:
    other = RINGS[RINGS.index(ring) - 1]
    good = PublicKey(ring, SecretKey(ring, seed(1)).public).encrypt(draw(ring, 3, 0), sites=3, seed=seed(0))
    foreign = PublicKey(other, SecretKey(other, seed(1)).public).encrypt(draw(other, 3, 0), sites=3, seed=seed(0))
    bad = {
        "empty": b"",
        "cut": good[:-100],
        "header": b"\0" * 16 + good[16:],
        "foreign": foreign,
        "huge": good + bytes(1 << 19),
    }[harm]
    with pytest.raises(IntegrityError):
        CiphertextSum(ring).add(bad)
    with pytest.raises(IntegrityError):
        SecretKey(ring, seed(1)).open(bad, sites=3)


def test_ckks_of_another_key_or_scale_is_refused() -> None:
    secret = SecretKey(CKKS, seed("own"))
    foreign = PublicKey(CKKS, SecretKey(CKKS, seed("other")).public).encrypt(draw(CKKS, 3, 0), sites=3, seed=seed(0))
    with pytest.raises(IntegrityError, match="grid"):
        secret.open(foreign, sites=3)
    public = PublicKey(CKKS, secret.public)
    with pytest.raises(IntegrityError, match="number of sites"):
        secret.open(public.encrypt(draw(CKKS, 3, 0), sites=3, seed=seed(0)), sites=3_000)
    added = CiphertextSum(CKKS)
    added.add(public.encrypt(draw(CKKS, 3, 0), sites=3, seed=seed(0)))
    with pytest.raises(IntegrityError, match="number of sites"):
        added.add(public.encrypt(draw(CKKS, 3_000, 0), sites=3_000, seed=seed(0)))


def test_a_destroyed_key_opens_nothing() -> None:
    secret = SecretKey(BFV, seed("gone"))
    made = PublicKey(BFV, secret.public).encrypt(draw(BFV, 3, 0), sites=3, seed=seed(0))
    secret.destroy()
    with pytest.raises(IntegrityError, match="destroyed"):
        secret.open(made, sites=3)


def test_plans_load_without_the_library() -> None:
    import subprocess

    find = "[s.find_scheme(name) for name in ('none', 'masks', 'bfv', 'ckks')]"
    code = f"import sys, kohort.crypto.sums.scheme as s; {find}; sys.exit('tenseal' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@examples(20, 60)
@given(
    data=st.data(),
    ring=st.sampled_from(RINGS),
    sites=st.integers(1, 400),
    modulus=st.sampled_from([0, P61]),
    bits=st.integers(2, 64),
)
def test_packed_sums_are_the_sums_of_python_integers(
    data: st.DataObject, ring: Ring, sites: int, modulus: int, bits: int
) -> None:
    packing = Packing(ring, context(sites, 5, modulus=modulus, bits=bits))
    low, high = (0, P61 - 1) if modulus else (-packing.bound, packing.bound)
    vectors = data.draw(
        st.lists(st.lists(st.integers(low, high), min_size=5, max_size=5), min_size=1, max_size=min(sites, 6))
    )
    vectors += [[high] * 5, [low] * 5][: max(0, sites - len(vectors))]
    packed = sum(packing.pack(np.array([v % 2**64 for v in own], dtype=np.uint64)) for own in vectors)
    assert np.abs(packed).max() <= ring.capacity(sites)
    found = packing.unpack(packed).tolist()
    wanted = [sum(column) % (modulus or 2**64) for column in zip(*vectors, strict=True)]
    assert found == wanted


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_every_site_at_the_bound_still_fits_and_one_more_is_refused(ring: Ring) -> None:
    for sites in filter(ring.is_good_for, (3, 200, 20_000)):
        for bits in (20, 40, 64):
            packing = Packing(ring, context(sites, 2, bits=bits))
            for sign in (1, -1):
                at_bound = packing.pack(np.full(2, sign * packing.bound, dtype=np.int64).view(np.uint64))
                total = packing.unpack(at_bound * sites).view(np.int64)
                assert total.tolist() == [sign * packing.bound * sites] * 2
                with pytest.raises(RefusedError, match=f"above {packing.bound}"):
                    packing.pack(np.full(2, sign * (packing.bound + 1), dtype=np.int64).view(np.uint64))


@examples(20, 60)
@given(
    ring=st.sampled_from([BFV, CKKS]),
    sites=st.integers(3, 25_000),
    length=st.integers(1, 3000),
    bits=st.integers(2, 64),
)
def test_a_sum_is_in_small_ciphertexts_exactly_where_one_of_them_is_enough(
    ring: Ring, sites: int, length: int, bits: int
) -> None:
    about, small = context(sites, length, bits=bits), ring.smaller
    assert small is not None
    enough = small.is_good_for(sites) and Packing(small, about).digits * length <= small.slots - len(small.check_moduli)
    chosen = Packing.of(ring, about)
    assert chosen.ring is (small if enough else ring)
    assert chosen.bound * sites <= 2 ** (bits - 1) - 1


def test_long_vectors_take_several_ciphertexts() -> None:
    checks = len(BFV.check_moduli)
    assert Packing(BFV, context(3, BFV.slots - checks)).ciphertexts == 1
    assert Packing(BFV, context(3, BFV.slots - checks + 1)).ciphertexts == 2
    assert Packing(BFV, context(3, 2 * BFV.slots - checks)).ciphertexts == 2  # one check over all ciphertexts
    assert Packing(BFV, context(3, 4000, bits=64)).ciphertexts == 2


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_a_wrong_total_passes_the_check_with_less_than_2_to_the_minus_40(ring: Ring) -> None:
    moduli = ring.check_moduli
    assert all(all(modulus % factor for factor in range(2, int(modulus**0.5) + 1)) for modulus in set(moduli))
    if ring.plain_modulus:  # slots add modulo this very prime, so no change of a slot is a multiple of it
        assert set(moduli) == {ring.plain_modulus}
        assert np.prod([float(modulus) for modulus in moduli]) > 2**40
        return
    assert len(set(moduli)) == len(moduli)
    for sites in filter(ring.is_good_for, (3, 50, 20_000)):
        assert max(moduli) * sites <= ring.capacity(sites), "all sites' residues add up in a slot"
        largest_change = 2 * ring.capacity(sites)
        divides = 0
        while np.prod(sorted(map(float, moduli))[: divides + 1]) <= largest_change:
            divides += 1
        assert np.prod(sorted(map(float, moduli))[: len(moduli) - divides]) > 2**40


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.title)
def test_opened_slots_out_of_range_are_no_total(ring: Ring) -> None:
    for bits in (20, 64):
        packing = Packing(ring, context(3, 2, bits=bits))
        honest = packing.pack(np.zeros(2, dtype=np.uint64))
        assert packing.unpack(honest).tolist() == [0, 0]
        for wrong in (ring.capacity(3) + 1, -ring.capacity(3) - 1):
            slots = honest.copy()
            slots[0, 1] = wrong
            with pytest.raises(IntegrityError, match="out of range"):
                packing.unpack(slots)


def test_no_key_but_the_public_one_is_made_or_serialised(monkeypatch: pytest.MonkeyPatch) -> None:
    # Galois and relinearisation keys would let a hub rotate slots and multiply ciphertexts.
    made: list[str] = []
    api = he._api()
    real = api.KeyGenerator

    class Listening:
        def __init__(self, *args: object) -> None:
            self._real = real(*args)

        def __getattr__(self, name: str) -> object:
            made.append(name)
            return getattr(self._real, name)

    monkeypatch.setattr(api, "KeyGenerator", Listening)
    for ring in RINGS:
        secret = SecretKey(ring, seed("no others"))
        for other in (api.GaloisKeys(), api.RelinKeys()):
            with pytest.raises(IntegrityError):
                he._loaded(other, he._context(ring), secret.public, "key")
        public = he._loaded(api.PublicKey(), he._context(ring), secret.public, "public key")
        assert he._SCRATCH.save(public) == secret.public, "nothing else is in the bytes"
    assert set(made) == {"secret_key", "create_public_key"}


def test_the_rings_are_those_that_all_parties_have() -> None:
    """Hub, key-holder and sites compute in the same ring, whatever version each has."""
    for ring, modulus in ((BFV, 1_099_511_480_321), (CKKS, 0)):
        assert (ring.degree, ring.prime_bits, ring.plain_modulus) == (4096, (60, 49), modulus)
    for ring, modulus in ((BFV.smaller, 8_589_905_921), (CKKS.smaller, 0)):
        assert ring is not None
        assert (ring.degree, ring.prime_bits, ring.plain_modulus) == (2048, (54,), modulus)
