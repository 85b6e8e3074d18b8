"""A torch module against the dense kernel, alone and in a run, and everything a module may not be."""

import json
from itertools import pairwise
from traceback import format_exception
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

torch = pytest.importorskip("torch", reason="the extra kohort[torch] is not installed")

from torch import nn  # noqa: E402

from kohort.errors import ConfigError, DataError, IntegrityError, SiteError  # noqa: E402
from kohort.models.dense.network import Network  # noqa: E402
from kohort.models.dense.training import Training, fit_many  # noqa: E402
from kohort.models.files import load_model, save_model  # noqa: E402
from kohort.models.rows import Rows, stack  # noqa: E402
from kohort.models.scoring import loss_of, probabilities, scores  # noqa: E402
from kohort.models.torch.network import TorchNetwork  # noqa: E402
from kohort.protocol.enrolment import PREPARE  # noqa: E402
from kohort.runs.config import load_plan  # noqa: E402
from kohort.runs.run import run  # noqa: E402

# Modules, which a plan can name because this file is importable while it runs.


class InDenseOrder(nn.Module):
    """A dense network whose parameters lie in the flat vector as those of `Network` do."""

    def __init__(self, sizes, activation):
        super().__init__()
        self.activation = activation
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            self.register_parameter(f"matrix{depth}", nn.Parameter(torch.randn(fan_in, fan_out) / fan_in))
            self.register_parameter(f"bias{depth}", nn.Parameter(torch.zeros(fan_out)))
        self.depth = len(sizes) - 1

    def forward(self, x):
        for depth in range(self.depth):
            x = x @ getattr(self, f"matrix{depth}") + getattr(self, f"bias{depth}")
            if depth < self.depth - 1:
                x = self.activation(x)
        return x


def dense_relu(inputs, outputs):
    return InDenseOrder((inputs, 5, outputs), torch.relu)


def dense_tanh(inputs, outputs):
    return InDenseOrder((inputs, 4, 3, outputs), torch.tanh)


def dense_linear(inputs, outputs):
    return InDenseOrder((inputs, outputs), torch.relu)


SHAPES = {"dense_relu": ((5,), "relu"), "dense_tanh": ((4, 3), "tanh"), "dense_linear": ((), "relu")}


def of_linears(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))


def with_noise(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(6, outputs)
    )


def in_place(inputs, outputs):
    return nn.Sequential(nn.Hardtanh(0.4, 0.6, inplace=True), nn.Linear(inputs, outputs))


