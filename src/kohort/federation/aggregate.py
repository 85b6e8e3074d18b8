"""How the hub turns many weight vectors into one. Pure functions over stacks [site, parameter]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.learn.network import FloatArray

__all__ = ["Aggregator", "aggregator", "find_aggregator", "weighted_mean"]

Aggregator = Callable[[FloatArray, NDArray[np.int64]], FloatArray]
_AGGREGATORS: dict[str, Aggregator] = {}


def aggregator(name: str) -> Callable[[Aggregator], Aggregator]:
    """Register an aggregator under the name plans use."""

    def register(function: Aggregator) -> Aggregator:
        _AGGREGATORS[name] = function
        return function

    return register


def find_aggregator(name: str) -> Aggregator:
    """The aggregator a plan names."""
    found = _AGGREGATORS.get(name)
    if found is None:
        raise ConfigError(f"unknown aggregator {name!r} in train.aggregate", hint=nearest(name, _AGGREGATORS))
    return found


@aggregator("mean")
def weighted_mean(stack: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
    """The mean weighted by rows. Breakdown point 0: one lying site moves it anywhere."""
    share = rows / rows.sum()
    mean: NDArray[Any] = share @ stack.astype(np.float64)
    return mean.astype(stack.dtype)
