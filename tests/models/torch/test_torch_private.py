"""Private training of a torch module with Opacus, against the dense kernel, and what it refuses."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra kohort[torch] is not installed")
pytest.importorskip("opacus", reason="the extra kohort[torch] is not installed")

from torch import nn  # noqa: E402

from kohort.errors import ConfigError, SiteError  # noqa: E402
from kohort.models.dense.network import Network  # noqa: E402
from kohort.models.dense.training import Training  # noqa: E402
from kohort.models.dp_sgd.fit import AdaptiveClip, PrivateSteps, fit_private  # noqa: E402
from kohort.models.rows import Rows, stack  # noqa: E402
from kohort.models.torch.network import TorchNetwork  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def dropping(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.Dropout(0.5), nn.Linear(5, outputs))


def half_frozen(inputs, outputs):
    module = mlp(inputs, outputs)
    module[0].requires_grad_(False)
    return module


def with_batch_norm(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))


class Remembering(nn.Module):
    """Keeps the mean of its rows."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)
        self.register_buffer("mean", torch.zeros(inputs))

    def forward(self, x):
        if self.training:
            self.mean = x.mean(dim=0).detach()
        return self.inner(x)


NETWORK = Network(inputs=4, hidden=(5,), outputs=3, activation="tanh", dtype="float64")


def module(factory, **options):
    return TorchNetwork(factory=f"{__name__}:{factory}", inputs=4, outputs=3, **{"dtype": "float64", **options})


def make_rows(count, generator, weighted=False):
    weight = generator.uniform(0.2, 3.0, count) if weighted else None
    x, y = generator.normal(size=(count, 4)), generator.integers(0, 3, count)
    return Rows.of(x, y, weight=weight, dtype="float64")


def private_steps(sites=1, *, rate=0.3, steps=6, sigma=1.0, **options):
    return PrivateSteps(
        clip=0.7,
        sigma=np.full(sites, sigma),
        rate=np.full(sites, rate),
        steps=np.full(sites, steps),
        keys=tuple((site + 1).to_bytes(32, "big") for site in range(sites)),
        **options,
    )


def in_torch_order(flat):
    """The dense kernel's vector as torch lays it out: matrices [outputs, inputs]."""
    return np.concatenate([part.T.reshape(-1) for layer in NETWORK.layers(flat) for part in layer])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("adaptive", [None, AdaptiveClip(sigma_b=1.0, quantile=0.4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_without_noise_a_module_learns_what_the_dense_kernel_learns(optimizer, adaptive, weighted):
    generator = np.random.default_rng(0)
    rows = stack([make_rows(60, generator, weighted), make_rows(0, generator, weighted)])
    start = NETWORK.start(generator)
    # The count's noise differs by its place in the stream, unless both vectors are of one length: they are.
    private = private_steps(2, sigma=0.0, average=0.5, adaptive=adaptive)
    options = {"training": Training(optimizer=optimizer, lr=0.05, l2=0.01, prox=0.1), "private": private}
    dense = fit_private(NETWORK, start, rows, **options, keep_state=True)
    fitted = fit_private(module("mlp"), in_torch_order(start), rows, **options, keep_state=True)
    for site in range(2):
        np.testing.assert_allclose(fitted.weights[site], in_torch_order(dense.weights[site]), atol=2e-6)
        np.testing.assert_allclose(fitted.clips[site], dense.clips[site], rtol=1e-12)
    assert fitted.steps.tolist() == dense.steps.tolist() == [6, 0]


def test_noise_is_that_of_the_key():
    generator = np.random.default_rng(0)
    rows = stack([make_rows(40, generator)])
    model, start = module("mlp"), in_torch_order(NETWORK.start(generator))
    step = Training(optimizer="sgd", lr=1.0)
    noisy, quiet = (
        fit_private(model, start, rows, training=step, private=private_steps(steps=1, sigma=sigma)).weights[0]
        for sigma in (2.0, 0.0)
    )
    dense_noisy, dense_quiet = (
        fit_private(NETWORK, start, rows, training=step, private=private_steps(steps=1, sigma=sigma)).weights[0]
        for sigma in (2.0, 0.0)
    )
    np.testing.assert_allclose(noisy - quiet, dense_noisy - dense_quiet, atol=1e-12)
    assert np.abs(noisy - quiet).min() > 0


@pytest.mark.parametrize("factory", ["mlp", "dropping"])
def test_one_by_one_equals_many_at_once(factory):
    generator = np.random.default_rng(2)
    sites = [make_rows(count, generator) for count in (30, 50)]
    model = module(factory)
    start = model.start(generator)
    training = Training(optimizer="adam", lr=0.01)
    both = private_steps(2)
    together = fit_private(model, start, stack(sites), training=training, private=both).weights
    alone = PrivateSteps(clip=0.7, sigma=both.sigma[1:], rate=both.rate[1:], steps=both.steps[1:], keys=both.keys[1:])
    second = fit_private(model, start, stack(sites[1:]), training=training, private=alone).weights[0]
    assert np.array_equal(together[1], second)


def test_rows_in_parts_and_empty_batches(monkeypatch):
    generator = np.random.default_rng(2)
    rows, model = stack([make_rows(50, generator)]), module("mlp")
    start = model.start(generator)
    options = {"training": Training(optimizer="sgd", lr=0.1), "private": private_steps(rate=0.01, steps=9)}
    whole = fit_private(model, start, rows, **options).weights
    monkeypatch.setattr("kohort.models.torch.private._GRADIENT_NUMBERS", 1)
    np.testing.assert_allclose(fit_private(model, start, rows, **options).weights, whole, atol=1e-12)


def test_frozen_parameters_stay():
    generator = np.random.default_rng(2)
    model = module("half_frozen")
    start = model.start(generator)
    rows = stack([make_rows(50, generator)])
    fitted = fit_private(model, start, rows, training=Training(), private=private_steps()).weights[0]
    assert np.array_equal(fitted[:25], start[:25])
    assert (fitted[25:] != start[25:]).all()


@pytest.mark.parametrize("factory", ["with_batch_norm", "Remembering"])
def test_modules_that_mix_or_keep_rows_are_refused(factory):
    generator = np.random.default_rng(2)
    model = module(factory)
    rows = stack([make_rows(50, generator)])
    with pytest.raises(ConfigError):
        fit_private(model, model.start(generator), rows, training=Training(), private=private_steps())


def test_a_gradient_that_is_not_finite_is_refused():
    generator = np.random.default_rng(2)
    model, rows = module("mlp"), make_rows(20, generator)
    rows.x[3, 0] = np.nan
    with pytest.raises(SiteError, match="not finite"):
        fit_private(model, model.start(generator), stack([rows]), training=Training(), private=private_steps(rate=1.0))


def test_a_site_that_declares_more_rows_is_divided_by_them():
    torch_module, generator = module("mlp"), np.random.default_rng(3)
    rows, start = make_rows(20, generator), generator.normal(size=torch_module.parameter_count)
    training = Training(optimizer="sgd", lr=1.0)
    alone, among = (
        fit_private(
            torch_module,
            start,
            stack([rows]),
            training=training,
            private=private_steps(rate=1.0, steps=1, sigma=0.0, declared=declared),
        ).weights[0]
        - start
        for declared in (None, np.asarray([40]))
    )
    assert alone.any()
    np.testing.assert_allclose(among, alone / 2, rtol=1e-6)
    none = private_steps(rate=1.0, steps=1, declared=np.asarray([40]))
    lonely = fit_private(torch_module, start, stack([rows.part(0, 0)]), training=training, private=none)
    assert (lonely.weights[0] != start).all()
