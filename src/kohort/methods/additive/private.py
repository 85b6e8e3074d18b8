"""Additive models with a budget: noisy counts of cells, then damped steps on noisy sums of residuals.

Where the budget is large for the table, one of these totals also holds noisy sums over pairs of columns. Pairs that act
together get a surface, whose cells are bins of all later totals. All of it is one Gaussian mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError
from kohort.methods.additive.learner import RESIDUAL_STEPS, AdditiveLearner
from kohort.models.additive.bins import Bins, Floats
from kohort.models.additive.categories import NOISES_PER_BIN
from kohort.models.additive.cells import columns_of
from kohort.models.additive.choice import PairChoice
from kohort.models.additive.design import Design
from kohort.models.additive.model import AdditiveModel
from kohort.models.additive.noisy import CURVATURE, bins_of_noisy, noisy_step
from kohort.models.additive.noisy_pairs import COUNT_WEIGHT, NoisyPairs, grid_for
from kohort.models.additive.pairs import Pair
from kohort.models.rows import Rows
from kohort.protocol.state import StateArrays
from kohort.rounds.totals.learner import RowCache, Whole, per_row

__all__ = ["COUNT_STEPS", "PrivateLearner"]

COUNT_STEPS = 2.0**10
"""Grid of a count that gets noise: at least 8 steps to a share of it."""
COUNTING_SHARE = 0.1
"""Of a budget's mu^2, what counting cells is given."""
LARGEST_OF_TWO = 0.8
"""Residuals of two classes are cut here: few rows are so far off, and all noise is that much smaller."""
_KEPT = ("counts", "w", "before", "mean")