class PartlyFrozen(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, 4)
        self.head.weight.requires_grad_(False)
        self.tail = nn.Linear(4, outputs)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("codes", torch.arange(3))
        self.register_buffer("cache", torch.rand(2), persistent=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + len(x)
        return self.tail(torch.tanh(self.head(x)))


def shared_weights(inputs, outputs):
    first = nn.Linear(inputs, inputs)
    return nn.Sequential(first, nn.ReLU(), first, nn.Linear(inputs, outputs))


def named(factory):
    return f"{__name__}:{factory.__name__}"


def model_of(factory, *, inputs=3, outputs=2, **options):
    return TorchNetwork(factory=named(factory), inputs=inputs, outputs=outputs, **options)


def rows_of(count, *, inputs=3, classes=2, weighted=False, dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count) if classes else random.normal(size=count)
    weight = random.uniform(0.2, 2, count) if weighted else None
    return Rows.of(random.normal(size=(count, inputs)), y, weight=weight, dtype=dtype)


KEYS = np.array([11, 2**64 - 1, 5], dtype=np.uint64)


@given(
    loss=st.sampled_from(["softmax", "logistic", "hinge", "perceptron", "squared"]),
    factory=st.sampled_from([dense_relu, dense_tanh, dense_linear]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    batch=st.integers(0, 9),
    epochs=st.integers(1, 3),
    penalties=st.tuples(st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.3])),
    shifted=st.booleans(),
    anchored=st.booleans(),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
@examples(20, 40)
def test_a_module_learns_what_the_kernel_learns(
    loss, factory, optimizer, batch, epochs, penalties, shifted, anchored, weighted, seed
):
    outputs = 3 if loss in {"softmax", "hinge"} else 1
    classes = {"squared": 0, "logistic": 2, "perceptron": 2}.get(loss, 3)
    hidden, activation = SHAPES[factory.__name__]
    dense = Network(inputs=3, hidden=hidden, outputs=outputs, activation=activation, loss=loss, dtype="float64")
    module = model_of(factory, outputs=outputs, loss=loss, dtype="float64")
    assert module.parameter_count == dense.parameter_count
    rows = stack([rows_of(n, classes=classes, weighted=weighted, dtype="float64", seed=seed + n) for n in (7, 0, 12)])
    random = np.random.default_rng(seed)
    start = dense.start(random) + 0.1
    l2, prox = penalties
    options = {
        "training": Training(epochs=epochs, batch=batch, optimizer=optimizer, lr=0.05, l2=l2, prox=prox),
        "keys": KEYS,
        "anchor": random.normal(size=len(start)) if anchored else None,
        "shift": random.normal(size=(3, len(start))) if shifted else None,
        "measure_loss": True,
    }
    wanted = found = None
    for number in range(2):  # the second round goes on with the optimiser's state of the first
        wanted = fit_many(
            dense,
            start if wanted is None else wanted.weights,
            rows,
            round=number,
            state=wanted and wanted.state,
            **options,
        )
        found = module.fit(
            start if found is None else found.weights, rows, round=number, state=found and found.state, **options
        )
        np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found.losses, wanted.losses, rtol=1e-9, atol=1e-12)
        assert np.array_equal(found.steps, wanted.steps)
        assert (found.state is None) == (wanted.state is None)
        if found.state is not None:
            np.testing.assert_allclose(found.state.first, wanted.state.first, rtol=1e-8, atol=1e-11)
            np.testing.assert_allclose(found.state.second, wanted.state.second, rtol=1e-8, atol=1e-11)
            assert np.array_equal(found.state.steps, wanted.state.steps)
    x, y = rows.site(2).x, rows.site(2).y
    np.testing.assert_allclose(
        scores(module, found.weights[2], x), scores(dense, wanted.weights[2], x), rtol=1e-8, atol=1e-9
    )
    assert loss_of(module, found.weights[2], x, y) == pytest.approx(loss_of(dense, wanted.weights[2], x, y), rel=1e-8)


def table(rows=240, *, seed=3):
    random = np.random.default_rng(seed)
    age, dose = random.integers(18, 91, rows), random.normal(5, 2, rows).round(3)
    ward = random.choice(["north", "south", "west"], rows)
    noise = random.normal(0, 0.2, rows)
    ill = np.where(age / 90 + dose / 10 + noise > 1.1, "ill", "well")
    return pl.DataFrame({"age": age, "dose": dose, "ward": ward, "ill": ill, "stay": (age / 9 + dose + noise).round(4)})


def plan_of(model, *, target="ill", method="fedavg", data=None, policy=None, **train):
    drop = [name for name in ("ill", "stay") if name != target]
    return load_plan(
        {
            "data": {"table": "in-memory table", "target": target, "features": "rest", "drop": drop, **(data or {})},
            "sites": {"count": 3},
            "model": model,
            "train": {"rounds": 5, "batch": 16, "lr": 0.05, **train},
            "method": {"name": method},
            "policy": {"min_rows": 1, "raw": True, **(policy or {})},
        }
    )


def go(plan, **options):
    return run(plan, seed=8, tables={"": table()}, **options)


# The same MLP through TorchNetwork and through the dense kernel.


