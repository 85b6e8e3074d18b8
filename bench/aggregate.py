"""What robust aggregation costs: median and trimmed mean against NumPy's median, Krum against a limit.

All run on the same float32 stack, on one thread, in turns, and the best of each counts.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bench.harness import Row, best_of
from kohort.models.dense.network import Network
from kohort.rounds.aggregators import find_aggregator

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "aggregate"
SUMMARY = (
    "Robust aggregation of random float32 weights. Median and trimmed mean (a fifth of the sites cut at each end) "
    "against `numpy.median(stack, axis=0)`; Krum and multi-Krum against a limit of one second. Best of three."
)
REPETITIONS = 3
TIMES_NUMPY = 3.0
KRUM_SECONDS = 1.0

Floats = NDArray[np.float32]


def measure() -> list[Row]:
    return [*_order_statistics(sites=1_000, parameters=100_000), *_krum(sites=200, parameters=10_000)]


def _order_statistics(*, sites: int, parameters: int) -> list[Row]:
    stack = _stack(sites, parameters)
    theirs = _seconds(lambda: np.median(stack, axis=0))
    if not np.array_equal(_aggregated("median", stack), np.median(stack, axis=0)):
        raise RuntimeError("the median is not NumPy's")
    return [
        Row.within(
            f"{name}, {sites:,} sites x {parameters:,} parameters",
            ours=_seconds(lambda name=name: _aggregated(name, stack)),  # type: ignore[misc]
            peer="numpy.median",
            theirs=theirs,
            unit="s",
            target=TIMES_NUMPY,
        )
        for name in ("median", "trimmed")
    ]


def _krum(*, sites: int, parameters: int) -> list[Row]:
    stack = _stack(sites, parameters)
    return [
        Row.within(
            f"{name}, {sites:,} sites x {parameters:,} parameters",
            ours=_seconds(lambda name=name: _aggregated(name, stack)),  # type: ignore[misc]
            peer="limit",
            theirs=KRUM_SECONDS,
            unit="s",
        )
        for name in ("krum", "multi-krum")
    ]


def _stack(sites: int, parameters: int) -> Floats:
    return np.random.default_rng(7).standard_normal((sites, parameters), dtype=np.float32)


def _aggregated(name: str, stack: Floats) -> Floats:
    sites, parameters = stack.shape
    network = Network(inputs=parameters - 1, outputs=1, loss="logistic")
    rows = np.full(sites, 100, dtype=np.int64)
    result: Floats = find_aggregator(name)(stack, rows, np.zeros(parameters, dtype=np.float32), network)
    return result


def _seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        began = perf_counter()
        work()
        return perf_counter() - began

    return best_of(REPETITIONS, once)
