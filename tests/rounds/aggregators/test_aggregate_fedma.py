"""Matched averaging: units that changed places are found, and no network changes what it says."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.models.dense.network import Network
from kohort.models.scoring import scores
from kohort.rounds.aggregators import find_aggregator
from kohort.rounds.aggregators.fedma import in_order_of, match_units
from kohort.rounds.aggregators.mean import weighted_mean

networks = st.builds(
    Network,
    inputs=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    outputs=st.integers(2, 4),
    activation=st.sampled_from(["relu", "tanh", "sigmoid"]),
    dtype=st.sampled_from(["float32", "float64"]),
)


def drawn(network, generator, sites):
    return generator.normal(size=(sites, network.parameter_count)).astype(network.dtype)


def shuffled(network, weights, generator):
    """The same network with the units of every hidden layer in a random order."""
    weights = weights.copy()
    layers = network.layers(weights)
    for depth, units in enumerate(network.hidden):
        order = generator.permutation(units)
        for part in (*layers[depth], layers[depth + 1][0].T):
            part[...] = part[..., order]
    return weights


def fedma(network, stack, rows, start):
    return find_aggregator("fedma")(stack, np.asarray(rows, dtype=np.int64), start, network)


@given(networks, st.integers(0, 10_000))
def test_matching_never_changes_what_a_network_says(network, seed):
    generator = np.random.default_rng(seed)
    stack, x = drawn(network, generator, 4), generator.normal(size=(20, network.inputs)).astype(network.dtype)
    matched = match_units(network, stack, np.array([5, 9, 1, 7]))
    arranged = in_order_of(network, stack[0], stack[1])
    for before, after in zip([*stack, stack[0]], [*matched, arranged], strict=True):
        np.testing.assert_allclose(scores(network, after, x), scores(network, before, x), rtol=1e-4, atol=1e-4)
        assert sorted(before) == sorted(after)
    assert np.array_equal(matched[1], stack[1])  # most rows: sets the order


@given(networks, st.integers(0, 10_000))
def test_the_order_of_units_at_the_sites_does_not_matter(network, seed):
    generator = np.random.default_rng(seed)
    stack, start = drawn(network, generator, 4), drawn(network, generator, 1)[0]
    rows = [40, 30, 20, 10]
    moved = np.stack([shuffled(network, weights, generator) for weights in stack])
    np.testing.assert_allclose(
        fedma(network, moved, rows, start), fedma(network, stack, rows, start), rtol=1e-5, atol=1e-6
    )


@given(networks, st.integers(0, 10_000))
def test_one_network_in_many_orders_is_given_back_in_the_order_of_the_start(network, seed):
    generator = np.random.default_rng(seed)
    start = drawn(network, generator, 1)[0]
    stack = np.stack([shuffled(network, start, generator) for _ in range(5)])
    np.testing.assert_allclose(fedma(network, stack, [3, 1, 4, 1, 5], start), start, rtol=1e-5, atol=1e-6)


def test_the_mean_loses_what_matching_keeps():
    network = Network(inputs=6, hidden=(8,), outputs=3)
    generator = np.random.default_rng(0)
    start = drawn(network, generator, 1)[0]
    stack = np.stack([shuffled(network, start, generator) for _ in range(5)])
    assert np.abs(weighted_mean(stack, np.ones(5, dtype=np.int64)) - start).max() > 0.5


@given(st.integers(1, 5), st.integers(0, 10_000))
def test_the_match_is_the_best_of_all_orders(units, seed):
    """Every order of a layer's units is tried; the squared distance to the reference must be the smallest."""
    network = Network(inputs=2, hidden=(units,), outputs=2, dtype="float64")
    generator = np.random.default_rng(seed)
    reference, other = drawn(network, generator, 2)
    found = in_order_of(network, other, reference)
    best = np.inf
    for order in permutations(range(units)):
        candidate = other.copy()
        (matrix, bias), (outgoing, _) = network.layers(candidate)
        matrix[...], bias[...], outgoing[...] = matrix[:, order], bias[list(order)], outgoing[list(order)]
        best = min(best, ((candidate - reference) ** 2).sum())
    assert ((found - reference) ** 2).sum() == pytest.approx(best)


def test_without_hidden_layers_it_is_the_mean():
    network = Network(inputs=4, outputs=3)
    generator = np.random.default_rng(0)
    stack, rows = drawn(network, generator, 6), generator.integers(1, 50, 6)
    assert np.array_equal(fedma(network, stack, rows, stack[0]), weighted_mean(stack, rows))


def test_sites_that_kept_their_units_in_place_are_averaged_as_they_are():
    network = Network(inputs=4, hidden=(6, 5), outputs=3)
    generator = np.random.default_rng(0)
    start = drawn(network, generator, 1)[0]
    stack = start + 0.01 * drawn(network, generator, 6)
    rows = generator.integers(1, 50, 6)
    assert np.array_equal(fedma(network, stack, rows, start), weighted_mean(stack, rows))


def test_a_model_without_dense_layers_is_refused():
    with pytest.raises(ConfigError, match="fedma matches the hidden units of dense networks"):
        fedma(object(), np.zeros((3, 4)), [1, 1, 1], np.zeros(4))
