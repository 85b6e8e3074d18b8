"""Matching the hidden units of dense networks that compute the same with their units in another order.

A hidden unit can change places with another of its layer, its incoming and its outgoing weights moving along, and the
network says the same of every row. Guarantees: what is done here to a network is only ever such an exchange, so no
network changes what it computes; the order of the sites in the stack does not matter beyond ties in their row counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.network import FloatArray, Network

__all__ = ["in_order_of", "match_units"]

Layers = Sequence[tuple[FloatArray, FloatArray]]


def match_units(network: Network, stack: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
    """The stack with every site's hidden units in one common order, layer after layer.

    The site with most rows sets the order of a layer; every other site, by falling row count, is matched to the
    running mean of those before it, so that the sum of squared distances between units is smallest.
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
    """The network `weights` with its hidden units in the places of the units of `reference` they are nearest to."""
    arranged = weights.copy()
    layers, wanted = network.layers(arranged), network.layers(reference)
    for depth in range(len(network.hidden)):
        _rearrange(layers, depth, _assignment(_units(wanted, depth), _units(layers, depth)))
    return arranged


def _units(layers: Layers, depth: int) -> NDArray[np.float64]:
    """[unit, number]: what tells the units of a hidden layer apart.

    That is the incoming weights and the bias; and the outgoing weights where they lead to the outputs, whose order is
    the same at every site. Units of the next hidden layer have no common order yet.
    """
    matrix, bias = layers[depth]
    parts = [matrix.T, bias[:, None]]
    if depth == len(layers) - 2:
        parts.append(layers[depth + 1][0])
    return np.hstack(parts).astype(np.float64)


def _assignment(wanted: NDArray[np.float64], units: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each place, the unit that belongs there. The most similar products are the least squared distances."""
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
