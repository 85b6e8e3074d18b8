"""What a dense network is: its shape, and its weights as one flat vector.

Guarantees: the weights of a network are one flat vector (for every layer the matrix [inputs, outputs] row by row, then
the bias), so that averaging, masking and encrypting models is arithmetic on vectors. Everything here is plain NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from kohort.errors import ConfigError, nearest
from kohort.models.options import DType, FloatArray, Loss
from kohort.models.scoring import sigmoid

__all__ = ["Activation", "DenseShape", "Init"]

Activation = Literal["relu", "tanh", "sigmoid", "cos"]
"""cos: of random Fourier layers (`kohort.methods.oneshot.random_features`), which are drawn and not trained."""
Init = Literal["he", "glorot", "pytorch"]


@dataclass(frozen=True, kw_only=True)
class DenseShape:
    """A dense network: `inputs`, any number of `hidden` layers, `outputs`, and the loss it is trained with.

    | loss | outputs | target | what one row costs |
    |---|---|---|---|
    | softmax | one per class, 2 or more | class code 0, 1, ... | cross-entropy |
    | logistic | 1 | 0 or 1 | cross-entropy of the sigmoid |
    | hinge | 1, or one per class | 0 or 1, or class code | max(0, 1 - t z), t = -1 or +1; one against the rest |
    | perceptron | 1, or one per class | 0 or 1, or class code | max(0, -t z), as above |
    | squared | 1 | any number | (z - y)^2, so the mean is the mean squared error |
    """

    inputs: int
    hidden: tuple[int, ...] = ()
    outputs: int
    activation: Activation = "relu"
    loss: Loss = "softmax"
    dtype: DType = "float32"
    init: Init = "he"
    """How wide the starting weights that feed a ReLU are drawn: see `start`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name, value, allowed in (
            ("activation", self.activation, get_args(Activation)),
            ("loss", self.loss, get_args(Loss)),
            ("dtype", self.dtype, get_args(DType)),
            ("init", self.init, get_args(Init)),
        ):
            if value not in allowed:
                raise ConfigError(f"unknown {name} {value!r}", hint=nearest(str(value), allowed))
        if any(not isinstance(size, (int, np.integer)) or size < 1 for size in self.sizes):
            raise ConfigError(
                f"a network with layers of {list(self.sizes)} units cannot be built",
                hint="Give every layer a whole number of units, 1 or more",
            )
        if self.loss == "softmax" and self.outputs < 2:
            raise ConfigError(
                "softmax loss with one output says the same for every row",
                hint="Use one output per class, or loss 'logistic' for two classes",
            )
        if self.loss in ("logistic", "squared") and self.outputs != 1:
            raise ConfigError(
                f"{self.loss} loss takes 1 output, not {self.outputs}",
                hint="Set outputs to 1, or use loss 'softmax' for classes",
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Units of every layer, the input first."""
        return (self.inputs, *self.hidden, self.outputs)

    @cached_property
    def parameter_count(self) -> int:
        """Length of the flat weight vector."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in self._fans())

    @property
    def classes(self) -> int:
        """How many classes the network tells apart; 0 when it predicts a number."""
        if self.loss == "squared":
            return 0
        return max(2, self.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing to warn of."""
        return ()

    def start(self, generator: np.random.Generator) -> FloatArray:
        """Starting weights, uniform within a bound; zero biases. The same for a linear model (no hidden layer).

        Glorot's bound sqrt(6 / (inputs + outputs)), except that what feeds a ReLU has He's bound sqrt(6 / inputs)
        unless `init` is "glorot", as TensorFlow's dense layers have it. With `init` "pytorch" weights and biases of
        every layer are within 1 / sqrt(inputs), as PyTorch's linear layers have it.
        The numbers are drawn in float64 and rounded, so both dtypes start at the same point.
        """
        flat = np.zeros(self.parameter_count, dtype=self.dtype)
        last = len(self.sizes) - 2
        for depth, (matrix, bias) in enumerate(self.layers(flat)):
            fan_in, fan_out = matrix.shape
            if self.init == "pytorch":
                bound = np.sqrt(1.0 / fan_in)
            elif self.init == "he" and depth < last and self.activation == "relu":
                bound = np.sqrt(6.0 / fan_in)
            else:
                bound = np.sqrt(6.0 / (fan_in + fan_out))
            matrix[...] = generator.uniform(-bound, bound, size=matrix.shape)
            if self.init == "pytorch":
                bias[...] = generator.uniform(-bound, bound, size=bias.shape)
        return flat

    def layers(self, flat: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Views (matrix [inputs, outputs], bias [outputs]) of every layer; writing to them writes to `flat`."""
        if flat.shape != (self.parameter_count,):
            raise ConfigError(
                f"weights of shape {flat.shape} do not fit a network of {self.parameter_count} parameters",
                hint="Use the weights of a network with the same layers",
            )
        views = []
        position = 0
        for fan_in, fan_out in self._fans():
            matrix_end = position + fan_in * fan_out
            bias_end = matrix_end + fan_out
            views.append((flat[position:matrix_end].reshape(fan_in, fan_out), flat[matrix_end:bias_end]))
            position = bias_end
        return views

    def flatten(self, layers: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
        """The flat vector of `layers`: what `layers` takes apart."""
        flat = np.empty(self.parameter_count, dtype=self.dtype)
        views = self.layers(flat)
        if [(matrix.shape, bias.shape) for matrix, bias in layers] != [(m.shape, b.shape) for m, b in views]:
            raise ConfigError(
                f"{len(layers)} layers do not fit a network of layers {list(self.sizes)}",
                hint="Give a matrix [inputs, outputs] and a bias [outputs] a layer",
            )
        for (matrix, bias), (given_matrix, given_bias) in zip(views, layers, strict=True):
            matrix[...] = given_matrix
            bias[...] = given_bias
        return flat

    def forward(self, weights: FloatArray, x: FloatArray) -> FloatArray:
        """The raw outputs [rows, outputs] of one chunk of rows."""
        layers = self.layers(np.asarray(weights, dtype=self.dtype))
        values = x.astype(self.dtype, copy=False)
        for depth, (matrix, bias) in enumerate(layers):
            values = values @ matrix
            values += bias
            if depth < len(layers) - 1:
                if self.activation == "relu":
                    np.maximum(values, 0, out=values)
                elif self.activation == "tanh":
                    np.tanh(values, out=values)
                elif self.activation == "cos":
                    np.cos(values, out=values)
                else:
                    values = sigmoid(values)
        return values

    def tensors(self, weights: FloatArray) -> dict[str, FloatArray]:
        """Matrix and bias of every layer by name, copied."""
        named: dict[str, FloatArray] = {}
        for index, (matrix, bias) in enumerate(self.layers(weights)):
            named |= {f"layer{index}.matrix": matrix.copy(), f"layer{index}.bias": bias.copy()}
        return named

    def to_mapping(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    def _fans(self) -> Iterator[tuple[int, int]]:
        return zip(self.sizes[:-1], self.sizes[1:], strict=True)
