"""Fitting an additive model by gradients alone: L-BFGS (Liu and Nocedal 1989) in a metric that knows counts and order.

The loss is that of the rows plus a penalty: `ridge` on every value, `smooth` on the differences of neighbouring bins
of a number, `chain` on those of neighbours of a code list.
The metric is diagonal in the counts with the penalty added, so it is tridiagonal, and is solved in one pass. Scaling
the counts by the square root of the columns' diversity keeps the first step of correlated columns short enough; L-BFGS
learns the rest from gradients that were opened anyway.

Everything is 64-bit NumPy in a fixed order: everybody who saw the same gradients computes the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.bins import Bins, Floats

__all__ = ["Descent", "Metric"]

CURVATURE = {"logit": 0.15, "softmax": 0.12, "identity": 1.0, "log": 1.0}
"""How strongly the loss of one row bends in its score, roughly."""
PAIR_RIDGE = 30.0
"""How much more the values of pairs are pulled towards 0 than those of columns: they are many, and hold fewer rows."""
_SHORTER = 0.3
"""A step that made the loss larger is taken again, so much shorter."""


def _dot(left: Floats, right: Floats) -> float:
    """A scalar product in NumPy's own order of adding, which no linear algebra library changes."""
    return float(np.sum(left * right))


@dataclass(frozen=True, eq=False)
class Metric:
    """A tridiagonal matrix over all bins and, at the end, the intercept; the same for every output."""

    bins: Bins
    counts: Floats
    rows: float
    curvature: float
    """How much of the counts is added to the penalty."""
    ridge: float
    smooth: float
    """Pull of neighbouring bins of a number towards each other."""
    chain: float
    """The same for neighbours of a code list."""
    pair_ridge: float = field(default=PAIR_RIDGE, kw_only=True)
    """How much more the values of pairs are pulled towards 0, in parts of `ridge`."""

    @cached_property
    def _penalty(self) -> tuple[Floats, Floats]:
        """Diagonal of the penalty, and its entry beside the diagonal for each bin and the one before it."""
        pulls = self.smooth * self.bins.joined + self.chain * self.bins.chained
        diagonal = self.ridge + pulls
        diagonal[self.bins.alone.total :] += self.pair_ridge * self.ridge
        diagonal[:-1] += pulls[1:]
        return np.append(diagonal, 0.0), np.append(-pulls, 0.0)

    def penalty_times(self, w: Floats) -> Floats:
        """The gradient of the penalty at `w` [bins + 1, outputs]."""
        diagonal, beside = self._penalty
        found: Floats = diagonal[:, None] * w
        found[1:] += beside[1:, None] * w[:-1]
        found[:-1] += beside[1:, None] * w[1:]
        return found

    @cached_property
    def _factor(self) -> tuple[Floats, Floats]:
        diagonal, beside = self._penalty
        full = diagonal + self.curvature * np.append(np.maximum(self.counts, 0.0), self.rows) + 1e-9
        reduced = full.tolist()
        ratios = [0.0] * len(reduced)
        for place, side in enumerate(beside.tolist()):
            if side:
                ratios[place] = side / reduced[place - 1]
                reduced[place] -= ratios[place] * side
        return np.asarray(reduced), np.asarray(ratios)

    def solve(self, g: Floats) -> Floats:
        """The vector that the metric turns into `g` [bins + 1, outputs]."""
        reduced, ratios = self._factor
        _, beside = self._penalty
        found = g.copy()
        for place in np.flatnonzero(ratios).tolist():
            found[place] -= ratios[place] * found[place - 1]
        found /= reduced[:, None]
        for place in np.flatnonzero(ratios)[::-1].tolist():
            found[place - 1] -= beside[place] / reduced[place - 1] * found[place]
        return found


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent stands: values, the step that led here, and the pairs of steps and changes of gradient."""

    w: Floats
    """[bins + 1, outputs]: values of the bins, and the intercepts."""
    before: Floats
    """Where the last step began."""
    gradient: Floats
    """The gradient there."""
    loss: float
    """The loss there; not a number before the first gradient."""
    step: Floats
    """The whole step from there."""
    taken: float
    """The share of the step that was taken."""
    steps: Floats
    """[pairs, bins + 1, outputs]"""
    changes: Floats

    @classmethod
    def begin(cls, w: Floats) -> Descent:
        """A descent from `w`."""
        none, zero = np.zeros((0, *w.shape)), np.zeros_like(w)
        return cls(w, w, zero, float("nan"), zero, 1.0, none, none)

    def widened(self, place: int, more: int) -> Descent:
        """A descent over more values, which begin at 0, from where this one stands.

        Args:
            place: Where they are put in.
            more: How many there are.

        Returns:
            A descent that keeps what steps told of curvature: as if none of it concerned the new values. The gradient
            of these is not known yet.
        """

        def wide(values: Floats, axis: int = 0, filled: float = 0.0) -> Floats:
            return np.insert(values, [place] * more, filled, axis=axis)

        return replace(
            self,
            w=wide(self.w),
            before=wide(self.before),
            gradient=wide(self.gradient, filled=float("nan")),
            step=wide(self.step),
            steps=wide(self.steps, axis=1),
            changes=wide(self.changes, axis=1),
        )

    def after(self, metric: Metric, gradient: Floats, loss: float) -> Descent:
        """Take the next step.

        Args:
            metric: The metric, with the penalty.
            gradient: Of the rows' loss at `w`.
            loss: The rows' loss at `w`.

        Returns:
            The descent at the next point: a new step, or the last one again, shorter, where it made the loss larger.
        """
        pull = metric.penalty_times(self.w)
        gradient, loss = gradient + pull, loss + 0.5 * _dot(self.w, pull)
        if loss > self.loss and self.taken > 1e-3:
            taken = self.taken * _SHORTER
            return replace(self, w=self.before + taken * self.step, taken=taken)
        steps, changes = self.steps, self.changes
        if not np.isnan(self.loss):
            step, change = self.w - self.before, np.nan_to_num(gradient - self.gradient)
            if _dot(step, change) > 1e-10 * sqrt(_dot(step, step) * _dot(change, change)):
                steps, changes = np.concatenate([steps, step[None]]), np.concatenate([changes, change[None]])
        step = -_two_loops(metric, gradient, steps, changes)
        return Descent(self.w + step, self.w, gradient, loss, step, 1.0, steps, changes)

    def checkpoint(self) -> dict[str, NDArray[Any]]:
        """The arrays from which `restored` makes the same descent."""
        return {
            "w": self.w,
            "before": self.before,
            "gradient": self.gradient,
            "step": self.step,
            "numbers": np.asarray([self.loss, self.taken]),
            "steps": self.steps,
            "changes": self.changes,
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Descent:
        """The inverse of `checkpoint`."""
        loss, taken = (float(number) for number in arrays["numbers"])
        kept = {name: arrays[name].copy() for name in ("w", "before", "gradient", "step", "steps", "changes")}
        return cls(loss=loss, taken=taken, **kept)


def _two_loops(metric: Metric, gradient: Floats, steps: Floats, changes: Floats) -> Floats:
    """The inverse curvature that the pairs tell of, times the gradient."""
    found, shares = gradient.copy(), []
    products = [_dot(step, change) for step, change in zip(steps, changes, strict=True)]
    for step, change, product in zip(steps[::-1], changes[::-1], products[::-1], strict=True):
        shares.append(_dot(step, found) / product)
        found -= shares[-1] * change
    found = metric.solve(found)
    if products:
        found *= products[-1] / _dot(changes[-1], metric.solve(changes[-1]))
    for step, change, product, share in zip(steps, changes, products, shares[::-1], strict=True):
        found += step * (share - _dot(change, found) / product)
    return found
