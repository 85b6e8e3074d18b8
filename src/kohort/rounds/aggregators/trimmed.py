"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt, Lt

from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, column_blocks, require_sites

__all__ = ["trimmed", "trimmed_mean"]


@aggregator("trimmed")
def trimmed(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    share: Annotated[float, Gt(0), Lt(0.5)] = 0.2,
) -> FloatArray:
    """The mean of every coordinate without its smallest and largest `share` of the sites (Yin et al., ICML 2018).

    floor(share * S) sites are cut at each end, and never fewer than one. Breakdown point: one more than that. Assumes
    that no more than this share lies, and sites alike enough that extreme values are no loss. Every site counts once.
    """
    del rows, start, network
    require_sites(stack, 3, "a trimmed mean", "Ask more sites, or use train.aggregate = 'mean'")
    return trimmed_mean(stack, _cut(stack.shape[0], share))


def trimmed_mean(stack: FloatArray, cut: int) -> FloatArray:
    """The mean of every column without its `cut` smallest and its `cut` largest values, fewer than half each."""
    sites, parameters = stack.shape
    result = np.empty(parameters, dtype=stack.dtype)
    for part in column_blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        columns.partition(cut, axis=1)
        columns[:, cut:].partition(sites - 2 * cut - 1, axis=1)
        result[part] = columns[:, cut : sites - cut].mean(axis=1, dtype=np.float64)
    return result


def _cut(sites: int, share: float) -> int:
    """How many sites are cut at each end: floor(share * S), but a trimmed mean that cuts nobody protects nobody."""
    # 0.29 * 100 is a little less than 29 in floating point.
    return max(1, int(share * sites + 1e-9))
