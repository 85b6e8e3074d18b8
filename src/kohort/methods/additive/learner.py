"""What the learners of additive models share: cells, bins, residuals of rows, and the model.

Total 0 counts the cells of every column, from which hub and sites make the same bins. What later totals hold is each
learner's own: `exact` (L-BFGS on sums of residuals), `private` (damped steps on noisy ones), `ridge` (a closed form).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.methods.additive.config import Additive
from kohort.models.additive.bins import Bins, Floats, isotonic
from kohort.models.additive.cells import codes_of
from kohort.models.additive.design import Design, count_cells, design_of
from kohort.models.additive.model import AdditiveModel, means_of
from kohort.models.rows import Rows, target_range
from kohort.rounds.totals.learner import Learner, RowCache, Setting, Whole, per_row
from kohort.tables.persons import persons_of

__all__ = ["RESIDUAL_STEPS", "AdditiveLearner"]

RESIDUAL_STEPS = 2.0**28
"""Grid of a residual: sums of eight million rows at one site are exact."""


def _classes_once(rows: Rows, chosen: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """The class of every row; where persons have several rows, each class of a person once."""
    classes = rows.y.astype(np.int64)
    persons = None if chosen is None or rows.person is None else persons_of(rows.person)
    if persons is None:
        return classes
    found: NDArray[np.int64] = np.unique(np.stack([persons, classes]), axis=1)[1]
    return found


class _Codes(NamedTuple):
    """The cells of a site's rows, until they are bins."""

    values: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class AdditiveLearner(Learner):
    """What both learners share: cells, bins, residuals of rows, and the model."""

    setting: Setting
    number: int = 0
    """The next total's."""
    bins: Bins | None = None
    counts: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def config(self) -> Additive:
        """`[method]` of the plan."""
        config: Additive = self.setting.config
        return config

    @cached_property
    def classes(self) -> int:
        """How many classes there are; 0 for a number."""
        return len(self.setting.encoder.classes or ())

    @property
    def link(self) -> str:
        """What scores stand for."""
        if not self.classes:
            return self.config.link
        return "logit" if self.classes == 2 else "softmax"

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return self.classes if self.classes > 2 else 1

    @property
    def finished(self) -> bool:
        """Whether all totals of the plan are there."""
        return self.number >= self.config.totals

    @property
    def known_bins(self) -> Bins:
        """The bins.

        Raises:
            IntegrityError: The first total is not there yet.
        """
        if self.bins is None:
            raise IntegrityError("bins are needed before the cells were counted")
        return self.bins

    @property
    def targets(self) -> int:
        """Numbers about the target in total 0: persons per class, or their sum and the rows."""
        return self.classes or 2

    @cached_property
    def fine(self) -> int:
        """How many cells are counted in total 0."""
        return sum(column.cells for column in self.columns)

    @property
    @abstractmethod
    def columns(self) -> Any:
        """The cells of the columns."""

    def _codes(self, rows: Rows, memory: RowCache) -> NDArray[np.int32]:
        return memory.get(_Codes, lambda: _Codes(codes_of(self.columns, rows.x))).values

    def _design(self, rows: Rows, memory: RowCache) -> Design:
        design = memory.get(Design, lambda: design_of(self.known_bins, self.counts, rows, self._codes(rows, memory)))
        memory.forget(_Codes)
        return design

    def _counted(self, rows: Rows, memory: RowCache, steps: float) -> Whole:
        """Persons per cell and class, or per cell and the sum of the target, over one row per person, as in cells."""
        codes, chosen = self._codes(rows, memory), memory.persons
        cells = count_cells(self.columns, rows, codes, chosen, units=self.setting.units)
        if self.classes:
            target = np.bincount(_classes_once(rows, chosen), minlength=self.classes) * int(steps)
        else:
            scaled = per_row(np.clip(self._target(rows), 0.0, 1.0), RESIDUAL_STEPS if steps == 1 else steps)
            once = scaled if chosen is None else scaled[chosen]
            target = np.asarray([once.sum(), len(once) * int(steps)])
        return np.concatenate([np.concatenate(cells) * int(steps), target]).astype(np.int64)

    def _target(self, rows: Rows) -> Floats:
        """What scores are compared with: a number on the scale of its range, or in the log link as a share of it."""
        y = rows.y.astype(np.float64)
        if self.link != "log":
            return y
        low, width = target_range(self.setting.encoder)
        return np.maximum(y + low / width, 0.0)

    def _residuals(self, rows: Rows, memory: RowCache, w: Floats) -> tuple[Floats, Floats]:
        """Residuals [rows, outputs] and losses [rows], weighted."""
        scores = self._design(rows, memory).scores(w[:-1], w[-1])
        means, y = means_of(self.link, scores), self._target(rows)
        if self.link == "softmax":
            residuals = means.copy()
            every, own = np.arange(rows.count), y.astype(np.int64)
            residuals[every, own] -= 1.0
            losses = -np.log(np.maximum(means[every, own], 1e-300))
        else:
            residuals = means - y[:, None]
            losses = self._losses(scores[:, 0], means[:, 0], y)
        if rows.weight is not None:
            residuals, losses = residuals * rows.weight[:, None], losses * rows.weight
        return residuals, losses

    def _losses(self, scores: Floats, means: Floats, y: Floats) -> Floats:
        if self.link == "identity":
            return np.asarray(0.5 * np.square(means - y))
        if self.link == "log":
            return np.asarray(means - y * np.clip(scores, -30.0, 30.0))
        return np.asarray(-np.log(np.maximum(np.where(y > 0.5, means, 1.0 - means), 1e-300)))

    def _first_scores(self, target: Floats) -> Floats:
        """The intercepts that fit the counts of the target."""
        encoder = self.setting.encoder
        if self.classes:
            weights = np.asarray([(encoder.class_weights or {}).get(name, 1.0) for name in encoder.classes or ()])
            logs = np.log(np.maximum(target, 1.0) * weights)
            return np.asarray([logs[1] - logs[0]]) if self.classes == 2 else logs - logs.mean()
        mean = min(max(target[0] / max(target[1], 1.0), 0.0), 1.0)
        if self.link == "log":
            low, width = target_range(encoder)
            return np.asarray([np.log(max(mean + low / width, 1e-6))])
        return np.asarray([mean])

    @property
    def shown_counts(self) -> Floats:
        """The counts of bins that a model holds."""
        return self.counts

    def _model(self, w: Floats, errors: Floats) -> AdditiveModel:
        """The model of values and intercepts, with every column and pair centred by the counts that it holds.

        Centring moves the values of a column and the intercept by the same number, so no prediction depends on it.
        """
        bins, values, intercept, counts = self.known_bins, w[:-1].copy(), w[-1].copy(), self.shown_counts
        for number in range(len(bins.sizes)):
            part = slice(int(bins.starts[number]), int(bins.starts[number + 1]))
            weight = np.maximum(counts[part], 1e-9)
            middle = (values[part] * weight[:, None]).sum(axis=0) / weight.sum()
            values[part] -= middle
            intercept += middle
        return AdditiveModel(self.setting.encoder, bins, values, intercept, counts, self.link, errors)

    def _constrained(self, w: Floats) -> Floats:
        """The nearest values whose curves rise or fall as `monotone` says, by the weights of their bins."""
        if not self.config.monotone:
            return w
        found = w.copy()
        for name, part in self._monotone_parts.items():
            sign = 1.0 if self.config.monotone[name] == "up" else -1.0
            weight = np.maximum(self.counts[part], 1e-9)
            found[part, 0] = sign * isotonic(sign * w[part, 0], weight)
        return found

    @property
    def _monotone_parts(self) -> dict[str, slice]:
        """Where the bins of monotone columns stand, without those of missing values."""
        bins, found = self.known_bins, {}
        for number, column in enumerate(bins.columns):
            if column.name in self.config.monotone:
                begin, end = int(bins.starts[number]), int(bins.starts[number + 1])
                found[column.name] = slice(begin, begin + int(bins.joined[begin:end].sum()) + 1)
        return found
