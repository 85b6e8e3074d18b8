"""The sections `[model]` and `[train]` of a plan: which model, how sites train it, how the hub aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from kohort.errors import ConfigError, nearest
from kohort.models.dense.network import Init, Loss, Network
from kohort.models.dense.training import Training
from kohort.models.torch.build import require_torch, torch_model
from kohort.models.torch.factories import is_torch
from kohort.models.trainable import Trainable
from kohort.protocol.plan.corrections import find_correction
from kohort.tables.encoder import Encoder

__all__ = ["LEARNED_KINDS", "ModelSection", "Stop", "TrainSection"]

Choice = str | Mapping[str, str | float | int | bool]
"""A name with options: "trimmed:0.2", "fedadam:lr=0.01,tau=0.001", or {name = "fedadam", lr = 0.01}."""
LEARNED_KINDS = ("additive", "trees")
"""Kinds of models that are learned from totals; the others are networks."""
MODEL_KINDS = ("linear", "logistic", "svm", "perceptron", "mlp", "onelayer", *LEARNED_KINDS)


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """`[model]`: which network to train."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    kind: str = "mlp"
    """linear | logistic | svm | perceptron | mlp | onelayer | additive | trees | torch:package.module:factory"""
    hidden: tuple[Annotated[int, Ge(1)], ...] = (12,)
    """Units of each hidden layer of an mlp."""
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"
    dtype: Literal["float32", "float64"] = "float32"
    init: Init = "he"
    """Starting weights: he for ReLU layers, glorot as TensorFlow and scikit-learn have them, or pytorch."""
    loss: Loss | None = None
    """What a torch module is trained with: softmax for classes and squared for numbers unless it says otherwise."""

    def reads(self) -> frozenset[str]:
        """Which keys of `[model]` this kind of model reads, as dotted names.

        Returns:
            All keys for a kind that is unknown: `check` says what is wrong with it.
        """
        own = {"init"}  # also without hidden layers: "pytorch" draws smaller weights
        if is_torch(self.kind):
            own = {"loss"}
        elif self.kind == "mlp":
            own = {"init", "hidden", "activation"} if self.hidden else {"init", "hidden"}
        elif self.kind not in MODEL_KINDS:
            own = {"init", "hidden", "activation", "loss"}
        return frozenset(f"model.{key}" for key in own | {"kind", "dtype"})

    def check(self) -> None:
        """Refuse what cannot be trained here whatever the table is: an unknown kind, a module that is not installed."""
        if is_torch(self.kind):
            require_torch(self.kind)
            if self.init != "he":
                raise ConfigError("a torch module draws its own starting weights", hint="Drop model.init")
            return
        if self.kind not in MODEL_KINDS:
            raise ConfigError(f"unknown model {self.kind!r}", hint=nearest(self.kind, MODEL_KINDS))
        if self.loss is not None:
            raise ConfigError(f"model {self.kind!r} has its own loss", hint="Drop model.loss, it is for torch modules")

    def network(self, encoder: Encoder) -> Trainable:
        """The network this section describes for the columns and the target of `encoder`."""
        self.check()
        classes = len(encoder.classes or ())
        if is_torch(self.kind):
            loss, outputs = self._torch_loss(classes)
            return torch_model(self.kind, inputs=encoder.width, outputs=outputs, loss=loss, dtype=self.dtype)
        loss, outputs = self._loss(classes)
        return Network(
            inputs=encoder.width,
            hidden=self.hidden if self.kind == "mlp" else (),
            outputs=outputs,
            activation=self.activation,
            loss=loss,
            dtype=self.dtype,
            init=self.init,
        )

    def _torch_loss(self, classes: int) -> tuple[Loss, int]:
        loss: Loss = self.loss or ("softmax" if classes else "squared")
        if (loss == "squared") == bool(classes) or (loss == "logistic" and classes != 2):
            target = f"of {classes} classes" if classes else "that is a number"
            raise ConfigError(
                f"loss {loss!r} does not fit a target {target}",
                hint="Use softmax for classes, logistic for two of them, squared for numbers",
            )
        single = loss in {"squared", "logistic"} or (loss in {"hinge", "perceptron"} and classes == 2)
        return loss, 1 if single else classes

    def _loss(self, classes: int) -> tuple[Any, int]:
        if not classes:
            if self.kind not in {"linear", "mlp", "onelayer", "additive", "trees"}:
                raise ConfigError(
                    f"model {self.kind!r} tells classes apart, but the target is a number",
                    hint="Use linear or mlp, or declare the target's categories",
                )
            return "squared", 1
        if self.kind in {"svm", "perceptron"}:
            return ("hinge" if self.kind == "svm" else "perceptron"), (1 if classes == 2 else classes)
        if self.kind in {"logistic", "linear", "onelayer"} and classes == 2:
            return "logistic", 1
        return "softmax", classes


