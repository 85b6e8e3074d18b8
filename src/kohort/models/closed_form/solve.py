"""From the statistics of all rows to weights: standardising, ridge regression, and choosing lambda from folds.

The classifier is ridge regression in disguise: where every row weighs f'(dbar)^2 = c^2, dividing by c^2 leaves
(Z'Z + lambda / c^2) w = Z'dbar; for the logistic function and wanted outputs 0.05 and 0.95, c = 0.0475.

Standardising (z-scores) is a change of coordinates, Z A, so it needs no row: (A'GA + lambda) v = A'm and w = A v. The
penalty holds for v, the bias with it, as in the paper.

Degenerate columns: a column whose variance is below `CONSTANT` times its mean square is constant, as far as sums in
fixed point can tell, and gets the weight 0. Eigenvalues below 0, which rounding or noise leaves behind, count as 0;
with a penalty of 0, directions below `COLLINEAR` times the largest eigenvalue are left out, so collinear columns share
a weight (the shortest of all solutions). A class without a row anywhere is refused: nothing can be said about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.closed_form.design import Floats, OneLayer
from kohort.models.closed_form.statistics import Statistics, class_moments, leading, require_finite, unpack
from kohort.models.dense.network import Network
from kohort.models.options import DType, FloatArray, Loss

__all__ = [
    "ChosenPenalty",
    "Scaling",
    "Solver",
    "choose",
    "held_out_error",
    "network_of",
    "scaling_of",
    "signed",
    "solve",
    "unsigned",
]

PENALTY = 1e-3
"""Lambda of the paper."""
CONSTANT = 1e-9
COLLINEAR = 1e-10


@dataclass(frozen=True, eq=False)
class Scaling:
    """z-scores as a change of coordinates; constant columns have no coordinate (`spread` 0)."""

    centre: Floats
    spread: Floats

    @property
    def matrix(self) -> Floats:
        """A, [width, width]: rows [1, x] A are [1, (x - centre) / spread]."""
        width = len(self.centre) + 1
        found = np.zeros((width, width))
        varies = self.spread > 0
        inverse = np.where(varies, 1.0 / np.where(varies, self.spread, 1.0), 0.0)
        found[0, 0] = 1.0
        found[0, 1:] = -self.centre * inverse
        found[range(1, width), range(1, width)] = inverse
        return found

    def to_scaled(self, coefficients: Floats) -> Floats:
        """v of w = A v; the weight of a constant column goes to the bias."""
        inside = coefficients[1:] * self.spread[:, None]
        bias = coefficients[0] + self.centre @ coefficients[1:]
        return np.concatenate([bias[None, :], inside])


def scaling_of(statistics: Statistics, *, standardise: bool = True) -> Scaling:
    """Means and standard deviations of the inputs over all rows.

    Args:
        statistics: Those of all rows, at least one.
        standardise: False for a scaling that changes nothing.

    Returns:
        The scaling; the deviation of a column that is constant, or nearly so, is 0.
    """
    gram = statistics.gram
    inputs = len(gram) - 1
    if not standardise:
        return Scaling(np.zeros(inputs), np.ones(inputs))
    centre = gram[0, 1:] / gram[0, 0]
    squares = np.diag(gram)[1:] / gram[0, 0]
    variance = squares - centre**2
    return Scaling(centre, np.sqrt(np.where(variance > CONSTANT * squares, variance, 0.0)))


@dataclass(frozen=True, eq=False)
class _System:
    """(gram + lambda) w = moments, the activation's weights applied, with dbar'F^2 dbar; one column an output."""

    gram: Floats
    moments: Floats
    squares: Floats


class Solver:
    """The statistics of all rows taken apart once; `weights` then costs little for each penalty."""

    def __init__(self, design: OneLayer, total: Statistics | NDArray[Any], *, standardise: bool = True) -> None:
        statistics = _checked(design, total)
        self.design = design
        self.scaling = scaling_of(statistics, standardise=standardise)
        change = self.scaling.matrix
        self._change = change
        self._parts = []
        for system in _systems(design, statistics):
            values, vectors = np.linalg.eigh(change.T @ system.gram @ change)
            self._parts.append((np.maximum(values, 0.0), vectors, vectors.T @ (change.T @ system.moments)))

    @property
    def largest(self) -> float:
        """The largest eigenvalue of the rows' own sums, which a penalty is added to."""
        return max(float(values[-1]) for values, _, _ in self._parts)

    def one_against_rest(self, penalty: float) -> Floats:
        """Weights [width, classes] of one neuron a class, as in the paper; [width, 1] for a number."""
        if not (np.isfinite(penalty) and penalty >= 0):
            raise ConfigError(f"a penalty of {penalty!r} is not possible", hint="Use 0 or a positive number")
        found = []
        for values, vectors, projected in self._parts:
            kept = values > COLLINEAR * values[-1] if penalty == 0 else np.ones(len(values), dtype=bool)
            inverse = np.where(kept, 1.0 / np.where(kept, values + penalty, 1.0), 0.0)
            found.append(self._change @ (vectors @ (inverse[:, None] * projected)))
        return np.concatenate(found, axis=1)

    def weights(self, penalty: float = PENALTY) -> Floats:
        """Weights [width, outputs]; the first row is the bias.

        For two classes, half the difference of the two neurons: positive where class 1 has the larger output. With
        a shared Gram and wanted outputs that mirror each other (logistic), that is the neuron of class 1 itself.
        """
        found = self.one_against_rest(penalty)
        return (found[:, 1:] - found[:, :1]) / 2 if self.design.classes == 2 else found


