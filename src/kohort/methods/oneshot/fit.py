"""The hub's part of a one-shot fit: check an opened total, choose the penalty by cross-validation, and solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kohort.crypto.sums.scheme import Integers
from kohort.errors import ConfigError, DataError, RefusedError
from kohort.methods.oneshot.design import BITS, CHECKED_BITS, Layout
from kohort.models.closed_form.design import Floats, OneLayer
from kohort.models.closed_form.solve import Scaling, Solver, choose
from kohort.models.closed_form.statistics import Statistics, leading, unpack
from kohort.models.dense.network import DType, FloatArray, Network

__all__ = ["Fit", "check_before", "check_total", "chosen_notes", "decoded", "fit", "rounding_noise"]

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-20, 13))
"""What folds choose among; wide enough that sums over millions of rows have their best lambda inside."""
OUTWEIGHS = 1e3
"""A lambda so many times the largest eigenvalue of the rows' own sums leaves nothing of them."""
ROWS_PER_INPUT = 10


@dataclass(frozen=True, eq=False)
class Fit:
    """The solution: coefficients, size and penalty of every ensemble member, and the scaling of the inputs."""

    layout: Layout
    coefficients: list[Floats]
    sizes: list[int]
    penalties: list[float]
    scaling: Scaling
    gram: Floats

    def network(self, dtype: DType) -> tuple[Network, FloatArray]:
        """The network that takes encoded rows, and its flat weights."""
        return self.layout.network(self.coefficients, self.sizes, dtype)

    @property
    def notes(self) -> tuple[str, ...]:
        """What cross-validation chose, in words."""
        return chosen_notes(self.layout, self.penalties, self.sizes)


def chosen_notes(layout: Layout, penalties: Sequence[float], sizes: Sequence[int]) -> tuple[str, ...]:
    """What cross-validation chose, in words.

    Args:
        layout: What was summed.
        penalties: The penalty of each ensemble member.
        sizes: The number of inputs, or of random features, that each member uses.

    Returns:
        One note, which also says if a penalty lies at an end of those tried; empty where the plan fixes the penalty.
    """
    if layout.section.lambda_ != "folds":
        return ()
    chosen = ", ".join(
        f"lambda {penalty:g}" + (f" and {size} features" if layout.members else "")
        for penalty, size in zip(penalties, sizes, strict=True)
    )
    edge = any(penalty in (PENALTIES[0], PENALTIES[-1]) for penalty in penalties)
    return (f"the folds chose {chosen}" + (", the end of what they choose among: set method.oneshot.lambda" * edge),)


def check_before(layout: Layout, rows: list[int]) -> None:
    """Check the declared row counts before anything is summed.

    Args:
        layout: What is summed.
        rows: The number of rows of each site.

    Raises:
        RefusedError: There are too few rows for a total to protect anyone, or so many that the total may overflow.
    """
    section, width, sites = layout.section, layout.design.width, len(rows)
    least = ROWS_PER_INPUT * width * section.deals
    if sum(rows) < least:
        folds = f" in {section.deals} folds" if section.deals > 1 else ""
        raise RefusedError(
            f"{sum(rows):,} rows are too few for totals of {width} numbers per row{folds}: {least:,} are needed",
            hint="Add sites, use fewer columns or features, or a fixed lambda",
        )
    largest, bits = layout.design.bound(max(rows)), BITS if section.rounds == 1 else CHECKED_BITS
    if largest * layout.grid(sites).scale * sites >= 2.0 ** (bits - 1):
        raise RefusedError(
            f"a site of {max(rows):,} rows among {sites:,} may exceed the {bits} bits of a total: "
            f"the bound is {layout.grid(sites).bound:,.0f}",
            hint="Lower method.oneshot.precision",
        )


def decoded(layout: Layout, total: Integers) -> Floats:
    """The total as real numbers.

    Args:
        layout: What was summed.
        total: The opened total, integers modulo 2^64 in units of the grid.

    Returns:
        The sums of every ensemble member and fold, [members, folds, length].
    """
    values = layout.grid(1).decode(total)
    return values.reshape(layout.parts, layout.section.deals, layout.design.length)


