"""Server optimizers against slow references written from the published pseudo-code."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.rounds.server_optimizers import _OPTIMIZERS, FedAdagrad, FedAdam, FedYogi, find_server_optimizer

# One coordinate at a time, in plain Python: (x, deltas of each round, options) -> x after each round.


def slow_plain(x, deltas, *, lr=1.0):
    for delta in deltas:
        x = x + lr * delta
        yield x


def slow_momentum(x, deltas, *, momentum=0.9, lr=1.0):
    """FedAvgM, Hsu et al. 2019 (arXiv 1909.06335), section 4.3: v <- beta v + dw, w <- w - v, with dw = -delta."""
    v = 0.0
    for delta in deltas:
        v = momentum * v - delta
        x = x - lr * v
        yield x


def slow_adaptive(x, deltas, *, rule, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3):
    """Reddi et al. 2021 (arXiv 2003.00295), Algorithm 2, with v_{-1} = tau^2."""
    m, v = 0.0, tau**2
    for delta in deltas:
        m = beta1 * m + (1 - beta1) * delta
        if rule == "fedadagrad":
            v = v + delta**2
        elif rule == "fedyogi":
            difference = v - delta**2
            sign = (difference > 0) - (difference < 0)
            v = v - (1 - beta2) * delta**2 * sign
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + lr * m / (sqrt(v) + tau)
        yield x


def slow(name, x, deltas, options):
    if name == "plain":
        return slow_plain(x, deltas, **options)
    if name == "momentum":
        return slow_momentum(x, deltas, **options)
    if name == "fedadagrad":
        return slow_adaptive(x, deltas, rule=name, **{"beta1": 0.0, **options})
    return slow_adaptive(x, deltas, rule=name, **options)


OPTIONS = {
    "plain": {"lr": st.floats(0.01, 3)},
    "momentum": {"momentum": st.floats(0, 0.99), "lr": st.floats(0.01, 3)},
    "fedadam": {
        "lr": st.floats(1e-4, 3),
        "beta1": st.floats(0, 0.99),
        "beta2": st.floats(0, 0.999),
        "tau": st.floats(1e-6, 1),
    },
    "fedadagrad": {"lr": st.floats(1e-4, 3), "beta1": st.floats(0, 0.99), "tau": st.floats(1e-6, 1)},
}
OPTIONS["fedyogi"] = OPTIONS["fedadam"]


@pytest.mark.parametrize("name", sorted(OPTIONS))
@given(data=st.data())
def test_each_equals_its_published_pseudo_code(name, data):
    options = data.draw(st.fixed_dictionaries({}, optional=OPTIONS[name]))
    rounds, parameters = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    generator = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    weights = generator.normal(size=parameters)
    deltas = generator.normal(size=(rounds, parameters)) * 10.0 ** generator.integers(-3, 2, size=(rounds, parameters))
    expected = np.array(
        [list(slow(name, float(x), list(map(float, d)), options)) for x, d in zip(weights, deltas.T, strict=True)]
    ).T
    optimizer = find_server_optimizer({"name": name, **options})
    state = optimizer.start(parameters)
    for delta, wanted in zip(deltas, expected, strict=True):
        weights, state = optimizer.step(weights, weights + delta, state)
        np.testing.assert_allclose(weights, wanted, rtol=1e-7, atol=1e-7)


def test_every_hub_optimiser_is_compared():
    assert set(OPTIONS) == set(_OPTIMIZERS)


def test_plain_gives_the_aggregated_weights_back_bit_for_bit():
    generator = np.random.default_rng(0)
    weights, aggregated = generator.normal(size=(2, 500)).astype(np.float32) * np.float32([[1e6], [1e-6]])
    for spec in ("plain", "plain:1.0", "plain:lr=1"):
        got, state = find_server_optimizer(spec).step(weights, aggregated, {})
        assert got.dtype == np.float32
        assert np.array_equal(got, aggregated)
        assert state == {}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_states_are_float64_weights_keep_their_type_and_nothing_passed_in_changes(name):
    generator = np.random.default_rng(1)
    weights, aggregated = generator.normal(size=(2, 7)).astype(np.float32)
    optimizer = find_server_optimizer(name)
    _, state = optimizer.step(weights, aggregated, optimizer.start(7))
    arrays = [weights, aggregated, *state.values()]
    kept = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    moved, after = optimizer.step(weights, aggregated, state)
    assert moved.dtype == np.float32
    assert after.keys() == state.keys() == optimizer.start(7).keys()
    assert all(array.dtype == np.float64 and array.shape == (7,) for array in after.values())
    assert all(np.array_equal(a, b) for a, b in zip(arrays, kept, strict=True))
    assert not np.shares_memory(moved, aggregated)


def test_the_first_round_is_not_corrected_for_the_start_of_the_moments():
    """With D much larger than tau the step is lr * (1 - beta1) / sqrt(1 - beta2), and lr for Adagrad with beta1 = 0."""
    weights, aggregated = np.zeros(1), np.full(1, 1e6)
    for optimizer, expected in (
        (FedAdam(lr=0.1, beta1=0.9, beta2=0.99), 0.1 * 0.1 / 0.1),
        (FedYogi(lr=0.1, beta1=0.9, beta2=0.99), 0.1 * 0.1 / 0.1),
        (FedAdagrad(lr=0.1), 0.1),
    ):
        moved, _ = optimizer.step(weights, aggregated, optimizer.start(1))
        assert moved[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedadm", "Did you mean 'fedadam'"),
        ("plain:0", "greater than 0"),
        ("momentum:1.0", "less than 1"),
        ("fedadam:beta2=1", "less than 1"),
        ("fedadam:tau=0", "greater than 0"),
        ("fedadam:beta=0.9", "Did you mean 'beta"),
        ("fedadagrad:beta2=0.9", "Did you mean 'beta1'"),
        ("fedyogi:lr=fast", "valid number"),
        ("plain:inf", "finite"),
    ],
)
def test_wrong_choices_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        find_server_optimizer(spec)
