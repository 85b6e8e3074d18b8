"""Inputs and results of training, and the number types all models share: the lowest module of the package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NotRequired, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest

__all__ = ["DType", "FitOptions", "Fitted", "FloatArray", "Loss", "OptimiserState", "Optimizer", "Training"]

FloatArray = NDArray[np.floating[Any]]
DType = Literal["float32", "float64"]
Loss = Literal["softmax", "logistic", "hinge", "perceptron", "squared"]
Optimizer = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a site trains: passes over its rows, rows a mini-batch (0: all of them), optimiser, penalties.

    Optimisers follow torch.optim: `momentum` is SGD with momentum and no dampening, `l2` is weight decay added to the
    gradient of weights and biases alike. `prox` adds prox * (weights - anchor), the pull of FedProx. The gradient of a
    mini-batch is sum_i(weight_i * gradient_i) / rows of that mini-batch; the last one of a pass may be smaller.
    """

    epochs: int = 1
    batch: int = 64
    optimizer: Optimizer = "adam"
    lr: float = 0.001
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l2: float = 0.0
    prox: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            known = get_args(Optimizer)
            raise ConfigError(f"unknown optimizer {self.optimizer!r}", hint=nearest(str(self.optimizer), known))
        for name, low, high, closed in (
            ("epochs", 1, np.inf, True),
            ("batch", 0, np.inf, True),
            ("lr", 0, np.inf, False),
            ("momentum", 0, 1, True),
            ("beta1", 0, 1, True),
            ("beta2", 0, 1, True),
            ("epsilon", 0, np.inf, True),
            ("l2", 0, np.inf, True),
            ("prox", 0, np.inf, True),
        ):
            value = getattr(self, name)
            if not (low <= value < high) or (not closed and value == low):
                least = f"{low} or more" if closed else f"more than {low}"
                raise ConfigError(f"{name} = {value} is out of range", hint=f"Use {least} and less than {high}")
        for name in ("epochs", "batch"):
            if int(getattr(self, name)) != getattr(self, name):
                raise ConfigError(f"{name} = {getattr(self, name)} is no whole number", hint="Use a whole number")

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """lr, momentum, beta1, beta2, epsilon, l2 and prox: the order in which kernels take them."""
        names = ("lr", "momentum", "beta1", "beta2", "epsilon", "l2", "prox")
        return tuple(float(getattr(self, name)) for name in names)


@dataclass(frozen=True, eq=False)
class OptimiserState:
    """What an optimiser remembers of each site: first and second moments [sites, parameters] and steps taken.

    Pass the state of one call to the next to keep it over rounds; pass None to restart. Kept, two calls of one epoch
    each take the very steps of one longer run with the same mini-batches. Momentum uses `first` only; its `second`
    has no rows.
    """

    first: FloatArray
    second: FloatArray
    steps: NDArray[np.int64]

    def take(self, indices: Any) -> OptimiserState:
        """The states of the sites at `indices`, in that order."""
        second = self.second[indices] if self.second.shape[0] else self.second
        return OptimiserState(self.first[indices], second, self.steps[indices])


@dataclass(frozen=True, eq=False)
class Fitted:
    """What training gave: weights [sites, parameters], mean losses (when asked), steps taken, optimiser state.

    A loss is the mean over all rows seen during the call, measured as they were trained on and without penalties; NaN
    for a site without rows, whose weights stay as they were. `state` is None for plain SGD, which remembers nothing.
    """

    weights: FloatArray
    losses: NDArray[np.float64] | None
    steps: NDArray[np.int64]
    state: OptimiserState | None


class FitOptions(TypedDict):
    """The keywords of `kohort.models.dense.training.fit_many`, which says what each of them means."""

    training: Training
    keys: NDArray[np.uint64]
    round: int
    state: NotRequired[OptimiserState | None]
    anchor: NotRequired[FloatArray | None]
    shift: NotRequired[FloatArray | None]
    measure_loss: NotRequired[bool]
    keep_state: NotRequired[bool]
    threads: NotRequired[int]