@pytest.mark.parametrize(
    ("method", "train"),
    [
        ("fedavg", {"optimizer": "sgd"}),
        ("fedavg", {"optimizer": "momentum", "state": "keep", "lr": 0.01}),
        ("fedavg", {"optimizer": "adam", "lr": 0.003, "local_epochs": 2}),
        ("fedavg", {"optimizer": "adam", "lr": 0.003, "state": "keep", "l2": 0.01, "stop": {"patience": 5}}),
        ("fedavg", {"optimizer": "sgd", "correction": "fedprox:0.1", "aggregate": "median"}),
        ("fedavg", {"optimizer": "sgd", "correction": "scaffold"}),
        ("fedavg", {"optimizer": "sgd", "hub": "fedadam:lr=0.01", "fraction": 0.7}),
        ("central", {"optimizer": "momentum", "lr": 0.01}),
        ("central", {"optimizer": "adam", "lr": 0.003, "state": "keep"}),
    ],
    ids=str,
)
def test_a_run_with_a_module_agrees_with_the_dense_kernel_after_5_rounds(method, train):
    starts = []

    def same_start(self, generator):
        starts.append(Network(inputs=self.inputs, hidden=(5,), outputs=self.outputs).start(generator))
        return starts[-1]

    dense = go(plan_of({"kind": "mlp", "hidden": [5]}, method=method, **train))
    with mock.patch.object(TorchNetwork, "start", same_start):
        module = go(plan_of({"kind": f"torch:{named(dense_relu)}"}, method=method, **train))
    assert module.rounds == dense.rounds == 5
    assert np.abs(dense.model.weights - starts[0]).max() > 0.02  # far more than the tolerance below
    np.testing.assert_allclose(module.model.weights, dense.model.weights, rtol=0, atol=1e-5)
    assert module.metrics["confusion"] == dense.metrics["confusion"]
    assert any("slower" in note for note in module.notes)
    assert not any("slower" in note for note in dense.notes)


def test_linear_layers_agree_too_with_their_matrices_turned_round():
    dense = Network(inputs=3, hidden=(5,), outputs=2)
    module = model_of(of_linears)
    assert [(part.name, part.shape) for part in module.parts] == [
        ("0.weight", (5, 3)),
        ("0.bias", (5,)),
        ("2.weight", (2, 5)),
        ("2.bias", (2,)),
    ]

    def turned(flat):
        return np.concatenate([array.ravel() for matrix, bias in dense.layers(flat) for array in (matrix.T, bias)])

    rows = stack([rows_of(50, seed=1), rows_of(33, seed=2), rows_of(20, seed=3)])
    options = {"training": Training(lr=0.01, batch=8, epochs=3), "keys": KEYS, "round": 4}
    start = dense.start(np.random.default_rng(1))
    wanted = fit_many(dense, start, rows, **options)
    found = module.fit(turned(start), rows, **options)
    for ours, theirs in zip(found.weights, wanted.weights, strict=True):
        np.testing.assert_allclose(ours, turned(theirs), rtol=0, atol=1e-5)


def test_a_number_is_predicted_too():
    outcome = go(plan_of({"kind": f"torch:{named(dense_tanh)}"}, target="stay", optimizer="adam", rounds=30, lr=0.01))
    assert outcome.metrics["r2"] > 0.75


@pytest.mark.parametrize(("loss", "outputs"), [("logistic", 1), ("hinge", 1), ("softmax", 2)])
def test_the_plan_chooses_the_loss(loss, outputs):
    model = {"kind": f"torch:{named(dense_tanh)}", "loss": loss}
    outcome = go(plan_of(model, rounds=30, optimizer="adam", lr=0.01))
    assert (outcome.model.network.loss, outcome.model.network.outputs) == (loss, outputs)
    by_class = np.sum(outcome.metrics["confusion"], axis=1)
    assert outcome.accuracy > by_class.max() / by_class.sum() + 0.1  # well above always saying the commoner class


@pytest.mark.parametrize(("loss", "target"), [("squared", "ill"), ("softmax", "stay"), ("logistic", "ward")])
def test_a_loss_that_does_not_fit_the_target_is_refused(loss, target):
    with pytest.raises(ConfigError, match=f"loss '{loss}' does not fit a target"):
        go(plan_of({"kind": f"torch:{named(of_linears)}", "loss": loss}, target=target))


# One by one, many at once, resumed.


