"""Which vectors a site may encrypt, and how they are laid out in slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kohort.crypto.sums.encrypted import EncryptedHub
from kohort.crypto.sums.he import BFV, CKKS
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.scheme import SumContext
from kohort.errors import IntegrityError, RefusedError, SiteError

RINGS = [BFV, CKKS]


def context(length: int = 5, *, sites: int = 4, modulus: int = 0, bits: int = 40) -> SumContext:
    names = tuple(f"s{number}" for number in range(sites))
    return SumContext(run="r", round=0, request="q", sites=names, length=length, modulus=modulus, bits=bits)


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_a_vector_has_the_agreed_length_and_type(ring: Any) -> None:
    packing = Packing.of(ring, context())
    good = np.arange(5, dtype=np.uint64)
    packing.pack(good)
    for wrong in (good[:4], np.arange(6, dtype=np.uint64), good.reshape(1, 5), good.astype(np.int64)):
        with pytest.raises(IntegrityError, match="a vector of the agreed length"):
            packing.pack(wrong)


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("modulus", "bits"), [(7, 40), (0, 1), (0, 65), (P61 - 1, 40)])
def test_only_residues_and_signed_numbers_of_possible_sizes_are_added(ring: Any, modulus: int, bits: int) -> None:
    with pytest.raises(RefusedError, match="signed numbers of 2 to 64 bits, or residues"):
        Packing(ring, context(modulus=modulus, bits=bits))


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("bits", [2, 40, 64])
def test_the_ends_of_what_is_allowed_are_allowed(ring: Any, bits: int) -> None:
    packing = Packing.of(ring, context(bits=bits))
    bound = packing.bound
    for numbers in ([bound, -bound, 0, 0, 0], [0] * 5):
        vector = np.array(numbers, dtype=np.int64).view(np.uint64)
        total = packing.unpack(4 * packing.pack(vector))
        assert total.view(np.int64).tolist() == [4 * number for number in numbers]
    with pytest.raises(RefusedError, match="the total might not fit"):
        packing.pack(np.array([0, -bound - 1, 0, 0, 0], dtype=np.int64).view(np.uint64))


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_residues_stay_below_their_modulus(ring: Any) -> None:
    packing = Packing.of(ring, context(modulus=P61))
    largest = np.array([P61 - 1, 0, 1, 2**60, 12345], dtype=np.uint64)
    total = packing.unpack(4 * packing.pack(largest))
    assert total.tolist() == [4 * int(number) % P61 for number in largest]
    for wrong in (P61, 2**64 - 1):
        with pytest.raises(IntegrityError, match="outside the agreed range"):
            packing.pack(np.array([0, 0, 0, 0, wrong], dtype=np.uint64))


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("modulus", "bits"), [(0, 40), (0, 64), (P61, 40)])
def test_slots_of_the_check_are_left_free_and_those_out_of_range_refused(ring: Any, modulus: int, bits: int) -> None:
    packing = Packing.of(ring, context(modulus=modulus, bits=bits))
    slots = packing.pack(np.ones(5, dtype=np.uint64))
    assert slots.shape == packing.shape
    flat = slots.reshape(-1)
    assert not flat[packing.digits * 5 :].any()
    assert len(flat) - packing.digits * 5 >= packing.checks > 0
    single = packing.digits == 1
    most = packing.bound * 4 if single else (2**packing.digit_bits - 1) * 4
    for slot, is_sound in ((most, True), (most + 1, False), (-most if single else 0, True), (-most - 1, False)):
        changed = flat.copy()
        changed[0] = slot
        if is_sound:
            packing.unpack(changed.reshape(packing.shape))
        else:
            with pytest.raises(IntegrityError, match="out of range"):
                packing.unpack(changed.reshape(packing.shape))


def slots_of(capacity: int) -> Any:
    """A ring whose slots hold totals up to this."""
    return SimpleNamespace(
        check=lambda _: None, capacity=lambda _: capacity, slots=4096, check_moduli=(97,), title="a ring of a test"
    )


def test_several_digits_have_at_least_four_bits() -> None:
    assert Packing(slots_of(4 * 2**4), context()).digit_bits == 4
    with pytest.raises(RefusedError, match="leave no headroom"):
        Packing(slots_of(4 * 2**4 - 1), context())
    whole = Packing(slots_of(7), context(bits=3))
    assert (whole.digits, whole.digit_bits) == (1, 0)  # a number in one slot is not cut


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_a_hub_takes_a_total_of_the_agreed_length_and_type_alone(ring: Any) -> None:
    hub = EncryptedHub(Packing.of(ring, context()))
    good = np.arange(5, dtype=np.uint64)
    for wrong in (good[:4], np.arange(6, dtype=np.uint64), good.astype(np.int64), good.reshape(5, 1)):
        with pytest.raises(IntegrityError, match="a total of another length"):
            hub.set_total(wrong)
    with pytest.raises(SiteError, match="was not opened"):
        hub.total()
    hub.set_total(good)
    assert hub.total()[0].tolist() == good.tolist()
