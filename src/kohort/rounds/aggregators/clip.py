"""Norm clipping: the mean of updates of bounded norm."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, column_blocks, row_shares

__all__ = ["clip", "clipped_mean", "update_norms"]


@aggregator("clip")
def clip(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    norm: Annotated[float, Gt(0)] | None = None,
) -> FloatArray:
    """The mean, weighted by rows, of the updates `weights - start`, each clipped to `norm`.

    By default `norm` is the median norm of this round's updates. Breakdown point: with a given norm there is none,
    since no site moves the result further than its share of the rows times the norm; with the median it is ceil(S / 2),
    from where on Byzantine sites determine the median. Assumes that honest updates have similar norms. It bounds the
    harm and does not remove it: Byzantine sites still steer by their share of the rows.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts.
        start: The weights they started from.
        network: The model; not used.
        norm: The clipping norm; None for the median norm of this round.

    Returns:
        The aggregated weights.
    """
    del network
    norms = update_norms(stack, start)
    bound = float(np.median(norms)) if norm is None else norm
    return clipped_mean(stack, row_shares(rows), start, norms=norms, bound=bound)


def update_norms(stack: FloatArray, start: FloatArray) -> NDArray[np.float64]:
    """The Euclidean norm of every site's update.

    Args:
        stack: The sites' weights, [sites, parameters].
        start: The weights they started from.

    Returns:
        One norm per site.
    """
    squares = np.zeros(stack.shape[0])
    for part in column_blocks(stack):
        moved = stack[:, part].astype(np.float64) - start[part]
        squares += np.einsum("sp,sp->s", moved, moved)
    return np.sqrt(squares)


def clipped_mean(
    stack: FloatArray, share: NDArray[np.float64], start: FloatArray, *, norms: NDArray[np.float64], bound: float
) -> FloatArray:
    """`start` plus the weighted mean of the clipped updates.

    Args:
        stack: The sites' weights, [sites, parameters].
        share: The weight of each site; they sum to 1.
        start: The weights they started from.
        norms: The norm of each update.
        bound: The norm to which longer updates are clipped.

    Returns:
        The aggregated weights.
    """
    too_long = norms > bound
    scale = np.where(too_long, bound / np.where(too_long, norms, 1.0), 1.0)
    result = np.empty(stack.shape[1], dtype=stack.dtype)
    for part in column_blocks(stack):
        moved = stack[:, part].astype(np.float64) - start[part]
        result[part] = start[part] + (share * scale) @ moved
    return result