def test_one_by_one_equals_many_at_once_with_dropout_and_batch_norm():
    plan = plan_of({"kind": f"torch:{named(with_noise)}"}, state="keep", optimizer="adam")
    together, alone = go(plan), go(plan, many=False)
    assert together.model.weights.tobytes() == alone.model.weights.tobytes()
    assert together.ledger_head == alone.ledger_head
    assert go(plan).model.weights.tobytes() == together.model.weights.tobytes()


def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path):
    plan = plan_of({"kind": f"torch:{named(with_noise)}"}, state="keep", optimizer="adam", correction="fedprox:0.1")
    whole = go(plan, out=tmp_path / "whole")

    def stop(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(plan, out=tmp_path / "cut", watch=stop)
    resumed = go(plan, out=tmp_path / "cut", resume=True)
    assert resumed.history == whole.history
    for name in ("model.safetensors", "model.json"):
        assert (tmp_path / "cut" / "model" / name).read_bytes() == (tmp_path / "whole" / "model" / name).read_bytes()


def test_dropout_is_drawn_anew_for_every_site_round_and_epoch():
    module = model_of(with_noise)
    rows = stack([rows_of(20), rows_of(20)])
    start = module.start(np.random.default_rng(0))

    def fit(keys, round_number, epochs=1):
        training = Training(batch=0, epochs=epochs, optimizer="sgd", lr=0.1)
        keys = np.array(keys, dtype=np.uint64)
        return module.fit(start, rows, training=training, keys=keys, round=round_number).weights

    # With one mini-batch of all rows the order of rows says nothing: what differs is the noise.
    same, other_site = fit([1, 1], 0)
    assert np.array_equal(same, other_site)
    first, second = fit([1, 2], 0)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, fit([1, 2], 1)[0])
    two_epochs = module.fit(
        first,
        rows,
        training=Training(batch=0, optimizer="sgd", lr=0.1),
        keys=np.array([1, 2], dtype=np.uint64),
        round=0,
    )
    assert not np.array_equal(fit([1, 2], 0, epochs=2)[0], two_epochs.weights[0])


def test_the_start_follows_the_seed_and_torch_is_left_as_it_was():
    torch.manual_seed(99)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    try:
        before = torch.random.get_rng_state()
        module = model_of(with_noise)
        first = module.start(np.random.default_rng(4))
        assert np.array_equal(first, module.start(np.random.default_rng(4)))
        assert not np.array_equal(first, module.start(np.random.default_rng(5)))
        double = model_of(with_noise, dtype="float64").start(np.random.default_rng(4))
        assert np.array_equal(first, double.astype(np.float32))
        module.fit(first, stack([rows_of(9)]), training=Training(), keys=KEYS[:1], round=0)
        scores(module, first, rows_of(9).x)
        with pytest.raises(SiteError):
            module.forward(first[1:], rows_of(9).x)
        assert torch.equal(before, torch.random.get_rng_state())
        assert torch.get_num_threads() == 2
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_deterministic_debug_mode() == 0
    finally:
        torch.set_default_dtype(torch.float32)


def test_it_trains_whatever_mode_torch_is_in():
    module = model_of(of_linears)
    start = module.start(np.random.default_rng(0))
    rows = stack([rows_of(20)])
    options = {"training": Training(), "keys": KEYS[:1], "round": 0}
    wanted = module.fit(start, rows, **options).weights
    with torch.no_grad():
        assert np.array_equal(module.fit(start, rows, **options).weights, wanted)
    with torch.inference_mode():
        assert np.array_equal(module.fit(start, rows, **options).weights, wanted)


# What travels.


