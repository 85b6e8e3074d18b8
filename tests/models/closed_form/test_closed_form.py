"""The one-layer network in closed form: sums over rows, solving, folds, the paper's way, Newton steps, leaving."""

import itertools
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from tests.support.examples import examples

from kohort.crypto.sums.scheme import FixedPoint
from kohort.errors import ConfigError, DataError
from kohort.methods.oneshot.newton import newton_length, newton_loss, newton_statistics, newton_step
from kohort.methods.oneshot.paper_factors import factor_of_site, merge_incremental, solve_factors
from kohort.models.closed_form import statistics as closed_form
from kohort.models.closed_form.design import WANTED, OneLayer, apply, clip_rows, inverse, sensitivity, slope
from kohort.models.closed_form.solve import (
    Solver,
    _is_near,
    choose,
    held_out_error,
    network_of,
    signed,
    solve,
    unsigned,
)
from kohort.models.closed_form.statistics import fold_of, leading, statistics_of_sites, unpack
from kohort.models.rows import Rows, stack
from kohort.models.scoring import predict, probabilities, scores

DATA = os.environ.get("KOHORT_DATA")
ACTIVATIONS = ("logistic", "linear", "softplus")


def table(rows=300, inputs=4, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, inputs)) * generator.uniform(0.1, 1, inputs)
    if classes == 0:
        hidden = x @ generator.normal(size=inputs)
        return x, (hidden - hidden.min()) / np.ptp(hidden)
    y = np.argmax(x @ generator.normal(size=(inputs, classes)) + 0.3 * generator.normal(size=(rows, classes)), axis=1)
    return x, y.astype(float)


def sites_of(x, y, cuts):
    edges = [0, *cuts, len(y)]
    return stack([Rows.of(x[a:b], y[a:b], dtype="float64") for a, b in itertools.pairwise(edges)])


def total_of(design, x, y, **options):
    return statistics_of_sites(design, sites_of(x, y, []), **options)[0]


def packed(statistics):
    """Statistics as the flat vector that sites send."""
    triangles = [gram[np.triu_indices(gram.shape[-1])] for gram in statistics.grams]
    return np.concatenate([*triangles, statistics.moments.reshape(-1), statistics.more])


def z_scored(x):
    return np.hstack([np.ones((len(x), 1)), (x - x.mean(axis=0)) / x.std(axis=0)])


