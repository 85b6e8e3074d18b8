"""Gradient inversion: rows read from the weights that one site sends back, by a hub that chose what it was sent.

In a dense layer the gradient of a unit's weights is the sum over rows of c x, and that of its bias the sum of c, with
the same c for both. Where one row alone moves a unit, their quotient is that row (Phong et al., 2018). A lying hub
makes such units: all of them read the rows along one direction, with thresholds in rising order, and the layer after
treats them alike. Then two neighbouring units differ by the rows between their thresholds alone, and the quotient of
the differences is a row where there is one (Fowl et al., "Robbing the Fed", ICLR 2022). Nothing is searched for.

Where it applies: the hub chooses weights and sees the reply of one site. Adam's first step keeps the signs of a
gradient only, so that indicators are read and numbers are not; many steps blur both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.shape import DenseShape

__all__ = ["NEAR", "lying_weights", "rows_in_update"]

NEAR: Final = 0.02
"""How near every input of a rebuilt row must be to the true one, on the scale of the model's inputs."""
_OUT: Final = 0.05
Floats = NDArray[np.float64]


def lying_weights(network: DenseShape, likely: Floats, *, seed: int = 0) -> NDArray[np.floating]:
    """Weights that make the first layer tell rows apart.

    Args:
        network: The model that sites train.
        likely: Inputs as the hub imagines them, drawn from the public domain [rows, inputs].
        seed: Of the direction.

    Returns:
        The weights to send. A network without a hidden layer has nothing to tell rows apart with, and gets zeros.
    """
    if not network.hidden:
        return np.zeros(network.parameter_count, dtype=network.dtype)
    random = np.random.default_rng(seed)
    direction = random.uniform(0.5, 1.5, network.inputs) * random.choice([-1.0, 1.0], network.inputs)
    units = network.hidden[0]
    cuts = np.quantile(likely @ direction, np.arange(units) / units)
    cuts[0] -= 10 * (np.ptp(likely @ direction) or 1.0)
    layers = [(np.tile(direction[:, None], (1, units)), -cuts)]
    before = units
    for width in (*network.hidden[1:], network.outputs):
        signs = np.where(np.arange(width) % 2, 1.0, -1.0) if width == network.outputs else np.ones(width)
        layers.append((np.tile(signs[None, :] * _OUT / before, (before, 1)), np.zeros(width)))
        before = width
    flat = network.flatten([(np.asarray(w, network.dtype), np.asarray(b, network.dtype)) for w, b in layers])
    return np.asarray(flat, dtype=network.dtype)


def rows_in_update(network: DenseShape, sent: NDArray[np.floating], returned: NDArray[np.floating]) -> Floats:
    """The rows that a site's reply shows, as the model's inputs.

    Args:
        network: The model.
        sent: What the hub sent.
        returned: What the site sent back.

    Returns:
        Candidates [count, inputs], every one of which is a quotient of differences; some are mixtures of rows.
    """
    (weights, bias), (from_weights, from_bias) = _first(network, returned), _first(network, sent)
    weights, bias = weights.astype(np.float64) - from_weights, bias.astype(np.float64) - from_bias
    steps = weights if not network.hidden else np.hstack([weights, weights[:, :-1] - weights[:, 1:]])
    tips = bias if not network.hidden else np.concatenate([bias, bias[:-1] - bias[1:]])
    clear = np.abs(tips) > 1e-4 * (np.abs(tips).max(initial=0.0) or 1.0)
    return np.asarray((steps[:, clear] / tips[clear]).T)


def _first(network: DenseShape, flat: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    return network.layers(np.asarray(flat, dtype=network.dtype))[0]
