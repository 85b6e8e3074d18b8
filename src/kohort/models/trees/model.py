"""A boosted forest as a model: it predicts, says how much each column matters, and shows what made a prediction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.base import Model, SavedModel
from kohort.models.options import FloatArray
from kohort.models.rows import target_range
from kohort.models.trees.bins import Bins
from kohort.models.trees.columns import TreeColumn, tree_columns
from kohort.models.trees.forest import Forest, Trees
from kohort.models.trees.kernel import path_contributions
from kohort.tables.encoder import Encoder

__all__ = ["Contributions", "TreeModel", "load_trees"]

_MOST_SCORE = 36.0
"""Beyond this, a probability is 0 or 1 in 64 bits."""


@dataclass(frozen=True, eq=False)
class Contributions:
    """What made the scores of some rows: the start, and what each column added on the paths through the trees."""

    columns: tuple[str, ...]
    base: NDArray[np.float64]
    """[outputs] what every row has in common."""
    values: NDArray[np.float64]
    """[rows, outputs, columns]; with `base` they add up to the scores."""


@dataclass(frozen=True, eq=False, repr=False)
class TreeModel(Model):
    """A boosted forest and the encoder that turns tables into its rows."""

    encoder: Encoder
    forest: Forest = field(repr=False)
    kind = "trees"

    @cached_property
    def columns(self) -> tuple[TreeColumn, ...]:
        """What its trees split on."""
        return tree_columns(self.encoder)

    def _coded(self, x: FloatArray) -> NDArray[np.uint8]:
        return self.forest.bins.codes(self.columns, x)

    def scores(self, x: FloatArray) -> FloatArray:
        """[rows, outputs] log-odds, one per class of more than two, or numbers on the scale from 0 to 1."""
        return self.forest.scores(self._coded(x)).T

    def codes(self, x: FloatArray) -> NDArray[Any]:
        """Class codes of encoded rows, or numbers on the target's own scale."""
        return self._codes_of(self.scores(x))

    def _codes_of(self, scores: FloatArray) -> NDArray[Any]:
        if self.task == "classification":
            found = scores[:, 0] > 0 if scores.shape[1] == 1 else np.argmax(scores, axis=1)
            return found.astype(np.int64)
        low, width = target_range(self.encoder)
        return scores[:, 0] * width + low

    def probabilities(self, x: FloatArray) -> FloatArray:
        """Class probabilities [rows, classes].

        Raises:
            ConfigError: It predicts numbers.
        """
        if self.task != "classification":
            raise ConfigError("a predicted number has no class probabilities", hint="Use predict")
        return self._probabilities_of(self.scores(x))

    def judged(self, x: FloatArray) -> tuple[NDArray[Any], FloatArray | None]:
        """Codes and probabilities from one walk through the trees."""
        scores = self.scores(x)
        return self._codes_of(scores), self._probabilities_of(scores) if self.task == "classification" else None

    @staticmethod
    def _probabilities_of(scores: FloatArray) -> FloatArray:
        scores = np.clip(scores, -_MOST_SCORE, _MOST_SCORE)
        if scores.shape[1] == 1:
            second = 1 / (1 + np.exp(-scores[:, 0]))
            return np.stack([1 - second, second], axis=1)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def importances(self) -> dict[str, float]:
        """The share of each column in what all splits gained, the largest first; no rows are needed."""
        gains = dict.fromkeys(self.encoder.schema.inputs, 0.0)
        found = np.zeros(len(self.columns))
        split = self.forest.trees.split
        np.add.at(found, split[split >= 0].astype(np.int64), self.forest.trees.gain[split >= 0])
        for column, gain in zip(self.columns, found.tolist(), strict=True):
            gains[self._input_of(column)] += gain
        total = sum(gains.values()) or 1.0
        return {name: gain / total for name, gain in sorted(gains.items(), key=lambda item: -item[1])}

    def contributions(self, frame: pl.DataFrame) -> Contributions:
        """What each column added to the scores of a table's rows, along the paths that the rows take.

        A split adds the difference of the node below and the node above to its column (Saabas, 2014). Unlike Shapley
        values, this favours splits near the leaves.

        Args:
            frame: Rows with the columns it reads.

        Returns:
            The contributions; with `base` they add up to `scores`.
        """
        codes, forest, trees = self._coded(self.encoder.inputs(frame)[0]), self.forest, self.forest.trees
        found = np.zeros((len(codes), len(forest.base), len(self.columns)))
        path_contributions(
            codes, forest.bins.rank, trees.split, trees.cut, trees.left, trees.value, trees.output, forest.factor, found
        )
        base = forest.base.copy()
        np.add.at(base, trees.output, forest.factor * trees.value[:, 0])
        names = self.encoder.schema.inputs
        places = np.asarray([names.index(self._input_of(column)) for column in self.columns])
        merged = np.zeros((len(codes), len(base), len(names)))
        for place, column in enumerate(places.tolist()):
            merged[:, :, column] += found[:, :, place]
        return Contributions(columns=tuple(names), base=base, values=merged)

    def _input_of(self, column: TreeColumn) -> str:
        """The column of the table; an item of a set belongs to the set's."""
        start = 0
        for block in self.encoder.blocks:
            start += len(block.features)
            if column.start < start:
                return block.name
        raise ConfigError("a column of the forest is none of the encoder's")

    def save(self) -> SavedModel:
        """The encoder as plain values; bins and trees as arrays. No row and no count is in it."""
        forest = self.forest
        return SavedModel(
            facts={"encoder": self.encoder.to_mapping(), "factor": forest.factor},
            arrays={**forest.bins.arrays(), **forest.trees.arrays("trees"), "base": forest.base},
        )

    def describe(self) -> dict[str, Any]:
        """What every model says, the size of the forest, and how much each column matters."""
        trees = self.forest.trees
        return {
            **super().describe(),
            "trees": len(trees),
            "leaves": int((trees.split >= 0).sum()) + len(trees),
            "depth": int(np.log2(trees.split.shape[1] + 1)),
            "importances": {name: round(share, 4) for name, share in self.importances().items()},
        }


