"""The slow, obvious twin of the training kernel: one site, float64, one matrix expression a line.

It exists to be compared with `models.dense.training` in tests and shares no code with the kernel. No run uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.dense.network import Network
from kohort.models.dense.training import Training
from kohort.models.rows import Rows

__all__ = ["fit_reference", "gradient_reference", "loss_reference", "row_order_reference"]

Vector = NDArray[np.float64]
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def row_order_reference(key: int, round: int, epoch: int, n: int) -> NDArray[np.int64]:
    """The permutation named by (key, round, epoch), with Python's unbounded integers."""
    stream = _splitmix(key + _GOLDEN)
    for name in (round, epoch):
        stream = _splitmix(stream ^ (name + _GOLDEN))
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        other = (_splitmix(stream + last * _GOLDEN) * (last + 1)) >> 64
        order[last], order[other] = order[other], order[last]
    return np.array(order, dtype=np.int64)


def loss_reference(network: Network, weights: Vector, x: Vector, y: Vector, row_weight: Vector) -> float:
    """sum_i(weight_i * loss_i) / rows."""
    scores = _forward(network, weights, x)[-1]
    total = 0.0
    for row, target, weight in zip(scores, y, row_weight, strict=True):
        total += float(weight) * _loss_of_row(network, row, float(target))
    return total / len(y)


def gradient_reference(network: Network, weights: Vector, x: Vector, y: Vector, row_weight: Vector) -> Vector:
    """The gradient of `loss_reference` by back-propagation, flat."""
    activations = _forward(network, weights, x)
    slopes = [_slope_of_row(network, row, float(target)) for row, target in zip(activations[-1], y, strict=True)]
    delta = np.array(slopes) * row_weight[:, None] / len(y)
    layers = network.layers(weights)
    parts: list[Vector] = []
    for depth in reversed(range(len(layers))):
        below = activations[depth]
        parts = [(below.T @ delta).ravel(), delta.sum(axis=0), *parts]
        if depth > 0:
            slope: Any = {"relu": below > 0, "tanh": 1 - below**2, "sigmoid": below * (1 - below)}
            delta = (delta @ layers[depth][0].T) * slope[network.activation]
    return np.concatenate(parts)


def fit_reference(
    network: Network,
    weights: Vector,
    rows: Rows,
    *,
    training: Training,
    key: int,
    round: int,
    anchor: Vector | None = None,
    shift: Vector | None = None,
) -> tuple[Vector, float]:
    """Weights after training and the mean loss over the rows seen."""
    w = np.array(weights, dtype=np.float64)
    home = w.copy() if anchor is None else np.asarray(anchor, dtype=np.float64)
    x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
    row_weight = np.ones(rows.count) if rows.weight is None else rows.weight.astype(np.float64)
    size = training.batch or rows.count
    m, v, steps, losses = np.zeros_like(w), np.zeros_like(w), 0, 0.0
    for epoch in range(training.epochs):
        order = row_order_reference(key, round, epoch, rows.count)
        for begin in range(0, rows.count, size):
            batch = order[begin : begin + size]
            losses += loss_reference(network, w, x[batch], y[batch], row_weight[batch]) * len(batch)
            g = gradient_reference(network, w, x[batch], y[batch], row_weight[batch])
            g = g + (0.0 if shift is None else shift)
            g = g + training.l2 * w + training.prox * (w - home)
            g = g * len(batch) / min(size, rows.count)
            steps += 1
            if training.optimizer == "sgd":
                w = w - training.lr * g
            elif training.optimizer == "momentum":
                m = training.momentum * m + g
                w = w - training.lr * m
            else:
                m = training.beta1 * m + (1 - training.beta1) * g
                v = training.beta2 * v + (1 - training.beta2) * g**2
                m_hat = m / (1 - training.beta1**steps)
                v_hat = v / (1 - training.beta2**steps)
                w = w - training.lr * m_hat / (np.sqrt(v_hat) + training.epsilon)
    return w, losses / (rows.count * training.epochs) if rows.count else float("nan")


def _splitmix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _forward(network: Network, weights: Vector, x: Vector) -> list[Vector]:
    """What enters each layer, and the scores at the end."""
    values = [x]
    layers = network.layers(weights)
    for depth, (matrix, bias) in enumerate(layers):
        z = values[-1] @ matrix + bias
        if depth < len(layers) - 1:
            z = {"relu": np.maximum(z, 0), "tanh": np.tanh(z), "sigmoid": 1 / (1 + np.exp(-z))}[network.activation]
        values.append(z)
    return values


def _sides(network: Network, target: float) -> Vector:
    """+1 for the output of the row's class, -1 for the others; a single output stands for class 1."""
    codes = np.arange(network.outputs) if network.outputs > 1 else np.array([1])
    return np.where(codes == target, 1.0, -1.0)


def _loss_of_row(network: Network, scores: Vector, target: float) -> float:
    if network.loss == "squared":
        return float((scores[0] - target) ** 2)
    if network.loss == "logistic":
        return float(np.log(1 + np.exp(-scores[0] * (2 * target - 1))))
    if network.loss == "softmax":
        return float(-np.log(np.exp(scores[int(target)]) / np.exp(scores).sum()))
    margin = 1.0 if network.loss == "hinge" else 0.0
    return float(np.maximum(0, margin - _sides(network, target) * scores).sum())


def _slope_of_row(network: Network, scores: Vector, target: float) -> Vector:
    if network.loss == "squared":
        return 2 * (scores - target)
    if network.loss == "logistic":
        return np.asarray(1 / (1 + np.exp(-scores)) - target)
    if network.loss == "softmax":
        return np.asarray(np.exp(scores) / np.exp(scores).sum() - (np.arange(network.outputs) == target))
    side = _sides(network, target)
    margin = 1.0 if network.loss == "hinge" else 0.0
    # On the edge itself the row still counts: a perceptron that starts at zero has to learn from its first row.
    return np.where(side * scores <= margin, -side, 0.0)
