"""The mean of updates of bounded length."""

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
    """The mean weighted by rows of the updates `weights - start`, longer ones shortened to `norm`.

    By default `norm` is the median length of this round's updates. Breakdown point: with a given norm none, nobody
    moves the result further than their share of the rows times the norm; with the median ceil(S / 2), from where on
    liars say what is long. Assumes honest updates of about the same length. Bounds harm, does not remove
    it: liars still steer by their share of the rows.
    """
    del network
    norms = update_norms(stack, start)
    bound = float(np.median(norms)) if norm is None else norm
    return clipped_mean(stack, row_shares(rows), start, norms=norms, bound=bound)


def update_norms(stack: FloatArray, start: FloatArray) -> NDArray[np.float64]:
    """The length of every site's update, |weights - start|."""
    squares = np.zeros(stack.shape[0])
    for part in column_blocks(stack):
        moved = stack[:, part].astype(np.float64) - start[part]
        squares += np.einsum("sp,sp->s", moved, moved)
    return np.sqrt(squares)


def clipped_mean(
    stack: FloatArray, share: NDArray[np.float64], start: FloatArray, *, norms: NDArray[np.float64], bound: float
) -> FloatArray:
    """`start` plus the mean, weighted by `share`, of the updates; one longer than `bound` is shortened to it."""
    too_long = norms > bound
    scale = np.where(too_long, bound / np.where(too_long, norms, 1.0), 1.0)
    result = np.empty(stack.shape[1], dtype=stack.dtype)
    for part in column_blocks(stack):
        moved = stack[:, part].astype(np.float64) - start[part]
        result[part] = start[part] + (share * scale) @ moved
    return result
