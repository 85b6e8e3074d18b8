"""Additive models in closed form: ridge regression on bins, from counts of cells and one total of pairs of bins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.learner import RESIDUAL_STEPS
from kohort.models.additive.bins import Floats
from kohort.models.additive.descent import Descent
from kohort.models.additive.gram import count_pairs, pair_cells
from kohort.models.additive.model import AdditiveModel
from kohort.models.rows import Rows
from kohort.rounds.totals.learner import RowCache, Whole, per_row

__all__ = ["RidgeLearner"]

LEVEL = log(0.95 / 0.05)
"""A class is fitted as this score, and its absence as minus this score."""


@dataclass(frozen=True, eq=False)
class RidgeLearner(ExactLearner):
    """Total 0 counts cells, total 1 pairs of bins and what belongs to the target; then least squares is solved."""

    @property
    def counts_pairs(self) -> bool:
        """Total 1 does."""
        return True

    @property
    def shown_counts(self) -> Floats:
        """Exact: the hub solves with them, and those of pairs, which it reads, add up to them."""
        return self.counts

    @property
    def length(self) -> int:
        """Cells and numbers about the target; then pairs, and per bin the persons of each class or the target's sum."""
        if self.number == 0:
            return super().length
        return pair_cells(self.known_bins) + self.known_bins.total * max(self.classes, 1)

    def contribution(self, rows: Rows, memory: RowCache) -> Whole:
        """Counts of cells, or of pairs."""
        if self.number == 0:
            return super().contribution(rows, memory)
        design, persons = self._design(rows, memory), memory.persons
        chosen = np.ones(rows.count, dtype=bool) if persons is None else persons
        if self.classes:
            targets = (rows.y[:, None] == np.arange(self.classes)).astype(np.int64)
        else:
            targets = per_row(np.clip(self._target(rows), 0.0, 1.0), RESIDUAL_STEPS)[:, None]
        of_target = design.summed(targets * chosen[:, None])
        return np.concatenate([count_pairs(self.known_bins, design, persons), of_target.ravel()]).astype(np.int64)

    def after(self, total: Whole, sites: int) -> RidgeLearner:
        """Make bins of the counts; then solve."""
        if self.number == 0:
            made: Any = super().after(total, sites)
            return replace(self, number=1, bins=made.bins, counts=made.counts, target=made.target, descent=made.descent)
        cells = pair_cells(self.known_bins)
        counted = replace(self, number=2, pair_counts=total[:cells].astype(np.float64))
        values = counted._gram_metric(1.0, 0.0).solve(self._moments(total[cells:]))
        return replace(counted, descent=Descent.begin(values))

    def _moments(self, of_target: Whole) -> Floats:
        """What the Gram matrix times the values should give, [bins + 1, outputs]."""
        per_bin = of_target.reshape(self.known_bins.total, -1).astype(np.float64)
        if self.classes:
            present = per_bin[:, 1:] if self.classes == 2 else per_bin
            moments = LEVEL * (2.0 * present - self.counts[:, None])
        else:
            moments = per_bin / RESIDUAL_STEPS
        return np.vstack([moments, moments[: int(self.known_bins.sizes[0])].sum(axis=0)[None, :]])

    @property
    def model(self) -> AdditiveModel | None:
        """The model, once the second total is there."""
        return None if self.number < 2 or self.descent is None else self._model(self.descent.w, np.zeros((0, 0)))