def central(design, z, y, penalty):
    """One weighted least-squares problem a neuron on all rows, by NumPy's lstsq on [F Z; sqrt(lambda) I]."""
    low, high = WANTED[design.activation]
    neurons = []
    for code in range(max(design.classes, 1)):
        wanted = low + (high - low) * (y == code) if design.classes else low + (high - low) * y
        dbar = inverse(design.activation, wanted.astype(float))
        f = slope(design.activation, dbar)
        top = np.vstack([f[:, None] * z, np.sqrt(penalty) * np.eye(z.shape[1])])
        neurons.append(np.linalg.lstsq(top, np.concatenate([f * dbar, np.zeros(z.shape[1])]), rcond=None)[0])
    return np.stack(neurons, axis=1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inverse_and_slope_belong_to_the_activation(activation):
    entering = np.linspace(-4, 4, 41)
    np.testing.assert_allclose(inverse(activation, apply(activation, entering)), entering, atol=1e-12)
    step = 1e-6
    numeric = (apply(activation, entering + step) - apply(activation, entering - step)) / (2 * step)
    np.testing.assert_allclose(slope(activation, entering), numeric, atol=1e-9)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("standardise", [True, False])
def test_the_sums_of_all_sites_give_the_centralised_weights(activation, classes, standardise):
    x, y = table(classes=classes)
    design = OneLayer(inputs=4, classes=classes, activation=activation)
    parts = statistics_of_sites(design, sites_of(x, y, [1, 7, 8, 90, 91]))
    neurons = Solver(design, parts.sum(axis=0), standardise=standardise).one_against_rest(1e-3)
    z = z_scored(x) if standardise else np.hstack([np.ones((len(x), 1)), x])
    if standardise and classes == 0 and activation != "linear":
        weights = slope(activation, inverse(activation, 0.05 + 0.9 * y)) ** 2
        centre = np.average(x, axis=0, weights=weights)
        z = np.hstack([np.ones((len(x), 1)), (x - centre) / np.sqrt(np.average((x - centre) ** 2, 0, weights))])
    expected = central(design, z, y, 1e-3)
    raw = np.hstack([np.ones((len(x), 1)), x])
    np.testing.assert_allclose(raw @ neurons, z @ expected, rtol=1e-9, atol=1e-9)


def test_the_classifier_is_ridge_regression_with_one_gram_for_all_classes():
    # alpha = lambda / 0.0475^2 and targets f^-1(0.05), f^-1(0.95) = -log 19, log 19.
    x, y = table(classes=5)
    design = OneLayer(inputs=4, classes=5)
    assert design.shares_gram
    assert design.length == 5 * 6 // 2 + 5 * 5
    ridge = Ridge(alpha=1e-3 / 0.0475**2, fit_intercept=False)
    ridge.fit(z_scored(x), np.where(y[:, None] == np.arange(5), np.log(19), -np.log(19)))
    found = solve(design, total_of(design, x, y))
    np.testing.assert_allclose(found[0] + x @ found[1:], ridge.predict(z_scored(x)), rtol=1e-9, atol=1e-10)
    assert not OneLayer(inputs=4, classes=5, activation="softplus").shares_gram


@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 5),
    classes=st.sampled_from([0, 2, 4]),
    activation=st.sampled_from(ACTIVATIONS),
    chunk=st.integers(1, 60),
    seed=st.integers(0, 99),
)
@examples(20, 60)
def test_chunks_sites_and_a_plain_loop_agree(rows, inputs, classes, activation, chunk, seed):
    x, y = table(rows, inputs, max(classes, 2), seed)
    y = y / 1.0 if classes else y.astype(float)
    design = OneLayer(inputs=inputs, classes=classes, activation=activation)
    slow = np.zeros(design.length)
    low, high = WANTED[activation]
    for row, target in zip(x, y, strict=True):
        z = np.array([1.0, *row])
        outer = np.outer(z, z)[np.triu_indices(inputs + 1)]
        if classes == 0:
            dbar = inverse(activation, np.array([low + (high - low) * target]))[0]
            f2 = slope(activation, np.array([dbar]))[0] ** 2
            slow += np.concatenate([f2 * outer, f2 * dbar * z, [f2 * dbar**2, 1.0]])
        elif design.shares_gram:
            indicator = np.array([target == 1]) if classes == 2 else target == np.arange(classes)
            slow += np.concatenate([outer, np.outer(z, indicator).reshape(-1)])
        else:
            slow += np.concatenate([outer * (target == code) for code in range(classes)])
    cuts = sorted(np.random.default_rng(seed).integers(0, rows + 1, 3).tolist())
    saved = closed_form._CHUNK_NUMBERS
    closed_form._CHUNK_NUMBERS = chunk
    try:
        parts = statistics_of_sites(design, sites_of(x, y, cuts))
    finally:
        closed_form._CHUNK_NUMBERS = saved
    np.testing.assert_allclose(parts.sum(axis=0), slow, rtol=1e-10, atol=1e-10)
    found = unpack(design, slow)
    np.testing.assert_array_equal(packed(found), slow)
    np.testing.assert_array_equal(found.grams, found.grams.transpose(0, 2, 1))
    assert np.abs(slow).max() <= design.bound(rows) + 1e-9


def test_a_site_alone_gives_the_same_bits_as_among_others():
    x, y = table(rows=500, classes=2)
    design = OneLayer(inputs=4, classes=2)
    stacked = sites_of(x, y, [100, 200, 207, 214, 400])
    together = statistics_of_sites(design, stacked)
    for site in range(stacked.sites):
        np.testing.assert_array_equal(statistics_of_sites(design, stacked.take([site]))[0], together[site])