def solve(
    design: OneLayer, total: Statistics | NDArray[Any], *, penalty: float = PENALTY, standardise: bool = True
) -> Floats:
    """The weights of the one-layer network over all rows.

    Args:
        design: What is fitted.
        total: The statistics of all rows, packed or not.
        penalty: Lambda of the ridge regression, 0 or more; the bias is penalised with the rest.
        standardise: Whether the penalty holds for the weights of z-scored inputs.

    Returns:
        The weights in the units of the inputs, [width, outputs]; the first row is the bias.

    Raises:
        DataError: The statistics are of no rows, of another length or not finite, or no row is of some class.
        ConfigError: The penalty is below 0 or not finite.
    """
    return Solver(design, total, standardise=standardise).weights(penalty)


def held_out_error(design: OneLayer, statistics: Statistics, neurons: Floats) -> float:
    """The error of weights on rows of which only statistics are known.

    Args:
        design: What was fitted.
        statistics: Those of the held-out rows, at least one.
        neurons: The weights of one neuron per class, as `Solver.one_against_rest` gives them, [width, classes]; [width,
            1] for a number.

    Returns:
        The mean over rows of |F (dbar - w z)|^2, summed over neurons: the squared error before the activation.
    """
    total, column = 0.0, 0
    for system in _systems(design, statistics):
        w = neurons[:, column : column + system.moments.shape[1]]
        column += w.shape[1]
        total += float(np.sum(w * (system.gram @ w)) - 2 * np.sum(w * system.moments) + system.squares.sum())
    return max(total, 0.0) / statistics.rows


@dataclass(frozen=True)
class ChosenPenalty:
    """What the folds chose: the penalty and the number of columns."""

    penalty: float
    inputs: int
    error: float
    errors: dict[tuple[int, float], float]
    """Mean held-out error of every (inputs, penalty)."""


def choose(
    design: OneLayer,
    folds: NDArray[Any],
    *,
    penalties: Sequence[float],
    sizes: Sequence[int] | None = None,
    standardise: bool = True,
) -> ChosenPenalty:
    """Cross-validate over fold totals [folds, length]: each is left out once. Needs no row and no further round.

    The error is that of the linearised target, which statistics tell; accuracy would need the rows. Of all choices
    that are worse than the best one by no more than one standard error of the difference over the folds, the largest
    penalty is taken: where a few far-off rows decide, the least error is often that of too small a penalty.

    Args:
        design: What is fitted.
        folds: The totals, one per fold.
        penalties: The penalties to choose among.
        sizes: Numbers of leading columns to choose among; all columns by default.
        standardise: Whether inputs are standardised.

    Returns:
        The choice.

    Raises:
        ConfigError: There are fewer than two folds, or no penalty.
    """
    if len(folds) < 2 or not penalties:
        raise ConfigError("choosing needs two folds and one penalty at least", hint="Use 5 folds")
    parts = [unpack(design, fold) for fold in folds]
    total = unpack(design, np.sum(folds, axis=0))
    found: dict[tuple[int, float], list[float]] = {}
    for size in sizes or (design.inputs,):
        for part in parts:
            smaller, held_out = leading(design, part, size)
            solver = Solver(smaller, leading(design, total - part, size)[1], standardise=standardise)
            for penalty in penalties:
                error = held_out_error(smaller, held_out, solver.one_against_rest(penalty))
                found.setdefault((size, penalty), []).append(error)
    rows = np.array([part.rows for part in parts])
    errors = {chosen: float(np.average(values, weights=rows)) for chosen, values in found.items()}
    best = min(errors, key=lambda chosen: (errors[chosen], chosen))
    near = [chosen for chosen, values in found.items() if _is_near(values, found[best])]
    size, penalty = max(near, key=lambda chosen: (chosen[1], -chosen[0]))
    return ChosenPenalty(penalty, size, errors[size, penalty], errors)


def _is_near(errors: Sequence[float], best: Sequence[float]) -> bool:
    """Whether errors by fold exceed the best ones by no more than a standard error of their difference."""
    worse = np.subtract(errors, best)
    return float(worse.mean()) <= float(worse.std(ddof=1) / np.sqrt(len(worse)))


