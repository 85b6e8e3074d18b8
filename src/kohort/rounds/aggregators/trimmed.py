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
    that no more than this share of the sites is Byzantine, and that sites are similar enough for extreme values to be
    dispensable. Every site counts once.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts; not used.
        start: The weights they started from; not used.
        network: The model; not used.
        share: The share of the sites to cut at each end.

    Returns:
        The aggregated weights.

    Raises:
        SiteError: Fewer than three sites answered.
    """
    del rows, start, network
    require_sites(stack, 3, "a trimmed mean", "Ask more sites, or use train.aggregate = 'mean'")
    return trimmed_mean(stack, _cut(stack.shape[0], share))


def trimmed_mean(stack: FloatArray, cut: int) -> FloatArray:
    """The mean of every column without its `cut` smallest and its `cut` largest values.

    Args:
        stack: The sites' weights, [sites, parameters].
        cut: How many values to cut at each end, fewer than half of the sites.

    Returns:
        One value per parameter.
    """
    sites, parameters = stack.shape
    result = np.empty(parameters, dtype=stack.dtype)
    for part in column_blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        columns.partition(cut, axis=1)
        columns[:, cut:].partition(sites - 2 * cut - 1, axis=1)
        result[part] = columns[:, cut : sites - cut].mean(axis=1, dtype=np.float64)
    return result


def _cut(sites: int, share: float) -> int:
    """How many sites are cut at each end: floor(share * S), at least one, since cutting none would protect nothing."""
    # 0.29 * 100 is a little less than 29 in floating point.
    return max(1, int(share * sites + 1e-9))
