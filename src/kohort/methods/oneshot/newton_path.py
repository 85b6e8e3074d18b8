"""The path of Newton steps from the closed form, as hub and sites each compute it from the same totals.

The hub sends no weights: it announces the total of the round before, which sites verify, and every site takes the step
itself. A hub that could choose the weights would read rows from a total, because the curvature at chosen weights counts
the rows near a chosen plane alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from kohort.crypto.sums.scheme import Integers
from kohort.methods.oneshot.design import Layout
from kohort.methods.oneshot.fit import Fit, check_total, decoded, fit
from kohort.methods.oneshot.newton import Curvature, newton_length, newton_loss, newton_step
from kohort.models.closed_form.design import Floats

__all__ = ["NewtonPath", "curvature_of"]

_MOST_CURVATURE = 50_000
"""If the exact curvature has more numbers than this, its upper bound is used, which needs no further sum."""


def curvature_of(layout: Layout) -> Curvature:
    """The curvature of Newton steps: exact, unless it has too many numbers to sum.

    Args:
        layout: What is summed.

    Returns:
        "exact" or "bound".
    """
    return "exact" if newton_length(layout.design, "exact") <= _MOST_CURVATURE else "bound"


@dataclass
class NewtonPath:
    """Where the steps have come to."""

    fitted: Fit
    length: float = 1.0
    """Of the next step; halved after one that raised the loss."""
    best: tuple[float, Floats, Floats] | None = field(default=None, repr=False)
    """Loss, sums and weights of the best point so far."""

    @classmethod
    def start(cls, layout: Layout, total: Integers) -> NewtonPath:
        """Begin at the closed form.

        Args:
            layout: What was summed.
            total: The total of the statistics, as integers of the grid.

        Returns:
            The path at its first point.

        Raises:
            RefusedError: The total has too few rows.
        """
        totals = decoded(layout, total)
        check_total(layout, totals)
        return cls(fit(layout, totals))

    @property
    def at(self) -> Floats:
        """The weights of the next sums."""
        return self.fitted.coefficients[0]

    def take(self, total: Integers) -> None:
        """Take the step that a round's total gives; after one that raised the loss, half of it from the best point.

        Args:
            total: The sums at `at`, as integers of the grid.
        """
        layout, at = self.fitted.layout, self.at
        sums = layout.grid(1).decode(total)
        penalty, scaling = self.fitted.penalties[0], self.fitted.scaling
        loss = newton_loss(sums) + penalty / 2 * float(np.square(scaling.to_scaled(at)).sum())
        if self.best is None or loss <= self.best[0]:
            self.best, self.length = (loss, sums, at), 1.0
        else:
            self.length /= 2
        moved = newton_step(
            layout.design,
            self.best[1],
            self.best[2],
            penalty=penalty,
            scaling=scaling,
            gram=None if curvature_of(layout) == "exact" else self.fitted.gram,
            length=self.length,
        )
        self.fitted = replace(self.fitted, coefficients=[moved])
