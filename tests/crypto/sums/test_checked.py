"""Checked totals: the check value is what the formula says, and only the right total over the right sites passes."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.crypto.suites import expand, extract
from kohort.crypto.sums.checked import proven_total, stream, with_check
from kohort.errors import IntegrityError

P61 = 2**61 - 1
SECRET, TRANSCRIPT = b"s" * 32, b"which sum"
SITES = ("north", "süd", "west")
VECTORS = {name: np.array([3, index, P61 - 2, 2**40], dtype=np.uint64) for index, name in enumerate(SITES)}


def numbers_of(purpose: bytes, count: int) -> list[int]:
    root = extract(b"kohort checked total" + TRANSCRIPT, SECRET)
    return [int(number) for number in stream(expand(root, purpose, 32), count)]


@pytest.mark.parametrize("site", SITES)
def test_the_check_value_is_the_weighted_sum_and_the_pad(site: str) -> None:
    vector = VECTORS[site]
    weights = numbers_of(b"weights", len(vector))
    [pad] = numbers_of(b"pad" + site.encode(), 1)
    wanted = (sum(r * int(v) for r, v in zip(weights, vector, strict=True)) + pad) % P61
    assert with_check(SECRET, TRANSCRIPT, site, vector).tolist() == [*vector.tolist(), wanted]


def opened(sites: tuple[str, ...]) -> list[int]:
    made = [with_check(SECRET, TRANSCRIPT, site, VECTORS[site]).tolist() for site in sites]
    return [sum(numbers) % P61 for numbers in zip(*made, strict=True)]


def test_the_right_total_passes_and_others_do_not() -> None:
    right = np.array(opened(SITES), dtype=np.uint64)
    assert proven_total(SECRET, TRANSCRIPT, SITES, right).tolist() == opened(SITES)[:-1]
    for change in range(len(right)):
        wrong = right.copy()
        wrong[change] = (int(wrong[change]) + 1) % P61
        with pytest.raises(IntegrityError, match="not the sum"):
            proven_total(SECRET, TRANSCRIPT, SITES, wrong)
    with pytest.raises(IntegrityError, match="not the sum"):
        proven_total(SECRET, TRANSCRIPT, SITES[:2], right)
