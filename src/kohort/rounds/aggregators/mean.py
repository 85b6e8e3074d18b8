"""The mean weighted by rows: federated averaging."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, row_shares

__all__ = ["mean", "weighted_mean"]


def weighted_mean(stack: FloatArray, rows: Rows) -> FloatArray:
    """The mean of the sites' weights, weighted by rows.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts.

    Returns:
        The mean, in the type of `stack`.

    Raises:
        SiteError: No site has rows.
    """
    mean: NDArray[Any] = row_shares(rows) @ stack.astype(np.float64)
    return mean.astype(stack.dtype)


@aggregator("mean")
def mean(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """Federated averaging: the mean weighted by rows (McMahan et al., AISTATS 2017).

    Breakdown point 1: a single Byzantine site moves it anywhere. Assumes that every site is honest.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts.
        start: The weights they started from; not used.
        network: The model; not used.

    Returns:
        The aggregated weights.

    Raises:
        SiteError: No site has rows.
    """
    del start, network
    return weighted_mean(stack, rows)
