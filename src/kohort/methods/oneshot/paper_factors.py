"""The paper's own way: singular value decompositions at the sites, merged one after the other at the hub.

A site sends U S of X F = U S V' (X has a column per row, [1, x]) and m = X F F dbar. The hub merges by decomposing
[U S | U_p S_p] again (Iwen and Ong's incremental scheme) and solves w = U (S^2 + lambda)^-1 U'm.

For comparison only: U S determines X F up to a rotation of the rows, and for a site with few rows the rows themselves
can be recovered (`kohort.evaluate.attacks.gram`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.models.closed_form.design import WANTED, Floats, OneLayer, inverse, slope
from kohort.models.closed_form.statistics import checked_targets, require_finite, with_bias
from kohort.models.dense.network import FloatArray

__all__ = ["Factor", "factor_of_site", "merge_incremental", "solve_factors"]


@dataclass(frozen=True, eq=False)
class Factor:
    """What a site computes: U S [width, rank], one for all neurons or one each, and `moments` [width, neurons]."""

    factors: tuple[Floats, ...]
    moments: Floats

    @property
    def numbers(self) -> int:
        """How many numbers are sent: the paper's measure of communication."""
        return sum(factor.size for factor in self.factors) + self.moments.size


def factor_of_site(design: OneLayer, x: FloatArray, y: FloatArray) -> Factor:
    """Decompose one site's rows, with one neuron per class.

    Args:
        design: The one-layer model.
        x: Inputs, scaled as the model reads them.
        y: Targets.

    Returns:
        U S and the moments; a single U S where all neurons weigh rows alike.

    Raises:
        DataError: Rows have another width, a target is no class code or no number within [0, 1], or an input is not
            finite.
    """
    z = with_bias(design, x, (1, len(x)))[0]
    targets = checked_targets(design, y)
    low, high = WANTED[design.activation]
    if design.classes:
        wanted = np.where(targets[:, None] == np.arange(design.classes), high, low)
    else:
        wanted = (low + (high - low) * targets)[:, None]
    dbar = inverse(design.activation, wanted)
    weights = slope(design.activation, dbar)
    require_finite(z)
    distinct = 1 if design.classes and design.shares_gram else wanted.shape[1]
    factors = tuple(_scaled_left(z.T * weights[:, neuron]) for neuron in range(distinct))
    return Factor(factors, z.T @ (weights**2 * dbar))


def merge_incremental(sites: Sequence[NDArray[Any]]) -> Floats:
    """U S of all sites' rows, merged one site after the other, as the paper's hub does.

    Args:
        sites: U S of each site, [width, rank], in the order in which they came.

    Returns:
        The merged U S, [width, rank].

    Raises:
        DataError: There is no site.
    """
    if not sites:
        raise DataError("there is no factor to merge", hint="Give at least one site")
    merged = np.asarray(sites[0], dtype=np.float64)
    for factor in sites[1:]:
        merged = _scaled_left(np.hstack([merged, factor]))
    return merged


def solve_factors(factors: Sequence[Floats], moments: Floats, *, penalty: float) -> Floats:
    """Solve for the weights.

    Args:
        factors: The merged U S, one for all neurons or one each.
        moments: The total of the moments, [width, neurons].
        penalty: The ridge penalty.

    Returns:
        The weights, [width, neurons].
    """
    found = []
    shared = len(factors) == 1
    for neuron, factor in enumerate(factors):
        left, values, _ = np.linalg.svd(factor, full_matrices=False)
        kept = values**2 + penalty > 0
        left, values = left[:, kept], values[kept]
        right = moments if shared else moments[:, neuron : neuron + 1]
        found.append(left @ ((left.T @ right) / (values**2 + penalty)[:, None]))
    return np.concatenate(found, axis=1)


def _scaled_left(matrix: Floats) -> Floats:
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    scaled: Floats = left * values
    return scaled
