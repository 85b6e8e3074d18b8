"""How good a model is: the usual measures, from plain counts.

For two classes, `precision`, `recall`, `f1` and `specificity` are the positive class's, which is the last one in the
order of class names ("<=50K", ">50K"). For more classes they are means over the classes (macro), and `auc` is the mean
over one class against the rest. A measure without a denominator (no positive row, say) is 0, and `auc` is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.learn.model import Model, encode_rows
from kohort.learn.rows import Rows

__all__ = ["accuracy_of", "area_under_curve", "classification", "evaluate_model", "regression"]


def accuracy_of(model: Model, rows: Rows) -> float:
    """Share of right classes, or R2 for a number: the one figure shown while a run is under way."""
    found = model.codes(rows.x)
    if model.task == "classification":
        return float(np.mean(found == rows.y))
    return float(regression(_own_scale(model, rows.y), found)["r2"])


def evaluate_model(model: Model, frame: pl.DataFrame, *, groups: Sequence[str] | None = None) -> dict[str, Any]:
    """All measures on a table, and by group (one label a row, such as its site) when given."""
    rows = encode_rows(model.encoder, frame)
    found = model.codes(rows.x)
    ranked = model.positive_scores(rows.x) if model.task == "classification" else None

    def measure(chosen: Any) -> dict[str, Any]:
        if ranked is None:
            return dict(regression(_own_scale(model, rows.y[chosen]), found[chosen]))
        codes = rows.y[chosen].astype(np.int64)
        return classification(codes, found[chosen], scores=ranked[chosen], classes=len(model.classes))

    result = measure(slice(None))
    if groups is not None:
        labels = np.asarray(groups)
        names, codes = np.unique(labels, return_inverse=True)
        result["by_group"] = {
            str(name): {"rows": int((codes == index).sum()), **_headline(measure(codes == index))}
            for index, name in enumerate(names)
        }
    return result


def classification(
    truth: NDArray[np.int64], found: NDArray[np.int64], *, scores: NDArray[Any] | None, classes: int
) -> dict[str, Any]:
    """Accuracy, precision, recall, F1 (positive class or macro), macro F1, specificity, AUC and confusion matrix."""
    if len(truth) == 0:
        raise DataError("there are no rows to evaluate on", hint="Give a table with rows, or a larger data.test")
    confusion = np.bincount(truth * classes + found, minlength=classes * classes).reshape(classes, classes)
    hits = np.diag(confusion).astype(float)
    precision = _ratio(hits, confusion.sum(axis=0))
    recall = _ratio(hits, confusion.sum(axis=1))
    f1 = _ratio(2 * precision * recall, precision + recall)
    specificity = _ratio(
        confusion.sum() - confusion.sum(axis=0) - confusion.sum(axis=1) + hits,
        confusion.sum() - confusion.sum(axis=1),
    )
    chosen = slice(1, 2) if classes == 2 else slice(None)
    return {
        "accuracy": float(hits.sum() / confusion.sum()),
        "f1": float(f1[chosen].mean()),
        "f1_macro": float(f1.mean()),
        "precision": float(precision[chosen].mean()),
        "recall": float(recall[chosen].mean()),
        "specificity": float(specificity[chosen].mean()),
        "auc": None if scores is None else _mean_auc(truth, scores, classes),
        "confusion": confusion.tolist(),
    }


def regression(truth: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
    """Root mean squared error, mean absolute error and R2."""
    if len(truth) == 0:
        raise DataError("there are no rows to evaluate on", hint="Give a table with rows, or a larger data.test")
    difference = found.astype(np.float64) - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    squared = float((difference**2).sum())
    return {
        "rmse": float(np.sqrt(squared / len(truth))),
        "mae": float(np.abs(difference).mean()),
        "r2": 1.0 - squared / spread if spread > 0 else 0.0,
    }


def area_under_curve(positive: NDArray[np.bool_], score: NDArray[Any]) -> float | None:
    """Chance that a positive row scores above a negative one, ties counting half; None without both kinds."""
    hits = int(positive.sum())
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return None
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    middle_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(middle_ranks[inverse][positive].sum())
    return (rank_sum - hits * (hits + 1) / 2) / (hits * misses)


def _mean_auc(truth: NDArray[np.int64], scores: NDArray[Any], classes: int) -> float | None:
    chosen = [1] if classes == 2 else range(classes)
    areas = [area_under_curve(truth == code, scores[:, code]) for code in chosen]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None


def _ratio(over: NDArray[Any], under: NDArray[Any]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = np.divide(over, under, out=np.zeros(len(over)), where=np.asarray(under) > 0)
    return ratio


def _own_scale(model: Model, scaled: NDArray[Any]) -> NDArray[np.float64]:
    bounds = model.encoder.domain.columns[str(model.encoder.schema.target)].bounds
    low, high = bounds if bounds is not None else (0.0, 1.0)
    return scaled.astype(np.float64) * ((high - low) or 1.0) + low


def _headline(measures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in measures.items() if name != "confusion"}
