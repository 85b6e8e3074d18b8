"""Does private training do to the numbers what the accountant is told? Each check must also catch a seeded bug.

A check takes a trainer with the signature of `fit_private`, looks only at the weights it gives back, and raises
AssertionError when they do not fit the claim. Keys are fixed, so a check never fails by chance on one day of many.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from kohort.models.dense.network import Network
from kohort.models.dense.training import Training
from kohort.models.dp_sgd.draws import RowSampler
from kohort.models.dp_sgd.fit import AdaptiveClip, PrivateSteps, fit_private, gaussian
from kohort.models.rows import Rows, stack

ALPHA = 1e-6
SIGMA, CLIP = 1.7, 0.4
STEP = Training(optimizer="sgd", lr=1.0)


def claim(sites, *, sigma, rate, clip=CLIP, first_key=0, steps=1, adaptive=None):
    return PrivateSteps(
        clip=clip,
        sigma=np.full(sites, sigma),
        rate=np.full(sites, rate),
        steps=np.full(sites, steps),
        keys=tuple((first_key + site).to_bytes(32, "big") for site in range(sites)),
        adaptive=adaptive,
    )


def noise_of(trainer):
    """What the trainer adds to the sum of clipped gradients, in units of the clip: at least 60,000 draws."""
    network = Network(inputs=54, hidden=(64, 64), outputs=7, dtype="float64")
    generator = np.random.default_rng(0)
    sites, count, rate = 8, 100, 0.3
    table = Rows.of(generator.normal(size=(count, 54)), generator.integers(0, 7, count), dtype="float64")
    rows, weights = stack([table] * sites), network.start(generator)
    noisy, quiet = (
        trainer(network, weights, rows, training=STEP, private=claim(sites, sigma=sigma, rate=rate)).weights
        for sigma in (SIGMA, 0.0)
    )
    return ((quiet - noisy) * rate * count / CLIP).reshape(-1)


def check_noise_has_the_claimed_sigma(trainer):
    draws = noise_of(trainer)
    assert len(draws) >= 60_000
    assert stats.kstest(draws, stats.norm(scale=SIGMA).cdf).pvalue > ALPHA


def check_noise_is_independent(trainer):
    """Neighbouring coordinates, the halves that share radii, and sites."""
    draws = noise_of(trainer).reshape(8, -1)
    half = draws.shape[1] // 2
    pairs = [(draws[:, 1:], draws[:, :-1]), (draws[:, :half], draws[:, half : 2 * half]), (draws[1:], draws[:-1])]
    for left, right in pairs:
        for of in (lambda z: z, np.square):
            assert stats.pearsonr(of(left).reshape(-1), of(right).reshape(-1)).pvalue > ALPHA


def check_no_row_moves_the_sum_by_more_than_the_clip(trainer):
    """Each row of a full batch is left out in turn; the noise has the same key and cancels."""
    network = Network(inputs=6, hidden=(5,), outputs=3, dtype="float64", activation="tanh")
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(40, 6)) * np.geomspace(0.1, 100, 40)[:, None], generator.integers(0, 3, 40)
    weights = network.start(generator)

    def total(kept):
        rows = Rows.of(x[kept], y[kept], dtype="float64")
        private = claim(1, sigma=SIGMA, rate=1.0)
        moved = weights - trainer(network, weights, stack([rows]), training=STEP, private=private).weights[0]
        return moved * rows.count

    whole = total(np.arange(40))
    moves = [np.linalg.norm(whole - total(np.delete(np.arange(40), row))) for row in range(40)]
    assert max(moves) <= CLIP * (1 + 1e-9)
    assert max(moves) > 0.99 * CLIP, "rows this large must reach the bound, or there is more noise than was asked for"


def batches_seen(trainer, *, sites, count, rate):
    """Which rows [sites, count] one step took: every row has a feature of its own, whose weight moves with it."""
    network = Network(inputs=count, outputs=1, loss="logistic", dtype="float64")
    table = Rows.of(np.eye(count), np.ones(count), dtype="float64")
    start = np.zeros(network.parameter_count)
    private = claim(sites, sigma=0.0, rate=rate, first_key=10**6)
    moved = trainer(network, start, stack([table] * sites), training=STEP, private=private).weights
    return moved[:, :count] > 0


def check_batches_are_poisson(trainer):
    """Every row comes with the claimed chance, independently of the others: sizes are Binomial, empty ones included."""
    sites, count, rate = 4000, 30, 0.1
    seen = batches_seen(trainer, sites=sites, count=count, rate=rate)
    assert_binomial(seen.sum(axis=1), count, rate)
    came = seen.sum(axis=0)
    spread = ((came - sites * rate) ** 2 / (sites * rate * (1 - rate))).sum()
    assert stats.chi2.sf(spread, count) > ALPHA
    together = np.corrcoef(seen.T.astype(float))[np.triu_indices(count, 1)] * math.sqrt(sites)
    assert stats.kstest(together, "norm").pvalue > ALPHA


def check_count_noise_has_the_claimed_sigma(trainer):
    """The noisy share of rows below the clip: rows of norm zero are all below it, so the rest is noise."""
    network = Network(inputs=2, outputs=1, loss="perceptron", dtype="float64")
    rows = stack([Rows.of(np.ones((10, 2)), np.ones(10), dtype="float64")])
    adaptive = AdaptiveClip(quantile=0.9, rate=1e-9, sigma_b=3.0)
    private = claim(1, sigma=0.0, rate=1.0, steps=4000, adaptive=adaptive)
    shares = trainer(network, np.full(3, 5.0), rows, training=STEP, private=private).shares[0]
    assert stats.kstest((shares - 1.0) * 10, stats.norm(scale=3.0).cdf).pvalue > ALPHA


def assert_binomial(sizes, count, rate):
    """Chi-squared over sizes, those expected fewer than ten times taken together at either end."""
    chances = stats.binom.pmf(np.arange(count + 1), count, rate)
    low, high = np.flatnonzero(chances * len(sizes) >= 10)[[0, -1]]
    bins = np.clip(np.arange(count + 1), low, high)
    expected = np.bincount(bins, chances * len(sizes))[low:]
    found = np.bincount(np.clip(sizes, low, high), minlength=high + 1)[low:]
    assert stats.chisquare(found, expected).pvalue > ALPHA


def half_noise(network, weights, rows, *, training, private):
    private = dataclasses.replace(private, sigma=private.sigma / 2)
    return fit_private(network, weights, rows, training=training, private=private)


def no_clipping(network, weights, rows, *, training, private):
    free = 1e9
    private = dataclasses.replace(private, clip=free, sigma=private.sigma * private.clip / free)
    return fit_private(network, weights, rows, training=training, private=private)


def fixed_batches(network, weights, rows, *, training, private):
    """Batches of one size, drawn without replacement, under an account for Poisson sampling."""

    def batches(self, steps):
        size = round(self._rate * self._count)
        generator = np.random.default_rng(int(np.frombuffer(self._more(1).tobytes(), np.uint64)[0]))
        drawn = [np.sort(generator.permutation(self._count)[:size]) for _ in range(steps)]
        ends = size * np.arange(1, steps + 1)
        return np.concatenate(drawn), ends - size, ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowSampler, "batches", batches)
        return fit_private(network, weights, rows, training=training, private=private)


def same_noise_everywhere(network, weights, rows, *, training, private):
    """Every site draws with the key of the first."""

    def alone(site):
        own = {name: getattr(private, name)[[site]] for name in ("sigma", "rate", "steps")}
        shared = dataclasses.replace(private, keys=private.keys[:1], **own)
        return fit_private(network, weights, rows.take([site]), training=training, private=shared)

    fits = [alone(site) for site in range(rows.sites)]
    return dataclasses.replace(fits[0], weights=np.concatenate([fit.weights for fit in fits]))


def half_count_noise(network, weights, rows, *, training, private):
    adaptive = dataclasses.replace(private.adaptive, sigma_b=private.adaptive.sigma_b / 2)
    private = dataclasses.replace(private, adaptive=adaptive)
    return fit_private(network, weights, rows, training=training, private=private)


CHECKS = {
    check_noise_has_the_claimed_sigma: half_noise,
    check_noise_is_independent: same_noise_everywhere,
    check_no_row_moves_the_sum_by_more_than_the_clip: no_clipping,
    check_batches_are_poisson: fixed_batches,
    check_count_noise_has_the_claimed_sigma: half_count_noise,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_trainer_passes(check):
    check(fit_private)


@pytest.mark.parametrize(("check", "bugged"), CHECKS.items())
def test_the_check_catches_a_seeded_bug(check, bugged):
    with pytest.raises(AssertionError):
        check(bugged)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_another_sigma_is_rejected(factor):
    assert stats.kstest(noise_of(fit_private), stats.norm(scale=factor * SIGMA).cdf).pvalue < ALPHA


def test_full_batches_hold_every_row():
    assert batches_seen(fit_private, sites=3, count=30, rate=1.0).all()


@pytest.mark.parametrize(("count", "rate"), [(50, 0.02), (400, 0.1), (20, 0.9)])
def test_batches_of_one_site_are_binomial_and_do_not_know_each_other(count, rate):
    _, begins, ends = RowSampler(bytes(range(32)), rate=rate, count=count).batches(20_000)
    sizes = ends - begins
    assert_binomial(sizes, count, rate)
    assert stats.pearsonr(sizes[1:], sizes[:-1]).pvalue > ALPHA


def test_normals_have_the_right_body_and_tails():
    draws = gaussian(bytes(32), 4_000_000)
    assert stats.kstest(draws[:500_000], "norm").pvalue > ALPHA
    for edge in (1.0, 2.0, 3.0, 4.0, 4.5):
        for beyond in (draws > edge, draws < -edge):
            assert stats.binomtest(int(beyond.sum()), len(draws), stats.norm.sf(edge)).pvalue > ALPHA
