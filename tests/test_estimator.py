"""scikit-learn's own checks pass, frames and lists of tables work, and what was trained is a run like any other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from kohort import FederatedClassifier, FederatedRegressor
from kohort.errors import ConfigError, DataError, KohortError
from kohort.runs.config import load_plan
from kohort.runs.run import run

EXPECTED_FAILURES: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "rows are dealt out and read in batches"
}
"""Checks of scikit-learn that fail for a reason, and the reason."""


# The checks fit some hundred models. Masks make each of them twenty times slower, and change no interface.
PLAIN = {"secure": None}


@pytest.mark.parametrize(
    "estimator",
    [FederatedClassifier(method_options=PLAIN), FederatedRegressor(method_options=PLAIN)],
    ids=lambda item: type(item).__name__,
)
def test_scikit_learn_checks(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, expected_failed_checks=EXPECTED_FAILURES, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert sum(result["status"] == "passed" for result in results) > 40
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(EXPECTED_FAILURES)


def patients(rows: int = 120) -> pl.DataFrame:
    """Two numbers, a category and a class that depends on them."""
    random = np.random.default_rng(7)
    age, dose = random.integers(18, 91, rows), random.normal(5.0, 2.0, rows).round(3)
    ill = (age / 90 + dose / 10 + random.normal(0, 0.2, rows)) > 1.1
    ward = random.choice(["north", "south", "west"], rows)
    return pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": np.where(ill, "ill", "well")})


def quick(**options: Any) -> FederatedClassifier:
    return FederatedClassifier(**{"rounds": 5, "n_sites": 3, **options})


def as_pandas(frame: pl.DataFrame) -> Any:
    return frame.to_pandas().set_index(pd.Index(range(1000, 1000 + frame.height)))


@pytest.mark.parametrize("native", [lambda frame: frame, as_pandas, pl.DataFrame.to_arrow], ids=["pl", "pd", "pa"])
def test_frames_of_every_kind_with_text_columns(native: Callable[[pl.DataFrame], Any]) -> None:
    table = patients()
    rows, target = table.drop("outcome"), table["outcome"].to_numpy()
    model = quick().fit(native(table), "outcome")
    assert list(model.feature_names_in_) == ["age", "dose", "ward"]
    assert list(model.classes_) == ["ill", "well"]
    same = quick().fit(native(rows), target)
    assert np.array_equal(model.predict_proba(native(rows)), same.predict_proba(rows))
    assert model.predict(native(rows)).shape == (120,)
    assert np.array_equal(model.decision_function(rows) > 0, model.predict(rows) == "well")
    whole = model.outcome_.model.predict(native(rows))
    assert type(whole).__module__.split(".")[0] == type(native(rows)).__module__.split(".")[0]
    assert list(whole.to_pylist() if hasattr(whole, "to_pylist") else whole) == list(model.predict(rows))
    if isinstance(whole, pd.Series):
        assert whole.index.equals(native(rows).index)


def test_pandas_rows_of_three_hospitals() -> None:
    frame = patients().to_pandas()
    hospital = frame.pop("ward")
    outcome = frame.pop("outcome")
    model = FederatedClassifier(rounds=20).fit(frame, outcome, sites=hospital)
    assert model.outcome_.sites == ("north", "south", "west")
    assert model.score(frame, outcome) > 0.7
    assert {item.kind for item in model.outcome_.disclosed} == {"encrypted", "public", "secure-sum"}
    plain = FederatedClassifier(rounds=20, method_options=PLAIN).fit(frame, outcome, sites=hospital)
    assert {item.kind for item in plain.outcome_.disclosed} == {"domain", "public", "aggregate"}
    assert np.allclose(model.predict_proba(frame), plain.predict_proba(frame), atol=1e-2)  # bounds on a grid
    assert len(model.outcome_.history) == 20
    assert model.outcome_.ledger_head


def test_a_list_or_a_mapping_of_tables_is_one_a_site() -> None:
    table = patients()
    parts = [table[:50], table[50:90], table[90:]]
    named = {"first": parts[0], "second": parts[1], "third": parts[2]}
    listed = quick().fit(parts, "outcome")
    assert listed.outcome_.site_rows == {"site-01": 50, "site-02": 40, "site-03": 30}
    mapped = quick().fit(named, "outcome")
    assert mapped.outcome_.site_rows == {"first": 50, "second": 40, "third": 30}
    rows = table.drop("outcome")
    labelled = quick().fit(rows, table["outcome"], sites=np.repeat(["site-01", "site-02", "site-03"], [50, 40, 30]))
    assert np.array_equal(labelled.predict_proba(rows), listed.predict_proba(rows))
    x, y = make_classification(n_samples=60, random_state=0)
    arrays = quick().fit([x[:20], x[20:]], [y[:20], y[20:]])
    one = quick().fit(x, y, sites=["site-01"] * 20 + ["site-02"] * 40)
    assert np.array_equal(arrays.predict_proba(x), one.predict_proba(x))
    assert quick().fit([x], [y]).outcome_.sites == quick().fit(x, y, sites=["only"] * 60).outcome_.sites


def test_the_model_is_that_of_the_same_plan() -> None:
    table = patients()
    model = quick(seed=4, hidden=(6,), batch=16, lr=0.02).fit(table, "outcome")
    plan = load_plan(
        {
            "data": {
                "table": "in-memory table",
                "target": "outcome",
                "features": "rest",
                "test": 0,
                "missing": "drop",
                "encoding": "onehot",
                "categories": {"outcome": ["ill", "well"]},
            },
            "sites": {"count": 3},
            "model": {"hidden": [6], "dtype": "float64"},
            "train": {"rounds": 5, "local_epochs": 5, "batch": 16, "lr": 0.02},
            "method": {"name": "fedavg", "secure": {"sum": "masks"}},
            "policy": {"min_rows": 1, "min_cell": 1},
        }
    )
    # The target comes last, so its place in the table is the same.
    assert np.array_equal(model.outcome_.model.weights, run(plan, seed=4, tables={"": table}).model.weights)
    assert not np.array_equal(model.outcome_.model.weights, quick(seed=5).fit(table, "outcome").outcome_.model.weights)


def test_pipelines_search_and_clones() -> None:
    x, y = make_classification(n_samples=90, n_features=5, random_state=1)
    scores = cross_val_score(make_pipeline(StandardScaler(), quick()), x, y, cv=3)
    assert scores.mean() > 0.6
    search = GridSearchCV(quick(), {"lr": [1e-6, 0.05]}, cv=2).fit(x, y)
    assert search.best_params_ == {"lr": 0.05}
    copied = clone(quick(policy={"min_rows": 2}, train={"aggregate": "median"}, method_options=PLAIN))
    assert copied.get_params()["train"] == {"aggregate": "median"}
    assert not hasattr(copied, "outcome_")
    fitted = make_pipeline(StandardScaler(), copied).fit(x, y, federatedclassifier__sites=np.arange(90) % 3)
    assert fitted[-1].outcome_.plan.train.aggregate == "median"


@pytest.mark.parametrize("kind", ["logistic", "svm", "perceptron", "mlp"])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_model_for_two_and_for_more_classes(kind: str, classes: int) -> None:
    x, y = make_classification(
        n_samples=90, n_features=5, n_classes=classes, n_informative=4, n_redundant=1, class_sep=3.0, random_state=2
    )
    model = quick(model=kind, rounds=20).fit(x, y)
    assert model.score(x, y) > 0.6
    assert model.decision_function(x).shape == ((90,) if classes == 2 else (90, 3))
    assert hasattr(model, "predict_proba") == (kind in {"logistic", "mlp"})


@pytest.mark.parametrize("values", [[0, 1, 10], [0.0, 1.0, 2.0], [True, False], ["b", "a"], [-3, 5]])
def test_classes_keep_their_type_and_order(values: list[Any]) -> None:
    x = np.repeat(np.arange(len(values), dtype=float), 20)[:, None]
    y = np.repeat(np.array(values), 20)
    model = quick(rounds=40, lr=0.05).fit(x, y)
    assert model.classes_.dtype == np.array(values).dtype
    assert np.array_equal(model.classes_, np.unique(values))
    assert (model.predict(x) == y).mean() > 0.6


def test_regression() -> None:
    x, y = make_regression(n_samples=150, n_features=4, noise=1.0, random_state=3)
    model = FederatedRegressor(rounds=40).fit(x, y, sites=np.arange(150) % 4)
    assert model.score(x, y) > 0.8
    assert FederatedRegressor(model="linear", rounds=40, lr=0.03).fit(x, y).score(x, y) > 0.8
    assert not hasattr(model, "predict_proba")
    table = pl.DataFrame(x, schema=["a", "b", "c", "d"]).with_columns(price=pl.Series(y))
    assert FederatedRegressor(rounds=2).fit(table, "price").outcome_.model.encoder.schema.target == "price"


def test_options_reach_the_plan() -> None:
    table = patients()
    model = quick(
        data={"quasi": ["age"], "bounds": {"age": [0, 120]}, "test": 0.25},
        policy={"min_rows": 5},
        split="interval:age",
        hidden=7,
    ).fit(table, "outcome")
    plan = model.outcome_.plan
    assert plan.data.quasi == ("age",)
    assert plan.policy.min_rows == 5
    assert plan.sites.split == "interval:age"
    assert plan.model.hidden == (7,)
    assert 0 < model.outcome_.accuracy <= 1
    central = quick(method="central", policy={"raw": True, "min_rows": 1}).fit(table, "outcome")
    assert central.outcome_.plan.method == "central"


def test_missing_values_of_frames_are_imputed_or_left_out() -> None:
    table = patients().with_columns(ward=pl.when(pl.int_range(120) % 10 == 0).then(None).otherwise(pl.col("ward")))
    for data in (None, {"missing": "category"}):
        kept = quick(data=data).fit(table, "outcome")
        assert sum(kept.outcome_.site_rows.values()) == 120
        assert len(kept.predict(table.drop("outcome"))) == 120
    dropped = quick(data={"missing": "drop"}).fit(table, "outcome")
    assert sum(dropped.outcome_.site_rows.values()) == 108
    with pytest.raises(DataError, match="12 missing"):
        dropped.predict(table.drop("outcome"))


def ugly(rows: int = 150) -> pd.DataFrame:
    """An ordinary table: an identifier, dates as texts, truth values, gaps, and a rare class."""
    table = patients(rows).to_pandas()
    table.insert(0, "patient_id", [f"ZQX{n * 7919:07d}" for n in range(rows)])
    table["seen"] = [f"2021-{1 + n % 12:02d}-{1 + n % 28:02d}" for n in range(rows)]
    table["smoker"] = [n % 3 == 0 for n in range(rows)]
    table["dose"] = table["dose"].where(table.index % 7 != 0)
    table["ward"] = table["ward"].where(table.index % 11 != 0)
    return table.set_index(pd.RangeIndex(500, 500 + rows))


def test_an_ugly_table_in_searches_pipelines_and_cross_validation() -> None:
    table = ugly()
    rows, target = table.drop(columns="outcome"), table["outcome"]
    fast = quick(method_options=PLAIN, rounds=20)
    assert cross_val_score(fast, rows, target, cv=3).mean() > 0.65
    search = GridSearchCV(fast, {"lr": [1e-6, 0.02]}, cv=2).fit(rows, target)
    assert search.best_params_ == {"lr": 0.02}
    assert "patient_id" not in search.best_estimator_.outcome_.model.encoder.schema.inputs
    numbers = ColumnTransformer(
        [("scaled", StandardScaler(), ["age"])], remainder="passthrough", verbose_feature_names_out=False
    )
    pipeline = make_pipeline(numbers, fast).set_output(transform="pandas").fit(rows, target)
    assert pipeline.score(rows, target) > 0.7


def test_output_of_pandas_keeps_the_index() -> None:
    table = ugly()
    fitted = quick(method_options=PLAIN).fit(table, "outcome").set_output(transform="pandas")
    rows = table.drop(columns="outcome").iloc[10:30]
    found, shares = fitted.predict(rows), fitted.predict_proba(rows)
    assert found.index.equals(rows.index)
    assert shares.index.equals(rows.index)
    assert shares.columns.tolist() == ["ill", "well"]
    assert isinstance(fitted.set_output(transform="default").predict(rows), np.ndarray)
    with pytest.raises(ValueError, match="neither"):
        fitted.set_output(transform="table")


def test_rows_of_weight_zero_count_for_nothing_and_classes_can_be_weighed() -> None:
    table = patients()
    rows, target = table.drop("outcome"), table["outcome"].to_numpy()
    flipped = np.where(target == "ill", "well", "ill")
    both = pl.concat([rows, rows])
    answers, weight = np.concatenate([target, flipped]), np.repeat([1.0, 0.0], len(target))
    fit = {"method_options": PLAIN, "rounds": 30}
    first = quick(**fit).fit(both, answers, sample_weight=weight)
    second = quick(**fit).fit(both, answers, sample_weight=1.0 - weight)
    assert first.score(rows, target) > 0.8
    assert second.score(rows, target) < 0.2
    usual = quick(**fit).fit(rows, target).predict(rows)
    rare = quick(**fit, class_weight={"ill": 20.0, "well": 1.0}).fit(rows, target).predict(rows)
    assert (rare == "ill").sum() > (usual == "ill").sum()
    balanced = quick(class_weight="balanced", method="additive", rounds=50).fit(rows, target)
    weights = balanced.outcome_.plan.train.class_weights
    assert weights["ill"] * (target == "ill").sum() == pytest.approx(weights["well"] * (target == "well").sum())
    with pytest.raises(ConfigError, match="counts every row once"):
        FederatedClassifier(method="additive").fit(both, answers, sample_weight=weight)
    with pytest.raises(ValueError, match="regressor"):
        FederatedRegressor(class_weight="balanced").fit(rows.select("age", "dose"), np.arange(120.0))


def test_weights_are_routed() -> None:
    with config_context(enable_metadata_routing=True):
        estimator = quick(method_options=PLAIN, rounds=2).set_fit_request(sample_weight=True, sites=True)
        estimator.set_score_request(sample_weight=False)
        table = patients()
        weight, sites = np.ones(120), np.arange(120) % 3
        params = {"sample_weight": weight, "sites": sites}
        scores = cross_val_score(estimator, table.drop("outcome").to_pandas(), table["outcome"], cv=2, params=params)
    assert len(scores) == 2


def test_bad_input() -> None:
    table = patients()
    rows, target = table.drop("outcome"), table["outcome"].to_numpy()
    with pytest.raises(ValueError, match="n_samples=2 rows"):
        quick().fit(rows[[0, 1]], np.array(["ill", "well"]))
    with pytest.raises(ValueError, match="1 class"):
        quick().fit(rows, np.repeat("ill", 120))
    with pytest.raises(ValueError, match="no column 'outcom'"):
        quick().fit(table, "outcom")
    with pytest.raises(ValueError, match="not a frame"):
        quick().fit(np.ones((5, 2)), "y")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(rows, target, sites=["a", "b"])
    with pytest.raises(ValueError, match="2 tables need 2 targets"):
        quick().fit([rows, rows], [target])
    with pytest.raises(ValueError, match="leave out sites"):
        quick().fit([table, table], "outcome", sites=target)
    with pytest.raises(ValueError, match="differ in columns: ward"):
        quick().fit([table, table.drop("ward")], "outcome")
    with pytest.raises(ValueError, match="may not hold 'target'"):
        quick(data={"target": "age"}).fit(table, "outcome")
    with pytest.raises(ConfigError, match=r"train\.lr"):
        quick(lr=-1.0).fit(table, "outcome")
    with pytest.raises(KohortError, match="refuse"):
        quick(policy={"min_sum_sites": 4}).fit(table, "outcome")
    with pytest.raises(KohortError, match="refuse"):
        quick(policy={"min_rows": 1000}, method_options=PLAIN).fit(table, "outcome")
    with pytest.raises(NotFittedError):
        quick().predict(rows)
    fitted = quick(method_options=PLAIN).fit(table, "outcome")  # a sum counts domains, and knows an "other" ward
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(rows.rename({"ward": "station"}))
    with pytest.raises(DataError, match="'ward' has 120 rows"):
        fitted.predict(rows.with_columns(ward=pl.lit("nowhere")))


def test_two_sites_cannot_hide_in_a_sum_and_are_averaged_in_clear() -> None:
    kinds = {item.kind for item in quick(n_sites=2).fit(patients(), "outcome").outcome_.disclosed}
    assert kinds == {"domain", "public", "aggregate"}


def test_what_needs_each_sites_update_says_how_to_do_without_the_sum() -> None:
    with pytest.raises(ConfigError) as caught:
        quick(train={"aggregate": "median"}).fit(patients(), "outcome")
    assert "train.aggregate" in caught.value.message
    assert "method.secure" in caught.value.message
    assert 'method_options={"secure": None}' in caught.value.hint


def test_a_column_may_be_called_target() -> None:
    rows = patients().rename({"age": "target"}).drop("outcome")
    model = quick().fit(rows, patients()["outcome"].to_numpy())
    assert model.outcome_.model.encoder.schema.target == "target_"
