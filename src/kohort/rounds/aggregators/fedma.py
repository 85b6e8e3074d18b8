"""Matched averaging of dense networks.

A hidden unit can change places with another of its layer, its incoming and its outgoing weights moving along, and the
network says the same of every row. Guarantees: what is done here to a network is only ever such an exchange, so no
network changes what it computes; the order of the sites in the stack does not matter beyond ties in their row counts.
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
    rows. The number of units stays as it is, where the paper lets layers grow, so that every round has the same model;
    and units come back in the order of `start`, so that server optimizers see the same unit in the same place.
    Equals `mean` without hidden layers. Breakdown point 1, as of the mean. Assumes honest sites.
    """
    if not isinstance(network, Network):
        raise ConfigError(
            "fedma matches units of dense networks, and this model is none",
            hint="Use train.aggregate = 'mean', or a model of kind 'mlp'",
        )
    if not network.hidden:
        return weighted_mean(stack, rows)
    row_shares(rows)
    return in_order_of(network, weighted_mean(match_units(network, stack, rows), rows), start)


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
