"""Which kernel trains many small networks fastest: our compiled one, or NumPy on stacks [site, batch, feature]?

Why a kernel of our own: general frameworks spend most of a federated round on overhead for each operation of each site,
because a mini-batch of a table is a few thousand multiplications. Why Numba: stacked NumPy removes that overhead too,
but it has to write every intermediate stack to memory and needs sites of equal size (or padding, which is wasted work).
A compiled loop keeps a mini-batch in the cache, takes sites of any size, and gives the same bits one by one and all at
once.

Both sides train the same MLP 12-12-2 (ReLU, softmax) with Adam, mini-batches of 32 rows in the same shuffled order, one
epoch a round, in float32 on one thread. They must agree before they are timed. Best of several rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from kohort.models.dense.network import Network
from kohort.models.dense.training import Training, fit_many, row_order
from kohort.models.rows import Rows, StackedRows, stack

BATCH = 32
RATE = 0.001
SETTINGS = ((10, 2_000), (1_000, 200))
NETWORK = Network(inputs=12, hidden=(12,), outputs=2)


def stacked_numpy_round(weights: np.ndarray, x: np.ndarray, y: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """One epoch of Adam for all sites at once, from x [site, row, feature], y and orders [site, row]."""
    sites, rows, inputs = x.shape
    hidden, outputs = NETWORK.hidden[0], NETWORK.outputs
    flat = np.tile(weights, (sites, 1))
    cuts = np.cumsum([inputs * hidden, hidden, hidden * outputs, outputs])
    w1 = flat[:, : cuts[0]].reshape(sites, inputs, hidden)
    b1 = flat[:, None, cuts[0] : cuts[1]]
    w2 = flat[:, cuts[1] : cuts[2]].reshape(sites, hidden, outputs)
    b2 = flat[:, None, cuts[2] :]
    gradient, first, second = (np.zeros_like(flat) for _ in range(3))
    which = np.arange(sites)[:, None]
    shuffled_x, shuffled_y = x[which, orders], y[which, orders]
    for step, begin in enumerate(range(0, rows, BATCH), start=1):
        xb, yb = shuffled_x[:, begin : begin + BATCH], shuffled_y[:, begin : begin + BATCH]
        size = xb.shape[1]
        a = xb @ w1
        a += b1
        np.maximum(a, 0, out=a)
        delta = a @ w2
        delta += b2
        delta -= delta.max(axis=2, keepdims=True)
        np.exp(delta, out=delta)
        delta /= delta.sum(axis=2, keepdims=True)
        delta[which, np.arange(size), yb] -= 1
        delta /= size
        below = (delta @ w2.transpose(0, 2, 1)) * (a > 0)
        gradient[:, : cuts[0]] = (xb.transpose(0, 2, 1) @ below).reshape(sites, -1)
        gradient[:, cuts[0] : cuts[1]] = below.sum(axis=1)
        gradient[:, cuts[1] : cuts[2]] = (a.transpose(0, 2, 1) @ delta).reshape(sites, -1)
        gradient[:, cuts[2] :] = delta.sum(axis=1)
        first += np.float32(0.1) * (gradient - first)
        second += np.float32(0.001) * (gradient * gradient - second)
        rate = np.float32(RATE / (1 - 0.9**step))
        flat -= rate * first / (np.sqrt(second) / np.float32(np.sqrt(1 - 0.999**step)) + np.float32(1e-8))
    return flat


def make_data(sites: int, rows: int) -> StackedRows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sites * rows, NETWORK.inputs)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.float32)
    table = Rows(x, y)
    return stack([table.part(site * rows, (site + 1) * rows) for site in range(sites)])


def best_milliseconds(work: Callable[[], Any], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1_000 * min(times)


def compare(sites: int, rows: int, *, repetitions: int) -> dict[str, Any]:
    data = make_data(sites, rows)
    weights = NETWORK.start(np.random.default_rng(1))
    keys = np.arange(sites, dtype=np.uint64)
    training = Training(epochs=1, batch=BATCH, optimizer="adam", lr=RATE)
    cube = data.x.reshape(sites, rows, -1)
    codes = data.y.reshape(sites, rows).astype(np.int64)

    def ours() -> np.ndarray:
        return fit_many(NETWORK, weights, data, training=training, keys=keys, round=0, keep_state=False).weights

    # The peer is handed its row orders for free; ours shuffles inside the time that is measured.
    orders = np.stack([row_order(int(key), 0, 0, rows) for key in keys])

    def peer() -> np.ndarray:
        return stacked_numpy_round(weights, cube, codes, orders)

    difference = float(np.abs(ours() - peer()).max())
    if difference > 1e-3:
        raise AssertionError(f"the two kernels disagree by {difference}")
    ours_ms, peer_ms = best_milliseconds(ours, repetitions), best_milliseconds(peer, repetitions)
    return {
        "setting": f"{sites:,} sites x {rows:,} rows, one round",
        "ours_ms": round(ours_ms, 3),
        "peer": "stacked NumPy",
        "peer_ms": round(peer_ms, 3),
        "ratio": round(peer_ms / ours_ms, 2),
        "largest_difference": difference,
    }


def measure(*, repetitions: int = 15) -> dict[str, Any]:
    """Times in milliseconds a round, compilation excluded, one thread on both sides."""
    with threadpool_limits(limits=1):
        return {
            "name": "kernel choice",
            "rows": [compare(sites, rows, repetitions=repetitions) for sites, rows in SETTINGS],
        }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