def test_sorted_and_shuffled_splits_give_the_same_labels():
    x, y = table(rows=600, classes=3)
    design = OneLayer(inputs=4, classes=3)
    order = np.argsort(y, kind="stable")
    even = statistics_of_sites(design, sites_of(x, y, range(30, 600, 30))).sum(axis=0)
    uneven = statistics_of_sites(design, sites_of(x[order], y[order], range(30, 600, 30))).sum(axis=0)
    a, b = solve(design, even), solve(design, uneven)
    np.testing.assert_allclose(a, b, rtol=1e-10)
    assert np.array_equal(np.argmax(a[0] + x @ a[1:], axis=1), np.argmax(b[0] + x @ b[1:], axis=1))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_two_classes_need_one_output_with_the_labels_of_two_neurons(activation):
    x, y = table(classes=2)
    design = OneLayer(inputs=4, classes=2, activation=activation)
    solver = Solver(design, total_of(design, x, y))
    network, flat = network_of(design, solver.weights())
    neurons = solver.one_against_rest(1e-3)
    both = neurons[0] + x @ neurons[1:]
    assert (network.outputs, network.loss) == (1, "logistic")
    assert np.array_equal(predict(network, flat, x), np.argmax(both, axis=1))
    if activation == "logistic":
        np.testing.assert_allclose(scores(network, flat, x)[:, 0], both[:, 1], rtol=1e-9)


def test_networks_predict_what_the_closed_form_says():
    x, y = table(classes=4)
    design = OneLayer(inputs=4, classes=4)
    found = solve(design, total_of(design, x, y))
    network, flat = network_of(design, found)
    assert network.loss == "softmax"
    logits = found[0] + x @ found[1:]
    assert np.array_equal(predict(network, flat, x), np.argmax(logits, axis=1))
    assert np.array_equal(np.argmax(probabilities(network, flat, x), axis=1), np.argmax(logits, axis=1))
    x, y = table(classes=0)
    for activation in ("linear", "logistic"):
        design = OneLayer(inputs=4, activation=activation)
        found = solve(design, total_of(design, x, y))
        network, flat = network_of(design, found)
        said = apply(activation, found[0] + x @ found[1:])[:, 0]
        expected = said if activation == "linear" else (said - 0.05) / 0.9
        np.testing.assert_allclose(predict(network, flat, x), expected, rtol=1e-9)
        assert np.mean((expected - y) ** 2) < 0.1 * np.var(y)
    with pytest.raises(ConfigError, match="softplus"):
        network_of(OneLayer(inputs=4, activation="softplus"), found)


def test_signed_inputs_change_nothing_but_the_weights_units():
    x, y = table(classes=3)
    unit = (x + 1) / 2
    numeric = np.array([True, False, True, True])
    design = OneLayer(inputs=4, classes=3)
    plain = solve(design, total_of(design, unit, y))
    mapped = solve(design, total_of(design, unit, y, transform=lambda part: signed(part, numeric)))
    np.testing.assert_allclose(unsigned(mapped, numeric), plain, rtol=1e-8, atol=1e-10)
    everywhere = solve(design, total_of(design, unit, y, transform=signed))
    np.testing.assert_allclose(unsigned(everywhere), plain, rtol=1e-8, atol=1e-10)


def test_constant_and_collinear_columns():
    x, y = table(classes=3)
    broken = np.hstack([x, np.full((len(x), 1), 0.7), x[:, :1] * -0.5])
    design = OneLayer(inputs=6, classes=3)
    reference = solve(OneLayer(inputs=4, classes=3), total_of(OneLayer(inputs=4, classes=3), x, y), penalty=0.0)
    for penalty in (0.0, 1e-9):
        found = solve(design, total_of(design, broken, y), penalty=penalty)
        assert not found[5].any()
        np.testing.assert_allclose(
            found[0] + broken @ found[1:], reference[0] + x @ reference[1:], rtol=1e-5, atol=1e-5
        )