def check_total(layout: Layout, totals: Floats) -> None:
    """Check that the total of every fold has enough rows, in all and per class.

    Args:
        layout: What was summed.
        totals: The totals, [members, folds, length]. Only the first member is read, because all have the same rows.

    Raises:
        RefusedError: There are too few rows, in all or of a class, and no model may be made of the total.
        DataError: A class occurs at no site.
    """
    section, design = layout.section, layout.design
    for fold in totals[0]:
        statistics = unpack(design, fold)
        if statistics.rows < ROWS_PER_INPUT * design.width:
            raise RefusedError(
                f"a total of {statistics.rows:,.0f} rows is too small for {design.width} numbers per row",
                hint="Add sites, or use fewer columns, features or folds",
            )
        classes = statistics.class_rows(design)
        if (classes < 0.5).any():
            raise DataError(
                f"{int((classes < 0.5).sum())} of {len(classes)} classes occur at no site",
                hint="Drop them from the target's categories, or add sites that know them",
            )
        if (classes < section.min_cell - 0.5).any():
            raise RefusedError(
                f"{int((classes < section.min_cell - 0.5).sum())} of {len(classes)} classes have fewer than "
                f"{section.min_cell} rows in a total",
                hint="Merge the class with another, add sites, or lower method.oneshot.min_cell",
            )


def rounding_noise(layout: Layout, totals: Floats) -> float:
    """About how far rounded pair cells are off: a key-holder rounds small counts to 0 or to `min_cell`.

    A count of which nothing is known but that it was rounded is off by half of `min_cell` at most, in standard
    deviation; about as many were rounded to 0 as to `min_cell`. Without it, the solver would trust small eigenvalues
    that rounding made.

    Args:
        layout: What is summed.
        totals: The total as real numbers.

    Returns:
        The standard deviation over all numbers of a total; 0 where none was rounded.
    """
    least = layout.section.min_cell
    rounded = 2 * float((totals == least).mean())
    return least / 2 * float(np.sqrt(min(1.0, rounded))) if least > 1 else 0.0


def fit(layout: Layout, totals: Floats, *, noise: float = 0.0) -> Fit:
    """Solve every ensemble member over all rows.

    Noise of standard deviation s moves a Gram matrix by about s times the square root of its width, so the penalty is
    at least that large. Noisy totals are not standardised, because dividing by noisy deviations of columns would
    amplify the noise. Both depend only on public numbers and cost no budget.

    Args:
        layout: What was summed.
        totals: The totals, [members, folds, length].
        noise: Standard deviation of the noise in each number of a total; 0 without a budget.

    Returns:
        Per member its coefficients, [inputs + 1, outputs], its size and its penalty; and the scaling and the Gram
        matrix of the last member, from which Newton steps go on.

    Raises:
        DataError: There is nothing to fit.
        ConfigError: The lambda of the plan outweighs all rows.
    """
    section, design = layout.section, layout.design
    least = noise * float(np.sqrt(section.deals * design.width)) * design.slopes[1] ** 2
    coefficients, sizes, penalties = [], [], []
    scaling, gram = None, np.zeros((0, 0))
    for folds in totals:
        size, penalty = design.inputs, 0.0 if section.lambda_ == "folds" else section.lambda_
        if section.lambda_ == "folds":
            wanted = sorted({max(1, size // 4), max(1, size // 2), size}) if layout.members else None
            chosen = choose(design, folds, penalties=PENALTIES, sizes=wanted, standardise=not noise)
            size, penalty = chosen.inputs, chosen.penalty
        total = unpack(design, folds.sum(axis=0))
        smaller, part = _leading(design, total, size)
        solver = Solver(smaller, part, standardise=not noise)
        if section.lambda_ != "folds":  # where the folds choose it, the columns tell nothing
            _require_weight(penalty, solver)
        penalty = max(penalty, least)
        scaling, gram = solver.scaling, part.gram
        coefficients.append(solver.weights(penalty))
        sizes.append(size)
        penalties.append(penalty)
    if scaling is None:
        raise DataError("there is nothing to fit")
    return Fit(layout, coefficients, sizes, penalties, scaling, gram)


def _require_weight(penalty: float, solver: Solver) -> None:
    """Refuse a lambda beside which the rows count for nothing: the model would say the same of every row."""
    if penalty > OUTWEIGHS * solver.largest:
        raise ConfigError(
            f"method.oneshot.lambda = {penalty:g} outweighs the rows, so the model would say the same of all of them",
            hint='Use a smaller lambda, such as 1e-3, or "folds"',
        )


def _leading(design: OneLayer, total: Statistics, size: int) -> tuple[OneLayer, Statistics]:
    return (design, total) if size == design.inputs else leading(design, total, size)