@dataclass(frozen=True, kw_only=True)
class Stop:
    """`train.stop`: end early when `metric` has not improved by `min_delta` for `patience` rounds."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    metric: Literal["loss"] = "loss"
    """The mean training loss over the rows of the sites that answered."""
    patience: Annotated[int, Ge(1)] = 10
    min_delta: Annotated[float, Ge(0)] = 1e-4


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """`[train]`: how the sites train and how the hub puts their answers together."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    rounds: Annotated[int, Ge(1)] = 100
    local_epochs: Annotated[int, Ge(1)] = 1
    batch: Annotated[int, Ge(0)] = 64
    """Rows per step; 0 is the whole site."""
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    lr: Annotated[float, Gt(0)] = 0.001
    momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    l2: Annotated[float, Ge(0)] = 0.0
    class_weights: Mapping[str, Annotated[float, Gt(0)]] | Literal["balanced"] | None = None
    """How much a row of each class counts in the loss, 1 where unsaid. Public numbers, such as 1 / its known share.
    "balanced" lets a simulation take them from its rows; sites on other machines need the numbers, which a pre-flight
    tells (`kohort harmonise PLAN.toml --hub HUB`)."""
    state: Literal["restart", "keep"] = "restart"
    """Whether a site's optimiser starts afresh every round."""
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the sites asked each round."""
    select: Literal["random", "poisson", "reliable"] = "random"
    """How a share is chosen: so many at random, each site by its own coin, or those that answered most so far."""
    stop: Stop | None = None
    aggregate: Choice = "mean"
    """mean | median | trimmed:SHARE | krum | multi-krum | clip"""
    hub: Choice = "plain"
    """plain | momentum | fedadam | fedyogi | fedadagrad, with options as in "fedadam:lr=0.01" """
    correction: Choice = "none"
    """none | fedprox:MU | scaffold"""
    average: Annotated[float, Ge(0), Le(1)] = 0.0
    """Share of the rounds, the last ones, whose models' mean is the result; 0: the last model alone."""
    reject: Annotated[float, Gt(0)] | None = None
    """Leave out updates whose error on the hub's validation rows is so many deviations above the median."""

    @property
    def known_class_weights(self) -> Mapping[str, float] | None:
        """The weights as numbers.

        Raises:
            ConfigError: They are to be balanced, and nobody has counted the classes.
        """
        if isinstance(self.class_weights, str):
            raise ConfigError(
                'train.class_weights = "balanced" needs the counts of classes, which only a simulation has',
                hint="Write numbers, such as train.class_weights = {ill = 2.1, well = 0.7}; real sites count their "
                "classes with data.preflight and kohort harmonise PLAN.toml --hub HUB",
            )
        return self.class_weights

    def training(self) -> Training:
        """The kernel's view of this section."""
        return Training(
            epochs=self.local_epochs,
            batch=self.batch,
            optimizer=self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            l2=self.l2,
            prox=find_correction(self.correction).prox,
        )
