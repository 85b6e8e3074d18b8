"""Matched averaging of dense networks.

Permuting the hidden units of a layer, together with their incoming and outgoing weights, does not change what a network
computes. Guarantees: single networks are only ever permuted here, so none of them changes what it computes; the order
of the sites in the stack does not matter, except among sites with equal row counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.network import FloatArray, Network
from kohort.models.trainable import Trainable
from kohort.rounds.aggregators.mean import weighted_mean
from kohort.rounds.aggregators.registry import Rows, aggregator, row_shares

__all__ = ["fedma", "in_order_of", "match_units"]


Layers = Sequence[tuple[FloatArray, FloatArray]]


@aggregator("fedma")
def fedma(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """Matched averaging of dense layers (Wang et al., ICLR 2020): hidden units are matched, then averaged by rows.

    Units are matched layer by layer with the Hungarian algorithm, every site to the running mean of the sites with more
    rows. Unlike in the paper, layers do not grow, so that every round has the same model; and the result's units are in
    the order of `start`, so that server optimizers see the same unit in the same place. Equals `mean` without hidden
    layers. Breakdown point 1, like the mean. Assumes that every site is honest.

    Args:
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts.
        start: The weights they started from.
        network: The model; must be a dense network.

    Returns:
        The aggregated weights.

    Raises:
        ConfigError: The model is not a dense network.
    """
    if not isinstance(network, Network):
        raise ConfigError(
            "fedma matches the hidden units of dense networks, and this model is not one",
            hint="Use train.aggregate = 'mean', or a model of kind 'mlp'",
        )
    if not network.hidden:
        return weighted_mean(stack, rows)
    row_shares(rows)
    return in_order_of(network, weighted_mean(match_units(network, stack, rows), rows), start)


def match_units(network: Network, stack: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
    """Bring every site's hidden units into one common order, layer by layer.

    The site with the most rows sets the order. Every other site, by descending row count, is matched to the running
    mean of those before it, so that the sum of squared distances between matched units is minimal.

    Args:
        network: The model.
        stack: The sites' weights, [sites, parameters].
        rows: The sites' row counts.

    Returns:
        The permuted weights.
    """
    matched = stack.copy()
    sites = [network.layers(weights) for weights in matched]
    order = np.argsort(-rows, kind="stable").tolist()
    for depth in range(len(network.hidden)):
        mean = _units(sites[order[0]], depth)
        weight = int(rows[order[0]])
        for site in order[1:]:
            _rearrange(sites[site], depth, _assignment(mean, _units(sites[site], depth)))
            weight += int(rows[site])
            mean += (_units(sites[site], depth) - mean) * (rows[site] / weight)
    return matched


def in_order_of(network: Network, weights: FloatArray, reference: FloatArray) -> FloatArray:
    """Permute a network's hidden units to match those of another network.

    Args:
        network: The model.
        weights: The weights to permute.
        reference: The weights whose order of units is wanted.

    Returns:
        The permuted weights.
    """
    arranged = weights.copy()
    layers, wanted = network.layers(arranged), network.layers(reference)
    for depth in range(len(network.hidden)):
        _rearrange(layers, depth, _assignment(_units(wanted, depth), _units(layers, depth)))
    return arranged


def _units(layers: Layers, depth: int) -> NDArray[np.float64]:
    """The features by which units of a hidden layer are matched, [units, features].

    These are the incoming weights and the bias; in the last hidden layer also the outgoing weights, because the order
    of the outputs is the same at every site. Units of a following hidden layer have no common order yet.
    """
    matrix, bias = layers[depth]
    parts = [matrix.T, bias[:, None]]
    if depth == len(layers) - 2:
        parts.append(layers[depth + 1][0])
    return np.hstack(parts).astype(np.float64)


def _assignment(wanted: NDArray[np.float64], units: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each position, the unit that belongs there. The largest sum of products has the least squared distances."""
    from scipy.optimize import linear_sum_assignment

    _, chosen = linear_sum_assignment(wanted @ units.T, maximize=True)
    return np.asarray(chosen, dtype=np.intp)


def _rearrange(layers: Layers, depth: int, order: NDArray[np.intp]) -> None:
    """Put the units of a hidden layer in `order`, in place."""
    matrix, bias = layers[depth]
    outgoing = layers[depth + 1][0]
    matrix[...] = matrix[:, order]
    bias[...] = bias[order]
    outgoing[...] = outgoing[order]
