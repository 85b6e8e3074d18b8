"""The coordinate-wise median."""

from __future__ import annotations

import numpy as np

from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, column_blocks, require_sites

__all__ = ["coordinate_median", "median"]


@aggregator("median")
def median(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """The median of every coordinate over the sites (Yin et al., ICML 2018), every site counting once.

    Breakdown point ceil(S / 2), the highest there is: with fewer Byzantine sites every coordinate stays between the
    smallest and largest honest value. Assumes sites alike enough that the median site speaks for all; rows of rare
    sites weigh nothing.
    """
    del rows, start, network
    require_sites(stack, 1, "the median", "Ask sites that are up")
    return coordinate_median(stack)


def coordinate_median(stack: FloatArray) -> FloatArray:
    """The median of every column; of an even number of sites, the mean of the two in the middle."""
    sites, parameters = stack.shape
    half = sites // 2
    result = np.empty(parameters, dtype=stack.dtype)
    for part in column_blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        # One pivot at a time: NumPy selects with vector instructions then, and not when it is given two.
        columns.partition(half, axis=1)
        middle = columns[:, half]
        if sites % 2 == 0:
            middle = (columns[:, :half].max(axis=1).astype(np.float64) + middle) / 2
        result[part] = middle
    return result
