"""A random layer that every site draws from one public seed: a nonlinear model in the same single round.

The layer is not trained, so the closed form stays exact: sites add up statistics of its outputs instead of its inputs.
Units are drawn one after the other, so the first units of a large layer are a small layer, and cross-validation can
choose the size from the statistics of the largest (`closed_form_solve.choose(sizes=...)`).

| kind | unit | drawn |
|---|---|---|
| tanh | tanh(u x + b) | u normal with deviation `scale` / sqrt(columns it reads), b uniform in [-scale, scale] |
| fourier | cos(u x + b) | u as above, b uniform in [0, 2 pi]: the Gaussian kernel of width sqrt(columns) / scale |

Outputs are within [-1, 1], whatever the inputs are, so that the same fixed-point range holds. Inputs may be within
[-1, 1] (`closed_form_solve.signed`). z-scores work better where public bounds are wide, since units are then nonlinear
where the rows are: `centre` and `spread` are means and deviations that are already public (`Scaling.centre`,
`Scaling.spread`). Such a layer and the weights on top of it are a `Network` with one hidden layer.

Guarantee: the same seed, kind, inputs and scale give the same units on every machine, for every size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.models.closed_form.design import Floats, OneLayer
from kohort.models.dense.network import DType, FloatArray, Loss, Network

__all__ = ["Kind", "RandomFeatures", "network_of_features", "patches"]

Kind = Literal["tanh", "fourier"]


@dataclass(frozen=True, kw_only=True)
class RandomFeatures:
    """`size` random units over `inputs` columns, or over the listed `columns` only.

    Raises:
        ConfigError: The kind is unknown, or a size, the scale or a column is out of range.
    """

    kind: Kind
    size: int
    seed: bytes = field(repr=False)
    inputs: int
    scale: float = 2.0
    columns: tuple[int, ...] | None = None
    centre: tuple[float, ...] | None = None
    spread: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"unknown random layer {self.kind!r}", hint=nearest(self.kind, get_args(Kind)))
        if self.size < 1 or self.inputs < 1 or not self.scale > 0:
            raise ConfigError(
                f"{self.size} units over {self.inputs} inputs at scale {self.scale:g} cannot be drawn",
                hint="Sizes are whole numbers above 0 and the scale is positive",
            )
        listed = self.columns
        if listed is not None and (not listed or not set(listed) <= set(range(self.inputs))):
            raise ConfigError("a random layer reads columns that are not there", hint=f"Columns: 0..{self.inputs - 1}")
        if any(given is not None and len(given) != self.inputs for given in (self.centre, self.spread)):
            raise ConfigError(f"centre and spread need {self.inputs} numbers each", hint="Give one per column, or none")

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """Weights [inputs, size] and offsets [size] for unscaled inputs; a column of spread 0 has weight 0."""
        read = np.arange(self.inputs) if self.columns is None else np.array(self.columns)
        digest = hashlib.blake2b(self.seed, digest_size=32, person=b"kohort-features").digest()
        generators = [
            np.random.Generator(np.random.Philox(key=int.from_bytes(half, "little")))
            for half in (digest[:16], digest[16:])
        ]
        weights = np.zeros((self.inputs, self.size))
        weights[read] = generators[0].standard_normal((self.size, len(read))).T * self.scale / np.sqrt(len(read))
        shares = generators[1].random(self.size)
        offsets = (2 * shares - 1) * self.scale if self.kind == "tanh" else 2 * np.pi * shares
        if self.spread is not None:
            varies = np.array(self.spread) > 0
            weights *= np.where(varies, 1.0 / np.where(varies, self.spread, 1.0), 0.0)[:, None]
        if self.centre is not None:
            offsets -= np.array(self.centre) @ weights
        return weights, offsets

    def transform(self, x: FloatArray) -> Floats:
        """The outputs [rows, size] of the units, within [-1, 1]."""
        weights, offsets = self.drawn
        entering = np.asarray(x, dtype=np.float64) @ weights
        entering += offsets
        return np.tanh(entering, out=entering) if self.kind == "tanh" else np.cos(entering, out=entering)


def patches(
    *,
    count: int,
    columns: int,
    kind: Kind,
    size: int,
    seed: bytes,
    inputs: int,
    scale: float = 2.0,
    centre: tuple[float, ...] | None = None,
    spread: tuple[float, ...] | None = None,
) -> tuple[RandomFeatures, ...]:
    """An ensemble of `count` random layers, each over its own random choice of `columns` of the inputs.

    Each is solved by itself, so the statistics are `count` small Gram matrices rather than a large one. The mean of
    their scores is one network (`network_of_features`).

    Args:
        count: Number of layers.
        columns: Number of inputs that each layer reads.
        kind: tanh or fourier.
        size: Units per layer.
        seed: The public seed.
        inputs: Number of inputs.
        scale: As in `RandomFeatures`.
        centre: Public means of the inputs, if known.
        spread: Public deviations of the inputs, if known.

    Returns:
        The layers, the same for the same seed; layer i does not depend on `count`.

    Raises:
        ConfigError: There are fewer inputs than `columns`.
    """
    if not 1 <= columns <= inputs or count < 1:
        raise ConfigError(f"patches of {columns} out of {inputs} columns cannot be drawn", hint="Use fewer columns")
    members = []
    for index in range(count):
        own = hashlib.blake2b(seed + index.to_bytes(4, "little"), digest_size=32, person=b"kohort-patches").digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(own[:16], "little")))
        chosen = tuple(int(column) for column in np.sort(generator.permutation(inputs)[:columns]))
        layer = RandomFeatures(kind=kind, size=size, seed=own, inputs=inputs, scale=scale, columns=chosen)
        members.append(replace(layer, centre=centre, spread=spread))
    return tuple(members)


def network_of_features(
    design: OneLayer,
    members: Sequence[RandomFeatures],
    coefficients: Sequence[Floats],
    *,
    signed: bool | NDArray[np.bool_] = True,
    dtype: DType = "float64",
) -> tuple[Network, FloatArray]:
    """The network, and its flat weights, of one random layer, or of several of a kind whose scores are averaged.

    Args:
        design: The one-layer model on top.
        members: The random layers.
        coefficients: `coefficients[i]` [size + 1, outputs] were solved on the outputs of `members[i]`.
        signed: Which inputs of [0, 1] the layers read as 2 x - 1; the network takes encoded rows as they are.
        dtype: The type of the weights.

    Returns:
        A network with one hidden layer of all units, and its weights, [parameters].

    Raises:
        ConfigError: The layers are of different kinds, or the activation does not fit a numeric target.
    """
    if len({member.kind for member in members}) != 1:
        raise ConfigError("random layers of different kinds are no network", hint="Draw all of one kind")
    if design.classes == 0 and design.activation != "linear":
        raise ConfigError("a number over a random layer needs the linear activation", hint='Use activation "linear"')
    hidden = np.hstack([member.drawn[0] for member in members])
    offsets = np.concatenate([member.drawn[1] for member in members])
    mapped = np.broadcast_to(np.asarray(signed, dtype=bool), (hidden.shape[0],))
    offsets = offsets - hidden[mapped].sum(axis=0)
    hidden = hidden * np.where(mapped, 2.0, 1.0)[:, None]
    top = np.vstack([own[1:] for own in coefficients]) / len(members)
    bias = np.mean([own[0] for own in coefficients], axis=0)
    loss: Loss = "squared" if design.classes == 0 else ("logistic" if design.classes == 2 else "softmax")
    network = Network(
        inputs=hidden.shape[0],
        hidden=(hidden.shape[1],),
        outputs=design.outputs,
        activation="tanh" if members[0].kind == "tanh" else "cos",
        loss=loss,
        dtype=dtype,
    )
    return network, network.flatten([(hidden, offsets), (top, bias)])
