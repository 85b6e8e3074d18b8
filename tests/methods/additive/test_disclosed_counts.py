"""What the hub is told of bins and classes: persons, and ranges of them, from which no small group follows."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linprog

from kohort.errors import ConfigError, RefusedError
from kohort.methods.additive import exact
from kohort.models.additive.cells import codes_of
from kohort.models.additive.model import AdditiveModel
from kohort.protocol.wire import decode
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.testing import listening

LEAST = 20
WIDE = 32
LEVELS = 14


def disclosed(table: pl.DataFrame, data: dict[str, Any], **own: Any) -> tuple[dict[str, Any], AdditiveModel | None]:
    """What sites tell the hub after the first total, and the model; None where the run ends."""
    made = load_plan(
        {
            "data": {"table": "memory", "target": "ill", "features": "rest", "test": 0.0, **data},
            "sites": {"count": 3},
            "policy": {"min_cell": 10, "min_rows": 1},
            "method": {"name": "additive", "rounds": 3, **own},
        }
    )
    model = None
    with listening() as heard, suppress(RefusedError):
        model = run(made, seed=0, tables={"": table}).model
    first = (data for _, task, number, data in heard.replies if task == "additive.disclose" and not number)
    assert model is None or isinstance(model, AdditiveModel)
    return dict(decode(next(first)).arrays), model


# Persons.


def visits(rows: int = 1200) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Two visits of each person, but for one who has all 27 of a rare class."""
    random = np.random.default_rng(0)
    who, ill = np.arange(rows) // 2, random.choice(["no", "yes"], rows).astype(object)
    who[:27], ill[:27] = 10_000, "rare"
    table = pl.DataFrame({"who": who, "age": random.integers(20, 80, rows), "ill": ill.astype(str)})
    return table, {"bounds": {"age": [0, 100]}, "categories": {"ill": ["no", "rare", "yes"]}}


def test_a_class_of_many_rows_of_one_person_is_a_class_of_one_person() -> None:
    table, data = visits()
    said, model = disclosed(table, {**data, "identifiers": ["who"]})
    assert model is None
    assert said["target"].tolist() == [LEAST, 0, LEAST]
    said, model = disclosed(table.drop("who"), data)  # nobody says whose rows they are
    assert model is not None
    assert said["target"][1] == WIDE  # 20 to 63


def test_a_class_counts_each_of_its_persons_once_and_a_person_in_each_of_their_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    table, data = visits()
    table = table.filter(pl.col("ill") != "rare")
    said, model = disclosed(table, {**data, "categories": {"ill": ["no", "yes"]}, "identifiers": ["who"]}, min_bin=20)
    assert model is not None
    pairs = table.unique(["who", "ill"])
    # A person with rows at two sites counts at both, as in the bins: sites compare no identifiers.
    assert (said["target"] >= [pairs.filter(ill=name).height for name in ("no", "yes")]).all()
    assert (said["target"] < [table.filter(ill=name).height for name in ("no", "yes")]).all()


def test_the_mean_of_a_number_is_over_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = visits()
    table = table.with_columns(ill=pl.when(pl.col("who") == 10_000).then(1.0).otherwise(pl.col("age") / 200))
    bounds = {"bounds": {"age": [0, 100], "ill": [0, 1]}}
    monkeypatch.setattr(exact, "rounded_mean", lambda total, rows: np.asarray([total, rows]))
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    rows, _ = disclosed(table.drop("who"), bounds)
    persons, _ = disclosed(table, {**bounds, "identifiers": ["who"]})
    assert rows["target"].tolist()[1] == table.height
    assert persons["target"][1] == persons["counts"].sum() < table.height
    assert rows["target"][0] - persons["target"][0] > 24  # of the 27 rows of one person, a site counts one


def test_persons_with_a_row_each_change_nothing() -> None:
    table, data = visits()
    one = table.with_columns(who=pl.int_range(pl.len()))
    (said, model), (plain, other) = disclosed(one, {**data, "identifiers": ["who"]}), disclosed(one.drop("who"), data)
    assert model is not None
    assert other is not None
    assert model.weights.tobytes() == other.weights.tobytes()
    assert all((said[name] == array).all() for name, array in plain.items())


# Ranges.


def levels(rows: int, seed: int) -> pl.DataFrame:
    """Two columns that say the same, as a category and as a number; few persons have the lowest levels."""
    random = np.random.default_rng(seed)
    shares = np.asarray([0.003, 0.005, 0.007, 0.01, 0.012, 0.015, 0.02, *random.random(LEVELS - 7)])
    shares[7:] *= (1 - shares[:7].sum()) / shares[7:].sum()
    level = random.choice(LEVELS, rows, p=shares)
    names = np.asarray([f"l{(number * 5) % LEVELS:02d}" for number in range(LEVELS)])  # listed in another order
    ill = np.where(random.random(rows) < 0.2 + level / 40, "yes", "no")
    return pl.DataFrame({"level": names[level], "number": level.astype(float), "ill": ill})


