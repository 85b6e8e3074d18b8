"""What is fitted in closed form: the activations, the one-layer network, and how far one row can move its sums.

`kohort.models.closed_form.statistics` says what the sums are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.models.options import FloatArray

__all__ = ["WANTED", "Activation", "Floats", "OneLayer", "apply", "clip_rows", "inverse", "sensitivity", "slope"]

Activation = Literal["logistic", "linear", "softplus"]
Floats: TypeAlias = NDArray[np.float64]

# What a neuron should say of a row that is not, or is, of its class: f^-1 of 0 and of 1 would be infinite.
WANTED: dict[str, tuple[float, float]] = {"logistic": (0.05, 0.95), "linear": (0.0, 1.0), "softplus": (0.05, 0.95)}


@dataclass(frozen=True, kw_only=True)
class OneLayer:
    """What is fitted: `inputs` columns, `classes` (0: a number within [0, 1]) and the activation of the neurons."""

    inputs: int
    classes: int = 0
    activation: Activation = "logistic"

    def __post_init__(self) -> None:
        if self.activation not in get_args(Activation):
            raise ConfigError(
                f"unknown activation {self.activation!r}", hint=nearest(self.activation, get_args(Activation))
            )
        if self.inputs < 1 or self.classes < 0 or self.classes == 1:
            raise ConfigError(
                f"a one-layer network of {self.inputs} inputs and {self.classes} classes cannot be fitted",
                hint="It needs an input, and two classes or more, or 0 classes for a number",
            )

    @property
    def width(self) -> int:
        """Columns of [1, x]."""
        return self.inputs + 1

    @property
    def outputs(self) -> int:
        """Neurons of the network that is made of the weights: 1 for a number or two classes, else one per class."""
        return self.classes if self.classes > 2 else 1

    @cached_property
    def wanted(self) -> tuple[float, float]:
        """dbar of a row outside and of a row inside a class; for a number, dbar of the ends of its range."""
        low, high = inverse(self.activation, np.array(WANTED[self.activation]))
        return float(low), float(high)

    @cached_property
    def slopes(self) -> tuple[float, float]:
        """f'(dbar) at the two wanted values."""
        low, high = slope(self.activation, np.array(self.wanted))
        return float(low), float(high)

    @cached_property
    def shares_gram(self) -> bool:
        """Whether one Gram matrix serves all classes, because every row weighs the same."""
        return self.classes == 0 or bool(np.isclose(*self.slopes, rtol=1e-12))

    @property
    def grams(self) -> int:
        """How many Gram matrices are added up."""
        return 1 if self.shares_gram else self.classes

    @property
    def moment_columns(self) -> int:
        """Columns of the moments."""
        return self.outputs if self.shares_gram else 0

    @property
    def length(self) -> int:
        """Numbers of the packed statistics."""
        triangle = self.width * (self.width + 1) // 2
        return self.grams * triangle + self.width * self.moment_columns + (2 if self.classes == 0 else 0)

    def bound(self, rows: int) -> float:
        """The largest number, up to its sign, in the statistics of `rows` rows of inputs within [-1, 1]."""
        if self.classes:
            return float(rows)
        # f' is at most 1 for every activation, so a row adds at most max(1, |dbar|^2) anywhere.
        return rows * max(1.0, *(value**2 for value in self.wanted))


def inverse(activation: Activation, values: Floats) -> Floats:
    """f^-1: what must enter a neuron for it to give `values`.

    Args:
        activation: f.
        values: Outputs within the range of f: between 0 and 1 for logistic, above 0 for softplus. At the ends the
            result is infinite.

    Returns:
        The inputs of f, of the same shape.
    """
    if activation == "logistic":
        return np.log(values) - np.log1p(-values)
    return np.log(np.expm1(values)) if activation == "softplus" else values


def apply(activation: Activation, entering: Floats) -> Floats:
    """f: what a neuron gives.

    Args:
        activation: f.
        entering: What enters the neurons, of any shape. Large numbers do not overflow.

    Returns:
        The outputs, of the same shape.
    """
    if activation == "logistic":
        return np.exp(-np.logaddexp(0.0, -entering))
    return np.logaddexp(0.0, entering) if activation == "softplus" else entering


def slope(activation: Activation, entering: Floats) -> Floats:
    """f', the derivative of the activation.

    Args:
        activation: f.
        entering: What enters the neurons, of any shape.

    Returns:
        The derivative at each number, of the same shape.
    """
    if activation == "linear":
        return np.ones_like(entering)
    said = apply("logistic", entering)
    return said * (1.0 - said) if activation == "logistic" else said


def clip_rows(x: FloatArray, radius: float) -> Floats:
    """Rows shortened so that |[1, x]| <= `radius`; shorter rows stay as they are.

    Args:
        x: The rows, [rows, inputs].
        radius: The largest norm of a row with its bias; above 1.

    Returns:
        The rows in float64, [rows, inputs].

    Raises:
        ConfigError: The radius is 1 or less, which leaves no room beside the bias.
    """
    if radius <= 1:
        raise ConfigError(f"a radius of {radius:g} leaves no room beside the bias", hint="Use a radius above 1")
    numbers = np.asarray(x, dtype=np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
    allowed = np.sqrt(radius**2 - 1.0)
    shortened: Floats = numbers * np.minimum(1.0, allowed / np.maximum(norms, allowed))[:, None]
    return shortened


def sensitivity(design: OneLayer, radius: float) -> float:
    """How far one row, added or removed, moves the packed statistics at most (L2), if |[1, x]| <= `radius`.

    A row adds z z' and z t'. The triangle of z z' is no longer than |z|^2 and z t' is |z| |t| long, so it moves them by
    at most R sqrt(R^2 + |t|^2), |t| = 1 for indicators; replacing a row moves them at most twice as far.

    Args:
        design: What is fitted.
        radius: R, the bound that `clip_rows` holds the rows to.

    Returns:
        The bound, for targets that are class codes or numbers within [0, 1].
    """
    if design.classes:
        return radius * float(np.sqrt(radius**2 + (1.0 if design.shares_gram else 0.0)))
    # Over a short stretch of targets that does not cross the middle, f'(dbar) and |dbar| are largest at an end.
    low, high = WANTED[design.activation]
    dbar = inverse(design.activation, np.linspace(low, high, 1001))
    heavy, far = slope(design.activation, dbar) ** 2, np.abs(dbar)
    weight, largest = np.maximum(heavy[1:], heavy[:-1]), np.maximum(far[1:], far[:-1])
    return float(np.sqrt(weight**2 * (radius**4 + radius**2 * largest**2 + largest**4) + 1.0).max())
