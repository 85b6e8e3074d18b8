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
    """The mean weighted by rows."""
    mean: NDArray[Any] = row_shares(rows) @ stack.astype(np.float64)
    return mean.astype(stack.dtype)


@aggregator("mean")
def mean(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """The mean weighted by rows (McMahan et al. 2017).

    Breakdown point 1: a single lying site moves it anywhere. Assumes every site honest.
    """
    del start, network
    return weighted_mean(stack, rows)
