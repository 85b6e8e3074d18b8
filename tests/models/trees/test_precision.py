"""Values of a forest have no digits from which counts of combinations follow."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.models.rows import encode_rows
from kohort.models.trees import growth, learner
from kohort.models.trees.kernel import slopes
from kohort.models.trees.learner import TreeLearner
from kohort.models.trees.options import SCALE, TreeOptions
from kohort.models.trees.precision import rounded_gains, rounded_loss, rounded_scores, rounded_values
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.schema import Schema

COLUMNS = {"ward": list("abcde"), "smoker": ["n", "y"], "sex": ["f", "m"]}


def on_grid(value: float, largest: float) -> float:
    """The nearest multiple of the largest power of two that is not above `largest`."""
    step = 2.0 ** math.floor(math.log2(largest))
    return round(value / step) * step


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_values_are_multiples_of_a_step_as_large_as_their_standard_error(classes: int) -> None:
    generator = np.random.default_rng(classes)
    values, curvature = generator.normal(0, 2, 200), generator.uniform(0.1, 1e5, 200)
    found = rounded_values(values, curvature, classes=classes)
    width = 2.0 if classes else 0.5
    expected = [on_grid(value, width / math.sqrt(bend)) for value, bend in zip(values, curvature, strict=True)]
    assert found.tolist() == expected
    assert (np.abs(found - values) <= 0.5 * width / np.sqrt(curvature)).all()


def test_gains_keep_three_binary_digits() -> None:
    gains = np.random.default_rng(0).exponential(10, 300)
    found = rounded_gains(gains)
    assert found.tolist() == [on_grid(gain, gain / 2) if gain else 0.0 for gain in gains]
    assert (np.abs(found - gains) <= gains / 4).all()
    assert len(np.unique(np.log2(found) % 1)) <= 4
    assert rounded_gains(np.zeros(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [20, 300, 40_000])
def test_no_loss_tells_of_one_held_out_row(rows: int) -> None:
    losses = np.random.default_rng(rows).exponential(0.4, rows)
    told = rounded_loss(float(losses.mean()), rows)
    step = 2.0 ** math.floor(math.log2(0.5 * losses.mean() / math.sqrt(rows)))
    assert told == on_grid(float(losses.mean()), 0.5 * float(losses.mean()) / math.sqrt(rows))
    assert abs(told - losses.mean()) <= losses.mean() / math.sqrt(rows)
    assert step > np.median(losses) / rows


def test_the_start_tells_no_count_of_a_class() -> None:
    """The odds of 700 of 3,000 rows are those of 20 other counts and more."""

    def start(ill: int) -> float:
        shares = np.asarray([ill / 3000])
        return float(rounded_scores(np.log(shares / (1 - shares)), shares, 3000, classes=2)[0])

    assert sum(start(ill) == start(700) for ill in range(1, 3000)) > 20
    assert start(300) < start(700) < start(1500)


def _table(rows: int = 3000) -> pl.DataFrame:
    generator = np.random.default_rng(2)
    ward = generator.choice(COLUMNS["ward"], rows, p=[0.5, 0.3, 0.12, 0.06, 0.02])
    smoker, sex = generator.choice(["n", "y"], rows, p=[0.85, 0.15]), generator.choice(["f", "m"], rows)
    chance = 0.1 + 0.2 * (smoker == "y") + 0.1 * (ward == "b") + 0.15 * (sex == "m") * (ward == "c")
    ill = np.where(generator.random(rows) < chance, "yes", "no")
    return pl.DataFrame({"ward": ward, "smoker": smoker, "sex": sex, "ill": ill})


def solved() -> tuple[int, int]:
    """How many counts of all combinations follow from the splits and values of a forest, and how many there are."""
    table = _table()
    schema = Schema.of(target="ill", features=tuple(COLUMNS))
    encoder = Encoder(schema, learn_domain(table, schema), "label")
    start = TreeLearner(encoder, TreeOptions(depth=4, columns=1.0, holdout=0.0, steps=6), b"sixteen bytes ok")
    rows = encode_rows(encoder, table)
    made, part = start, start.rows_of(rows)
    while not made.done:
        made = made.after(made.contribution(rows, part))
    combinations = pl.DataFrame(
        list(itertools.product(*COLUMNS.values(), ["no", "yes"])), schema=[*COLUMNS, "ill"], orient="row"
    )
    equations, right = _equations(made, encode_rows(encoder, combinations))
    found = np.linalg.lstsq(equations, right, rcond=1e-13)[0]
    keys = [*COLUMNS, "ill"]
    truth = combinations.join(table.group_by(keys).len(), on=keys, how="left", maintain_order="left")["len"]
    return int((np.abs(found - truth.fill_null(0).to_numpy()) < 0.01).sum()), len(found)


def _equations(made: TreeLearner, rows: Any) -> tuple[Any, Any]:
    """A linear equation in the counts of combinations per node: n (g + v h) sums to -l2 v."""
    forest, l2 = made.forest, made.options.l2
    assert forest is not None
    codes, trees, per = forest.bins.codes(made.columns, rows.x), forest.trees, made.options.trees
    y, left, right = rows.y.astype(float), [], []
    for tree in range(len(trees)):
        scores = np.repeat(forest.base[:, None], len(y), axis=1)
        forest.add(trees.part(0, tree // per * per), codes[None], scores)
        slope, bend = np.empty((1, len(y)), dtype=np.int64), np.empty((1, len(y)), dtype=np.int64)
        slopes(2, scores, y, np.ones(len(y)), slope, bend)
        inside = {0: np.ones(len(y), dtype=bool)}
        while inside:
            node, here = inside.popitem()
            value = trees.value[tree, node]
            left.append(np.where(here, (slope[0] + value * bend[0]) / SCALE, 0.0))
            right.append(-l2 * value)
            column = trees.split[tree, node] if node < trees.split.shape[1] else -1
            if column >= 0:
                goes_left = forest.bins.rank[0, column][codes[:, column]] <= trees.cut[tree, node]
                inside |= {2 * node + 1: here & goes_left, 2 * node + 2: here & ~goes_left}
    return np.asarray(left), np.asarray(right)


def test_counts_of_combinations_do_not_follow_from_values(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, combinations = solved()
    assert exact <= 2
    monkeypatch.setattr(growth, "rounded_values", lambda values, _, **__: values)
    monkeypatch.setattr(learner, "rounded_scores", lambda scores, *_, **__: scores)
    assert solved() == (combinations, combinations)


def test_rows_that_weigh_more_do_not_make_values_finer() -> None:
    """A row that counts 64 times has 64 times the curvature, and tells no more than one row."""
    table = _table(300)
    schema = Schema.of(target="ill", features=tuple(COLUMNS))
    encoder = Encoder(schema, learn_domain(table, schema), "label", class_weights={"yes": 64.0})
    rows = encode_rows(encoder, table)
    made = TreeLearner(encoder, TreeOptions(columns=1.0, holdout=0.0), b"sixteen bytes ok")
    made = made.after(made.contribution(rows, made.rows_of(rows)))
    assert made.growth is not None
    bend = 3000.0
    found = made.growth._steps(np.asarray([[round(-700.3 * SCALE), round(bend * SCALE), 60]]))
    assert found.tolist() == [on_grid(700.3 / (bend + 5.0), 2.0 / math.sqrt(bend / 64.0 + 5.0))]


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_of_classes_do_not_shift_what_is_rounded(classes: int) -> None:
    """Plans that differ in weights alone once rounded the same log-odds at other places: six told a count exactly."""
    names = ["a", "b", "c"][:classes]
    random = np.random.default_rng(4)
    for _ in range(20):
        shares = random.dirichlet(np.full(classes, 5.0))
        means = shares if classes > 2 else shares[1:]
        told = set()
        for weights in random.uniform(0.2, 5.0, (12, classes)):
            made = TreeLearner.__new__(TreeLearner)
            made.classes, made.rows, made.outputs = classes, 900, len(means)
            made.encoder = type("_", (), {"classes": names, "class_weights": dict(zip(names, weights, strict=True))})()  # type: ignore[assignment]
            logs = np.log(weights)
            shift = logs if classes > 2 else logs[1:] - logs[:1]
            told.add(tuple(np.round(made._base(means) - shift, 9)))
        assert len(told) == 1