def small_groups(rows: int, seed: int, *, ranges: bool = True) -> list[tuple[int, int, int]]:
    """How many persons are in levels, and in differences of nested bins, that hold few; what the hub can say of each.

    It knows how many rows there are, and each count, or in which range it lies.
    """
    table = levels(rows, seed)
    names = table["level"].unique().sort().to_list()
    data = {"bounds": {"number": [0, LEVELS]}, "categories": {"level": names, "ill": ["no", "yes"]}}
    said, model = disclosed(table, data, pairs=0)
    assert model is not None
    level_of = table.group_by("level").agg(pl.col("number").first()).sort("number")
    frame = level_of.with_columns(ill=pl.lit("no"))
    places = model.bins.of_rows(codes_of(model.bins.columns, model.encoder.transform(frame)))
    bins = np.asarray([(places == number).any(axis=0) for number in range(model.bins.total)], dtype=float)
    truth = np.asarray([table.filter(number=number).height for number in level_of["number"]])
    groups = [*np.eye(len(truth)), *(one * (1 - two) for one, two in permutations(bins, 2) if (two <= one).all())]
    return solved(bins, said["counts"], np.full(len(bins), LEAST), truth, groups, ranges=ranges)


def solved(
    bins: Any, counts: Any, least: Any, truth: Any, groups: Any, *, ranges: bool = True
) -> list[tuple[int, int, int]]:
    """Of each group of 1 to 19 persons how many there are, and the fewest and the most that fit what is told."""
    low = high = counts
    if ranges:
        low = np.where(counts == WIDE, least, counts - WIDE // 2)
        high = np.where(counts == WIDE, 2 * WIDE - 1, counts + WIDE // 2 - 1)
    limits = {"A_ub": np.vstack([bins, -bins]), "b_ub": np.concatenate([high, -low]), "bounds": (0, None)}
    total = {"A_eq": np.ones((1, len(truth))), "b_eq": [truth.sum()]}
    found = []
    for group in groups:
        if 0 < group @ truth < LEAST:
            ends = [sign * linprog(sign * group, **limits, **total).fun for sign in (1, -1)]
            found.append((int(group @ truth), int(np.ceil(ends[0] - 1e-6)), int(np.floor(ends[1] + 1e-6))))
    return found


@pytest.mark.parametrize("rows", [1500, 2500])
def test_of_nested_bins_the_hub_can_tell_no_small_group_to_less_than_a_range(rows: int) -> None:
    groups = [group for seed in range(4) for group in small_groups(rows, seed)]
    assert len(groups) > 4
    assert all(low <= true <= high for true, low, high in groups)
    assert min(high - low for _, low, high in groups) >= LEAST


def test_exact_counts_would_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    groups = [group for seed in range(4) for group in small_groups(2500, seed, ranges=False)]
    assert sum(low == high for _, low, high in groups) > 4


def between_ends(*, ranges: bool = True) -> list[tuple[int, int, int]]:
    """Three plans with other bins and minimums: the persons between two ends next to one another."""
    random = np.random.default_rng(0)
    age = random.normal(50, 12, 4000).clip(0, 99.9).round(1)
    table = pl.DataFrame({"age": age, "ill": random.choice(["no", "yes"], 4000)})
    data = {"bounds": {"age": [0, 100]}, "categories": {"ill": ["no", "yes"]}}
    of_cell, counts, least = [], [], []
    for most, fewest in ((32, 20), (31, 21), (30, 23)):
        said, model = disclosed(table, data, bins=most, min_bin=fewest, rounds=2)
        assert model is not None
        of_cell.append(said["bins"])
        counts.append(said["counts"])
        least.append(np.full(len(said["counts"]), fewest))
        cells = codes_of(model.bins.columns, model.encoder.transform(table))[0]  # the same in every plan
    kinds, of_kind = np.unique(np.stack(of_cell), axis=1, return_inverse=True)
    bins = np.concatenate([own == np.arange(own.max() + 1)[:, None] for own in kinds]).astype(float)
    truth = np.bincount(of_kind.ravel()[cells], minlength=kinds.shape[1])
    return solved(bins, np.concatenate(counts), np.concatenate(least), truth, np.eye(len(truth)), ranges=ranges)


def test_of_a_few_plans_with_other_bins_and_minimums_no_small_group_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = between_ends()
    assert len(groups) > 4
    assert all(low <= true <= high for true, low, high in groups)
    assert min(high - low for _, low, high in groups) >= LEAST
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    assert all(low == true == high for true, low, high in between_ends(ranges=False))


def test_the_model_and_its_file_hold_no_other_counts_and_predict_as_with_exact_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = levels(2500, 0)
    names = table["level"].unique().sort().to_list()
    data = {"bounds": {"number": [0, LEVELS]}, "categories": {"level": names, "ill": ["no", "yes"]}}
    said, model = disclosed(table, data, rounds=12)
    assert model is not None
    assert (model.save().arrays["counts"][: len(said["counts"])] == said["counts"]).all()
    assert is_disclosed(model.counts)
    for scheme in ("none", "masks"):
        again = disclosed_or_clear(table, data, scheme)
        assert (again.counts == model.counts).all()
        assert again.weights.tobytes() == model.weights.tobytes()
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    _, other = disclosed(table, data, rounds=12)
    assert other is not None
    assert not is_disclosed(other.counts)
    x = model.encoder.transform(table)
    assert np.abs(model.scores(x) - other.scores(x)).max() < 1e-12


def is_disclosed(counts: Any) -> bool:
    """Whether these are all numbers that stand for ranges."""
    return bool(((counts == WIDE) | (counts % WIDE == WIDE // 2)).all())


def disclosed_or_clear(table: pl.DataFrame, data: dict[str, Any], scheme: str) -> AdditiveModel:
    made = load_plan(
        {
            "data": {"table": "memory", "target": "ill", "features": "rest", "test": 0.0, **data},
            "sites": {"count": 5},
            "policy": {"min_cell": 10, "min_rows": 1, "pairs": "open"},
            "method": {"name": "additive", "rounds": 12, "pairs": "acyclic", "secure": {"sum": scheme}},
        }
    )
    model = run(made, seed=0, tables={"": table}).model
    assert isinstance(model, AdditiveModel)
    return model


# Keys of a plan that would make what is told finer.


def wards(seed: int = 0) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Rows of a rare class in wards of 21 to 60 persons."""
    random = np.random.default_rng(seed)
    names = [f"w{ward:02d}" for ward in range(24)]
    ward = np.repeat(names, random.integers(21, 61, len(names)))
    ill = np.where(random.random(len(ward)) < 0.08, "yes", "no")
    table = pl.DataFrame({"ward": ward, "ill": ill}).sample(fraction=1, shuffle=True, seed=seed)
    return table, {"categories": {"ward": names, "ill": ["no", "yes"]}}


def fitted(train: dict[str, Any] | None = None, **own: Any) -> AdditiveModel:
    table, data = wards()
    made = load_plan(
        {
            "data": {"table": "memory", "target": "ill", "features": "rest", "test": 0.0, **data},
            "sites": {"count": 3},
            "policy": {"min_rows": 1},
            **({"train": train} if train else {}),
            "method": {"name": "additive", "pairs": 0, "rounds": 30, "smooth": 0.0, **own},
        }
    )
    model = run(made, seed=0, tables={"": table}).model
    assert isinstance(model, AdditiveModel)
    return model


def test_equal_weights_of_classes_do_not_make_what_is_told_finer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 16 change no model, and once divided the steps that values are rounded to by 16."""
    steps = []
    rounded = exact.rounded_values
    monkeypatch.setattr(
        exact,
        "rounded_values",
        lambda w, errors, *rest, **kept: steps.append(errors) or rounded(w, errors, *rest, **kept),
    )
    plain, heavy = (fitted({"class_weights": {"no": w, "yes": w}}, ridge=0.0) for w in (1.0, 16.0))
    of_plain, of_heavy = steps[0], steps[-1]
    assert np.allclose(of_plain, of_heavy, rtol=0.02)
    assert np.mean(plain.errors == heavy.errors) > 0.9


@pytest.mark.parametrize("ridge", [2.0**10, 2.0**40])
def test_a_large_pull_does_not_tell_the_intercept_with_all_its_digits(ridge: float) -> None:
    """From which the number of rows of each class followed."""
    table, _ = wards()
    model = fitted(ridge=ridge)
    rows, ill = table.height, int((table["ill"] == "yes").sum())
    error = 1 / np.sqrt(ill * (1 - ill / rows))
    step = 2.0 ** np.floor(np.log2(max(error / 2, 2 * error**2)))
    whole = model.intercept[0] + model.values[:, 0]  # centring moves both by the same number
    on_grid = whole / (step / 2)
    assert np.allclose(on_grid, np.rint(on_grid), atol=1e-6)


@pytest.mark.parametrize("key", ["ridge", "smooth"])
def test_pulls_are_whole_numbers_over_a_secure_sum(key: str) -> None:
    """Bisecting a pull told the size of a bin's residuals with all digits."""
    with pytest.raises(ConfigError, match=f"method.{key} is a whole number"):
        fitted(**{key: 1.5})
    assert fitted(**{key: 1.5, "secure": {"sum": "none"}}).kind == "additive"
