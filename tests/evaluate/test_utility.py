"""The measures equal scikit-learn's on drawn data; what has no denominator is 0, an AUC without both kinds is null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as reference
from tests.support.examples import examples

from kohort.errors import DataError
from kohort.evaluate.utility import classification, pair_shares, regression


def drawn(seed: int, rows: int, classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    random = np.random.default_rng(seed)
    truth = random.integers(0, classes, rows)
    scores = random.dirichlet(np.ones(classes), rows).round(1)  # rounded: many ties
    scores[np.arange(rows), truth] += random.choice([0.0, 0.3], rows)
    return truth, scores.argmax(axis=1), scores


seeds, sizes = st.integers(0, 2**32 - 1), st.integers(1, 60)


@examples(20, 40)
@given(seeds, sizes)
def test_two_classes_equal_scikit_learn(seed: int, rows: int) -> None:
    truth, found, scores = drawn(seed, rows, 2)
    ours = classification(truth, found, scores=scores, classes=2)
    options: dict[str, Any] = {"zero_division": 0.0}
    assert ours["accuracy"] == pytest.approx(reference.accuracy_score(truth, found))
    assert ours["precision"] == pytest.approx(reference.precision_score(truth, found, **options))
    assert ours["recall"] == pytest.approx(reference.recall_score(truth, found, **options))
    assert ours["f1"] == pytest.approx(reference.f1_score(truth, found, **options))
    assert ours["f1_macro"] == pytest.approx(
        reference.f1_score(truth, found, labels=[0, 1], average="macro", **options)
    )
    assert ours["specificity"] == pytest.approx(reference.recall_score(truth, found, pos_label=0, **options))
    assert ours["confusion"] == reference.confusion_matrix(truth, found, labels=[0, 1]).tolist()
    if len(set(truth)) == 2:
        assert ours["auc"] == pytest.approx(reference.roc_auc_score(truth, scores[:, 1]))
    else:
        assert ours["auc"] is None


@settings(max_examples=30)
@given(seeds, sizes, st.integers(3, 6))
def test_more_classes_are_macro_means(seed: int, rows: int, classes: int) -> None:
    truth, found, scores = drawn(seed, rows, classes)
    ours = classification(truth, found, scores=scores, classes=classes)
    labels = list(range(classes))
    options: dict[str, Any] = {"labels": labels, "average": "macro", "zero_division": 0.0}
    assert ours["precision"] == pytest.approx(reference.precision_score(truth, found, **options))
    assert ours["recall"] == pytest.approx(reference.recall_score(truth, found, **options))
    assert ours["f1"] == ours["f1_macro"] == pytest.approx(reference.f1_score(truth, found, **options))
    tables = reference.multilabel_confusion_matrix(truth, found, labels=labels)
    specificity = [tn / (tn + fp) if tn + fp else 0.0 for (tn, fp), _ in tables.tolist()]
    assert ours["specificity"] == pytest.approx(np.mean(specificity))
    areas = [
        reference.roc_auc_score(truth == label, scores[:, label])
        for label in labels
        if 0 < (truth == label).sum() < rows
    ]
    assert ours["auc"] == (pytest.approx(np.mean(areas)) if areas else None)


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=40))
def test_the_area_is_the_chance_that_a_positive_ranks_higher(pairs: list[tuple[bool, int]]) -> None:
    ours, _ = pair_shares(np.array([hit for hit, _ in pairs]), np.array([score for _, score in pairs], dtype=float))
    wins = [
        1.0 if up > down else 0.5 if up == down else 0.0 for hit, up in pairs if hit for miss, down in pairs if not miss
    ]
    assert ours == (pytest.approx(np.mean(wins)) if wins else None)


@examples(20, 40)
@given(seeds, st.integers(2, 60))
def test_regression_equals_scikit_learn(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.normal(100, 20, rows)
    found = (truth + random.normal(0, 10, rows)).astype(np.float32)
    ours = regression(truth, found)
    assert ours["rmse"] == pytest.approx(reference.root_mean_squared_error(truth, found))
    assert ours["mae"] == pytest.approx(reference.mean_absolute_error(truth, found))
    assert ours["r2"] == pytest.approx(reference.r2_score(truth, found))


def test_a_constant_truth_has_no_r2() -> None:
    assert regression(np.ones(3), np.array([1.0, 2.0, 3.0]))["r2"] == 0.0


def test_without_rows_there_is_nothing_to_measure() -> None:
    with pytest.raises(DataError, match="no rows"):
        classification(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), scores=None, classes=2)
    with pytest.raises(DataError, match="no rows"):
        regression(np.empty(0), np.empty(0))


def test_without_scores_the_area_is_unknown() -> None:
    assert classification(np.array([0, 1]), np.array([0, 1]), scores=None, classes=2)["auc"] is None
