"""The learners of additive models: exact, by L-BFGS on opened gradients; and private, by damped steps on noisy ones.

Total 0 counts the cells of every column, from which hub and sites make the same bins. Every later total holds the sum
of residuals of each bin at the values that follow from the totals before. Without a budget, total 0 is sealed: sites
read it, and the hub is shown the bins alone, each with enough persons.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError
from kohort.methods.additive.config import Additive
from kohort.models.additive.bins import Bins, Floats, isotonic, make_bins
from kohort.models.additive.cells import codes_of, columns_of
from kohort.models.additive.descent import CURVATURE, Descent, Metric
from kohort.models.additive.model import AdditiveModel, means_of, scores_of
from kohort.models.additive.noisy import bins_of_noisy, noisy_step
from kohort.models.rows import Rows, target_range
from kohort.protocol.state import StateArrays
from kohort.rounds.learner import Learner, Memory, Setting, Whole, per_row

__all__ = ["ExactLearner", "PrivateLearner", "check_plan", "start"]

RESIDUAL_STEPS = 2.0**28
"""Grid of a residual: sums of eight million rows at one site are exact."""
LOSS_STEPS = 2.0**20
LARGEST_RESIDUAL = 16.0
LARGEST_LOSS = 1e6
COUNT_STEPS = 2.0**10
"""Grid of a count that gets noise: at least 8 steps to a share of it."""
COUNTING_SHARE = 0.1
"""Of a budget's mu^2, what counting cells is given."""


def start(setting: Setting) -> Learner:
    """The learner of a plan, before the first total.

    Args:
        setting: What hub and sites know alike.

    Returns:
        The exact learner, or the private one where the plan has a budget.
    """
    config: Additive = setting.approved.config
    return ExactLearner(setting) if config.dp is None else PrivateLearner(setting)


@dataclass(frozen=True, eq=False)
class _AdditiveLearner(Learner):
    """What both learners share: cells, bins, residuals of rows, and the model."""

    setting: Setting
    number: int = 0
    """The next total's."""
    bins: Bins | None = None
    counts: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def config(self) -> Additive:
        """`[method]` of the plan."""
        config: Additive = self.setting.approved.config
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

    def _codes(self, rows: Rows, memory: Memory) -> NDArray[np.int32]:
        if "codes" not in memory:
            memory["codes"] = codes_of(self.columns, rows.x)
        codes: NDArray[np.int32] = memory["codes"]
        return codes

    def _places(self, rows: Rows, memory: Memory) -> NDArray[np.int32]:
        if "places" not in memory:
            memory["places"] = self.known_bins.of_rows(self._codes(rows, memory))
            del memory["codes"]
        places: NDArray[np.int32] = memory["places"]
        return places

    def _counted(self, rows: Rows, memory: Memory, steps: float) -> Whole:
        """Persons per cell and class, or per cell and the sum of the target."""
        codes, chosen = self._codes(rows, memory), memory.get("persons")
        cells = [
            np.bincount(own if chosen is None else own[chosen], minlength=column.cells)
            for column, own in zip(self.columns, codes, strict=True)
        ]
        if self.classes:
            target = np.bincount(rows.y.astype(np.int64), minlength=self.classes) * int(steps)
        else:
            scaled = per_row(np.clip(self._target(rows), 0.0, 1.0), RESIDUAL_STEPS if steps == 1 else steps)
            target = np.asarray([scaled.sum(), rows.count * int(steps)])
        return np.concatenate([np.concatenate(cells) * int(steps), target]).astype(np.int64)

    def _target(self, rows: Rows) -> Floats:
        """What scores are compared with: a number on the scale of its range, or in the log link as a share of it."""
        y = rows.y.astype(np.float64)
        if self.link != "log":
            return y
        low, width = target_range(self.setting.encoder)
        return np.maximum(y + low / width, 0.0)

    def _residuals(self, rows: Rows, memory: Memory, w: Floats) -> tuple[Floats, Floats]:
        """Residuals [rows, outputs] and losses [rows], weighted."""
        scores = scores_of(w[:-1], w[-1], self._places(rows, memory))
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

    def _summed(self, places: NDArray[np.int32], numbers: Whole) -> Whole:
        """Whole numbers of rows [rows, outputs], added per bin: [bins, outputs]."""
        total, weights = np.zeros((self.known_bins.total, numbers.shape[1])), numbers.astype(np.float64)
        for own in places:
            for output in range(numbers.shape[1]):
                total[:, output] += np.bincount(own, weights=weights[:, output], minlength=len(total))
        return total.astype(np.int64)

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

    def _model(self, w: Floats, errors: Floats) -> AdditiveModel:
        """The model of values and intercepts, monotone where asked for, with every column centred on its rows."""
        bins, values, intercept = self.known_bins, w[:-1].copy(), w[-1].copy()
        for number, column in enumerate(bins.columns):
            part = slice(int(bins.starts[number]), int(bins.starts[number + 1]))
            weight = np.maximum(self.counts[part], 1e-9)
            if column.name in self.config.monotone:
                values[part] = self._monotone(column.name, values[part], weight, column.missing)
            middle = (values[part] * weight[:, None]).sum(axis=0) / weight.sum()
            values[part] -= middle
            intercept += middle
        return AdditiveModel(self.setting.encoder, bins, values, intercept, self.counts, self.link, errors)

    def _monotone(self, name: str, values: Floats, weight: Floats, missing: bool) -> Floats:
        sign = 1.0 if self.config.monotone[name] == "up" else -1.0
        number = next(place for place, column in enumerate(self.known_bins.columns) if column.name == name)
        joined = self.known_bins.joined[self.known_bins.starts[number] : self.known_bins.starts[number + 1]]
        last = int(joined.sum()) + 1
        del missing
        fixed = values.copy()
        fixed[:last, 0] = sign * isotonic(sign * values[:last, 0], weight[:last])
        return fixed