def test_bad_statistics_are_refused_by_name():
    x, y = table(classes=3)
    design = OneLayer(inputs=4, classes=3)
    good = total_of(design, x, y)
    spoilt = good.copy()
    spoilt[3] = np.nan
    with pytest.raises(DataError, match="1 of 30 statistics are not finite"):
        solve(design, spoilt)
    with pytest.raises(DataError, match="do not fit"):
        solve(design, good[:-1])
    with pytest.raises(DataError, match="no rows"):
        solve(design, np.zeros(design.length))
    wider = OneLayer(inputs=4, classes=4)
    with pytest.raises(DataError, match="class code 3"):
        solve(wider, total_of(wider, x, y))
    with pytest.raises(DataError, match="in 300 rows"):
        total_of(design, x, y + 0.5)
    with pytest.raises(DataError, match="not finite"):
        total_of(design, np.where(x == x[0, 0], np.nan, x), y)
    with pytest.raises(ConfigError, match="penalty"):
        solve(design, good, penalty=-1.0)
    # A class absent at one site is no faults.
    order = np.argsort(y)
    parts = statistics_of_sites(design, sites_of(x[order], y[order], [20]))
    np.testing.assert_allclose(parts.sum(axis=0), good, rtol=1e-9)


def test_counts_come_along():
    x, y = table(classes=3)
    for activation in ("logistic", "softplus"):
        design = OneLayer(inputs=4, classes=3, activation=activation)
        found = unpack(design, total_of(design, x, y))
        assert found.rows == len(y)
        np.testing.assert_allclose(found.class_rows(design), np.bincount(y.astype(int)))
    two = OneLayer(inputs=4, classes=2)
    halves = (y > 0).astype(float)
    np.testing.assert_allclose(unpack(two, total_of(two, x, halves)).class_rows(two), np.bincount(halves.astype(int)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_held_out_error_from_statistics_is_that_of_the_rows(activation, classes):
    x, y = table(classes=classes)
    design = OneLayer(inputs=4, classes=classes, activation=activation)
    neurons = np.random.default_rng(1).normal(size=(5, max(classes, 1)))
    low, high = WANTED[activation]
    member = y[:, None] == np.arange(classes) if classes else y[:, None]
    dbar = inverse(activation, low + (high - low) * member.astype(float))
    f = slope(activation, dbar)
    expected = np.sum((f * (dbar - neurons[0] - x @ neurons[1:])) ** 2) / len(y)
    found = held_out_error(design, unpack(design, total_of(design, x, y)), neurons)
    assert found == pytest.approx(expected, rel=1e-9)


def test_folds_choose_the_penalty_and_the_size_without_the_rows():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (160, 40))
    y = (x[:, 0] + x[:, 1] + 0.8 * generator.normal(size=160) > 0).astype(float)
    design = OneLayer(inputs=40, classes=2)
    fold = np.concatenate([fold_of(70, folds=5, key=5), fold_of(90, folds=5, key=6)])
    parts = np.stack([total_of(design, x[fold == held], y[fold == held]) for held in range(5)])
    np.testing.assert_allclose(parts.sum(axis=0), total_of(design, x, y), rtol=1e-9, atol=1e-9)
    penalties = (1e-6, 1e-1, 1e3)
    assert choose(design, parts, penalties=penalties).penalty == 0.1
    chosen = choose(design, parts, penalties=penalties, sizes=(1, 2, 40))
    assert chosen.inputs == 2
    # By hand, with rows: leave each fold out, fit, and measure.
    by_hand = 0.0
    for held in range(5):
        smaller = OneLayer(inputs=2, classes=2)
        fit = Solver(smaller, total_of(smaller, x[fold != held, :2], y[fold != held]))
        fit = fit.one_against_rest(chosen.penalty)
        own = unpack(smaller, total_of(smaller, x[fold == held, :2], y[fold == held]))
        by_hand += held_out_error(smaller, own, fit) * own.rows / 160
    assert chosen.error == pytest.approx(by_hand, rel=1e-9)


def test_folds_are_even_and_keyed():
    whole = fold_of(20_000, folds=5, key=1)
    assert np.abs(np.bincount(whole) - 4000).max() < 6 * np.sqrt(20_000 * 0.16)
    assert np.array_equal(whole[:400], fold_of(400, folds=5, key=1))
    assert np.mean(whole == fold_of(20_000, folds=5, key=2)) < 0.25


def test_leading_columns_are_the_statistics_of_a_smaller_model():
    x, y = table(classes=3)
    design = OneLayer(inputs=4, classes=3)
    smaller, found = leading(design, unpack(design, total_of(design, x, y)), 2)
    np.testing.assert_allclose(packed(found), total_of(smaller, x[:, :2], y), rtol=1e-12, atol=1e-12)


def test_sites_that_leave_leave_nothing_behind():
    x, y = table(rows=800, classes=3)
    design = OneLayer(inputs=4, classes=3)
    grid = FixedPoint(bound=design.bound(800), scale=2.0**30, sites=16)
    parts = statistics_of_sites(design, sites_of(x, y, range(50, 800, 50)))
    encoded = np.stack([grid.encode(part) for part in parts])
    all_sites = encoded.sum(axis=0, dtype=np.uint64)
    after_leaving = all_sites - encoded[3] - encoded[11]
    stayed = [site for site in range(16) if site not in (3, 11)]
    assert np.array_equal(after_leaving, encoded[stayed].sum(axis=0, dtype=np.uint64))
    left = solve(design, grid.decode(after_leaving))
    rows = np.concatenate([np.arange(site * 50, site * 50 + 50) for site in stayed])
    retrained = solve(design, total_of(design, x[rows], y[rows]))
    assert np.linalg.norm(left - retrained) / np.linalg.norm(retrained) < 1e-8


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_papers_decompositions_give_the_same_weights(activation, classes):
    x, y = table(rows=120, classes=classes)
    z = z_scored(x)[:, 1:]
    design = OneLayer(inputs=4, classes=classes, activation=activation)
    edges = [0, 2, 3, 40, 120]
    found = [factor_of_site(design, z[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]
    assert found[0].factors[0].shape == (5, 2)
    moments = np.sum([factor.moments for factor in found], axis=0)
    together = [[factor.factors[i] for factor in found] for i in range(len(found[0].factors))]
    merged = [merge_incremental(factors) for factors in together]
    for one, factors in zip(merged, together, strict=True):
        whole = np.hstack(factors)
        np.testing.assert_allclose(one @ one.T, whole @ whole.T, rtol=1e-9, atol=1e-12)
    weights = solve_factors(merged, moments, penalty=1e-3)
    gram_path = Solver(design, total_of(design, z, y), standardise=False).one_against_rest(1e-3)
    np.testing.assert_allclose(weights, gram_path, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(weights, central(design, z_scored(x), y, 1e-3), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_newton_steps_reach_the_logistic_regression_of_all_rows(classes):
    x, y = table(rows=400, classes=classes)
    design = OneLayer(inputs=4, classes=classes)
    sites = sites_of(x, y, [3, 100, 250])
    solver = Solver(design, statistics_of_sites(design, sites).sum(axis=0))
    found = solver.weights()
    for _ in range(12):
        total = newton_statistics(design, sites, found).sum(axis=0)
        found = newton_step(design, total, found, penalty=2.0, scaling=solver.scaling)
    # scikit-learn leaves the bias out of the penalty: give it the bias as a column.
    fitted = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-12, max_iter=5000).fit(z_scored(x), y)
    said = found[0] + x @ found[1:]
    expected = z_scored(x) @ fitted.coef_.T
    np.testing.assert_allclose(said - said.mean(1, keepdims=True) * (classes > 2), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_bounded_steps_never_raise_the_loss_and_send_gradients_alone(classes):
    x, y = table(rows=400, classes=classes)
    design = OneLayer(inputs=4, classes=classes)
    sites = sites_of(x, y, [3, 100, 250])
    first = statistics_of_sites(design, sites).sum(axis=0)
    solver, gram = Solver(design, first), unpack(design, first).gram
    found = np.full((5, design.outputs), 3.0) * np.arange(1, design.outputs + 1)
    losses = []
    for _ in range(60):
        total = newton_statistics(design, sites, found, curvature="bound").sum(axis=0)
        assert len(total) == 5 * design.outputs + 1 == newton_length(design, "bound")
        scaled = solver.scaling.to_scaled(found)
        losses.append(newton_loss(total) + 0.5 * np.sum(scaled**2))
        found = newton_step(design, total, found, penalty=1.0, scaling=solver.scaling, gram=gram)
    assert np.all(np.diff(losses) <= 1e-9)
    exact = solver.weights()
    for _ in range(12):
        total = newton_statistics(design, sites, exact).sum(axis=0)
        exact = newton_step(design, total, exact, penalty=1.0, scaling=solver.scaling)
    best = newton_loss(newton_statistics(design, sites, exact).sum(axis=0)) + 0.5 * np.sum(
        solver.scaling.to_scaled(exact) ** 2
    )
    assert best - 1e-9 <= losses[-1] <= best * 1.02
    with pytest.raises(ConfigError, match="number"):
        newton_length(OneLayer(inputs=4))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_no_row_moves_the_sums_farther_than_the_sensitivity(activation, classes):
    design = OneLayer(inputs=4, classes=classes, activation=activation)
    generator = np.random.default_rng(0)
    radius = 1.6
    x = clip_rows(generator.normal(size=(3000, 4)) * generator.choice([0.1, 1, 5], (3000, 1)), radius)
    assert np.sqrt(1 + (x**2).sum(axis=1)).max() <= radius * (1 + 1e-12)
    y = generator.integers(0, classes, 3000).astype(float) if classes else generator.choice([0, 0.5, 1], 3000)
    moved = np.linalg.norm(statistics_of_sites(design, sites_of(x, y, range(1, 3000))), axis=1)
    limit = sensitivity(design, radius)
    assert moved.max() <= limit
    # The bound is not an empty one: unclipped rows break it, and clipped ones come near.
    assert moved.max() > 0.5 * limit
    wild = statistics_of_sites(design, sites_of(x * 3, y, range(1, 3000)))
    assert np.linalg.norm(wild, axis=1).max() > limit


def test_small_rows_are_not_clipped():
    x = np.random.default_rng(0).uniform(-0.1, 0.1, (50, 4))
    np.testing.assert_array_equal(clip_rows(x, 1.5), x)
    with pytest.raises(ConfigError, match="radius"):
        clip_rows(x, 1.0)


def real(name, target):
    path = Path(DATA or "") / f"{name}.parquet"
    if not DATA or not path.is_file():
        pytest.skip(f"{name} is not in KOHORT_DATA")
    frame = pl.read_parquet(path)
    classes = sorted(frame[target].unique().to_list())
    y = frame[target].replace_strict(classes, range(len(classes))).to_numpy().astype(float)
    x = frame.drop(target).to_numpy().astype(float)
    return (x - x.min(axis=0)) / np.ptp(x, axis=0), y


# Fontenla-Romero et al. 2023, Table 3, "Proposed method": Dry Bean 90.43, Skin 92.56; 70/30 splits.
@pytest.mark.parametrize(
    ("name", "target", "accuracy"), [("dry_bean", "class", 90.43), ("skin_segmentation", "skin", 92.56)]
)
def test_the_papers_accuracy(name, target, accuracy):
    x, y = real(name, target)
    design = OneLayer(inputs=x.shape[1], classes=int(y.max()) + 1)
    reached = []
    for split in range(5):
        order = np.random.default_rng(split).permutation(len(y))
        train, test = np.split(order, [int(0.7 * len(y))])
        network, flat = network_of(
            design, unsigned(solve(design, total_of(design, x[train], y[train], transform=signed)))
        )
        reached.append(100 * np.mean(predict(network, flat, x[test]) == y[test]))
    assert np.mean(reached) == pytest.approx(accuracy, abs=0.5)


def test_folds_prefer_the_larger_penalty_where_they_cannot_tell():
    # Worse by 0.1 on average, and the folds differ by about as much: not told apart. Worse by 0.1 everywhere: told.
    assert _is_near([1.4, 1.0, 0.9], [1.0, 1.0, 1.0])
    assert not _is_near([1.1, 1.1, 1.1], [1.0, 1.0, 1.0])
    assert _is_near([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    generator = np.random.default_rng(1)
    x = generator.normal(size=(200, 3)).clip(-1, 1)
    design = OneLayer(inputs=3, classes=0, activation="linear")
    parts = np.stack(
        [total_of(design, x[held::5], (x[held::5, 0] + 2) / 4 + 0.2 * generator.random(40)) for held in range(5)]
    )
    chosen = choose(design, parts, penalties=(1e-9, 1e-6, 1e-3))
    least = min(chosen.errors, key=lambda one: chosen.errors[one])
    assert chosen.penalty == 1e-3
    assert chosen.penalty >= least[1]
