"""The training kernel against its slow reference, finite differences and torch.optim."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.dense import fit_reference, gradient_reference, loss_reference
from tests.reference.one_site import fit_one
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError
from kohort.models.dense.compiled import exp
from kohort.models.dense.kernel import train_sites
from kohort.models.dense.network import Network
from kohort.models.dense.training import OptimiserState, Training, fit_many, row_order
from kohort.models.rows import Rows, stack
from kohort.models.scoring import loss_of

ACTIVATIONS = ("relu", "tanh", "sigmoid")
# A loss and the number of outputs it is tried with.
HEADS = (
    ("softmax", 2),
    ("softmax", 5),
    ("logistic", 1),
    ("hinge", 1),
    ("hinge", 3),
    ("perceptron", 1),
    ("perceptron", 4),
    ("squared", 1),
)


def make_rows(network, count, generator, *, weighted=False):
    x = generator.uniform(-1, 1, size=(count, network.inputs))
    y = generator.normal(size=count) if network.loss == "squared" else generator.integers(0, network.classes, count)
    weight = generator.uniform(0.2, 3.0, count) if weighted else None
    return Rows.of(x, y, weight=weight, dtype=network.dtype)


def make_sites(network, counts, generator, *, weighted=False):
    return [make_rows(network, count, generator, weighted=weighted) for count in counts]


def kernel_gradient(network, weights, rows):
    """One step of plain SGD at rate 1 on the full batch moves the weights by minus the gradient."""
    training = Training(batch=0, optimizer="sgd", lr=1.0)
    fitted = fit_one(network, weights, rows, training=training, key=0, round=0)
    return weights - fitted.weights[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("loss", "outputs"), HEADS)
@pytest.mark.parametrize("hidden", [(), (5,), (6, 3)])
def test_gradient_equals_finite_differences(loss, outputs, activation, hidden):
    network = Network(inputs=4, hidden=hidden, outputs=outputs, loss=loss, activation=activation, dtype="float64")
    generator = np.random.default_rng(1)
    rows = make_rows(network, 37, generator, weighted=True)
    weights = network.start(generator) + 0.1 * generator.normal(size=network.parameter_count)
    gradient = kernel_gradient(network, weights, rows)
    step = 1e-6
    for p in range(network.parameter_count):
        up, down = weights.copy(), weights.copy()
        up[p] += step
        down[p] -= step
        rise = loss_of(network, up, rows.x, rows.y, weight=rows.weight)
        fall = loss_of(network, down, rows.x, rows.y, weight=rows.weight)
        assert gradient[p] == pytest.approx((rise - fall) / (2 * step), abs=1e-6)
    np.testing.assert_allclose(gradient, gradient_reference(network, weights, rows.x, rows.y, rows.weight), atol=1e-12)


networks = st.builds(
    lambda inputs, hidden, head, activation, dtype: Network(
        inputs=inputs, hidden=tuple(hidden), outputs=head[1], loss=head[0], activation=activation, dtype=dtype
    ),
    inputs=st.integers(1, 19),
    hidden=st.lists(st.integers(1, 18), max_size=3),
    head=st.sampled_from(HEADS),
    activation=st.sampled_from(ACTIVATIONS),
    dtype=st.sampled_from(("float32", "float64")),
)
trainings = st.builds(
    Training,
    epochs=st.integers(1, 3),
    batch=st.sampled_from((0, 1, 3, 8, 32, 33, 64, 150)),
    optimizer=st.sampled_from(("sgd", "momentum", "adam")),
    lr=st.sampled_from((0.0005, 0.002, 0.005)),
    momentum=st.sampled_from((0.0, 0.5, 0.9)),
    beta1=st.sampled_from((0.0, 0.9)),
    beta2=st.sampled_from((0.9, 0.999)),
    l2=st.sampled_from((0.0, 0.01)),
    prox=st.sampled_from((0.0, 0.1)),
)


@given(
    network=networks,
    training=trainings,
    count=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    weighted=st.booleans(),
    shifted=st.booleans(),
    anchored=st.booleans(),
)
@examples(40, 150)
def test_kernel_equals_reference(network, training, count, seed, weighted, shifted, anchored):
    generator = np.random.default_rng(seed)
    rows = make_rows(network, count, generator, weighted=weighted)
    weights = network.start(generator)
    around = lambda: (weights + 0.1 * generator.normal(size=weights.shape)).astype(network.dtype)  # noqa: E731
    anchor = around() if anchored else None
    shift = 0.1 * around() if shifted else None
    fitted = fit_one(
        network,
        weights,
        rows,
        training=training,
        key=seed,
        round=3,
        anchor=anchor,
        shift=None if shift is None else shift[None],
        measure_loss=True,
    )
    expected, loss = fit_reference(
        network, weights, rows, training=training, key=seed, round=3, anchor=anchor, shift=shift
    )
    assert fitted.steps[0] == training.epochs * -(-count // (training.batch or count))
    if network.dtype == "float64":
        # A score may lie on the edge of a ReLU or a margin up to rounding; drawn data does not hit it.
        # Adam divides by the root of a gradient that may be zero up to rounding, hence the absolute part.
        np.testing.assert_allclose(fitted.weights[0], expected, rtol=1e-9, atol=1e-9)
        assert fitted.losses[0] == pytest.approx(loss, rel=1e-9, abs=1e-12)
    else:
        # float32 rounding can flip a ReLU, a margin, or the sign of an Adam step on a gradient near zero.
        reach = 2.2 * training.lr * fitted.steps[0] if training.optimizer == "adam" else 0.02
        assert np.max(np.abs(fitted.weights[0] - expected)) <= reach + 1e-3 * np.max(np.abs(expected))
        np.testing.assert_allclose(np.median(np.abs(fitted.weights[0] - expected)), 0, atol=2e-3)
        assert fitted.losses[0] == pytest.approx(loss, rel=2e-2, abs=1e-3)


@pytest.mark.parametrize("loss_and_outputs", HEADS)
def test_loss_of_equals_reference(loss_and_outputs):
    loss, outputs = loss_and_outputs
    network = Network(inputs=3, hidden=(4,), outputs=outputs, loss=loss, dtype="float64")
    generator = np.random.default_rng(0)
    rows = make_rows(network, 50, generator, weighted=True)
    weights = network.start(generator)
    expected = loss_reference(network, weights, rows.x, rows.y, rows.weight)
    assert loss_of(network, weights, rows.x, rows.y, weight=rows.weight) == pytest.approx(expected, rel=1e-12)


@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=9),
    training=trainings,
    seed=st.integers(0, 1000),
    head=st.sampled_from(HEADS),
    weighted=st.booleans(),
    own_weights=st.booleans(),
)
@examples(20, 60)
def test_one_by_one_equals_many_equals_threads_bit_for_bit(counts, training, seed, head, weighted, own_weights):
    network = Network(inputs=5, hidden=(7,), outputs=head[1], loss=head[0])
    generator = np.random.default_rng(seed)
    sites = make_sites(network, counts, generator, weighted=weighted)
    keys = generator.integers(0, 2**64, len(counts), dtype=np.uint64)
    starting = np.stack([network.start(generator) for _ in counts])
    weights = starting if own_weights else starting[0]
    shift = 0.01 * starting
    options = {"training": training, "round": 2, "measure_loss": True}
    rows = stack(sites)
    many = fit_many(network, weights, rows, keys=keys, shift=shift, **options)
    threaded = fit_many(network, weights, rows, keys=keys, shift=shift, threads=2, **options)
    scratch = fit_many(network, weights, rows, keys=keys, shift=shift, keep_state=False, **options)
    assert scratch.state is None
    for other in (threaded, scratch):
        assert np.array_equal(many.weights, other.weights)
        assert np.array_equal(many.losses, other.losses, equal_nan=True)
        assert np.array_equal(many.steps, other.steps)
    for s, site in enumerate(sites):
        own = starting[s] if own_weights else starting[0]
        one = fit_one(network, own, site, key=int(keys[s]), shift=shift[s : s + 1], **options)
        assert np.array_equal(one.weights[0], many.weights[s])
        assert np.array_equal(one.losses, many.losses[s : s + 1], equal_nan=True)
        if many.state is not None:
            assert np.array_equal(one.state.first[0], many.state.first[s])
            assert np.array_equal(one.state.steps, many.state.steps[s : s + 1])
    # Sites in another order, and any subset of them, learn the same.
    chosen = generator.permutation(len(counts))[: max(1, len(counts) // 2)]
    part = fit_many(
        network, starting[chosen] if own_weights else weights, rows.take(chosen), keys=keys[chosen],
        shift=shift[chosen], **options,
    )  # fmt: skip
    assert np.array_equal(part.weights, many.weights[chosen])


def test_empty_site_keeps_its_weights():
    network = Network(inputs=2, outputs=2)
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    rows = stack(make_sites(network, [0, 5], generator))
    fitted = fit_many(
        network, weights, rows, training=Training(), keys=np.zeros(2, np.uint64), round=0, measure_loss=True
    )
    assert np.array_equal(fitted.weights[0], weights)
    assert not np.array_equal(fitted.weights[1], weights)
    assert fitted.steps.tolist() == [0, 1]
    assert np.isnan(fitted.losses[0])
    assert np.isfinite(fitted.losses[1])


def test_inputs_are_left_as_they_were():
    network = Network(inputs=3, hidden=(4,), outputs=2)
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    rows = stack(make_sites(network, [20, 20], generator))
    options = {"training": Training(batch=8), "keys": np.arange(2, dtype=np.uint64)}
    state = fit_many(network, weights, rows, round=0, **options).state
    before = [a.copy() for a in (weights, rows.x, rows.y, state.first, state.second, state.steps)]
    fit_many(network, weights, rows, round=1, state=state, **options)
    after = (weights, rows.x, rows.y, state.first, state.second, state.steps)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_kept_state_continues_the_run_and_a_restart_does_not(optimizer):
    # With the full batch, the mini-batches of two calls of one epoch are those of one call of two.
    network = Network(inputs=3, hidden=(4,), outputs=2, dtype="float64")
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    rows = stack(make_sites(network, [30, 50], generator))
    keys = np.arange(2, dtype=np.uint64)
    one_epoch = Training(batch=0, optimizer=optimizer, lr=0.05)
    two_epochs = Training(batch=0, optimizer=optimizer, lr=0.05, epochs=2)
    long = fit_many(network, weights, rows, training=two_epochs, keys=keys, round=0)
    half = fit_many(network, weights, rows, training=one_epoch, keys=keys, round=0)
    kept = fit_many(network, half.weights, rows, training=one_epoch, keys=keys, round=1, state=half.state)
    again = fit_many(network, half.weights, rows, training=one_epoch, keys=keys, round=1)
    assert np.array_equal(kept.weights, long.weights)
    assert np.array_equal(kept.state.first, long.state.first)
    assert kept.state.steps.tolist() == [2, 2]
    assert kept.steps.tolist() == [1, 1]
    assert not np.array_equal(again.weights, long.weights)
    swapped = fit_many(
        network, half.weights[::-1], rows.take([1, 0]), training=one_epoch, keys=keys[::-1], round=1,
        state=half.state.take([1, 0]),
    )  # fmt: skip
    assert np.array_equal(swapped.weights, kept.weights[::-1])


def test_a_last_batch_counts_by_its_rows():
    """65 rows in batches of 64: the row left over moves the weights by 1/64 of a step, corrections included."""
    network = Network(inputs=3, hidden=(), outputs=1, loss="squared", dtype="float64")
    generator = np.random.default_rng(8)
    rows = make_rows(network, 65, generator)
    weights, shift = network.start(generator), generator.normal(size=(1, network.parameter_count))
    training = Training(batch=64, optimizer="sgd", lr=0.3, l2=0.1)
    moved = fit_one(network, weights, rows, training=training, key=3, round=0, shift=shift).weights[0]
    order = row_order(3, 0, 0, 65)
    before = fit_one(
        network, weights, Rows(rows.x[order[:64]], rows.y[order[:64]]),
        training=replace(training, batch=0), key=3, round=0, shift=shift,
    ).weights[0]  # fmt: skip
    alone = fit_one(
        network, before, Rows(rows.x[order[64:]], rows.y[order[64:]]),
        training=replace(training, batch=0), key=3, round=0, shift=shift,
    ).weights[0]  # fmt: skip
    np.testing.assert_allclose(moved - before, (alone - before) / 64, rtol=1e-9, atol=1e-12)
    assert np.abs(alone - before).max() > 0.01


@pytest.mark.parametrize(
    ("optimizer", "l2"), [("sgd", 0.0), ("sgd", 0.01), ("momentum", 0.01), ("adam", 0.0), ("adam", 0.01)]
)
@pytest.mark.parametrize(("loss", "outputs"), [("softmax", 3), ("logistic", 1), ("squared", 1)])
def test_steps_equal_torch(optimizer, l2, loss, outputs):
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    network = Network(inputs=4, hidden=(6,), outputs=outputs, loss=loss, activation="tanh", dtype="float64")
    generator = np.random.default_rng(5)
    rows = make_rows(network, 40, generator)
    weights = network.start(generator)
    training = Training(batch=0, epochs=6, optimizer=optimizer, lr=0.03, momentum=0.8, l2=l2)
    ours = fit_one(network, weights, rows, training=training, key=1, round=0).weights[0]

    (w1, b1), (w2, b2) = network.layers(weights.copy())
    parameters = [torch.tensor(part, requires_grad=True) for part in (w1, b1, w2, b2)]
    steps = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.03, weight_decay=l2),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.03, momentum=0.8, weight_decay=l2),
        "adam": lambda: torch.optim.Adam(parameters, lr=0.03, weight_decay=l2),
    }[optimizer]()
    x, y = torch.tensor(rows.x), torch.tensor(rows.y)
    for _ in range(6):
        steps.zero_grad()
        scores = torch.tanh(x @ parameters[0] + parameters[1]) @ parameters[2] + parameters[3]
        if loss == "softmax":
            value = torch.nn.functional.cross_entropy(scores, y.long())
        elif loss == "logistic":
            value = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], y)
        else:
            value = torch.nn.functional.mse_loss(scores[:, 0], y)
        value.backward()
        steps.step()
    theirs = np.concatenate([part.detach().numpy().ravel() for part in parameters])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("loss", "outputs"), HEADS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_a_number_is_never_hidden(loss, outputs, activation, bad):
    network = Network(inputs=3, hidden=(4,), outputs=outputs, loss=loss, activation=activation)
    generator = np.random.default_rng(0)
    rows = make_rows(network, 40, generator)
    rows.x[17, 1] = bad
    fitted = fit_one(network, network.start(generator), rows, training=Training(batch=8), key=0, round=0)
    assert not np.isfinite(fitted.weights).all()


@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_weights_that_are_not_a_number_stay_so(hidden, optimizer):
    network = Network(inputs=3, hidden=hidden, outputs=2)
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    weights[0] = np.nan
    rows = make_rows(network, 40, generator)
    training = Training(batch=8, optimizer=optimizer)
    assert np.isnan(fit_one(network, weights, rows, training=training, key=0, round=0).weights[0, 0])


def test_targets_that_are_no_class_codes_are_refused():
    network = Network(inputs=2, outputs=3)
    generator = np.random.default_rng(0)
    for code in (3.0, -1.0, 0.5, np.nan):
        rows = make_rows(network, 10, generator)
        rows.y[4] = code
        with pytest.raises(DataError, match="1 rows at 1 sites"):
            fit_one(network, network.start(generator), rows, training=Training(), key=0, round=0)


def test_shapes_that_do_not_fit_are_refused():
    network = Network(inputs=2, outputs=2)
    generator = np.random.default_rng(0)
    weights = network.start(generator)
    rows = stack(make_sites(network, [5, 5], generator))
    good = {"training": Training(), "keys": np.zeros(2, np.uint64), "round": 0}
    wide = stack([Rows.of(np.zeros((5, 3)), np.zeros(5))] * 2)
    double = stack([Rows.of(np.zeros((5, 2)), np.zeros(5), dtype="float64")] * 2)
    one_state = OptimiserState(np.zeros((1, 6)), np.zeros((1, 6)), np.zeros(1, np.int64))
    with pytest.raises(DataError, match="3 features"):
        fit_many(network, weights, wide, **good)
    for broken in (
        {"rows": double},
        {"weights": weights[:-1]},
        {"weights": np.stack([weights] * 3)},
        {"keys": np.zeros(3, np.uint64)},
        {"anchor": weights[:-1]},
        {"shift": weights},
        {"state": one_state},
        {"round": -1},
        {"threads": 0},
    ):
        arguments = {"weights": weights, "rows": rows, **good, **broken}
        with pytest.raises(ConfigError):
            fit_many(network, **arguments)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"batch": -1}, {"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}, {"l2": -1.0},
     {"optimizer": "adm"}, {"batch": 1.5}],
)  # fmt: skip
def test_training_options_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Training(**wrong)


def test_inputs_from_files_and_wires_are_trained_on_without_another_compilation():
    network = Network(inputs=3, hidden=(4,), outputs=2)
    generator = np.random.default_rng(0)
    plain = make_rows(network, 20, generator)
    weights = network.start(generator)
    options = {"training": Training(batch=8, prox=0.1), "key": 5, "round": 0}
    expected = fit_one(network, weights, plain, **options).weights
    compiled = len(train_sites.signatures)

    locked = Rows(np.frombuffer(plain.x.tobytes(), np.float32).reshape(20, 3), plain.y)
    unaligned = np.frombuffer(b"?" + weights.tobytes(), np.float32, offset=1)
    assert not locked.x.flags.writeable
    assert not unaligned.flags.aligned
    assert np.array_equal(fit_one(network, unaligned, locked, **options).weights, expected)
    assert len(train_sites.signatures) == compiled


def test_exp_is_exact_to_the_last_digits_and_keeps_nan():
    values = np.concatenate([np.linspace(-708, 709, 20_001), [0.0, -1e-300, 1e-9]])
    np.testing.assert_allclose([exp(value) for value in values], np.exp(values), rtol=1e-15)
    assert exp(-1e9) < 1e-300
    assert exp(1e9) > 1e300
    assert np.isnan(exp(np.nan))


@pytest.mark.parametrize(("loss", "outputs"), [("softmax", 3), ("logistic", 1)])
def test_scores_far_out_give_finite_losses_and_weights(loss, outputs):
    network = Network(inputs=1, outputs=outputs, loss=loss)
    weights = np.full(network.parameter_count, 50.0, np.float32)
    rows = Rows.of([[1e4], [-1e4]] * 4, [0, 1] * 4)
    training = Training(batch=0, optimizer="sgd", lr=0.1)
    fitted = fit_one(network, weights, rows, training=training, key=0, round=0, measure_loss=True)
    assert np.isfinite(fitted.weights).all()
    assert np.isfinite(fitted.losses).all()