def load_trees(saved: SavedModel) -> TreeModel:
    """The model that `TreeModel.save` took apart.

    Args:
        saved: The model as data.

    Returns:
        The model. Its arrays were checked, so the compiled loops read nothing outside of them.

    Raises:
        ValueError: The parts do not fit together.
    """
    encoder, bins = Encoder.from_mapping(saved.facts["encoder"]), Bins.of_arrays(saved.arrays)
    trees, base = Trees.of_arrays(saved.arrays, "trees"), saved.arrays["base"].copy()
    model = TreeModel(replace(encoder, marks_unknown=True), Forest(bins, base, float(saved.facts["factor"]), trees))
    _check(model)
    return model


def _check(model: TreeModel) -> None:
    """Refuse arrays that the compiled loops would read outside of."""
    bins, trees, base = model.forest.bins, model.forest.trees, model.forest.base
    nodes = trees.split.shape[1] if trees.split.ndim == 2 else 0
    heaps: list[NDArray[Any]] = [trees.split, trees.cut, trees.left, trees.gain]
    fits = (
        all(heap.shape == (len(trees), nodes) for heap in heaps)
        and [heap.dtype for heap in heaps] == [np.int16, np.uint8, np.uint8, np.float64]
        and trees.value.shape == (len(trees), 2 * nodes + 1)
        and trees.value.dtype == np.float64
        and trees.output.dtype == np.int64
        and base.dtype == np.float64
        and (nodes & (nodes + 1)) == 0
        and nodes > 0
    )
    widths = tuple(column.all_cells for column in model.columns)
    classes = len(model.classes)
    if not fits or tuple(map(len, bins.code_of)) != widths or base.shape != (classes if classes > 2 else 1,):
        raise ValueError("a forest of other shapes or types")
    inside = len(trees) == 0 or (
        -1 <= int(trees.split.min()) <= int(trees.split.max()) < len(widths)
        and 0 <= int(trees.output.min()) <= int(trees.output.max()) < len(base)
    )
    if not inside or bins.rank.shape[0] != len(base) or not np.isfinite(trees.value).all():
        raise ValueError("a forest that points outside of its bins")
