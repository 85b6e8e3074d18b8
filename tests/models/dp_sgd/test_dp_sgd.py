"""Private training against its slow reference, against Opacus, and against itself one site at a time."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.dp_sgd import (
    batches_reference,
    clipped_gradients_reference,
    fit_private_reference,
    normals_reference,
    words_reference,
)
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError, SiteError
from kohort.models.dense.network import Network
from kohort.models.dense.training import Training, fit_many
from kohort.models.dp_sgd.draws import KeyStream, RowSampler
from kohort.models.dp_sgd.fit import AdaptiveClip, PrivateSteps, clip_update, clipped_sums, fit_private, gaussian
from kohort.models.rows import Rows, stack

HEADS = (("softmax", 2), ("softmax", 5), ("logistic", 1), ("hinge", 3), ("perceptron", 1), ("squared", 1))


def key_of(number):
    return int(number).to_bytes(32, "little")


def make_rows(network, count, generator, *, weighted=False):
    x = generator.uniform(-1, 1, size=(count, network.inputs))
    y = generator.normal(size=count) if network.loss == "squared" else generator.integers(0, network.classes, count)
    weight = generator.uniform(0.2, 3.0, count) if weighted else None
    return Rows.of(x, y, weight=weight, dtype=network.dtype)


def private_steps(sites=1, *, clip=1.0, sigma=1.0, rate=0.3, steps=5, seed=0, **options):
    return PrivateSteps(
        clip=clip,
        sigma=np.full(sites, float(sigma)),
        rate=np.full(sites, float(rate)),
        steps=np.full(sites, steps),
        keys=tuple(key_of(1000 * seed + site) for site in range(sites)),
        **options,
    )


def take(private, indices):
    """The same for some of the sites."""
    adaptive = private.adaptive
    if adaptive is not None and adaptive.start is not None:
        adaptive = dataclasses.replace(adaptive, start=adaptive.start[indices])
    arrays = {name: getattr(private, name)[indices] for name in ("sigma", "rate", "steps")}
    return dataclasses.replace(private, **arrays, keys=tuple(private.keys[i] for i in indices), adaptive=adaptive)


networks = st.builds(
    lambda inputs, hidden, head, activation, dtype: Network(
        inputs=inputs, hidden=tuple(hidden), outputs=head[1], loss=head[0], activation=activation, dtype=dtype
    ),
    inputs=st.integers(1, 19),
    hidden=st.lists(st.integers(1, 18), max_size=3),
    head=st.sampled_from(HEADS),
    activation=st.sampled_from(("relu", "tanh", "sigmoid")),
    dtype=st.sampled_from(("float32", "float64")),
)
trainings = st.builds(
    Training,
    optimizer=st.sampled_from(("sgd", "momentum", "adam")),
    lr=st.sampled_from((0.001, 0.01)),
    momentum=st.sampled_from((0.0, 0.9)),
    l2=st.sampled_from((0.0, 0.01)),
    prox=st.sampled_from((0.0, 0.1)),
)
adaptives = st.none() | st.builds(AdaptiveClip, quantile=st.floats(0.1, 0.9), sigma_b=st.floats(0.1, 3.0))


@given(
    network=networks,
    training=trainings,
    adaptive=adaptives,
    count=st.integers(1, 200),
    rate=st.sampled_from((0.02, 0.3, 0.9, 1.0)),
    steps=st.integers(0, 6),
    clip=st.sampled_from((0.1, 1.0, 10.0)),
    sigma=st.sampled_from((0.0, 0.5, 4.0)),
    average=st.sampled_from((0.0, 0.4, 1.0)),
    seed=st.integers(0, 2**32),
    weighted=st.booleans(),
)
@examples(20, 80)
def test_fast_path_equals_reference(
    network, training, adaptive, count, rate, steps, clip, sigma, average, seed, weighted
):
    generator = np.random.default_rng(seed)
    rows = make_rows(network, count, generator, weighted=weighted)
    weights = network.start(generator)
    private = private_steps(
        clip=clip, sigma=sigma, rate=rate, steps=steps, seed=seed, adaptive=adaptive, average=average
    )
    fitted = fit_private(network, weights, stack([rows]), training=training, private=private)
    expected, clips = fit_private_reference(network, weights, rows, training=training, private=private)
    exact = network.dtype == "float64"
    # The kernel clips a 2^-19th below the bound, and Adam divides small differences by small numbers.
    close = 2e-5 if exact and training.optimizer != "adam" else 2e-3
    scale = max(1e-3, float(np.abs(expected - weights).max()))
    if not exact and (network.loss in ("hinge", "perceptron") or network.activation == "relu"):
        # A row near the edge of a hinge or a kink falls to either side by rounding; most coordinates still agree.
        assert np.median(np.abs(fitted.weights[0] - expected)) <= close * scale
    else:
        np.testing.assert_allclose(fitted.weights[0], expected, atol=close * scale, rtol=0)
        if exact:
            np.testing.assert_allclose(fitted.clips[0], clips, rtol=1e-6)
    assert fitted.steps.tolist() == [steps]
    assert fitted.losses is None


@given(network=networks, count=st.integers(0, 150), seed=st.integers(0, 2**32), weighted=st.booleans())
@examples(20, 60)
def test_clipped_sums_equal_reference_and_no_row_exceeds_the_bound(network, count, seed, weighted):
    generator = np.random.default_rng(seed)
    rows = make_rows(network, count, generator, weighted=weighted)
    weights = network.start(generator)
    gradients, norms = clipped_gradients_reference(network, weights, rows, math.inf)
    clip = float(np.median(norms)) if count and np.median(norms) > 0 else 1.0
    gradients, norms = clipped_gradients_reference(network, weights, rows, clip)
    sums = clipped_sums(network, weights, stack([rows]), clip=clip)[0]
    np.testing.assert_allclose(sums, gradients.sum(axis=0), atol=1e-5 * clip * max(1, count))
    for row in range(min(count, 8)):
        alone = clipped_sums(network, weights, stack([rows.part(row, row + 1)]), clip=clip)[0]
        assert np.linalg.norm(alone) <= clip
        np.testing.assert_allclose(alone, gradients[row], atol=1e-5 * max(clip, norms[row]))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_one_by_one_equals_many_at_once_bit_for_bit(optimizer):
    network = Network(inputs=6, hidden=(5, 4), outputs=3)
    generator = np.random.default_rng(3)
    counts = (40, 0, 301, 1, 17)
    sites = [make_rows(network, count, generator) for count in counts]
    training = Training(optimizer=optimizer, lr=0.05, l2=0.001)
    adaptive = AdaptiveClip(sigma_b=1.0, start=np.array([0.5, 1.0, 2.0, 1.0, 0.1]))
    private = dataclasses.replace(
        private_steps(5, average=0.5, adaptive=adaptive),
        rate=np.array([0.2, 0.5, 1.0, 0.9, 0.03]),
        steps=np.array([7, 3, 2, 0, 9]),
        sigma=np.array([1.0, 1.0, 0.3, 2.0, 5.0]),
    )
    start = np.stack([network.start(generator) for _ in counts])
    together = fit_private(network, start, stack(sites), training=training, private=private, keep_state=True)
    for i in range(5):
        alone = fit_private(
            network, start[i], stack([sites[i]]), training=training, private=take(private, [i]), keep_state=True
        )
        assert np.array_equal(alone.weights[0], together.weights[i])
        assert np.array_equal(alone.clips[0], together.clips[i])
        if optimizer != "sgd":
            assert np.array_equal(alone.state.first[0], together.state.first[i])
            assert alone.state.steps[0] == together.state.steps[i] == (private.steps[i] if counts[i] else 0)
    assert np.array_equal(together.weights[1], start[1]), "a site without rows takes no step"


def test_steps_in_parts_are_the_steps_of_one_call(monkeypatch):
    network = Network(inputs=4, hidden=(3,), outputs=2)
    rows = stack([make_rows(network, 90, np.random.default_rng(0))])
    weights = network.start(np.random.default_rng(1))
    options = {"training": Training(optimizer="adam", lr=0.01), "private": private_steps(steps=23, average=0.3)}
    whole = fit_private(network, weights, rows, **options)
    monkeypatch.setattr("kohort.models.dp_sgd.sites._CHUNK_STEPS", 4)
    assert np.array_equal(fit_private(network, weights, rows, **options).weights, whole.weights)


def test_without_clip_and_noise_it_is_plain_training():
    network = Network(inputs=4, hidden=(6,), outputs=3, activation="tanh", dtype="float64")
    rows = stack([make_rows(network, 150, np.random.default_rng(0), weighted=True)])
    weights = network.start(np.random.default_rng(1))
    training = Training(epochs=8, batch=0, optimizer="adam", lr=0.01, l2=0.1, prox=0.2)
    plain = fit_many(network, weights, rows, training=training, keys=np.zeros(1, np.uint64), round=0)
    private = private_steps(clip=1e9, sigma=0.0, rate=1.0, steps=8)
    np.testing.assert_allclose(
        fit_private(network, weights, rows, training=training, private=private).weights, plain.weights, atol=1e-12
    )


def test_state_carries_on():
    network = Network(inputs=4, outputs=2, dtype="float64")
    rows = stack([make_rows(network, 50, np.random.default_rng(0))])
    weights = network.start(np.random.default_rng(1))
    training = Training(optimizer="momentum", lr=0.1)
    quiet = private_steps(sigma=0.0, rate=1.0, steps=3)
    first = fit_private(network, weights, rows, training=training, private=quiet, keep_state=True)
    second = fit_private(network, first.weights, rows, training=training, private=quiet, state=first.state)
    whole = fit_private(network, weights, rows, training=training, private=private_steps(sigma=0.0, rate=1.0, steps=6))
    np.testing.assert_array_equal(second.weights, whole.weights)
    assert second.state.steps.tolist() == [6]


def test_a_row_moves_only_its_own_site():
    network = Network(inputs=3, outputs=2)
    generator = np.random.default_rng(0)
    sites = [make_rows(network, 30, generator) for _ in range(3)]
    weights = network.start(generator)
    options = {"training": Training(optimizer="sgd", lr=0.1), "private": private_steps(3, rate=1.0)}
    before = fit_private(network, weights, stack(sites), **options).weights
    sites[1] = sites[1].part(1, 30)
    after = fit_private(network, weights, stack(sites), **options).weights
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert not np.array_equal(before[1], after[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_gradient_that_is_not_finite_is_refused_and_named_by_no_value(dtype, bad):
    network = Network(inputs=3, hidden=(4,), outputs=1, loss="squared", dtype=dtype, activation="tanh")
    rows = make_rows(network, 30, np.random.default_rng(0))
    rows.x[17, 1] = bad if dtype == "float32" or not np.isfinite(bad) else 1e200
    weights = network.start(np.random.default_rng(1)) + 0.5
    rows.y[17] = rows.x[17, 1]
    with pytest.raises(SiteError, match="not finite"):
        fit_private(network, weights, stack([rows]), training=Training(), private=private_steps(rate=1.0, steps=1))
    with pytest.raises(SiteError, match="not finite"):
        clipped_sums(network, weights, stack([rows]), clip=1.0)


def test_wide_rows_stay_within_the_bound():
    network = Network(inputs=20_000, outputs=2)
    generator = np.random.default_rng(0)
    rows = Rows.of(generator.uniform(0.5, 1.0, size=(4, 20_000)), [0, 1, 0, 1])
    weights = network.start(generator)
    for row in range(4):
        alone = clipped_sums(network, weights, stack([rows.part(row, row + 1)]), clip=1.0)[0]
        assert 1 - 1e-5 < np.linalg.norm(alone) <= 1.0


def test_tiny_clips_and_wild_adaptive_noise_stay_finite():
    network = Network(inputs=2, outputs=2)
    rows = stack([make_rows(network, 3, np.random.default_rng(0))])
    weights = np.zeros(6, np.float32)
    training = Training(optimizer="sgd", lr=1e-6)
    tiny = fit_private(network, weights, rows, training=training, private=private_steps(clip=1e-60, rate=1.0))
    assert np.isfinite(tiny.weights).all()
    wild = private_steps(rate=1e-5, steps=9, adaptive=AdaptiveClip(sigma_b=50.0, rate=5.0))
    clips = fit_private(network, weights, rows, training=training, private=wild).clips[0]
    assert clips.min() >= 1e-9
    assert clips.max() <= 1e9


def test_a_large_finite_row_is_scaled_to_the_bound():
    network = Network(inputs=3, outputs=1, loss="squared", dtype="float32")
    rows = Rows.of([[1e6, -1e5, 3.0]], [1e5])
    sums = clipped_sums(network, np.ones(4, np.float32), stack([rows]), clip=2.0)[0]
    assert np.linalg.norm(sums) == pytest.approx(2.0, rel=1e-5)
    assert np.linalg.norm(sums) <= 2.0


def test_an_empty_batch_still_adds_noise_and_steps():
    network = Network(inputs=3, outputs=2, dtype="float64")
    rows = make_rows(network, 5, np.random.default_rng(0))
    private = private_steps(rate=1e-6, steps=1, sigma=3.0, clip=0.5)
    assert batches_reference(private.keys[0], rate=1e-6, count=5, steps=1) == [[]]
    fitted = fit_private(
        network, np.zeros(8), stack([rows]), training=Training(optimizer="sgd", lr=1.0), private=private
    )
    noise = normals_reference(words_reference(private.keys[0], b"noise", 10))[:8]
    np.testing.assert_allclose(fitted.weights[0], -3.0 * 0.5 * noise / (1e-6 * 5), rtol=1e-12)
    assert fitted.steps.tolist() == [1]


def test_adaptive_clip_finds_the_quantile():
    network = Network(inputs=5, outputs=2, dtype="float64")
    rows = make_rows(network, 400, np.random.default_rng(0))
    weights = np.zeros(network.parameter_count)
    _, norms = clipped_gradients_reference(network, weights, rows, 1.0)
    private = private_steps(
        clip=20.0, sigma=0.0, rate=1.0, steps=80, adaptive=AdaptiveClip(quantile=0.7, rate=0.3, sigma_b=1.0)
    )
    fitted = fit_private(network, weights, stack([rows]), training=Training(optimizer="sgd", lr=1e-9), private=private)
    assert fitted.next_clip[0] == pytest.approx(np.quantile(norms, 0.7), rel=0.02)
    assert fitted.shares[0].shape == (80,)
    assert fitted.clips[0].shape == (81,)
    # Noise of standard deviation 1 on 400 rows: seen, and small.
    assert 0 < np.abs(fitted.shares[0][-20:] - 0.7).max() < 0.05


@given(rate=st.floats(1e-4, 0.999), count=st.integers(1, 300), steps=st.integers(1, 12), seed=st.integers(0, 2**32))
@examples(20, 60)
def test_sampler_equals_reference(rate, count, steps, seed):
    sampler = RowSampler(key_of(seed), rate=rate, count=count)
    found = []
    for size in (steps // 2, steps - steps // 2):
        if size:
            rows, begins, ends = sampler.batches(size)
            found += [rows[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]
    assert found == batches_reference(key_of(seed), rate=rate, count=count, steps=steps)


@given(count=st.integers(0, 300), seed=st.integers(0, 2**32), label=st.binary(max_size=80))
@examples(20, 40)
def test_gaussian_equals_reference(count, seed, label):
    drawn = gaussian(key_of(seed), count, label=label)
    expected = normals_reference(words_reference(key_of(seed), b"gaussian" + label, count + count % 2))[:count]
    np.testing.assert_allclose(drawn, expected, rtol=1e-12, atol=1e-14)


def test_streams_differ_by_key_and_label_and_run_on():
    def draw(key, label, sizes):
        stream = KeyStream(key, label)
        parts = [np.empty(size, np.uint64) for size in sizes]
        for part in parts:
            stream.fill(part)
        return np.concatenate(parts)

    whole = draw(key_of(1), b"a", [200_000])
    assert np.array_equal(draw(key_of(1), b"a", [1, 70_000, 129_999]), whole)
    others = [draw(key_of(2), b"a", [100]), draw(key_of(1), b"b", [100]), draw(key_of(1), b"", [100])]
    assert all(not np.isin(other, whole).any() for other in others)
    assert len(np.unique(whole)) == 200_000


def test_gaussian_in_parts_has_no_seam():
    drawn = gaussian(key_of(5), 200_001)
    assert drawn.shape == (200_001,)
    assert len(np.unique(drawn)) == 200_001
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clip_update(dtype):
    updates = np.array([[3, 4], [0.3, 0.4], [0, 0], [1e30, 1e30]], dtype=dtype)
    bounded = clip_update(updates, 1.0)
    assert bounded.dtype == dtype
    assert (np.linalg.norm(bounded.astype(np.float64), axis=1) <= 1.0).all()
    np.testing.assert_allclose(bounded[0], [0.6, 0.8], rtol=2e-6)
    np.testing.assert_array_equal(bounded[1:3], updates[1:3])
    np.testing.assert_allclose(bounded[3], [math.sqrt(0.5)] * 2, rtol=2e-6)
    np.testing.assert_array_equal(clip_update(updates[0], 1.0), bounded[0])
    with pytest.raises(SiteError, match="not finite"):
        clip_update(np.array([1.0, np.nan]), 1.0)
    with pytest.raises(ConfigError):
        clip_update(updates, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": -1.0},
        {"clip": math.nan},
        {"sigma": -1.0},
        {"sigma": math.inf},
        {"rate": 0.0},
        {"rate": 1.1},
        {"rate": math.nan},
        {"steps": -1},
        {"average": 1.5},
    ],
)
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ConfigError):
        private_steps(2, **wrong)


def test_wrong_keys_shapes_and_targets_are_refused():
    good = private_steps(2)
    for wrong in ({"keys": (key_of(1),)}, {"keys": (b"short", key_of(1))}, {"keys": (key_of(1), key_of(1))}):
        with pytest.raises(ConfigError):
            dataclasses.replace(good, **wrong)
    for wrong in ({"quantile": 1.5}, {"rate": 0.0}, {"sigma_b": 0.0}, {"start": np.array([0.0])}):
        with pytest.raises(ConfigError):
            AdaptiveClip(**{"sigma_b": 1.0, **wrong})
    with pytest.raises(ConfigError):
        dataclasses.replace(good, adaptive=AdaptiveClip(sigma_b=1.0, start=np.ones(3)))
    network = Network(inputs=2, outputs=2)
    rows = Rows.of(np.zeros((3, 2)), [0, 1, 2])
    with pytest.raises(ConfigError, match="2 noise keys for 1 sites"):
        fit_private(network, network.start(np.random.default_rng(0)), stack([rows]), training=Training(), private=good)
    with pytest.raises(DataError, match="class codes"):
        fit_private(network, np.zeros(6, np.float32), stack([rows]), training=Training(), private=private_steps())


def test_whole_numbers_do_and_keys_are_not_shown():
    network = Network(inputs=4, outputs=2)
    rows = stack([make_rows(network, 40, np.random.default_rng(0))])
    private = PrivateSteps(
        clip=2,
        sigma=np.array([3]),
        rate=np.array([1]),
        steps=np.array([2]),
        keys=(b"a secret key of thirty-two bytes",),
        adaptive=AdaptiveClip(quantile=1, rate=1, sigma_b=2),
    )
    assert "secret" not in repr(private)
    fitted = fit_private(network, np.zeros(10, np.float32), rows, training=Training(lr=1), private=private)
    assert len(set(fitted.clips[0].tolist())) == 3


def test_inputs_are_left_as_they_were():
    network = Network(inputs=4, hidden=(3,), outputs=2)
    rows = stack([make_rows(network, 40, np.random.default_rng(0))])
    weights = network.start(np.random.default_rng(1))
    training = Training(optimizer="adam")
    state = fit_private(network, weights, rows, training=training, private=private_steps(), keep_state=True).state
    for array in (rows.x, rows.y, weights, state.first, state.second, state.steps):
        array.flags.writeable = False
    again = fit_private(network, weights, rows, training=training, private=private_steps(seed=1), state=state)
    assert again.state.steps.tolist() == [10]


@given(
    inputs=st.integers(1, 60),
    hidden=st.lists(st.integers(1, 40), max_size=2),
    outputs=st.integers(2, 7),
    activation=st.sampled_from(("relu", "tanh", "sigmoid")),
    count=st.integers(1, 60),
    clip=st.sampled_from((0.05, 0.5, 3.0)),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_clipped_gradients_equal_opacus(inputs, hidden, outputs, activation, count, clip, seed):
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    generator = np.random.default_rng(seed)
    network = Network(inputs=inputs, hidden=tuple(hidden), outputs=outputs, activation=activation)
    weights = network.start(generator)
    rows = make_rows(network, count, generator)
    parts = []
    for matrix, bias in network.layers(weights):
        linear = torch.nn.Linear(*matrix.shape)
        linear.weight.data = torch.from_numpy(matrix.T.copy())
        linear.bias.data = torch.from_numpy(bias.copy())
        parts += [linear, {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid}[activation]()]
    module = opacus.GradSampleModule(torch.nn.Sequential(*parts[:-1]), loss_reduction="sum")
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    scores = module(torch.from_numpy(rows.x))
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(rows.y).long(), reduction="sum").backward()
    optimizer.clip_and_accumulate()
    theirs = [parameter.summed_grad.numpy() for parameter in module.parameters()]
    layers = [(weight.T, bias) for weight, bias in zip(theirs[::2], theirs[1::2], strict=True)]
    ours = clipped_sums(network, weights, stack([rows]), clip=clip)[0]
    np.testing.assert_allclose(ours / count, network.flatten(layers) / count, atol=1e-5)


@pytest.mark.parametrize("count", [20, 0])
def test_a_site_that_declares_more_rows_is_divided_by_them(count):
    network, generator = Network(inputs=2, hidden=(), outputs=2), np.random.default_rng(3)
    rows, start = make_rows(network, count, generator), np.zeros(network.parameter_count, network.dtype)
    alone, among = (
        fit_private(
            network,
            start,
            stack([rows]),
            training=Training(optimizer="sgd", lr=1.0),
            private=private_steps(sigma=1.0 if count == 0 else 0.0, rate=1.0, steps=1, declared=declared),
        ).weights[0]
        for declared in (None, np.asarray([40]))
    )
    if count:
        np.testing.assert_allclose(among, alone / 2, rtol=1e-6)
    else:  # it takes its step, of noise alone
        assert not alone.any()
    assert among.any()