@dataclass(frozen=True, eq=False)
class PrivateLearner(AdditiveLearner):
    """With a budget: noisy counts of coarser cells, then noisy sums of residuals; averages the last steps."""

    w: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    before: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The values before the last step."""
    mean: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    averaged: int = 0
    cut: float = 1.0
    """The largest residual of two classes that counts."""

    @cached_property
    def columns(self) -> Any:
        """The cells of the columns."""
        return columns_of(self.setting.encoder, cells=128)

    @property
    def length(self) -> int:
        """Cells and numbers about the target, then residuals per bin; once cells of pairs, too."""
        if self.number == 0:
            return self.fine + self.targets
        return self.known_bins.total * self.outputs + (0 if self.looking is None else self.looking.length)

    @property
    def share(self) -> float:
        """A tenth for the counts, equal parts of the rest for each later total."""
        return COUNTING_SHARE if self.number == 0 else (1.0 - COUNTING_SHARE) / (self.config.totals - 1)

    @property
    def _bound(self) -> float:
        """The largest norm of a row's residuals: two classes `cut`, more of them sqrt(2), numbers by `dp.clip`."""
        dp = self.config.dp
        weights = self.setting.encoder.class_weights or {}
        heaviest = max([1.0, *weights.values()]) if self.classes else 1.0
        return heaviest * (sqrt(2.0) if self.classes > 2 else self.cut) if self.classes or dp is None else dp.clip

    @property
    def sensitivity(self) -> float:
        """A row is in one cell or bin of every column and pair."""
        columns = len(self.columns)
        if self.number == 0:
            return COUNT_STEPS * sqrt(columns + (1 if self.classes else 2))
        if self.looking is not None:
            return self._looking_sensitivity(len(self.looking.choice.candidates))
        return RESIDUAL_STEPS * self._bound * sqrt(columns + len(self.known_bins.pairs))

    def _looking_sensitivity(self, pairs: int) -> float:
        """Of a total that also counts the cells of so many pairs, and sums their residuals."""
        counted = pairs * COUNT_WEIGHT**2
        return RESIDUAL_STEPS * sqrt(self._bound**2 * (len(self.columns) + pairs) + counted)

    @cached_property
    def looking(self) -> NoisyPairs | None:
        """The pairs of columns that the next total is also about; None for none.

        Public facts decide it: the budget, how many columns and noisy rows there are.
        """
        if self.number != self.config.noisy_pair_round or self.link != "logit" or self.setting.units != 1:
            return None
        choice = PairChoice(self.known_bins, self.counts, self.w[:-1], 1.0, self.config.monotone)
        sensitivity = self._looking_sensitivity(len(choice.candidates))
        noise = self.setting.deviation(sensitivity, self.share) * sqrt(self.setting.members) / RESIDUAL_STEPS
        grid = grid_for(choice.rows, CURVATURE[self.link], noise)
        return NoisyPairs(replace(choice, grid=grid)) if grid and choice.candidates else None

    def contribution(self, rows: Rows, memory: RowCache) -> Whole:
        """Counts, or sums of residuals clipped to the bound."""
        memory.persons = None  # a budget chooses its rows itself
        if self.number == 0:
            return self._counted(rows, memory, COUNT_STEPS)
        residuals, _ = self._residuals(rows, memory, self.w)
        norms = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True))
        bounded = residuals * np.minimum(1.0, self._bound / np.maximum(norms, 1e-300))
        design, units = self._design(rows, memory), per_row(bounded, RESIDUAL_STEPS)
        sums = design.summed(units).ravel()
        if self.looking is None:
            return sums
        memory.forget(Design)  # the next total may have bins of pairs
        return np.concatenate([sums, self.looking.counted(design, units[:, 0], int(COUNT_WEIGHT * RESIDUAL_STEPS))])

    def _noise(self, sites: int, unit: float) -> float:
        """The standard deviation of the noise on each number of the next total."""
        return self.setting.deviation(self.sensitivity, self.share) * sqrt(sites) / unit

    def after(self, total: Whole, sites: int) -> PrivateLearner:
        """Make bins of the noisy counts; afterwards, take a damped step, and once choose pairs of columns."""
        if self.number == 0:
            return self._counted_cells(total, self._noise(sites, COUNT_STEPS))
        own, noise = self.known_bins.total * self.outputs, self._noise(sites, RESIDUAL_STEPS)
        moved = self._moved((total[:own] / RESIDUAL_STEPS).reshape(-1, self.outputs), noise)
        if self.looking is None:
            return moved
        pairs, counts = self.looking.chosen(total[own:] / RESIDUAL_STEPS, noise=noise, curvature=CURVATURE[self.link])
        return moved._with_pairs(pairs, counts)

    def _with_pairs(self, pairs: tuple[Pair, ...], counts: Floats) -> PrivateLearner:
        """The learner with surfaces, which begin at 0."""
        place = self.known_bins.total
        w, before, mean = (
            np.insert(values, [place] * len(counts), 0.0, axis=0) for values in (self.w, self.before, self.mean)
        )
        bins = Bins(self.columns, self.known_bins.of_cell, pairs)
        return replace(self, bins=bins, counts=np.append(self.counts, counts), w=w, before=before, mean=mean)

    def _moved(self, gradient: Floats, noise: float) -> PrivateLearner:
        """The learner after a damped step from noisy sums of residuals."""
        mu = 1.0 / self.setting.sigma
        w = noisy_step(self.known_bins, self.counts, self.w, self.before, gradient, link=self.link, noise=noise, mu=mu)
        w = self._constrained(w)
        late = self.number > (self.config.totals - 1) // 2
        averaged = self.averaged + 1 if late else 0
        mean = self.mean + (w - self.mean) / averaged if averaged > 1 else w
        return replace(self, number=self.number + 1, w=w, before=self.w, mean=mean, averaged=averaged)

    def _counted_cells(self, total: Whole, noise: float) -> PrivateLearner:
        counts = total[: self.fine] / COUNT_STEPS
        target = total[self.fine :] / COUNT_STEPS
        ends = np.cumsum([column.cells for column in self.columns])[:-1]
        least = max(self.config.min_bin, self.setting.approved.min_cell)
        bins, sizes = bins_of_noisy(
            self.columns, np.split(counts, ends), bins=self.config.bins, least=least, noise=noise
        )
        rows = float(target.sum()) if self.classes else float(target[1])
        if bins.total == len(self.columns) or rows < 2 * NOISES_PER_BIN * noise:
            raise RefusedError(
                "the budget is too small for any column to have two bins",
                hint="Raise method.dp.epsilon, or add sites with more rows",
            )
        w = np.zeros((bins.total + 1, self.outputs))
        w[-1] = self._first_scores(np.maximum(target, 1.0))
        return replace(self, number=1, bins=bins, counts=sizes, w=w, before=w, mean=w, cut=self._cut(target))

    def _cut(self, target: Floats) -> float:
        """Where residuals of two classes are cut, from their noisy counts.

        Never below what rows of the rarer class have before any column is known: cut there, each of them would count
        less, and its probabilities would be too low.
        """
        if self.classes != 2:
            return 1.0
        share = float(np.maximum(target, 1.0).min() / np.maximum(target, 1.0).sum())
        return max(LARGEST_OF_TWO, 1.0 - share)

    @property
    def model(self) -> AdditiveModel | None:
        """The mean of the last half of the steps, or the values so far."""
        return None if self.bins is None else self._model(self.mean, np.zeros((0, 0)))

    def checkpoint(self) -> StateArrays:
        """Bins of columns and pairs, counts, values and their mean."""
        numbers = np.asarray([self.number, self.averaged, self.cut])
        if self.bins is None:
            return {"numbers": numbers}
        kept = {name: getattr(self, name) for name in _KEPT}
        return {"numbers": numbers, "bins": self.bins.flat(), "pairs": self.bins.flat_pairs(), **kept}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> PrivateLearner:
        """The inverse of `checkpoint`."""
        if "bins" not in arrays:
            return self
        if "pairs" not in arrays:
            raise IntegrityError("an earlier version of kohort began this training", hint="Run the plan again")
        number, averaged = (int(entry) for entry in arrays["numbers"][:2])
        bins = Bins.of_flat(self.columns, arrays["bins"], arrays["pairs"])
        counts, w, before, mean = (arrays[name].copy() for name in _KEPT)
        made = replace(self, number=number, averaged=averaged, bins=bins, counts=counts, w=w, before=before, mean=mean)
        return replace(made, cut=float(arrays["numbers"][2]))
