"""The arithmetic of robust aggregation over stacks [site, parameter], in blocks of columns.

Guarantees: every function is pure and deterministic, works in float64 where it adds, and needs memory for the result,
a matrix [site, site] at most, and one block of the stack; never a second stack.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray

__all__ = ["clipped_mean", "coordinate_median", "krum_scores", "squared_distances", "trimmed_mean", "update_norms"]

# A block that fits a core's cache: values of a column are gathered, partly ordered and added while they are there.
_BLOCK_VALUES = 1 << 18


def _blocks(stack: FloatArray) -> Iterator[slice]:
    sites, parameters = stack.shape
    width = max(1, _BLOCK_VALUES // max(sites, 1))
    for begin in range(0, parameters, width):
        yield slice(begin, min(begin + width, parameters))


def coordinate_median(stack: FloatArray) -> FloatArray:
    """The median of every column; of an even number of sites, the mean of the two in the middle."""
    sites, parameters = stack.shape
    half = sites // 2
    result = np.empty(parameters, dtype=stack.dtype)
    for part in _blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        # One pivot at a time: NumPy selects with vector instructions then, and not when it is given two.
        columns.partition(half, axis=1)
        middle = columns[:, half]
        if sites % 2 == 0:
            middle = (columns[:, :half].max(axis=1).astype(np.float64) + middle) / 2
        result[part] = middle
    return result


def trimmed_mean(stack: FloatArray, cut: int) -> FloatArray:
    """The mean of every column without its `cut` smallest and its `cut` largest values, fewer than half each."""
    sites, parameters = stack.shape
    result = np.empty(parameters, dtype=stack.dtype)
    for part in _blocks(stack):
        columns = np.array(stack[:, part].T, order="C")
        columns.partition(cut, axis=1)
        columns[:, cut:].partition(sites - 2 * cut - 1, axis=1)
        result[part] = columns[:, cut : sites - cut].mean(axis=1, dtype=np.float64)
    return result


def squared_distances(stack: FloatArray, centre: FloatArray) -> NDArray[np.float64]:
    """[site, site]: |a - b|^2 of every pair, from the products of all rows.

    |a|^2 + |b|^2 - 2ab cancels badly when the rows are far from the origin and near to each other, so the rows are
    first moved by `centre`: any point near the honest rows, such as the weights they all started from.
    """
    products = np.zeros((stack.shape[0], stack.shape[0]))
    for part in _blocks(stack):
        moved = stack[:, part].astype(np.float64) - centre[part]
        products += moved @ moved.T
    squares = np.diagonal(products)
    distances = squares[:, None] + squares[None, :] - 2 * products
    np.maximum(distances, 0, out=distances)
    np.fill_diagonal(distances, 0)
    return distances


def krum_scores(distances: NDArray[np.float64], neighbours: int) -> NDArray[np.float64]:
    """Of every site, the sum of its squared distances to its `neighbours` nearest other sites."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    others.sort(axis=1)
    scores: NDArray[np.float64] = others[:, :neighbours].sum(axis=1)
    return scores


def update_norms(stack: FloatArray, start: FloatArray) -> NDArray[np.float64]:
    """The length of every site's update, |weights - start|."""
    squares = np.zeros(stack.shape[0])
    for part in _blocks(stack):
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
    for part in _blocks(stack):
        moved = stack[:, part].astype(np.float64) - start[part]
        result[part] = start[part] + (share * scale) @ moved
    return result
