"""What a network says of encoded rows: scores, probabilities, predictions and losses.

Guarantee: everything is computed over chunks of rows, so memory stays bounded however long the table is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.options import FloatArray
from kohort.models.trainable import Scorer

__all__ = ["loss_of", "one_blas_thread", "predict", "probabilities", "scores", "sigmoid"]

# Bounds the largest hidden activation to a few megabytes for the usual widths, and keeps BLAS calls long enough.
_CHUNK_ROWS = 16_384


def scores(network: Scorer, weights: FloatArray, x: FloatArray) -> FloatArray:
    """The raw outputs of the last layer, before any softmax or sigmoid.

    Args:
        network: The network.
        weights: Its weights, [parameters].
        x: Encoded rows, [rows, inputs].

    Returns:
        The scores, [rows, outputs].

    Raises:
        DataError: The rows have another width than the network reads.
    """
    _check_width(network, x)
    out = np.empty((x.shape[0], network.outputs), dtype=network.dtype)
    with one_blas_thread():
        for begin in range(0, x.shape[0], _CHUNK_ROWS):
            part = slice(begin, begin + _CHUNK_ROWS)
            out[part] = network.forward(weights, x[part])
    return out


def probabilities(network: Scorer, weights: FloatArray, x: FloatArray) -> FloatArray:
    """Class probabilities.

    Args:
        network: A network trained with softmax or logistic loss.
        weights: Its weights.
        x: Encoded rows.

    Returns:
        [rows, classes]; two columns for a logistic network.

    Raises:
        ConfigError: Its loss gives no probabilities.
    """
    if network.loss not in ("softmax", "logistic"):
        raise ConfigError(
            f"a network trained with {network.loss} loss gives no probabilities",
            hint="Use its scores, or train with loss 'softmax' or 'logistic'",
        )
    raw = scores(network, weights, x)
    return _softmax(raw) if network.loss == "softmax" else np.hstack([sigmoid(-raw), sigmoid(raw)])


def predict(network: Scorer, weights: FloatArray, x: FloatArray) -> NDArray[Any]:
    """What the network predicts of each row.

    Args:
        network: The network.
        weights: Its weights, [parameters].
        x: Encoded rows, [rows, inputs].

    Returns:
        Class codes, int64 [rows]; where the loss is squared, numbers on the scale of the encoded target, [rows].

    Raises:
        DataError: The rows have another width than the network reads.
    """
    raw = scores(network, weights, x)
    if network.loss == "squared":
        return np.asarray(raw[:, 0])
    if network.outputs == 1:
        return np.asarray(raw[:, 0] > 0, dtype=np.int64)
    return np.asarray(np.argmax(raw, axis=1), dtype=np.int64)


def loss_of(
    network: Scorer, weights: FloatArray, x: FloatArray, y: FloatArray, *, weight: FloatArray | None = None
) -> float:
    """Mean loss over the rows, sum_i(weight_i * loss_i) / rows, without any penalty term.

    Args:
        network: The network.
        weights: Its weights.
        x: Encoded rows.
        y: Their targets.
        weight: A weight per row; None: 1 each.

    Returns:
        The loss; NaN for no rows.

    Raises:
        DataError: Lengths or widths differ.
    """
    _check_width(network, x)
    if y.shape != (x.shape[0],) or (weight is not None and weight.shape != y.shape):
        raise DataError(f"{x.shape[0]} rows do not fit targets or weights of another length", hint="Align them")
    if x.shape[0] == 0:
        return float("nan")
    total = 0.0
    with one_blas_thread():
        for begin in range(0, x.shape[0], _CHUNK_ROWS):
            part = slice(begin, begin + _CHUNK_ROWS)
            losses = _row_losses(network, network.forward(weights, x[part]).astype(np.float64), y[part])
            total += float(losses.sum() if weight is None else losses @ weight[part])
    return total / len(x)


@cache
def _blas() -> Any:
    # Finding the libraries takes milliseconds, so it is done once.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Products this small lose more by sharing work among threads than they win, and one thread sums in one order."""
    limit: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limit


def _check_width(network: Scorer, x: FloatArray) -> None:
    if x.ndim != 2 or x.shape[1] != network.inputs:
        raise DataError(
            f"rows of shape {x.shape} do not fit a network with {network.inputs} inputs",
            hint="Encode the table with the encoder the network was trained with",
        )


def _row_losses(network: Scorer, raw: FloatArray, y: FloatArray) -> FloatArray:
    if network.loss == "squared":
        return np.asarray(np.square(raw[:, 0] - y))
    if network.loss == "logistic":
        return np.asarray(np.logaddexp(0.0, raw[:, 0]) - y * raw[:, 0])
    codes = y.astype(np.int64)
    if codes.min() < 0 or codes.max() >= network.classes:
        raise DataError("some targets are no class codes", hint=f"Encode the target as 0 to {network.classes - 1}")
    if network.loss == "softmax":
        peak = raw.max(axis=1)
        log_sum = np.log(np.exp(raw - peak[:, None]).sum(axis=1)) + peak
        return np.asarray(log_sum - raw[np.arange(len(codes)), codes])
    hot = codes[:, None] == (np.arange(network.outputs) if network.outputs > 1 else 1)
    margin = 1.0 if network.loss == "hinge" else 0.0
    return np.asarray(np.maximum(0.0, margin - np.where(hot, raw, -raw)).sum(axis=1))


def _softmax(raw: FloatArray) -> FloatArray:
    shares: FloatArray = np.exp(raw - raw.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def sigmoid(values: FloatArray) -> FloatArray:
    """1 / (1 + exp(-values)), without a warning for large negative values.

    Args:
        values: Numbers of any shape.

    Returns:
        Numbers from 0 to 1, of the same shape.
    """
    # exp of a large positive number overflows to infinity, and 1 / infinity is the right answer, 0.
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))
