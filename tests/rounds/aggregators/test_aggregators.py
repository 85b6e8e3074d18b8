"""Aggregators against slow references, and each at its breakdown point."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from kohort.errors import ConfigError, SiteError
from kohort.models.dense.network import Network
from kohort.rounds.aggregators import find_aggregator, registry
from kohort.rounds.aggregators.krum import squared_distances
from kohort.rounds.aggregators.mean import weighted_mean

NETWORK = Network(inputs=3, hidden=(4,), outputs=2)
NAMES = ("mean", "median", "trimmed", "krum", "multi-krum", "clip")


def combine(spec, stack, *, rows=None, start=None, network=NETWORK):
    rows = np.full(len(stack), 10) if rows is None else np.asarray(rows)
    start = np.zeros(stack.shape[1], stack.dtype) if start is None else start
    return find_aggregator(spec)(stack, rows.astype(np.int64), start, network)


def stacks(least=1, most=14):
    # Multiples of 1/8: sums and squares are exact in float64, so references may add in any order.
    numbers = st.integers(-80, 80).map(lambda n: n / 8)
    shapes = st.tuples(st.integers(least, most), st.integers(1, 9))
    dtypes = st.sampled_from([np.float32, np.float64])
    return st.tuples(shapes, dtypes).flatmap(lambda drawn: nps.arrays(drawn[1], drawn[0], elements=numbers))


# References


def slow_mean(column, rows):
    return sum(float(value) * int(count) for value, count in zip(column, rows, strict=True)) / sum(int(n) for n in rows)


def slow_median(column):
    ordered = sorted(map(float, column))
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def slow_trimmed(column, cut):
    kept = sorted(map(float, column))[cut : len(column) - cut]
    return sum(kept) / len(kept)


def slow_krum_order(stack, colluders):
    """Blanchard et al. 2017, section 4: s(i) is the sum over the n - f - 2 closest; of equals the first."""
    scores = []
    for i, one in enumerate(stack):
        squares = [sum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True)) for other in stack]
        scores.append(sum(sorted(squares[:i] + squares[i + 1 :])[: len(stack) - colluders - 2]))
    return sorted(range(len(stack)), key=lambda i: (scores[i], i))


def slow_clip(stack, rows, start, norm):
    updates = [[float(w) - float(s) for w, s in zip(row, start, strict=True)] for row in stack]
    norms = [sum(u * u for u in update) ** 0.5 for update in updates]
    bound = slow_median(norms) if norm is None else norm
    clipped = [
        [u * min(1.0, bound / size) if size > 0 else 0.0 for u in update]
        for update, size in zip(updates, norms, strict=True)
    ]
    return [float(s) + slow_mean(column, rows) for s, column in zip(start, zip(*clipped, strict=True), strict=True)]


@given(stacks(), st.data())
def test_mean_median_and_trimmed_equal_slow_references(stack, data):
    rows = data.draw(st.lists(st.integers(1, 500), min_size=len(stack), max_size=len(stack)))
    tolerance = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(combine("mean", stack, rows=rows), [slow_mean(c, rows) for c in stack.T], **tolerance)
    median = combine("median", stack, rows=rows)
    assert median.dtype == stack.dtype
    assert median.tolist() == [slow_median(column) for column in stack.T]
    if len(stack) >= 3:
        share = data.draw(st.sampled_from([0.05, 0.1, 0.2, 0.25, 0.4, 0.49]))
        cut = max(1, int(round(share * 100) * len(stack) // 100))
        trimmed = combine(f"trimmed:{share}", stack, rows=rows)
        assert trimmed.dtype == stack.dtype
        np.testing.assert_allclose(trimmed, [slow_trimmed(c, cut) for c in stack.T], **tolerance)


@given(stacks(least=3), st.data())
def test_krum_and_multi_krum_equal_the_published_rule(stack, data):
    most = (len(stack) - 3) // 2
    colluders = data.draw(st.integers(0, most))
    keep = data.draw(st.integers(1, len(stack) - colluders))
    start = stack[0] + np.float32(0.5)
    order = slow_krum_order(stack, colluders)
    assert np.array_equal(combine(f"krum:{colluders}", stack, start=start), stack[order[0]])
    got = combine(f"multi-krum:{colluders},keep={keep}", stack, start=start)
    expected = [slow_mean(column, [1] * keep) for column in stack[order[:keep]].T]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    by_default = slow_krum_order(stack, most)
    assert np.array_equal(combine("krum", stack, start=start), stack[by_default[0]])
    expected = [slow_mean(c, [1] * (len(stack) - most)) for c in stack[by_default[: len(stack) - most]].T]
    np.testing.assert_allclose(combine("multi-krum", stack, start=start), expected, rtol=1e-6, atol=1e-6)


@given(stacks(), st.one_of(st.none(), st.floats(0.1, 20)), st.data())
def test_clip_equals_a_slow_reference(stack, norm, data):
    rows = data.draw(st.lists(st.integers(1, 500), min_size=len(stack), max_size=len(stack)))
    start = stack[-1] / 2
    spec = "clip" if norm is None else {"name": "clip", "norm": norm}
    got = combine(spec, stack, rows=rows, start=start)
    assert got.dtype == stack.dtype
    np.testing.assert_allclose(got, slow_clip(stack, rows, start, norm), rtol=1e-5, atol=1e-5)


def test_blocks_of_columns_do_not_show(monkeypatch):
    generator = np.random.default_rng(0)
    stack, start = generator.normal(size=(9, 50)).astype(np.float32), generator.normal(size=50).astype(np.float32)
    specs = ("median", "trimmed", "krum", "multi-krum", "clip")
    whole = [combine(spec, stack, start=start) for spec in specs]
    monkeypatch.setattr(registry, "_BLOCK_VALUES", 60)
    for spec, before in zip(specs, whole, strict=True):
        np.testing.assert_allclose(combine(spec, stack, start=start), before, rtol=1e-6)


@pytest.mark.parametrize("spec", NAMES)
def test_nothing_that_is_passed_in_changes_and_the_result_is_new_memory(spec):
    generator = np.random.default_rng(1)
    stack = generator.normal(size=(7, NETWORK.parameter_count)).astype(np.float32)
    rows, start = generator.integers(1, 99, 7), NETWORK.start(generator)
    kept = stack.copy(), rows.copy(), start.copy()
    for array in (stack, rows, start):
        array.flags.writeable = False
    result = combine(spec, stack, rows=rows, start=start)
    again = combine(spec, stack, rows=rows, start=start)
    assert np.array_equal(result, again)
    assert result.dtype == np.float32
    assert result.shape == start.shape
    assert not np.shares_memory(result, stack)
    assert all(np.array_equal(a, b) for a, b in zip(kept, (stack, rows, start), strict=True))


def test_the_mean_keeps_its_arithmetic_bit_for_bit():
    generator = np.random.default_rng(2)
    stack, rows = generator.normal(size=(12, 40)).astype(np.float32), generator.integers(1, 9999, 12)
    expected = ((rows / rows.sum()) @ stack.astype(np.float64)).astype(np.float32)
    assert np.array_equal(combine("mean", stack, rows=rows), expected)
    assert np.array_equal(weighted_mean(stack, rows), expected)


def test_distances_keep_their_digits_far_from_the_origin_and_beside_a_huge_lie():
    generator = np.random.default_rng(3)
    centre = np.full(40, 1e6)
    stack = centre + generator.normal(size=(6, 40))
    stack[5] = 1e9
    exact = ((stack[:, None] - stack[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(stack, centre), exact, rtol=1e-9)


# Breakdown points: with `tolerated` Byzantine sites the result stays near the honest sites, however large the lie; with
# one more, it follows the lie.


def attacked(spec, sites, byzantine_sites, size):
    generator = np.random.default_rng(4)
    start = NETWORK.start(generator).astype(np.float64)
    honest = generator.normal(size=(sites, len(start)), scale=0.1)
    stack = start + honest
    stack[:byzantine_sites] = start + size * honest.mean(axis=0) / np.linalg.norm(honest.mean(axis=0))
    order = generator.permutation(sites)
    result = combine(spec, stack[order], start=start)
    return float(np.linalg.norm(result - start)), float(np.linalg.norm(honest, axis=1).max())


BREAKDOWN = [
    # aggregator, sites, byzantine_sites it stands
    ("mean", 10, 0),
    ("median", 11, 5),
    ("median", 10, 4),
    ("trimmed", 20, 4),
    ("trimmed:0.3", 10, 3),
    ("trimmed", 4, 1),
    ("krum", 11, 5),  # S = 2f + 3 with f = 4: f + 1 stand, f + 2 win
    ("krum", 12, 5),
    ("multi-krum", 11, 4),
    ("multi-krum", 12, 4),
    ("multi-krum:2", 11, 2),
    ("clip", 11, 5),
    ("clip", 10, 4),
]


@pytest.mark.parametrize(("spec", "sites", "tolerated"), BREAKDOWN)
def test_below_the_breakdown_point_the_error_is_bounded(spec, sites, tolerated):
    for size in (10.0, 1e4, 1e8):
        moved, honest = attacked(spec, sites, tolerated, size)
        assert moved <= 2 * honest


@pytest.mark.parametrize(("spec", "sites", "tolerated"), BREAKDOWN)
def test_at_the_breakdown_point_the_error_follows_the_lie(spec, sites, tolerated):
    moves = [attacked(spec, sites, tolerated + 1, size)[0] for size in (1e4, 1e6, 1e8)]
    assert all(0.5 < after / before / 100 < 2 for before, after in pairwise(moves))
    assert moves[-1] > 1e8 / sites / 2


def test_a_given_norm_has_no_breakdown_point_but_liars_still_steer():
    for byzantine_sites in range(11):
        moved, _ = attacked("clip:0.5", 10, byzantine_sites, 1e8)
        assert moved <= 0.5 * (1 + 1e-9)
    assert moved == pytest.approx(0.5)


def test_every_registered_aggregator_has_its_breakdown_point_tested():
    tested = {spec.partition(":")[0] for spec, _, _ in BREAKDOWN}
    assert tested == set(NAMES) == set(registry._AGGREGATORS)
    assert all(
        "Breakdown point" in " ".join((function.__doc__ or "").split()) for function in registry._AGGREGATORS.values()
    )


# Refusals


@pytest.mark.parametrize(
    ("spec", "sites", "message"),
    [
        ("krum", 2, "krum against 0 colluders needs 3 or more sites, but only 2 answered"),
        ("krum:2", 6, "krum against 2 colluders needs 7 or more sites, but only 6 answered"),
        ("multi-krum:2", 6, "needs 7 or more sites, but only 6 answered"),
        ("multi-krum:2,keep=6", 7, "cannot keep 6 of 7 sites and leave out 2 colluders"),
        ("trimmed", 2, "a trimmed mean needs 3 or more sites, but only 2 answered"),
        ("median", 0, "needs 1 or more sites, but only 0 answered"),
    ],
)
def test_too_few_sites_are_refused_with_what_to_do(spec, sites, message):
    with pytest.raises(SiteError, match=message) as caught:
        combine(spec, np.zeros((sites, NETWORK.parameter_count)))
    assert caught.value.hint


@pytest.mark.parametrize("spec", ["mean", "clip"])
def test_sites_without_any_row_cannot_be_weighed(spec):
    with pytest.raises(SiteError, match="none of the 3 sites that answered has rows"):
        combine(spec, np.zeros((3, NETWORK.parameter_count)), rows=np.zeros(3))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("krumm", "Did you mean 'krum'"),
        ("fedma", "was removed: sites start every round from the same weights"),
        ("trimmed:0.5", "less than 0.5"),
        ("trimmed:0", "greater than 0"),
        ("trimmed:shre=0.2", "Did you mean 'share'"),
        ("krum:-1", "greater than or equal to 0"),
        ("krum:1.5", "valid integer"),
        ("multi-krum:keep=0", "greater than or equal to 1"),
        ("clip:0", "greater than 0"),
        ("mean:1", "takes no options"),
        ({"name": "mean", "start": [0.0]}, "no option 'start'"),
    ],
)
def test_wrong_choices_are_refused_before_any_round(spec, message):
    with pytest.raises(ConfigError, match=message):
        find_aggregator(spec)
