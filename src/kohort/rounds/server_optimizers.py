"""Server optimizers: how the hub turns the aggregated weights into the next global weights (`train.hub`).

The pseudo-gradient of a round is `aggregated - weights`. Guarantees: optimizers are immutable; their state goes in and
comes out as float64 arrays, so that a checkpoint holds all of it. Weights keep their dtype. `plain` with its default
rate returns the aggregated weights bit for bit.
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
from kohort.protocol.plan.options import bind, named

__all__ = [
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "Momentum",
    "PlainAverage",
    "ServerOptimizer",
    "State",
    "find_server_optimizer",
]

State = dict[str, NDArray[Any]]
Kept = Mapping[str, NDArray[Any]]
Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0), Lt(1)]
Doubles = NDArray[np.float64]


class ServerOptimizer(Protocol):
    """Makes one step per round, from the weights the sites started from towards the aggregated weights."""

    def start(self, parameters: int) -> State:
        """The state before the first round.

        Args:
            parameters: How many weights the model has.

        Returns:
            Arrays by name.
        """
        ...

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """One step. The arguments are not changed.

        Args:
            weights: What the sites started from.
            aggregated: What the aggregator made of their replies.
            state: The optimizer's state.

        Returns:
            The next global weights, and the next state.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PlainAverage:
    """weights + lr * (aggregated - weights): federated averaging when `lr` is 1."""

    lr: Rate = 1.0

    def start(self, parameters: int) -> State:
        """No state."""
        del parameters
        return {}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """Move by `lr` times the pseudo-gradient."""
        if self.lr == 1:
            return aggregated.astype(weights.dtype), dict(state)
        return _moved(weights, self.lr * _towards(weights, aggregated)), dict(state)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Server momentum, FedAvgM (Hsu, Qi, Brown 2019): v = momentum * v + (aggregated - weights); weights + lr * v."""

    momentum: Decay = 0.9
    lr: Rate = 1.0

    def start(self, parameters: int) -> State:
        """Velocity zero."""
        return {"velocity": np.zeros(parameters)}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """Update the velocity and move by `lr` times it."""
        velocity = self.momentum * state["velocity"] + _towards(weights, aggregated)
        return _moved(weights, self.lr * velocity), {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class _Adaptive(ABC):
    """Algorithm 2 of Reddi et al. (Adaptive Federated Optimization, ICLR 2021): what its three variants share.

    m = beta1 * m + (1 - beta1) * D; v by variant; weights + lr * m / (sqrt(v) + tau), with D the pseudo-gradient, m = 0
    and v = tau^2 before round 1. As in the paper's pseudo-code, and unlike the Adam of most libraries, moments are not
    bias-corrected: with a large beta1 the steps of the first rounds are short on purpose.
    """

    lr: Rate = 0.1
    beta1: Decay = 0.9
    tau: Rate = 1e-3

    def start(self, parameters: int) -> State:
        """m = 0 and v = tau^2, the least the paper allows."""
        return {"first": np.zeros(parameters), "second": np.full(parameters, self.tau**2)}

    def step(self, weights: FloatArray, aggregated: FloatArray, state: Kept) -> tuple[FloatArray, State]:
        """Scale the step of every coordinate by its past squared pseudo-gradients."""
        gradient = _towards(weights, aggregated)
        first = self.beta1 * state["first"] + (1 - self.beta1) * gradient
        second = self._second(state["second"], gradient**2)
        return _moved(weights, self.lr * first / (np.sqrt(second) + self.tau)), {"first": first, "second": second}

    @abstractmethod
    def _second(self, second: Doubles, square: Doubles) -> Doubles:
        """The new v, from the old one and D^2."""


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


_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "plain": PlainAverage,
    "momentum": Momentum,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
}


def find_server_optimizer(spec: str | Mapping[str, Any]) -> ServerOptimizer:
    """The server optimizer a plan names, with its options set.

    Args:
        spec: `train.hub`: a name, "name:option" or a mapping with a name and options.

    Returns:
        The optimizer.

    Raises:
        ConfigError: The name or an option is unknown, or an option's value is out of range.
    """
    name, options = named(spec)
    if name not in _OPTIMIZERS:
        raise ConfigError(f"unknown server optimizer {name!r} in train.hub", hint=nearest(name, _OPTIMIZERS))
    return bind(_OPTIMIZERS[name], options, f"server optimizer {name!r}")()


def _towards(weights: FloatArray, aggregated: FloatArray) -> Doubles:
    return np.subtract(aggregated, weights, dtype=np.float64)


def _moved(weights: FloatArray, by: Doubles) -> FloatArray:
    moved: FloatArray = (weights + by).astype(weights.dtype)
    return moved
