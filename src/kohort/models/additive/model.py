"""The additive model: score = intercept + one value per column, looked up by the bin that the row's cell belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError
from kohort.models.additive.bins import Bins, Floats
from kohort.models.additive.cells import codes_of, columns_of
from kohort.models.additive.design import Design
from kohort.models.additive.labels import group_labels, labels_of, pair_labels
from kohort.models.base import Model, SavedModel
from kohort.models.options import FloatArray
from kohort.models.rows import target_range
from kohort.tables.encoder import Encoder

__all__ = ["AdditiveModel", "load_additive", "means_of"]

_NORMAL_95 = 1.96
_HIGHEST = 30.0
"""Scores beyond this are the same probability."""


def means_of(link: str, scores: Floats) -> Floats:
    """What scores stand for: probabilities of classes, or the expected number.

    Args:
        link: logit | softmax | identity | log
        scores: [rows, outputs].

    Returns:
        [rows, outputs]; with logit, the probability of the second class.
    """
    if link == "identity":
        return scores
    if link == "log":
        return np.exp(np.clip(scores, -_HIGHEST, _HIGHEST))
    if link == "logit":
        return 1.0 / (1.0 + np.exp(-np.clip(scores, -_HIGHEST, _HIGHEST)))
    shifted = scores - scores.max(axis=1, keepdims=True)
    powers = np.exp(np.maximum(shifted, -2 * _HIGHEST))
    total = powers[:, 0].copy()
    for output in range(1, powers.shape[1]):  # in order: a sum over an axis may depend on the number of rows
        total += powers[:, output]
    means: Floats = powers / total[:, None]
    return means


@dataclass(frozen=True, eq=False, repr=False)
class AdditiveModel(Model):
    """Bins of every column, a value per bin and output, and an intercept per output."""

    encoder: Encoder
    bins: Bins
    values: Floats
    """[bins, outputs]; in every column their mean by `counts` is 0."""
    intercept: Floats
    """[outputs]"""
    counts: Floats
    """About how many persons each bin holds: a number that stands for a range of counts, or with noise under a budget.
    """
    link: str
    errors: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Standard errors of the values, given the other columns; none under a budget."""

    @property
    def kind(self) -> str:
        """additive"""
        return "additive"

    @cached_property
    def weights(self) -> Floats:
        """Intercept and values in one vector."""
        return np.concatenate([self.intercept, self.values.ravel()])

    @property
    def diverged(self) -> bool:
        """Whether a value is not finite."""
        return not bool(np.isfinite(self.weights).all())

    def scores(self, x: FloatArray) -> Floats:
        """The sum of intercept and column values, [rows, outputs]."""
        places = self.bins.of_rows(codes_of(self.bins.columns, x))
        return Design(places, self.bins.total).scores(self.values, self.intercept)

    def codes(self, x: FloatArray) -> NDArray[Any]:
        """Class codes of encoded rows, or numbers on the target's own scale."""
        return self._codes_of(self.scores(x))

    def _codes_of(self, scores: Floats) -> NDArray[Any]:
        if self.link == "logit":
            return (scores[:, 0] > 0).astype(np.int64)
        if self.link == "softmax":
            return np.asarray(scores.argmax(axis=1))
        low, width = target_range(self.encoder)
        return means_of(self.link, scores)[:, 0] * width + (0.0 if self.link == "log" else low)

    def probabilities(self, x: FloatArray) -> FloatArray:
        """Class probabilities [rows, classes].

        Raises:
            ConfigError: It predicts numbers.
        """
        if self.task != "classification":
            raise ConfigError("a predicted number has no class probabilities", hint="Use predict")
        return self._probabilities_of(self.scores(x))

    def _probabilities_of(self, scores: Floats) -> FloatArray:
        means = means_of(self.link, scores)
        return np.hstack([1.0 - means, means]) if self.link == "logit" else means

    def judged(self, x: FloatArray) -> tuple[NDArray[Any], FloatArray | None]:
        """Codes and probabilities from one sum over the columns."""
        scores = self.scores(x)
        return self._codes_of(scores), self._probabilities_of(scores) if self.task == "classification" else None

    def contributions(self, x: FloatArray) -> Floats:
        """What every column adds to the score of encoded rows: [rows, columns, outputs].

        Args:
            x: Encoded rows.

        Returns:
            Contributions; with the intercept they add up to `scores`. Items of a column of sets stand for themselves.
        """
        places = self.bins.of_rows(codes_of(self.bins.columns, x))
        return np.stack([self.values[own] for own in places], axis=1)

    def importances(self) -> dict[str, float]:
        """How much each column moves the score: the mean absolute value over the rows it was fitted on.

        Returns:
            By column, the largest first.
        """
        found = {}
        for number, name in enumerate(self.bins.names):
            part = slice(self.bins.starts[number], self.bins.starts[number + 1])
            weight = np.maximum(self.counts[part], 0.0)
            spread = np.abs(self.values[part]).mean(axis=1)
            found[name] = float((spread * weight).sum() / max(float(weight.sum()), 1.0))
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def curves(self) -> dict[str, dict[str, Any]]:
        """One curve per column.

        Returns:
            By column, the most important first: `importance`, `bins` (their names), `values` (what each adds to the
            score; a list per class where there are more than two), `counts` (each stands for a range),
            `ordered`, and `low` and `high`, the ends of 95 % intervals given the other columns, where the model has
            them. A pair of columns has `pair` (their names) and `grid`: the names of its `rows` and `columns`, and the
            place in `values` of every cell.
        """
        numbers = {name: number for number, name in enumerate(self.bins.names)}
        return {name: self._curve(numbers[name], importance) for name, importance in self.importances().items()}

    def _curve(self, number: int, importance: float) -> dict[str, Any]:
        part = slice(int(self.bins.starts[number]), int(self.bins.starts[number + 1]))
        values = self.values[part]
        curve: dict[str, Any] = {
            "importance": importance,
            **self._named(number),
            "values": [_entry(value) for value in values],
            "counts": [round(float(count)) for count in self.counts[part]],
        }
        if len(self.errors):
            width = _NORMAL_95 * self.errors[part]
            curve |= {"low": [_entry(end) for end in values - width], "high": [_entry(end) for end in values + width]}
        return curve

    def _named(self, number: int) -> dict[str, Any]:
        """What the bins of a column or a pair are called, and how they stand to each other."""
        bins, columns = self.bins, len(self.bins.columns)
        if number < columns:
            column = bins.columns[number]
            return {"bins": labels_of(self.encoder, column, bins.of_cell[number]), "ordered": column.ordered}
        pair = bins.pairs[number - columns]
        rows, across = (
            group_labels(labels_of(self.encoder, bins.columns[place], bins.of_cell[place]), groups)
            for place, groups in ((pair.left, pair.left_groups), (pair.right, pair.right_groups))
        )
        return {
            "bins": pair_labels(pair, rows, across),
            "ordered": False,
            "pair": [bins.columns[pair.left].name, bins.columns[pair.right].name],
            "grid": {"rows": rows, "columns": across, "bins": pair.cells.tolist()},
        }

    def row_contributions(self, frame: pl.DataFrame) -> list[dict[str, Any]]:
        """What each column adds to the score of each row.

        Args:
            frame: Rows with the columns it reads.

        Returns:
            By row: every column's contribution, and under "(intercept)" what all rows have in common. A list per class
            where there are more than two.
        """
        parts = self.contributions(self.encoder.transform(frame))
        names = self.bins.names
        common = _entry(self.intercept)
        return [
            {"(intercept)": common, **{name: _entry(part) for name, part in zip(names, row, strict=True)}}
            for row in parts
        ]

    def save(self) -> SavedModel:
        """Encoder and link as plain values; bins, values, counts and errors as arrays."""
        number = next((column for column in self.bins.columns if column.kind == "number"), None)
        fine = number is None or number.cells > 300
        pairs = {"pairs": self.bins.flat_pairs()} if self.bins.pairs else {}
        return SavedModel(
            facts={"encoder": self.encoder.to_mapping(), "link": self.link, "cells": 1024 if fine else 128},
            arrays={
                "bins": self.bins.flat(),
                "values": self.values,
                "intercept": self.intercept,
                "counts": self.counts,
                "errors": self.errors,
                **pairs,
            },
        )

    def describe(self) -> dict[str, Any]:
        """What every model says, its link and its number of bins."""
        return {**super().describe(), "link": self.link, "bins": self.bins.total, "parameters": len(self.weights)}


def _entry(values: Floats) -> Any:
    return float(values[0]) if len(values) == 1 else values.tolist()


def load_additive(saved: SavedModel) -> AdditiveModel:
    """The model that `AdditiveModel.save` took apart.

    Args:
        saved: Facts and arrays.

    Returns:
        The model.

    Raises:
        IntegrityError: The parts do not fit together.
    """
    facts: Mapping[str, Any] = saved.facts
    encoder = Encoder.from_mapping(facts["encoder"])
    columns = columns_of(encoder, cells=int(facts["cells"]))
    bins = Bins.of_flat(columns, saved.arrays["bins"], saved.arrays.get("pairs"))
    model = AdditiveModel(
        encoder,
        bins,
        saved.arrays["values"],
        saved.arrays["intercept"],
        saved.arrays["counts"],
        str(facts["link"]),
        saved.arrays["errors"],
    )
    outputs = len(model.intercept)
    if model.values.shape != (bins.total, outputs) or model.counts.shape != (bins.total,):
        raise IntegrityError("the values of an additive model do not fit its bins")
    if facts["link"] not in {"logit", "softmax", "identity", "log"}:
        raise IntegrityError("the link of an additive model is not known")
    return model
