"""Krum and multi-Krum: keep the updates that are close to many others."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from kohort.errors import SiteError
from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.registry import Rows, aggregator, column_blocks, require_sites

__all__ = ["krum", "krum_scores", "multi_krum", "squared_distances"]


@aggregator("krum")
def krum(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    colluders: Annotated[int, Ge(0)] | None = None,
) -> FloatArray:
    """The weights of the one site nearest to its S - f - 2 nearest others (Blanchard et al., NeurIPS 2017).

    f is `colluders`. Needs S >= 2f + 3; by default f is the most that S allows, floor((S - 3) / 2). Breakdown point:
    f + 2. The paper promises f; one more still cannot win, but f + 2 sites that agree on a vector are enough when
    S <= 2f + 4, as by default. Assumes that honest sites are close together compared with a harmful update. The rows of
    all other sites are unused, so the result is noisier than any mean.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts; not used.
        start: The weights they started from.
        network: The model; not used.
        colluders: How many Byzantine sites to tolerate.

    Returns:
        The weights of the chosen site.

    Raises:
        SiteError: Too few sites answered.
    """
    del rows, network
    scores = _krum_scores(stack, start, _colluders(stack, colluders))
    chosen: FloatArray = stack[int(np.argmin(scores))].copy()
    return chosen


@aggregator("multi-krum")
def multi_krum(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    colluders: Annotated[int, Ge(0)] | None = None,
    keep: Annotated[int, Ge(1)] | None = None,
) -> FloatArray:
    """The unweighted mean of the `keep` sites with the best Krum scores (Blanchard et al., NeurIPS 2017).

    By default it keeps S - f sites, where f is `colluders`, by default floor((S - 3) / 2). Needs S >= 2f + 3. Breakdown
    point: f + 1 with these defaults, since S - f sites cannot all be honest then. Assumes what `krum` assumes.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts; not used.
        start: The weights they started from.
        network: The model; not used.
        colluders: How many Byzantine sites to tolerate.
        keep: How many sites to average.

    Returns:
        The aggregated weights.

    Raises:
        SiteError: Too few sites answered, or `keep` leaves no room for the colluders.
    """
    del rows, network
    excluded = _colluders(stack, colluders)
    wanted = stack.shape[0] - excluded if keep is None else keep
    if wanted > stack.shape[0] - excluded:
        raise SiteError(
            f"multi-krum cannot keep {wanted} of {stack.shape[0]} sites and leave out {excluded} colluders",
            hint="Lower keep or colluders, or ask more sites",
        )
    best = np.argsort(_krum_scores(stack, start, excluded), kind="stable")[:wanted]
    chosen = stack[np.sort(best)].astype(np.float64)
    average: FloatArray = chosen.mean(axis=0).astype(stack.dtype)
    return average


def squared_distances(stack: FloatArray, centre: FloatArray) -> NDArray[np.float64]:
    """The squared Euclidean distance of every pair of sites, from inner products.

    |a|^2 + |b|^2 - 2ab loses precision when the vectors are far from the origin and close to each other, so `centre` is
    subtracted first: any point near the honest sites, such as the weights they all started from.

    Args:
        stack: The sites' weights, [sites, parameters].
        centre: The point to subtract.

    Returns:
        The distances, [sites, sites].
    """
    products = np.zeros((stack.shape[0], stack.shape[0]))
    for part in column_blocks(stack):
        moved = stack[:, part].astype(np.float64) - centre[part]
        products += moved @ moved.T
    squares = np.diagonal(products)
    distances = squares[:, None] + squares[None, :] - 2 * products
    np.maximum(distances, 0, out=distances)
    np.fill_diagonal(distances, 0)
    return distances


def krum_scores(distances: NDArray[np.float64], neighbours: int) -> NDArray[np.float64]:
    """The sum of every site's squared distances to its nearest other sites.

    Args:
        distances: Squared distances, [sites, sites].
        neighbours: How many nearest sites count.

    Returns:
        One score per site; lower is better.
    """
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    others.sort(axis=1)
    scores: NDArray[np.float64] = others[:, :neighbours].sum(axis=1)
    return scores


def _colluders(stack: FloatArray, colluders: int | None) -> int:
    sites = stack.shape[0]
    excluded = max(0, (sites - 3) // 2) if colluders is None else colluders
    hint = "Lower colluders, ask more sites, or use train.aggregate = 'median'"
    require_sites(stack, 2 * excluded + 3, f"krum against {excluded} colluders", hint)
    return excluded


def _krum_scores(stack: FloatArray, start: FloatArray, colluders: int) -> NDArray[np.float64]:
    return krum_scores(squared_distances(stack, start), stack.shape[0] - colluders - 2)
