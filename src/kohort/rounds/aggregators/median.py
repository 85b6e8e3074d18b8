"""The coordinate-wise median."""

from __future__ import annotations

import numpy as np

from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, column_blocks, require_sites

__all__ = ["coordinate_median", "median"]


@aggregator("median")
def median(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """The median of every coordinate over the sites (Yin et al., ICML 2018). Every site counts once.

    Breakdown point ceil(S / 2), the highest possible: with fewer Byzantine sites every coordinate stays between the
    smallest and the largest honest value. Assumes that sites are similar enough for the median site to represent all of
    them; unusual sites have no influence.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts; not used.
        start: The weights they started from; not used.
        network: The model; not used.

    Returns:
        The aggregated weights.

    Raises:
        SiteError: No site answered.
    """
    del rows, start, network
    require_sites(stack, 1, "the median", "Check that the sites are running")
    return coordinate_median(stack)


def coordinate_median(stack: FloatArray) -> FloatArray:
    """The median of every column; for an even number of sites, the mean of the two middle values.

    Args:
        stack: The sites' weights, [sites, parameters].

    Returns:
        One value per parameter.
    """
    sites, parameters = stack.shape
    half = sites // 2
    result = np.empty(parameters, dtype=stack.dtype)
    for part in column_blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        # One pivot at a time: with two, NumPy does not use its vectorised selection.
        columns.partition(half, axis=1)
        middle = columns[:, half]
        if sites % 2 == 0:
            middle = (columns[:, :half].max(axis=1).astype(np.float64) + middle) / 2
        result[part] = middle
    return result