def test_buffers_travel_after_the_parameters_and_frozen_parts_stay():
    module = model_of(PartlyFrozen)
    assert [(part.name, part.trained) for part in module.parts] == [
        ("unused", True),
        ("head.weight", False),
        ("head.bias", True),
        ("tail.weight", True),
        ("tail.bias", True),
        ("seen", False),
    ]
    start = module.start(np.random.default_rng(0))
    kept = start.copy()
    for optimizer in ("sgd", "momentum", "adam"):
        training = Training(batch=8, l2=0.1, prox=0.1, optimizer=optimizer, lr=0.05)
        shift = np.ones((1, len(start)), dtype=np.float32)
        found = module.fit(start, stack([rows_of(20)]), training=training, keys=KEYS[:1], round=0, shift=shift)
        before, after = module.tensors(start), module.tensors(found.weights[0])
        assert np.array_equal(after["module.head.weight"], before["module.head.weight"])
        assert (after["module.tail.weight"] != before["module.tail.weight"]).all()
        assert after["module.seen"] == 20  # replaced by the module, not written into
    assert np.array_equal(start, kept)


def test_the_running_means_of_batch_norm_travel_and_score():
    module = model_of(with_noise)
    assert [part.name for part in module.parts][-2:] == ["1.running_mean", "1.running_var"]
    start = module.start(np.random.default_rng(0))
    rows = rows_of(64)
    training = Training(batch=16, lr=1e-12, epochs=60, optimizer="sgd")
    found = module.tensors(module.fit(start, stack([rows]), training=training, keys=KEYS[:1], round=0).weights[0])
    layer = rows.x @ found["module.0.weight"].T + found["module.0.bias"]
    np.testing.assert_allclose(found["module.1.running_mean"], layer.mean(axis=0), atol=0.1)
    moved = start.copy()
    moved[module.parts[-2].place] += 1.0
    assert not np.allclose(scores(module, start, rows.x), scores(module, moved, rows.x))


def test_shared_parameters_travel_once():
    module = model_of(shared_weights)
    assert module.parameter_count == (3 + 1) * 3 + (3 + 1) * 2
    start = module.start(np.random.default_rng(0))
    w, b = start[:9].reshape(3, 3), start[9:12]
    x = rows_of(5).x
    wanted = (np.maximum(x @ w.T + b, 0) @ w.T + b) @ start[12:18].reshape(2, 3).T + start[18:]
    np.testing.assert_allclose(scores(module, start, x), wanted, rtol=1e-5, atol=1e-6)


def test_a_module_that_works_in_place_leaves_the_rows_alone():
    module = model_of(in_place)
    rows = rows_of(20)
    before = rows.x.copy()
    start = module.start(np.random.default_rng(0))
    module.fit(start, stack([rows]), training=Training(batch=0), keys=KEYS[:1], round=0)
    module.forward(start, rows.x)
    assert np.array_equal(rows.x, before)


# What is refused.


class Broken(nn.Module):
    """A parameter of a kind that cannot travel."""

    def __init__(self, parameter, *, buffer=None):
        super().__init__()
        self.good = nn.Linear(3, 2)
        self.bad = parameter
        if buffer is not None:
            self.register_buffer("tally", buffer)

    def forward(self, x):
        return self.good(x)


class Counting(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Flat(nn.Linear):
    def forward(self, x):
        return super().forward(x)[:, 0]


class Other(nn.Linear):
    def forward(self, x):
        return super().forward(x).double()


def no_parameters(inputs, outputs):
    return nn.ReLU()


def all_frozen(inputs, outputs):
    return nn.Linear(inputs, outputs).requires_grad_(False)


def complex_numbers(inputs, outputs):
    return Broken(nn.Parameter(torch.zeros(2, dtype=torch.complex64)))


def whole_numbers(inputs, outputs):
    return Broken(nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))


def half_numbers(inputs, outputs):
    return Broken(nn.Parameter(torch.zeros(2, dtype=torch.float16)))


def sparse_numbers(inputs, outputs):
    return Broken(nn.Parameter(torch.zeros(2, 2).to_sparse()))


def complex_buffer(inputs, outputs):
    return Broken(nn.Parameter(torch.zeros(2)), buffer=torch.zeros(2, dtype=torch.complex64))


def lazy(inputs, outputs):
    return nn.LazyLinear(outputs)


def counting(inputs, outputs):
    return Counting(inputs, outputs)


