"""How good a model is: the usual measures, from plain counts, each with the interval it would move in.

For two classes, `precision`, `recall`, `f1` and `specificity` are the positive class's, which is the last one in the
order of class names ("<=50K", ">50K"). For more classes they are means over the classes (macro), and `auc` is the mean
over one class against the rest. A measure without a denominator (no positive row, say) is 0, and `auc` is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.evaluate.intervals import BLOCKS, Blocks, Floats, Resampling, intervals_of
from kohort.models.base import Model
from kohort.models.rows import Rows, person_of_rows, scaled_target
from kohort.rng import Streams
from kohort.tables.persons import persons_of

__all__ = [
    "JudgedRows",
    "accuracy_and_loss",
    "accuracy_of",
    "classification",
    "evaluate_groups",
    "evaluate_model",
    "pair_shares",
    "regression",
]

LEAST_BLOCKS = 200
"""Blocks of a group, however many groups there are: enough for a spread that is right to a twentieth."""


def accuracy_of(model: Model, rows: Rows) -> float:
    """Share of right classes, or R2 for a number: the one figure shown while a run is under way.

    Args:
        model: The model to judge.
        rows: Encoded rows with their targets; at least one.

    Returns:
        The accuracy from 0 to 1, or R2, which may be below 0.

    Raises:
        DataError: There is no row to compute R2 on.
    """
    return _accuracy(model, rows, model.codes(rows.x))


def accuracy_and_loss(model: Model, rows: Rows) -> tuple[float, float | None]:
    """What is noted after every round.

    Args:
        model: The model of the round.
        rows: Encoded test rows.

    Returns:
        As `accuracy_of`; and the mean log loss of classes, or the mean squared error of a number, None without
        probabilities.
    """
    found, shares = model.judged(rows.x)
    accuracy = _accuracy(model, rows, found)
    if model.task == "regression":
        return accuracy, float(np.mean(np.square(_own_scale(model, rows.y) - found)))
    if shares is None:
        return accuracy, None
    right = shares[np.arange(len(shares)), rows.y.astype(np.int64)].astype(np.float64)
    return accuracy, float(-np.mean(np.log(np.clip(right, 1e-15, 1.0))))


def _accuracy(model: Model, rows: Rows, found: NDArray[Any]) -> float:
    if model.task == "classification":
        return float(np.mean(found == rows.y))
    return float(regression(_own_scale(model, rows.y), found)["r2"])


def evaluate_model(
    model: Model,
    frame: pl.DataFrame,
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 0,
    group_resamples: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """All measures of a model on a table.

    Args:
        model: The model to judge.
        frame: Rows with the columns that the model reads, and its target.
        groups: One label per row, such as its site; adds "by_group". None measures the whole table alone.
        resamples: Over how many bootstrap resamples "intervals" of the whole table are computed; 0 for none.
        group_resamples: The same for each group.
        seed: Of the resamples alone: a model is always judged the same.

    Returns:
        The measures by name. "intervals" holds the 95 % interval of each. Where the table names persons, resamples draw
        persons, with all of their rows.

    Raises:
        DataError: There is no row, or the model cannot read the table.
    """
    judged = JudgedRows.of(model, frame, seed)
    result = judged.measure(slice(None), resamples)
    if groups is not None:
        result["by_group"] = judged.by_group(groups, group_resamples)
    return result


def evaluate_groups(
    model: Model, frame: pl.DataFrame, groupings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """All measures by group, for several ways to group the same rows.

    Args:
        model: The model.
        frame: The rows.
        groupings: One label per row, by what the rows are grouped by.

    Returns:
        For each way, as "by_group" of `evaluate_model`, without intervals.
    """
    if not groupings:
        return {}
    judged = JudgedRows.of(model, frame, 0)
    return {name: judged.by_group(groups, 0) for name, groups in groupings.items()}


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows with what a model says of them.

    Attributes:
        truth: The answer of every row: a class code, or a number on the target's own scale.
        found: What the model predicts.
        ranked: A score per row and class; None for numbers.
        persons: The person of every row, where the table names persons.
        classes: How many classes there are; 0 for numbers.
        unseen: By column, how many rows have a category that no training row had.
        streams: Of the resamples.
    """

    truth: NDArray[Any]
    found: NDArray[Any]
    ranked: NDArray[Any] | None
    persons: NDArray[np.int64] | None
    classes: int
    unseen: Mapping[str, int]
    streams: Streams

    @classmethod
    def of(cls, model: Model, frame: pl.DataFrame, seed: int) -> JudgedRows:
        """Predict rows, and keep what measures need of them.

        Args:
            model: The model to judge.
            frame: Rows with the columns that the model reads, and its target.
            seed: Of the resamples.

        Returns:
            The rows, judged.

        Raises:
            DataError: The model cannot read the table.
        """
        found, ranked, unseen = model.judged_table(frame)
        truth, person = scaled_target(model.encoder, frame), person_of_rows(model.encoder.schema, frame)
        is_classifier = model.task == "classification"
        return cls(
            truth=truth.astype(np.int64) if is_classifier else _own_scale(model, truth),
            found=found,
            ranked=ranked,
            persons=None if person is None else persons_of(person),
            classes=0 if ranked is None else len(model.classes),
            unseen=unseen,
            streams=Streams.seeded(seed),
        )

    def measure(self, chosen: Any, resamples: int, *group: str, blocks: int = BLOCKS) -> dict[str, Any]:
        """All measures of some of the rows.

        Args:
            chosen: Which rows: what indexes an array.
            resamples: Over how many resamples intervals are computed; 0 for none.
            *group: What the rows have in common; resamples of every group are drawn from a stream of its own.
            blocks: Into how many blocks rows are dealt for the resamples.

        Returns:
            Measures by name.

        Raises:
            DataError: There is no row.
        """
        generator = self.streams.generator("bootstrap", *group)
        who = None if self.persons is None else self.persons[chosen]
        again = Resampling(resamples=resamples, blocks=blocks, generator=generator, persons=who) if resamples else None
        truth, found = self.truth[chosen], self.found[chosen]
        if self.ranked is None:
            return regression(truth, found, resampling=again)
        return classification(truth, found, scores=self.ranked[chosen], classes=self.classes, resampling=again)

    def by_group(self, groups: Sequence[str], resamples: int) -> dict[str, dict[str, Any]]:
        """All measures of each group of rows, and how many rows it has.

        Args:
            groups: The group of every row.
            resamples: Over how many resamples intervals are computed; 0 for none.

        Returns:
            Measures by name of the group.
        """
        names, codes = np.unique(np.asarray(groups), return_inverse=True)
        parts = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        blocks = max(LEAST_BLOCKS, BLOCKS // len(names))
        return {
            str(name): {
                "rows": len(part),
                **_without_confusion(self.measure(part, resamples, str(name), blocks=blocks)),
            }
            for name, part in zip(names, parts, strict=True)
        }


def classification(
    truth: NDArray[np.int64],
    found: NDArray[np.int64],
    *,
    scores: NDArray[Any] | None,
    classes: int,
    resampling: Resampling | None = None,
) -> dict[str, Any]:
    """Accuracy, precision, recall, F1 (positive class or macro), macro F1, specificity, AUC and confusion matrix.

    Args:
        truth: Class codes of the rows.
        found: Predicted codes.
        scores: A score per row and class, for the AUC.
        classes: How many there are.
        resampling: Adds intervals; None: none.

    Returns:
        Measures by name.

    Raises:
        DataError: There is no row.
    """
    _require_rows(len(truth))
    cells = truth * classes + found
    confusion = np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    judged = () if scores is None else (1,) if classes == 2 else range(classes)
    areas = [pair_shares(truth == code, scores[:, code]) for code in judged] if scores is not None else []
    known = [area for area, _ in areas if area is not None]
    result: dict[str, Any] = {name: float(value) for name, value in _rates(confusion).items()}
    result["auc"] = float(np.mean(known)) if known else None
    result["confusion"] = confusion.tolist()
    if resampling is None:
        return result

    blocks = Blocks(len(truth), resampling)
    columns = [blocks.counts(cells, classes * classes)]
    for code, (area, shares) in zip(judged, areas, strict=True):
        if area is not None:
            positive = truth == code
            columns += [blocks.sums(shares * positive)[:, None], blocks.sums(shares * ~positive)[:, None]]

    def measure(sums: Floats) -> dict[str, Floats]:
        drawn = sums[:, : classes * classes].reshape(-1, classes, classes)
        values = _rates(drawn)
        if known:
            rows = drawn.sum(axis=2)
            both = iter(sums[:, classes * classes :].T)
            values["auc"] = np.mean(
                [
                    _resampled_area(area, next(both), next(both), rows[:, code], rows.sum(axis=1) - rows[:, code])
                    for code, (area, _) in zip(judged, areas, strict=True)
                    if area is not None
                ],
                axis=0,
            )
        return values

    intervals = intervals_of(np.hstack(columns), measure, resampling)
    intervals.setdefault("auc", None)
    return {**result, "intervals": intervals}


def regression(truth: NDArray[Any], found: NDArray[Any], *, resampling: Resampling | None = None) -> dict[str, Any]:
    """Root mean squared error, mean absolute error and R2.

    Args:
        truth: The target of each row, on its own scale.
        found: The predictions, on the same scale.
        resampling: How to compute "intervals"; None leaves them out.

    Returns:
        "rmse", "mae" and "r2", which is 0 for a constant target; and the 95 % interval of each under "intervals".

    Raises:
        DataError: There is no row.
    """
    _require_rows(len(truth))
    difference = found.astype(np.float64) - truth
    centred = truth - truth.mean()  # a sum of squares of large numbers would lose the small differences
    columns = (np.ones(len(truth)), difference**2, np.abs(difference), centred, centred**2)
    whole = np.array([[column.sum() for column in columns]])
    result: dict[str, Any] = {name: float(value[0]) for name, value in _errors(whole).items()}
    if resampling is None:
        return result
    blocks = Blocks(len(truth), resampling)
    sums = np.stack([blocks.sums(column) for column in columns], axis=1)
    return {**result, "intervals": intervals_of(sums, _errors, resampling)}


def pair_shares(positive: NDArray[np.bool_], score: NDArray[Any]) -> tuple[float | None, Floats]:
    """The area under the curve, and how much each row adds to it.

    The area is the mean share of the positive rows, and of the negative ones too (DeLong et al., 1988).

    Args:
        positive: Which rows are positive.
        score: The score of each row; more means more likely positive.

    Returns:
        The area, None where all rows are of one kind; and for each row the share of rows of the other kind that it is
        ranked rightly against, ties counting half.
    """
    hits = int(positive.sum())
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return None, np.zeros(len(positive))
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    hits_at = np.bincount(place[positive], minlength=len(counts))
    misses_at = counts - hits_at
    misses_below = (np.cumsum(misses_at) - misses_at / 2) / misses
    hits_above = (hits - np.cumsum(hits_at) + hits_at / 2) / hits
    area = float(misses_below @ hits_at) / hits
    return area, np.where(positive, misses_below[place], hits_above[place])


def _resampled_area(area: float, of_hits: Floats, of_misses: Floats, hits: Floats, misses: Floats) -> Floats:
    """The area when rows count as often as they were drawn, to first order: the mean shares of both kinds move it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.clip(of_hits / hits + of_misses / misses - area, 0.0, 1.0))


def _rates(confusion: NDArray[Any]) -> dict[str, Floats]:
    """Measures of one confusion matrix, or of many [..., classes, classes] at once."""
    classes = confusion.shape[-1]
    hits = np.diagonal(confusion, axis1=-2, axis2=-1).astype(np.float64)
    predicted, actual = confusion.sum(axis=-2), confusion.sum(axis=-1)
    total = actual.sum(axis=-1)
    precision, recall = _ratio(hits, predicted), _ratio(hits, actual)
    f1 = _ratio(2 * precision * recall, precision + recall)
    others = total[..., None] - actual
    specificity = _ratio(others - predicted + hits, others)
    chosen = (..., slice(1, 2)) if classes == 2 else (..., slice(None))
    return {
        "accuracy": _ratio(hits.sum(axis=-1), total),
        "f1": f1[chosen].mean(axis=-1),
        "f1_macro": f1.mean(axis=-1),
        "precision": precision[chosen].mean(axis=-1),
        "recall": recall[chosen].mean(axis=-1),
        "specificity": specificity[chosen].mean(axis=-1),
    }


def _errors(sums: Floats) -> dict[str, Floats]:
    """Measures from sums [..., 5] of ones, squared and absolute differences, and centred targets and their squares."""
    rows, squared, absolute, targets, squared_targets = np.moveaxis(sums, -1, 0)
    spread = squared_targets - targets**2 / rows
    # What is left of a constant target is rounding.
    varies = spread > 1e-12 * squared_targets
    return {
        "rmse": np.sqrt(squared / rows),
        "mae": absolute / rows,
        "r2": np.where(varies, 1.0 - squared / np.where(varies, spread, 1.0), 0.0),
    }


def _ratio(over: NDArray[Any], under: NDArray[Any]) -> Floats:
    """`over` / `under`, and 0 where there is nothing to divide by."""
    under = np.asarray(under)
    return np.asarray(np.divide(over, under, out=np.zeros(np.shape(over)), where=under > 0))


def _require_rows(count: int) -> None:
    if count == 0:
        raise DataError("there are no rows to evaluate on", hint="Give a table with rows, or a larger data.test")


def _own_scale(model: Model, scaled: NDArray[Any]) -> Floats:
    bounds = model.encoder.domain.columns[str(model.encoder.schema.target)].bounds
    low, high = bounds if bounds is not None else (0.0, 1.0)
    return scaled.astype(np.float64) * ((high - low) or 1.0) + low


def _without_confusion(measures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in measures.items() if name != "confusion"}