@dataclass(frozen=True, eq=False)
class ExactLearner(_AdditiveLearner):
    """Without a budget: exact sums, L-BFGS. The last total also holds squared residuals, for intervals."""

    target: Floats = field(default_factory=lambda: np.zeros(0))
    descent: Descent | None = None
    squares: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @cached_property
    def columns(self) -> Any:
        """The cells of the columns."""
        return columns_of(self.setting.encoder)

    @property
    def sealed(self) -> bool:
        """The counts of cells are for the sites alone: single cells hold few persons."""
        return self.number == 0

    @property
    def tells(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """Bins of all cells, persons per bin, and persons per class."""
        return {"bins": ("<i4", (self.fine,)), "counts": ("<f8", (None,)), "target": ("<f8", (self.targets,))}

    @property
    def _last(self) -> bool:
        return self.number == self.config.totals - 1

    @property
    def length(self) -> int:
        """Cells and numbers about the target; then residuals per bin and the loss, at the end squares, too."""
        if self.number == 0:
            return self.fine + self.targets
        return self.known_bins.total * self.outputs * (2 if self._last else 1) + 1

    def contribution(self, rows: Rows, memory: Memory) -> Whole:
        """Counts, or sums of residuals at the values so far."""
        if self.number == 0:
            return self._counted(rows, memory, 1.0)
        residuals, losses = self._residuals(rows, memory, self._at.w)
        places, bounded = self._places(rows, memory), np.clip(residuals, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
        parts = [self._summed(places, per_row(bounded, RESIDUAL_STEPS)).ravel()]
        if self._last:
            parts.append(self._summed(places, per_row(np.square(bounded), RESIDUAL_STEPS)).ravel())
        loss = per_row(np.clip(losses, -LARGEST_LOSS, LARGEST_LOSS), LOSS_STEPS).sum()
        return np.concatenate([*parts, [loss]]).astype(np.int64)

    @property
    def _at(self) -> Descent:
        if self.descent is None:
            raise IntegrityError("values are needed before the cells were counted")
        return self.descent

    def after(self, total: Whole, sites: int) -> ExactLearner:
        """Make bins of the counts; afterwards, take a step."""
        del sites
        if self.number == 0:
            return self._counted_cells(total)
        size = self.known_bins.total * self.outputs
        gradient = (total[:size] / RESIDUAL_STEPS).reshape(-1, self.outputs)
        # Every row is in one bin of the first column, so these sums are those of the intercept.
        overall = gradient[: int(self.known_bins.sizes[0])].sum(axis=0)
        squares = total[size : 2 * size].reshape(-1, self.outputs) / RESIDUAL_STEPS if self._last else self.squares
        moved = self._at.after(self.metric, np.vstack([gradient, overall[None, :]]), float(total[-1]) / LOSS_STEPS)
        return replace(self, number=self.number + 1, descent=moved, squares=squares)

    @cached_property
    def metric(self) -> Metric:
        """The metric of the descent."""
        bins = self.known_bins
        curvature = CURVATURE[self.link] * sqrt(max(bins.diversity(self.counts), 1.0))
        rows = float(self.counts[: int(bins.sizes[0])].sum())
        return Metric(bins, self.counts, rows, curvature, self.config.ridge, self.config.smooth)

    def _counted_cells(self, total: Whole) -> ExactLearner:
        counts, target = total[: self.fine].astype(np.float64), total[self.fine :].astype(np.float64)
        if not self.classes:
            target[0] /= RESIDUAL_STEPS
        least = self._least
        if self.classes:
            target = np.where(target < least, 0.0, target)  # a class of few rows is not even told of
        ends = np.cumsum([column.cells for column in self.columns])[:-1]
        parts = np.split(counts, ends)
        bins = make_bins(self.columns, parts, bins=self.config.bins, least=least)
        sizes = [np.bincount(own, weights=part) for own, part in zip(bins.of_cell, parts, strict=True)]
        return self.informed({"bins": bins.flat(), "counts": np.concatenate(sizes), "target": target})

    @property
    def _least(self) -> int:
        """Fewest persons of a bin, and rows of a class."""
        return max(self.config.min_bin, self.setting.approved.min_cell)

    def check(self) -> None:
        """Refuse classes of few rows, and fewer rows than two bins need."""
        if self.bins is None:
            return
        least = self._least
        few = int((self.target < least).sum()) if self.classes else 0
        if few:
            raise RefusedError(
                f"{few} of {self.classes} classes have fewer than {least} rows over all sites",
                hint="Merge rare classes, or lower method.min_bin and policy.min_cell",
            )
        if self.bins.total == len(self.bins.columns):
            raise DataError(
                f"no column has two bins of at least {least} persons", hint="Add sites or rows, or lower method.min_bin"
            )

    def told(self) -> StateArrays:
        """Bins and how many persons each holds, and the counts of classes."""
        return {"bins": self.known_bins.flat(), "counts": self.counts, "target": self.target}

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The learner after total 0, from what sites tell of it."""
        bins = Bins.of_flat(self.columns, arrays["bins"])
        counts, target = arrays["counts"].astype(np.float64), arrays["target"].astype(np.float64)
        if counts.shape != (bins.total,) or target.shape != (self.targets,):
            raise IntegrityError("counts came in that do not fit the bins")
        w = np.zeros((bins.total + 1, self.outputs))
        w[-1] = self._first_scores(target)
        return replace(self, number=1, bins=bins, counts=counts, target=target, descent=Descent.begin(w))

    @property
    def model(self) -> AdditiveModel | None:
        """The model so far."""
        return None if self.descent is None else self._model(self.descent.w, self._errors())

    def _errors(self) -> Floats:
        """Standard errors of the values, given the other columns."""
        if not len(self.squares) or self.link == "log":
            return np.zeros((0, 0))
        if self.link == "identity":
            spread = self.squares[: int(self.known_bins.sizes[0])].sum() / max(self.target[1], 1.0)
            return np.asarray(np.sqrt(spread / (self.counts[:, None] + self.config.ridge)))
        return np.asarray(1.0 / np.sqrt(self.squares + self.config.ridge + 1e-9))

    def checkpoint(self) -> StateArrays:
        """Bins, counts, the descent and the squares."""
        kept: StateArrays = {"number": np.asarray([self.number]), "squares": self.squares}
        return kept if self.descent is None else {**kept, **self.told(), **self.descent.checkpoint()}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The inverse of `checkpoint`."""
        if "bins" not in arrays:
            return self
        number = int(arrays["number"][0])
        begun = self.informed(arrays)
        return replace(begun, number=number, squares=arrays["squares"].copy(), descent=Descent.restored(arrays))


@dataclass(frozen=True, eq=False)
class PrivateLearner(_AdditiveLearner):
    """With a budget: noisy counts of coarser cells, then noisy sums of residuals; averages the last steps."""

    w: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    mean: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    averaged: int = 0

    @cached_property
    def columns(self) -> Any:
        """The cells of the columns."""
        return columns_of(self.setting.encoder, cells=128)

    @property
    def length(self) -> int:
        """Cells and numbers about the target, then residuals per bin."""
        return self.fine + self.targets if self.number == 0 else self.known_bins.total * self.outputs

    @property
    def share(self) -> float:
        """A tenth for the counts, equal parts of the rest for each later total."""
        return COUNTING_SHARE if self.number == 0 else (1.0 - COUNTING_SHARE) / (self.config.totals - 1)

    @property
    def _bound(self) -> float:
        """The largest norm of a row's residuals: two classes 1, more of them sqrt(2), numbers by `dp.clip`."""
        dp = self.config.dp
        weights = self.setting.encoder.class_weights or {}
        heaviest = max([1.0, *weights.values()]) if self.classes else 1.0
        return heaviest * (sqrt(2.0) if self.classes > 2 else 1.0) if self.classes or dp is None else dp.clip

    @property
    def sensitivity(self) -> float:
        """A row is in one cell or bin of every column."""
        columns = len(self.columns)
        if self.number == 0:
            return COUNT_STEPS * sqrt(columns + (1 if self.classes else 2))
        return RESIDUAL_STEPS * self._bound * sqrt(columns)

    def contribution(self, rows: Rows, memory: Memory) -> Whole:
        """Counts, or sums of residuals clipped to the bound."""
        memory.pop("persons", None)  # a budget chooses its rows itself
        if self.number == 0:
            return self._counted(rows, memory, COUNT_STEPS)
        residuals, _ = self._residuals(rows, memory, self.w)
        norms = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True))
        bounded = residuals * np.minimum(1.0, self._bound / np.maximum(norms, 1e-300))
        return self._summed(self._places(rows, memory), per_row(bounded, RESIDUAL_STEPS)).ravel()

    def _noise(self, sites: int, unit: float) -> float:
        """The standard deviation of the noise on each number of the next total."""
        return self.setting.deviation(self.sensitivity, self.share) * sqrt(sites) / unit

    def after(self, total: Whole, sites: int) -> PrivateLearner:
        """Make bins of the noisy counts; afterwards, take a damped step."""
        if self.number == 0:
            return self._counted_cells(total, self._noise(sites, COUNT_STEPS))
        gradient = (total / RESIDUAL_STEPS).reshape(-1, self.outputs)
        noise, mu = self._noise(sites, RESIDUAL_STEPS), 1.0 / self.setting.sigma
        w = noisy_step(self.known_bins, self.counts, self.w, gradient, link=self.link, noise=noise, mu=mu)
        late = self.number > (self.config.totals - 1) // 2
        averaged = self.averaged + 1 if late else 0
        mean = self.mean + (w - self.mean) / averaged if averaged > 1 else w
        return replace(self, number=self.number + 1, w=w, mean=mean, averaged=averaged)

    def _counted_cells(self, total: Whole, noise: float) -> PrivateLearner:
        counts = total[: self.fine] / COUNT_STEPS
        target = total[self.fine :] / COUNT_STEPS
        ends = np.cumsum([column.cells for column in self.columns])[:-1]
        least = max(self.config.min_bin, self.setting.approved.min_cell)
        bins, sizes = bins_of_noisy(
            self.columns, np.split(counts, ends), bins=self.config.bins, least=least, noise=noise
        )
        if bins.total == len(self.columns):
            raise RefusedError(
                "the budget is too small for any column to have two bins",
                hint="Raise dp.epsilon, or add sites with more rows",
            )
        w = np.zeros((bins.total + 1, self.outputs))
        w[-1] = self._first_scores(np.maximum(target, 1.0))
        return replace(self, number=1, bins=bins, counts=sizes, w=w, mean=w)

    @property
    def model(self) -> AdditiveModel | None:
        """The mean of the last half of the steps, or the values so far."""
        return None if self.bins is None else self._model(self.mean, np.zeros((0, 0)))

    def checkpoint(self) -> StateArrays:
        """Bins, counts, values and their mean."""
        numbers = np.asarray([self.number, self.averaged])
        if self.bins is None:
            return {"numbers": numbers}
        return {"numbers": numbers, "bins": self.bins.flat(), "counts": self.counts, "w": self.w, "mean": self.mean}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> PrivateLearner:
        """The inverse of `checkpoint`."""
        if "bins" not in arrays:
            return self
        number, averaged = (int(entry) for entry in arrays["numbers"])
        bins = Bins.of_flat(self.columns, arrays["bins"])
        counts, w, mean = (arrays[name].copy() for name in ("counts", "w", "mean"))
        return replace(self, number=number, averaged=averaged, bins=bins, counts=counts, w=w, mean=mean)


def check_plan(setting_columns: tuple[str, ...], config: Additive, *, classes: int, low: float) -> None:
    """What would fail at every site is the plan's fault, and is said once.

    Args:
        setting_columns: The columns the model reads.
        config: `[method]`.
        classes: How many classes there are; 0 for a number.
        low: The lowest value of a target that is a number.

    Raises:
        ConfigError: A key does not fit the table.
    """
    unknown = [name for name in config.monotone if name not in setting_columns]
    if unknown:
        raise ConfigError(f"monotone names {unknown[0]!r}, which the model does not read as a number", hint="Drop it")
    if config.monotone and classes > 2:
        raise ConfigError("monotone curves need two classes or a number", hint="Drop method.monotone")
    if config.link == "log" and (classes or low < 0):
        raise ConfigError("the log link is for numbers that are not negative", hint='Set method.link = "identity"')
