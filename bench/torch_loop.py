"""The peers' client: an MLP 12-12-2 trained with torch by a hand-written loop over index batches.

No module, no optimiser object, no DataLoader: less than half the time of the usual torch loop. Both the plain loop over
sites and the Flower clients use it, so that Flower is not charged for a slower way to train.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from bench.setup_federation import BATCH, FEATURES, LR, NETWORK, Federation, Timed

__all__ = ["flat_of", "run_torch", "tensors_of", "train_epoch"]

Floats = NDArray[np.float32]


def tensors_of(flat: Floats) -> list[torch.Tensor]:
    """kohort's flat vector as torch's weights [outputs, inputs] and biases, layer by layer."""
    layers = NETWORK.layers(flat)
    return [torch.from_numpy(part.T.copy()).requires_grad_() for layer in layers for part in layer]


def flat_of(tensors: list[torch.Tensor]) -> Floats:
    """torch's weights as kohort's flat vector."""
    arrays = [tensor.detach().numpy() for tensor in tensors]
    layers = [(weight.T, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]
    return NETWORK.flatten(layers).astype(np.float32)


def train_epoch(tensors: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor, order: torch.Tensor) -> None:
    """One pass of mini-batch SGD in the given order of rows."""
    weight1, bias1, weight2, bias2 = tensors
    for rows, classes in zip(x[order].split(BATCH), y[order].split(BATCH), strict=True):
        hidden = functional.relu(functional.linear(rows, weight1, bias1))
        loss = functional.cross_entropy(functional.linear(hidden, weight2, bias2), classes)
        gradients = torch.autograd.grad(loss, tensors)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.sub_(gradient, alpha=LR)


def run_torch(federation: Federation, rounds: int) -> Timed:
    """Federated averaging as a plain loop: site after site, then the mean. No messages, no ledger, no checks."""
    torch.set_num_threads(1)
    shape = (federation.sites, federation.rows)
    x = torch.from_numpy(federation.x).reshape(*shape, FEATURES)
    y = torch.from_numpy(federation.y.astype(np.int64)).reshape(shape)
    orders = torch.from_numpy(federation.orders)
    weights = federation.start
    train_epoch(tensors_of(weights), x[0], y[0], orders[0, 0])  # first use of each operation, outside the clock
    marks = [perf_counter()]
    for number in range(rounds):
        trained = np.empty((federation.sites, len(weights)), dtype=np.float32)
        for site in range(federation.sites):
            tensors = tensors_of(weights)
            train_epoch(tensors, x[site], y[site], orders[number, site])
            trained[site] = flat_of(tensors)
        weights = trained.mean(axis=0, dtype=np.float64).astype(np.float32)
        marks.append(perf_counter())
    return Timed(weights=weights, total=marks[-1] - marks[0], rounds=np.diff(marks).tolist())