def endless_batch_norm(inputs, outputs):
    return nn.Sequential(nn.BatchNorm1d(inputs, momentum=None), nn.Linear(inputs, outputs))


def one_axis(inputs, outputs):
    return Flat(inputs, outputs)


def other_type(inputs, outputs):
    return Other(inputs, outputs)


def wrong_width(inputs, outputs):
    return nn.Linear(inputs + 1, outputs)


def raising(inputs, outputs):
    raise ValueError("no such size")


def no_module(inputs, outputs):
    return [inputs, outputs]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (no_parameters, "has 0 parameters and buffers and nothing to train"),
        (all_frozen, "has 2 parameters and buffers and nothing to train"),
        (complex_numbers, "'bad' of module .* holds complex64, 1 of its 3 parameters"),
        (whole_numbers, "'bad' of module .* holds int64"),
        (half_numbers, "'bad' of module .* holds float16"),
        (sparse_numbers, "'bad' of module .* is sparse"),
        (complex_buffer, "'tally' of module .* holds complex64"),
        (lazy, "'weight' of module .* has no shape yet"),
        (counting, "changes 1 buffers of whole numbers .*: calls"),
        (endless_batch_norm, "changes 1 buffers of whole numbers .*: 0.num_batches_tracked"),
        (one_axis, r"answers 2 rows with torch.float32 \(2,\) instead of torch.float32 \(2, 2\)"),
        (other_type, r"torch.float64 \(2, 2\) instead of torch.float32"),
        (wrong_width, "cannot be trained: RuntimeError: .*shapes"),
        (raising, "failed with ValueError: no such size"),
        (no_module, "gave a list"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_modules_that_cannot_be_trained_are_refused_by_name(factory, words):
    with pytest.raises(ConfigError, match=words) as caught:
        model_of(factory)
    assert caught.value.hint


ONE = nn.Linear(3, 2)


def always_the_same(inputs, outputs):
    return ONE


def by_other_dice(inputs, outputs):
    module = nn.Linear(inputs, outputs)
    with torch.no_grad():
        module.bias += float(np.random.default_rng().normal())
    return module


@pytest.mark.parametrize("factory", [always_the_same, by_other_dice])
def test_a_start_that_the_seed_does_not_govern_is_refused(factory):
    with pytest.raises(ConfigError, match="does not start alike twice"):
        model_of(factory).start(np.random.default_rng(0))


class Telling(nn.Linear):
    def forward(self, x):
        if float(x.detach().abs().sum()) > 0:
            raise ValueError(f"cannot read {x.tolist()}")
        return super().forward(x)


def telling(inputs, outputs):
    return Telling(inputs, outputs)


def test_what_a_module_says_about_rows_is_not_passed_on():
    module = model_of(telling)
    rows = Rows.of([[0.123456, 1, 2]], [1.0])
    start = module.start(np.random.default_rng(0))
    for use in (
        lambda: module.fit(start, stack([rows]), training=Training(), keys=KEYS[:1], round=0),
        lambda: module.forward(start, rows.x),
    ):
        with pytest.raises(SiteError, match="failed with ValueError on 1 rows") as caught:
            use()
        assert "0.123" not in "".join(format_exception(caught.value))  # nor with --debug


def test_batch_norm_on_a_single_row_says_what_to_do():
    module = model_of(with_noise)
    start = module.start(np.random.default_rng(0))
    with pytest.raises(SiteError, match="on 1 rows") as caught:
        module.fit(start, stack([rows_of(17)]), training=Training(batch=16), keys=KEYS[:1], round=0)
    assert "BatchNorm" in caught.value.hint


def test_calls_that_do_not_fit_are_refused():
    module = model_of(of_linears)
    start = module.start(np.random.default_rng(0))
    good = {"training": Training(), "keys": KEYS[:1], "round": 0}
    with pytest.raises(DataError, match="5 features"):
        module.fit(start, stack([rows_of(4, inputs=5)]), **good)
    with pytest.raises(ConfigError, match="float64"):
        module.fit(start, stack([rows_of(4, dtype="float64")]), **good)
    with pytest.raises(DataError, match="no class code"):
        module.fit(start, stack([Rows.of(np.zeros((3, 3)), [0, 1, 2])]), **good)
    with pytest.raises(ConfigError, match="3 row-order keys for 1 sites"):
        module.fit(start, stack([rows_of(4)]), **{**good, "keys": KEYS})
    state = module.fit(start, stack([rows_of(4), rows_of(4)]), **{**good, "keys": KEYS[:2]}).state
    with pytest.raises(ConfigError, match="optimiser state"):
        module.fit(start, stack([rows_of(4)]), state=state, **good)


# Parameters that do not fit the payload.


def wider(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, outputs))


