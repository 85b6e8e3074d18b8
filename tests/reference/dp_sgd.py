"""The slow, obvious twin of private training: one site, float64, one gradient per row.

It exists to be compared with `kohort.models.dp_sgd.fit` in tests and shares no code with its kernel. No run uses it.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from tests.reference.dense import gradient_reference

from kohort.models.dense.network import Network
from kohort.models.dense.training import Training
from kohort.models.dp_sgd.fit import PrivateSteps
from kohort.models.rows import Rows

__all__ = [
    "batches_reference",
    "clipped_gradients_reference",
    "fit_private_reference",
    "normals_reference",
    "words_reference",
]

Vector = NDArray[np.float64]


def words_reference(key: bytes, label: bytes, count: int) -> list[int]:
    """The first `count` 64-bit words of the stream `label` of a key."""
    own = hashlib.blake2b(label, key=key, digest_size=32, person=b"kohort-noise").digest()
    stream = Cipher(algorithms.ChaCha20(own, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(count)]


def normals_reference(words: list[int]) -> Vector:
    """Box-Muller: radii from the first half of the words, angles from the second half."""
    half = len(words) // 2
    cosines, sines = [], []
    for first, second in zip(words[:half], words[half:], strict=True):
        radius = math.sqrt(-2 * math.log((first + 0.5) / 2**64))
        angle = ((second >> 11) + 0.5) / 2**53 * math.pi / 4
        sides = [math.cos(angle), math.sin(angle)]
        if second & 1:
            sides.reverse()
        cosines.append(radius * sides[0] * (-1 if second & 2 else 1))
        sines.append(radius * sides[1] * (-1 if second & 4 else 1))
    return np.array(cosines + sines)


def batches_reference(key: bytes, *, rate: float, count: int, steps: int) -> list[list[int]]:
    """The rows of every batch: geometric gaps laid over one line of steps * count places."""
    if rate == 1.0:
        return [list(range(count)) for _ in range(steps)]
    batches: list[list[int]] = [[] for _ in range(steps)]
    place = -1
    for word in words_reference(key, b"rows", steps * count + 1):
        place += 1 + math.floor(math.log((word + 0.5) / 2**64) / math.log1p(-rate))
        if place >= steps * count:
            break
        batches[place // count].append(place % count)
    return batches


def clipped_gradients_reference(network: Network, weights: Vector, rows: Rows, clip: float) -> tuple[Vector, Vector]:
    """The clipped gradient of every row, [rows, parameters], and the norms they had before."""
    weight = np.ones(rows.count) if rows.weight is None else rows.weight.astype(np.float64)
    x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
    gradients = np.zeros((rows.count, network.parameter_count))
    for row in range(rows.count):
        one = slice(row, row + 1)
        gradients[row] = gradient_reference(network, weights, x[one], y[one], weight[one])
    norms = np.sqrt((gradients**2).sum(axis=1))
    return gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None], norms


def fit_private_reference(
    network: Network, weights: Vector, rows: Rows, *, training: Training, private: PrivateSteps
) -> tuple[Vector, Vector]:
    """Weights of the one site of `private` after its steps, and the clip of every step with the next one behind."""
    w = np.array(weights, dtype=np.float64)
    home = w.copy()
    key, rate, sigma, steps = private.keys[0], float(private.rate[0]), float(private.sigma[0]), int(private.steps[0])
    size = len(w) + 1 + (len(w) + 1) % 2
    words = words_reference(key, b"noise", steps * size)
    expected = rate * rows.count
    clips = [private.clip if private.adaptive is None or private.adaptive.start is None else private.adaptive.start[0]]
    m, v, path = np.zeros_like(w), np.zeros_like(w), []
    for step, batch in enumerate(batches_reference(key, rate=rate, count=rows.count, steps=steps)):
        chosen = Rows.of(
            rows.x[batch],
            rows.y[batch],
            weight=None if rows.weight is None else rows.weight[batch],
            dtype=network.dtype,
        )
        gradients, norms = clipped_gradients_reference(network, w, chosen, clips[-1])
        noise = normals_reference(words[step * size : (step + 1) * size])
        g = (gradients.sum(axis=0) + sigma * clips[-1] * noise[: len(w)]) / expected
        g = g + training.l2 * w + training.prox * (w - home)
        if private.adaptive is not None:
            counted = (
                np.where(norms <= clips[-1], 0.5, -0.5).sum() + private.adaptive.sigma_b * noise[len(w)]
            ) / expected
            moved = clips[-1] * math.exp(-private.adaptive.rate * (counted + 0.5 - private.adaptive.quantile))
            clips.append(min(1e9, max(1e-9, moved)))
        else:
            clips.append(clips[-1])
        if training.optimizer == "sgd":
            w = w - training.lr * g
        elif training.optimizer == "momentum":
            m = training.momentum * m + g
            w = w - training.lr * m
        else:
            m = training.beta1 * m + (1 - training.beta1) * g
            v = training.beta2 * v + (1 - training.beta2) * g**2
            m_hat, v_hat = m / (1 - training.beta1 ** (step + 1)), v / (1 - training.beta2 ** (step + 1))
            w = w - training.lr * m_hat / (np.sqrt(v_hat) + training.epsilon)
        path.append(w)
    kept = math.ceil(private.average * steps)
    return (np.mean(path[-kept:], axis=0) if kept else w), np.array(clips)
