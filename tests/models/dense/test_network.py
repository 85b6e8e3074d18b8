"""Shape, flat weights and predictions of a dense network."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError
from kohort.models import scoring
from kohort.models.dense.network import Network
from kohort.models.scoring import loss_of, predict, probabilities, scores


@given(inputs=st.integers(1, 9), hidden=st.lists(st.integers(1, 9), max_size=3), outputs=st.integers(2, 5))
@examples(20, 50)
def test_layers_and_flatten_undo_each_other(inputs, hidden, outputs):
    network = Network(inputs=inputs, hidden=tuple(hidden), outputs=outputs)
    flat = network.start(np.random.default_rng(0))
    layers = network.layers(flat)
    assert [matrix.shape for matrix, _ in layers] == list(zip(network.sizes[:-1], network.sizes[1:], strict=True))
    assert np.array_equal(network.flatten(layers), flat)
    layers[0][0][0, 0] = 5
    assert flat[0] == 5


def test_start_has_zero_biases_bounded_weights_and_one_point_for_both_dtypes():
    single = Network(inputs=30, hidden=(20,), outputs=4)
    double = Network(inputs=30, hidden=(20,), outputs=4, dtype="float64")
    flat = single.start(np.random.default_rng(3))
    assert np.array_equal(flat, double.start(np.random.default_rng(3)).astype(np.float32))
    assert flat.dtype == np.float32
    (w1, b1), (w2, b2) = single.layers(flat)
    assert not b1.any()
    assert not b2.any()
    he, glorot = np.sqrt(6 / 30), np.sqrt(6 / 24)
    assert 0.95 * he < np.abs(w1).max() <= he
    assert 0.8 * glorot < np.abs(w2).max() <= glorot


def test_tanh_starts_with_the_bound_of_glorot():
    network = Network(inputs=30, hidden=(20,), outputs=4, activation="tanh")
    w1, _ = network.layers(network.start(np.random.default_rng(3)))[0]
    assert 0.95 * np.sqrt(6 / 50) < np.abs(w1).max() <= np.sqrt(6 / 50)


def test_relu_starts_with_the_bound_of_glorot_where_that_is_asked_for():
    network = Network(inputs=30, hidden=(20, 10), outputs=4, init="glorot")
    flat = network.start(np.random.default_rng(3))
    for (weights, _), bound in zip(
        network.layers(flat), (np.sqrt(6 / 50), np.sqrt(6 / 30), np.sqrt(6 / 14)), strict=True
    ):
        assert 0.8 * bound < np.abs(weights).max() <= bound
    assert Network(**network.to_mapping()) == network


def test_weights_and_biases_start_as_pytorch_has_them_where_that_is_asked_for():
    network = Network(inputs=30, hidden=(20, 10), outputs=40, init="pytorch")
    layers = network.layers(network.start(np.random.default_rng(3)))
    for (weights, biases), fan_in in zip(layers, (30, 20, 10), strict=True):
        for found in (weights, biases):
            assert 0.7 * fan_in**-0.5 < np.abs(found).max() <= fan_in**-0.5
            assert found.min() < 0 < found.max()
    assert Network(**network.to_mapping()) == network


def test_an_unknown_start_is_refused():
    with pytest.raises(ConfigError, match="unknown init 'glorott'"):
        Network(inputs=3, outputs=2, init="glorott")  # type: ignore[arg-type]


def test_scores_and_losses_do_not_depend_on_the_chunks(monkeypatch):
    network = Network(inputs=3, hidden=(5,), outputs=3, dtype="float64", activation="sigmoid")
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    x, y = generator.normal(size=(100, 3)), generator.integers(0, 3, 100).astype(float)
    whole, loss = scores(network, weights, x), loss_of(network, weights, x, y)
    monkeypatch.setattr(scoring, "_CHUNK_ROWS", 7)
    np.testing.assert_allclose(scores(network, weights, x), whole, rtol=1e-12)
    assert loss_of(network, weights, x, y) == pytest.approx(loss, rel=1e-12)


def test_predictions_follow_the_scores():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3)).astype(np.float32)
    classes = Network(inputs=3, outputs=4)
    weights = classes.start(generator)
    shares = probabilities(classes, weights, x)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert np.array_equal(predict(classes, weights, x), shares.argmax(axis=1))
    two = Network(inputs=3, outputs=1, loss="logistic")
    weights = two.start(generator)
    shares = probabilities(two, weights, x)
    assert shares.shape == (200, 2)
    assert np.array_equal(predict(two, weights, x), (shares[:, 1] > 0.5).astype(int))
    assert set(predict(two, weights, x)) == {0, 1}
    number = Network(inputs=3, outputs=1, loss="squared")
    weights = number.start(generator)
    assert np.array_equal(predict(number, weights, x), scores(number, weights, x)[:, 0])


def test_extreme_scores_give_finite_probabilities_and_losses():
    network = Network(inputs=1, outputs=1, loss="logistic", dtype="float64")
    weights = np.array([1.0, 0.0])
    x = np.array([[-1e4], [1e4]])
    np.testing.assert_allclose(probabilities(network, weights, x), [[1, 0], [0, 1]])
    assert loss_of(network, weights, x, np.array([0.0, 1.0])) == 0
    assert loss_of(network, weights, x, np.array([1.0, 0.0])) == pytest.approx(1e4)


def test_margins_have_no_probabilities():
    network = Network(inputs=1, outputs=1, loss="hinge")
    with pytest.raises(ConfigError, match="no probabilities"):
        probabilities(network, np.zeros(2, np.float32), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "softmx"}, "softmax"),
        ({"activation": "rellu"}, "relu"),
        ({"dtype": "float16"}, "dtype"),
        ({"outputs": 1}, "softmax"),
        ({"outputs": 2, "loss": "logistic"}, "1 output"),
        ({"outputs": 2, "loss": "squared"}, "1 output"),
        ({"inputs": 0}, "1 or more"),
        ({"hidden": (3, 0)}, "1 or more"),
    ],
)
def test_impossible_networks_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        Network(**{"inputs": 2, "outputs": 2, **options})


def test_rows_and_weights_that_do_not_fit_are_refused():
    network = Network(inputs=2, outputs=2)
    weights = np.zeros(network.parameter_count, np.float32)
    with pytest.raises(DataError, match="2 inputs"):
        scores(network, weights, np.zeros((4, 3), np.float32))
    with pytest.raises(ConfigError, match="6 parameters"):
        scores(network, weights[:-1], np.zeros((4, 2), np.float32))
    with pytest.raises(ConfigError, match="do not fit"):
        network.flatten([(np.zeros((2, 3)), np.zeros(3))])
    with pytest.raises(DataError, match="4 rows"):
        loss_of(network, weights, np.zeros((4, 2), np.float32), np.zeros(3, np.float32))
    with pytest.raises(DataError, match="class codes"):
        loss_of(network, weights, np.zeros((4, 2), np.float32), np.array([0, 1, 2, 0], np.float32))