def signed(x: FloatArray, numeric: NDArray[np.bool_] | None = None) -> FloatArray:
    """Inputs of [0, 1] mapped to [-1, 1], all or the `numeric` ones: indicators may stay 0 and 1.

    Centred numbers lose fewer digits when squared sums are rounded to fixed point.

    Args:
        x: Encoded rows, [rows, inputs].
        numeric: Which inputs are mapped, [inputs]; None for all.

    Returns:
        The mapped rows, [rows, inputs].
    """
    if numeric is None:
        return 2 * x - 1
    return np.where(numeric, 2 * x - 1, x)


def unsigned(coefficients: Floats, numeric: NDArray[np.bool_] | None = None) -> Floats:
    """The inverse of `signed` for weights: what was solved on mapped inputs, as weights for inputs in [0, 1].

    Args:
        coefficients: Weights for what `signed` gives, [inputs + 1, outputs]; the first row is the bias.
        numeric: As it was given to `signed`.

    Returns:
        Weights that give the same scores on inputs in [0, 1], of the same shape.
    """
    mapped = np.ones(len(coefficients) - 1, dtype=bool) if numeric is None else numeric
    inside = coefficients[1:] * np.where(mapped, 2.0, 1.0)[:, None]
    bias = coefficients[0] - coefficients[1:][mapped].sum(axis=0)
    return np.concatenate([bias[None, :], inside])


def network_of(design: OneLayer, coefficients: Floats, *, dtype: DType = "float64") -> tuple[Network, FloatArray]:
    """The network and its flat weights that predict what the closed form says.

    Classes: the network of `model.kind = "onelayer"`. A number: with the linear activation too; with the logistic one,
    a single sigmoid unit whose output is stretched from the wanted range back to [0, 1].

    Args:
        design: What was fitted.
        coefficients: Its weights, [width, outputs]; the first row is the bias.
        dtype: The type of the flat weights.

    Returns:
        The network, and its weights, [parameters].

    Raises:
        DataError: The weights have another shape.
        ConfigError: A number was fitted through softplus, which no network of kohort's has.
    """
    if coefficients.shape != (design.width, design.outputs):
        raise DataError(
            f"weights of shape {coefficients.shape} do not fit {design.inputs} inputs and {design.outputs} outputs"
        )
    bias, matrix = coefficients[0], coefficients[1:]
    if design.classes or design.activation == "linear":
        loss: Loss = "squared" if design.classes == 0 else ("logistic" if design.classes == 2 else "softmax")
        network = Network(inputs=design.inputs, outputs=design.outputs, loss=loss, dtype=dtype)
        return network, network.flatten([(matrix, bias)])
    if design.activation == "softplus":
        raise ConfigError(
            "a number predicted through softplus fits none of kohort's networks",
            hint="Use the activation linear or logistic for numbers",
        )
    network = Network(inputs=design.inputs, hidden=(1,), outputs=1, activation="sigmoid", loss="squared", dtype=dtype)
    stretched = (np.array([[1 / 0.9]]), np.array([-0.05 / 0.9]))
    return network, network.flatten([(matrix, bias), stretched])


def _checked(design: OneLayer, total: Statistics | NDArray[Any]) -> Statistics:
    statistics = total if isinstance(total, Statistics) else unpack(design, total)
    for numbers in (statistics.grams, statistics.moments, statistics.more):
        require_finite(numbers)
    if statistics.gram[0, 0] <= 0:
        raise DataError("the statistics are of no rows", hint="At least one site needs rows to learn from")
    absent = np.flatnonzero(statistics.class_rows(design) < 0.5)
    if len(absent):
        raise DataError(
            f"no site has a row of class code{'' if len(absent) == 1 else 's'} {', '.join(map(str, absent))}",
            hint="Drop the classes from the target's categories, or add sites that know them",
        )
    return statistics


def _systems(design: OneLayer, statistics: Statistics) -> list[_System]:
    """The equations of all neurons: one Gram for all of them, or one each."""
    if design.classes == 0:
        return [_System(statistics.grams[0], statistics.moments, statistics.more[:1])]
    low, high = design.wanted
    inside = class_moments(design, statistics)
    outside = statistics.gram[:, :1] - inside
    light, heavy = design.slopes[0] ** 2, design.slopes[1] ** 2
    moments = heavy * high * inside + light * low * outside
    squares = heavy * high**2 * inside[0] + light * low**2 * outside[0]
    if design.shares_gram:
        return [_System(heavy * statistics.grams[0], moments, squares)]
    whole = statistics.gram
    return [
        _System(heavy * gram + light * (whole - gram), moments[:, code : code + 1], squares[code : code + 1])
        for code, gram in enumerate(statistics.grams)
    ]
