"""What the hub does with the aggregated weights: take them as they are, or treat them as one step of an optimiser.

The pseudo-gradient of a round is `aggregated - weights`. Guarantees: optimisers are frozen and remember nothing; their
state goes in and comes out as float64 arrays, so that a checkpoint holds all of it. Weights keep their dtype. `plain`
with its default rate returns the aggregated weights bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.models.dense.network import FloatArray
from kohort.protocol.options import bind, named

__all__ = [
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "Momentum",
    "Plain",
    "ServerOptimizer",
    "State",
    "find_server_optimizer",
    "server_optimizers",
]

State = dict[str, NDArray[Any]]
Kept = Mapping[str, NDArray[Any]]
Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0), Lt(1)]
Doubles = NDArray[np.float64]


class ServerOptimizer(Protocol):
    """One step a round from the weights the sites started from towards what they sent back."""

    def start(self, parameters: int) -> State:
        """The state before the first round."""
        ...

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """The hub's new weights and state; nothing that is passed in changes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plain:
    """weights + lr * (aggregated - weights): federated averaging when `lr` is 1."""

    lr: Rate = 1.0

    def start(self, parameters: int) -> State:
        """Nothing to remember."""
        del parameters
        return {}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """A share of the way, or all of it."""
        if self.lr == 1:
            return aggregated.astype(weights.dtype), dict(state)
        return _moved(weights, self.lr * _towards(weights, aggregated)), dict(state)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Server momentum, FedAvgM (Hsu, Qi, Brown 2019): v = momentum * v + (aggregated - weights); weights + lr * v."""

    momentum: Decay = 0.9
    lr: Rate = 1.0

    def start(self, parameters: int) -> State:
        """No velocity."""
        return {"velocity": np.zeros(parameters)}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """Gather speed and move."""
        velocity = self.momentum * state["velocity"] + _towards(weights, aggregated)
        return _moved(weights, self.lr * velocity), {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class _Adaptive(ABC):
    """Algorithm 2 of Reddi et al. (Adaptive Federated Optimization, ICLR 2021), without what tells its three apart.

    m = beta1 * m + (1 - beta1) * D; v = by name; weights + lr * m / (sqrt(v) + tau), with D the pseudo-gradient, m = 0
    and v = tau^2 before round 1. As in the paper's pseudo-code, and unlike the Adam of most libraries, moments are not
    corrected for where they start: with a large beta1 the first rounds are short on purpose.
    """

    lr: Rate = 0.1
    beta1: Decay = 0.9
    tau: Rate = 1e-3

    def start(self, parameters: int) -> State:
        """m = 0 and v = tau^2, the least the paper allows."""
        return {"first": np.zeros(parameters), "second": np.full(parameters, self.tau**2)}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """Scale every coordinate by what it did so far."""
        gradient = _towards(weights, aggregated)
        first = self.beta1 * state["first"] + (1 - self.beta1) * gradient
        second = self._second(state["second"], gradient**2)
        return _moved(weights, self.lr * first / (np.sqrt(second) + self.tau)), {"first": first, "second": second}

    @abstractmethod
    def _second(self, second: Doubles, square: Doubles) -> Doubles:
        """The new v from the old one and D^2."""


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """v = beta2 * v + (1 - beta2) * D^2."""

    beta2: Decay = 0.99

    def _second(self, second: Doubles, square: Doubles) -> Doubles:
        return self.beta2 * second + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(_Adaptive):
    """v = v - (1 - beta2) * D^2 * sign(v - D^2): a large v falls by D^2, not by a share of itself."""

    beta2: Decay = 0.99

    def _second(self, second: Doubles, square: Doubles) -> Doubles:
        return second - (1 - self.beta2) * square * np.sign(second - square)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """v = v + D^2, which only grows, so that steps get shorter. As in the paper's runs, beta1 is 0 by default."""

    beta1: Decay = 0.0

    def _second(self, second: Doubles, square: Doubles) -> Doubles:
        return second + square


_OPTIMISERS: dict[str, Callable[..., ServerOptimizer]] = {
    "plain": Plain,
    "momentum": Momentum,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
}


def server_optimizers() -> dict[str, Callable[..., ServerOptimizer]]:
    """Every hub optimiser by name."""
    return dict(_OPTIMISERS)


def find_server_optimizer(spec: str | Mapping[str, Any]) -> ServerOptimizer:
    """The hub optimiser a plan names, its options checked and set."""
    name, options = named(spec)
    if name not in _OPTIMISERS:
        raise ConfigError(f"unknown hub optimiser {name!r} in train.hub", hint=nearest(name, _OPTIMISERS))
    return bind(_OPTIMISERS[name], options, f"hub optimiser {name!r}")()


def _towards(weights: FloatArray, aggregated: FloatArray) -> Doubles:
    return np.subtract(aggregated, weights, dtype=np.float64)


def _moved(weights: FloatArray, by: Doubles) -> FloatArray:
    moved: FloatArray = (weights + by).astype(weights.dtype)
    return moved