def test_weights_of_another_module_are_refused_with_names_and_counts():
    module = model_of(of_linears)
    other = model_of(wider).start(np.random.default_rng(0))
    words = r"weights of shape \(38,\) do not fit module '.*of_linears' of 32 numbers: 0.weight 5x3, 0.bias 5, 2.weight"
    for use in (
        lambda: module.fit(other, stack([rows_of(4)]), training=Training(), keys=KEYS[:1], round=0),
        lambda: scores(module, other, rows_of(4).x),
        lambda: module.tensors(other),
    ):
        with pytest.raises(SiteError, match=words):
            use()


def test_a_site_with_another_version_of_the_module_fails_and_is_named(monkeypatch):
    from kohort.protocol import enrolment as enrol

    real = enrol._adopt

    def adopt(sites, request):
        encoder = real(sites, request)
        for site in sites:
            if site.name.endswith("1"):
                site.enrol(encoder, model_of(wider, inputs=encoder.width))
        return encoder

    assert PREPARE.many is not None
    monkeypatch.setattr(enrol, "_adopt", adopt)
    plan = plan_of({"kind": f"torch:{named(of_linears)}"})
    outcome = go(plan, many=False)
    assert len(outcome.dropped) == 1
    assert "do not fit module" in next(iter(outcome.dropped.values()))
    plan = load_plan({**plan.to_mapping(), "sites": {"count": 3, "quorum": 1.0}}, complete=True)
    with pytest.raises(SiteError, match=r"do not fit module '.*wider' of"):
        go(plan, many=False)


# Files.


def test_a_model_comes_back_from_its_files(tmp_path):
    outcome = go(plan_of({"kind": f"torch:{named(with_noise)}"}), out=tmp_path / "run")
    card = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert card["model"]["network"]["kind"] == "torch"
    assert card["model"]["network"]["factory"] == named(with_noise)
    back = load_model(tmp_path / "run")
    assert back.network == outcome.model.network
    frame = table(30, seed=9)
    assert back.predict(frame).to_list() == outcome.model.predict(frame).to_list()
    assert np.array_equal(back.predict_proba(frame), outcome.model.predict_proba(frame))
    x = back.encoder.transform(frame)
    np.testing.assert_allclose(probabilities(back.network, back.weights, x).sum(axis=1), 1, rtol=1e-6)


def test_a_model_whose_module_is_gone_or_has_changed_says_so(tmp_path, monkeypatch):
    outcome = go(plan_of({"kind": f"torch:{named(of_linears)}"}))
    save_model(outcome.model, tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "of_linears", wider)
        with pytest.raises(ConfigError, match=r"'.*of_linears' .* differs at '0.weight'"):
            load_model(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.delitem(globals(), "of_linears")
        with pytest.raises(ConfigError, match="cannot import 'of_linears'"):
            load_model(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(IntegrityError):
        load_model(tmp_path / "model")


def test_the_example_runs(kohort_here, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend("examples")
    code, shown, said = kohort_here(
        "run", "examples/torch.toml", "--out", tmp_path / "out", "--set", "train.rounds=1", "--json"
    )
    assert code == 0, said
    record = json.loads(shown)
    assert record["rounds"] == 1
    assert record["metrics"]["accuracy"] > 0.7
    assert "torch_module:residual" in " ".join(record["notes"])
