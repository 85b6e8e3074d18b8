"""The order of rows: a permutation, the reference's permutation, and every permutation equally often."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from tests.reference.dense import row_order_reference
from tests.support.examples import examples

from kohort.models.dense.training import row_order

KEYS = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(0, 2**31)


@given(key=KEYS, round=NUMBERS, epoch=NUMBERS, n=st.integers(0, 400))
@examples(25, 100)
def test_order_is_the_permutation_of_the_reference(key, round, epoch, n):
    order = row_order(key, round, epoch, n)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(order, row_order_reference(key, round, epoch, n))


def test_every_part_of_the_name_changes_the_order():
    orders = {tuple(row_order(key, round, epoch, 20)) for key in range(6) for round in range(6) for epoch in range(6)}
    assert len(orders) == 6**3


def permutation_p_value(shuffle, *, n=4, draws=24_000):
    """Chi-square over all n! permutations."""
    seen = np.zeros(n**n, dtype=np.int64)
    place = n ** np.arange(n)
    for draw in range(draws):
        seen[shuffle(draw, n) @ place] += 1
    observed = seen[seen > 0]
    cells = 24
    expected = draws / cells
    statistic = ((observed - expected) ** 2 / expected).sum() + (cells - len(observed)) * expected
    return chi2.sf(statistic, cells - 1)


def biased_shuffle(draw, n):
    """The classic mistake: every position swaps with any position, which favours some permutations."""
    generator = np.random.default_rng(draw)
    order = np.arange(n)
    for place in range(n):
        other = generator.integers(0, n)
        order[place], order[other] = order[other], order[place]
    return order


def test_orders_are_uniform_over_keys_rounds_and_epochs():
    assert permutation_p_value(lambda draw, n: row_order(draw, 0, 0, n)) > 1e-4
    assert permutation_p_value(lambda draw, n: row_order(7, draw, 0, n)) > 1e-4
    assert permutation_p_value(lambda draw, n: row_order(7, 3, draw, n)) > 1e-4


def test_the_uniformity_test_rejects_a_biased_shuffle():
    assert permutation_p_value(biased_shuffle) < 1e-12


def test_every_row_is_equally_likely_everywhere_in_a_long_order():
    n, draws = 50, 6_000
    seen = np.zeros((n, n))
    for draw in range(draws):
        seen[np.arange(n), row_order(draw, 1, 0, n)] += 1
    expected = draws / n
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert 1e-4 < chi2.sf(statistic, (n - 1) ** 2) < 1 - 1e-4
