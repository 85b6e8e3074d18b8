"""Newton steps for cross-entropy: what a site sums at given weights, and the step the hub computes from the total.

The closed form minimises the squared error before the activation. Where that costs accuracy, Newton steps on the
cross-entropy can follow, each with one more sum over rows. There are two kinds of curvature:

- "exact": the Hessian. Two classes: Z'RZ with R = p (1 - p), iteratively reweighted least squares. More classes: the
  blocks Z' diag(p_a (1[a = b] - p_b)) Z of the softmax for a <= b. A handful of steps suffice.
- "bound": Z'Z from the first round, times 1/4 for two classes and 1/2 (I - 1 1'/K) for K (Böhning's bound). It is
  never below the Hessian, so no step raises the penalised loss. Only gradients are sent, which is needed when K^2 Gram
  matrices would be too large, and takes many more steps.

The loss is summed as well, so a hub that sees it rise can halve its step (`newton_step(..., length=0.5)`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.closed_form.design import Floats, OneLayer
from kohort.models.closed_form.solve import Scaling
from kohort.models.closed_form.statistics import Transform, checked_targets, chunk_rows, require_finite, with_bias
from kohort.models.rows import StackedRows
from kohort.models.scoring import one_blas_thread

__all__ = ["Curvature", "newton_length", "newton_loss", "newton_statistics", "newton_step"]

Curvature = Literal["exact", "bound"]


def newton_length(design: OneLayer, curvature: Curvature = "exact") -> int:
    """How many numbers a site sums for one step: curvature, gradient [width, outputs], loss.

    Args:
        design: The one-layer model.
        curvature: "exact" sums the Hessian of the step, "bound" none: the Gram matrix of the first round serves.

    Returns:
        The length of the sum, without check values.

    Raises:
        ConfigError: The target is a number.
    """
    _require_classes(design)
    triangle = design.width * (design.width + 1) // 2
    blocks = design.outputs * (design.outputs + 1) // 2 if curvature == "exact" else 0
    return blocks * triangle + design.width * design.outputs + 1


def newton_statistics(
    design: OneLayer,
    rows: StackedRows,
    coefficients: Floats,
    *,
    curvature: Curvature = "exact",
    transform: Transform | None = None,
) -> Floats:
    """The statistics of every site at given weights.

    Args:
        design: The one-layer model.
        rows: The rows of all sites.
        coefficients: The weights, [width, outputs].
        curvature: "exact" or "bound".
        transform: Maps encoded rows to inputs.

    Returns:
        Curvature, gradient and loss of each site, [sites, newton_length]; zeros for a site without rows.

    Raises:
        ConfigError: The target is a number.
        DataError: A target is no class code, or a sum is not finite.
    """
    out = np.zeros((rows.sites, newton_length(design, curvature)))
    most = chunk_rows(design.width)
    with one_blas_thread():
        for site in range(rows.sites):
            own = rows.site(site)
            for begin in range(0, own.count, most):
                part = own.part(begin, min(begin + most, own.count))
                x = part.x if transform is None else transform(part.x)
                z = with_bias(design, x, (1, part.count))[0]
                out[site] += _sums(design, z, checked_targets(design, part.y), coefficients, curvature)
    require_finite(out)
    return out


def newton_loss(total: NDArray[Any]) -> float:
    """The cross-entropy of all rows at the weights of the sums, without the penalty.

    Args:
        total: The sum of all sites' statistics, of either curvature.

    Returns:
        The sum over rows, not the mean.
    """
    return float(total[-1])


def newton_step(
    design: OneLayer,
    total: NDArray[Any],
    coefficients: Floats,
    *,
    penalty: float,
    scaling: Scaling,
    gram: Floats | None = None,
    length: float = 1.0,
) -> Floats:
    """The weights after one step on cross-entropy + penalty / 2 |v|^2, where v are the weights of z-scored inputs.

    Args:
        design: The one-layer model.
        total: The sum of all sites' statistics.
        coefficients: The weights at which they were computed.
        penalty: The ridge penalty.
        scaling: The scaling of the first round (`Solver.scaling`).
        gram: The Gram matrix of all rows, for curvature "bound"; `total` then has gradient and loss alone.
        length: The step length; 1 is a full Newton step.

    Returns:
        The weights after the step, [width, outputs], in the units of the inputs.

    Raises:
        DataError: `total` has another length, or is not finite.
    """
    curvature: Curvature = "exact" if gram is None else "bound"
    numbers = np.asarray(total, dtype=np.float64)
    if numbers.shape != (newton_length(design, curvature),):
        raise DataError(
            f"{numbers.shape} statistics do not fit a step of {curvature} curvature",
            hint=f"Expected {newton_length(design, curvature)} numbers: ask all sites for the same curvature",
        )
    require_finite(numbers)
    width, outputs = design.width, design.outputs
    change = scaling.matrix
    gradient = change.T @ numbers[-1 - width * outputs : -1].reshape(width, outputs)
    hessian = np.zeros((outputs, width, outputs, width))
    for a, b, block in _blocks(design, numbers, gram):
        hessian[a, :, b, :] = hessian[b, :, a, :] = change.T @ block @ change
    flat = hessian.reshape(outputs * width, outputs * width) + penalty * np.eye(outputs * width)
    scaled = scaling.to_scaled(coefficients)
    # Constant columns and one direction of the softmax are not determined: the minimum-norm step does not change them.
    step = np.linalg.lstsq(flat, (gradient - penalty * scaled).T.reshape(-1), rcond=1e-12)[0]
    moved: Floats = change @ (scaled + length * step.reshape(outputs, width).T)
    return moved


def _require_classes(design: OneLayer) -> None:
    if design.classes == 0:
        raise ConfigError(
            "Newton steps are for classes: a number is fitted exactly in one round", hint="Use one round for numbers"
        )


def _blocks(design: OneLayer, numbers: Floats, gram: Floats | None) -> list[tuple[int, int, Floats]]:
    outputs, width = design.outputs, design.width
    pairs = [(a, b) for a in range(outputs) for b in range(a, outputs)]
    if gram is not None:
        if outputs == 1:
            return [(0, 0, gram / 4)]
        return [(a, b, gram * (float(a == b) - 1.0 / outputs) / 2) for a, b in pairs]
    upper = np.triu_indices(width)
    triangle = len(upper[0])
    found = []
    for index, (a, b) in enumerate(pairs):
        block = np.zeros((width, width))
        block[upper] = numbers[index * triangle : (index + 1) * triangle]
        block.T[upper] = block[upper]
        found.append((a, b, block))
    return found


def _sums(design: OneLayer, z: Floats, targets: Floats, coefficients: Floats, curvature: Curvature) -> Floats:
    scores = z @ coefficients
    upper = np.triu_indices(design.width)
    if design.outputs == 1:
        indicator = targets[:, None]
        loss = np.logaddexp(0.0, scores[:, 0]) - targets * scores[:, 0]
        said = np.exp(-np.logaddexp(0.0, -scores))
    else:
        indicator = (targets[:, None] == np.arange(design.classes)).astype(np.float64)
        peak = scores.max(axis=1, keepdims=True)
        raised = np.exp(scores - peak)
        total = raised.sum(axis=1, keepdims=True)
        said = raised / total
        loss = (np.log(total) + peak)[:, 0] - (indicator * scores).sum(axis=1)
    parts = []
    if curvature == "exact":
        for a in range(design.outputs):
            for b in range(a, design.outputs):
                weights = said[:, a] * (float(a == b) - said[:, b])
                parts.append((z.T @ (weights[:, None] * z))[upper])
    return np.concatenate([*parts, (z.T @ (indicator - said)).reshape(-1), [loss.sum()]])
