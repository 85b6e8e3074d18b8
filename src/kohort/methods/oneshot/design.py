"""`[method.oneshot]`, and how encoded rows become the inputs of the sums, the same at every site and at the hub.

Inputs are within [-1, 1], by public bounds, and rounded to a grid of 2^-precision. Products of two inputs are then
whole multiples of 4^-precision, so sums over rows are exact: they do not depend on how rows are distributed over sites,
on the order of addition, or on the secure-sum scheme. A site sends the sum in these units, as an integer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import FixedPoint
from kohort.errors import ConfigError, RefusedError
from kohort.methods.oneshot.random_features import Kind, RandomFeatures, network_of_features, patches
from kohort.models.closed_form.design import Activation, Floats, OneLayer, clip_rows, sensitivity
from kohort.models.dense.network import FloatArray, Network
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import DPSection, SecureSumSection
from kohort.tables.blocks import CategoryBlock, ItemsBlock
from kohort.tables.encoder import Encoder

__all__ = [
    "BITS",
    "CHECKED_BITS",
    "InputCells",
    "Layout",
    "OneShot",
    "OneShotSection",
    "is_indicator",
    "section_of",
    "unread_keys",
]

BITS = 62
"""Signed bits of a total. If the slots of a ciphertext are narrower, a number takes several slots."""
CHECKED_BITS = 60
"""Bits of a total that sites verify, modulo 2^61 - 1."""


def _key(name: str) -> str:
    return name.removesuffix("_")


@dataclass(frozen=True, kw_only=True)
class OneShotSection:
    """`[method.oneshot]`: what is fitted, and what a total must have before it is opened."""

    __pydantic_config__ = {"extra": "forbid", "alias_generator": _key}  # noqa: RUF012 - read by pydantic, not a field

    mode: Literal["default", "paper"] = "default"
    """paper: U S of every site in clear and encrypted moments, to compare with."""
    lambda_: Annotated[float, Ge(0), Lt(inf)] | Literal["folds"] = 1e-3
    """The penalty (`lambda` in a plan), or "folds": chosen, with the number of features, by what folds predict."""
    activation: Activation = "logistic"
    features: Annotated[int, Ge(0)] | Literal["bins"] = 0
    """Units of a random layer that all sites draw alike; 0 for none. "bins": one curve per column, in two rounds."""
    units: Kind = "tanh"
    """tanh, or fourier: cosines, which draw a Gaussian kernel of width sqrt(inputs) / scale."""
    scale: Annotated[float, Gt(0)] = 4.0
    """How steep those units are, for inputs in [-1, 1]."""
    seed: Annotated[int, Ge(0)] = 0
    """What those units are drawn from; public, and the same for all who join later."""
    patches: Annotated[int, Ge(1)] = 1
    """So many random layers, solved each by itself; their mean is the model."""
    columns: Annotated[int, Ge(0)] = 0
    """How many random columns each of them reads; 0 for all."""
    folds: Annotated[int, Ge(2)] = 5
    """Used when lambda is "folds"."""
    rounds: Annotated[int, Ge(1)] = 1
    """Above 1: Newton steps for cross-entropy follow, each one more sum."""
    precision: Annotated[int, Ge(8), Le(24)] = 16
    """Bits of an input's grid."""
    min_sites: Annotated[int, Ge(3)] = 3
    """Fewest sites of a batch; only whole batches are opened."""
    min_cell: Annotated[int, Ge(1)] = 10
    """Fewest persons of a class or category in an opened total."""
    min_rows: Annotated[int, Ge(1)] = 20
    """Fewest rows of a site whose numbers are not inside a secure sum; others sit out."""
    statistics_to: Literal["hub", "peers"] = "hub"
    """peers: with secure.sum = "none", sites send their sums to each other, sealed past the hub, and each solves."""
    degree: Literal[8192, 16384, 32768] = 32768
    """Size of the ciphertexts of mode "paper"; the paper's is 32768."""

    @property
    def deals(self) -> int:
        """Folds that travel apart."""
        return self.folds if self.lambda_ == "folds" else 1


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """What is fitted (`[method.oneshot]`), how sums are protected, and the budget, if any. `[train]` is not read."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    oneshot: OneShotSection = field(default_factory=OneShotSection)
    secure: SecureSumSection = field(default_factory=SecureSumSection)
    """Encrypted (bfv) unless it says otherwise."""
    dp: DPSection | None = None
    """Noise on the totals, in shares; `clip` bounds the norm of a row's inputs, which are within [-1, 1] each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("bfv"))
        if self.dp is not None and not self.dp.is_plain:
            raise ConfigError(
                "noise goes on the totals, in shares", hint="Drop dp.mechanism, dp.quantile and dp.sample"
            )


_DRAWN = ("units", "scale", "seed", "patches", "columns")
"""What random layers are drawn by."""
_NOT_OF_BINS = (
    "mode", "activation", *_DRAWN, "folds", "rounds", "precision", "min_rows", "statistics_to", "degree",
)  # fmt: skip
"""What a fit of bins has no use for."""


def unread_keys(config: OneShot) -> dict[str, str]:
    """Keys of `[method]` that are not read under this config, and why.

    Args:
        config: `[method]`.

    Returns:
        The reason for each, by its dotted name.
    """
    section = config.oneshot
    found = dict.fromkeys(("method.dp.average", "method.dp.lower_rate"), "one sum has no rounds and no rate")
    if section.features == "bins":
        return found | {f"method.oneshot.{name}": 'features are "bins"' for name in _NOT_OF_BINS}
    if not section.features:
        found |= {f"method.oneshot.{name}": "there are no random layers (features = 0)" for name in _DRAWN}
    if section.lambda_ != "folds":
        found["method.oneshot.folds"] = 'lambda is not "folds"'
    return found | _unread_of_sums(config)


def _unread_of_sums(config: OneShot) -> dict[str, str]:
    """Keys that the way statistics travel makes no use of, and why."""
    section = config.oneshot
    if section.mode == "paper":
        return dict.fromkeys(("method.oneshot.min_sites", "method.oneshot.min_cell"), 'mode is "paper"')
    found = {"method.oneshot.degree": 'mode is not "paper"'}
    if config.secure.sum != "none":
        found["method.oneshot.min_rows"] = "a secure sum hides each site's own numbers"
    if section.statistics_to == "peers":
        found["method.oneshot.min_sites"] = "peers exchange statistics as they are"
    return found


def section_of(approved: ApprovedPlan) -> OneShotSection:
    """The section of the approved plan.

    Args:
        approved: The approved plan.

    Returns:
        Its `[method.oneshot]`.

    Raises:
        RefusedError: The plan is one of another method.
    """
    config = approved.config
    if not isinstance(config, OneShot):
        raise RefusedError("the approved plan is not a one-shot fit")
    return config.oneshot


@dataclass(frozen=True, eq=False)
class InputCells:
    """Which encoded features are inputs, after the rare categories of each column were merged.

    `target[f]` is the input that feature f is added to, or -1 if it is not used.
    """

    target: NDArray[np.int64]
    inputs: int
    left_out: tuple[str, ...] = ()
    """Columns whose rare categories have too few persons even together; rows with such a category take no part."""

    @classmethod
    def whole(cls, width: int) -> InputCells:
        """Every feature is an input of its own."""
        return cls(np.arange(width), width)

    @classmethod
    def merged(cls, encoder: Encoder, frequent: NDArray[np.bool_], others: NDArray[np.bool_]) -> InputCells:
        """Merge the rare features of each column into one input.

        Args:
            encoder: The encoder that made the features.
            frequent: Which features enough persons share.
            others: Which columns have enough persons among their rare features.

        Raises:
            RefusedError: No feature is left.
        """
        target = np.full(encoder.width, -1, dtype=np.int64)
        left_out, start, used = [], 0, 0
        for number, block in enumerate(encoder.blocks):
            stop = start + len(block.features)
            own = np.flatnonzero(frequent[start:stop]) + start
            target[own] = used + np.arange(len(own))
            used += len(own)
            rare = np.flatnonzero(~frequent[start:stop]) + start
            if len(rare) and not isinstance(block, ItemsBlock):
                if others[number]:
                    target[rare] = used
                    used += 1
                else:
                    left_out.append(block.name)
            start = stop
        if not used:
            raise RefusedError("no category is frequent enough to learn from", hint="Lower method.oneshot.min_cell")
        return cls(target, used, tuple(left_out))

    def apply(self, x: FloatArray) -> FloatArray:
        """Encoded rows with one column per input."""
        if self.inputs == len(self.target) and (self.target == np.arange(self.inputs)).all():
            return x
        out = np.zeros((len(x), self.inputs), dtype=x.dtype)
        for feature, place in enumerate(self.target.tolist()):
            if place >= 0:
                out[:, place] += x[:, feature]
        return out

    def spread(self, matrix: Floats) -> Floats:
        """Turn weights [inputs, outputs] into weights [features, outputs] for encoded rows."""
        out = np.zeros((len(self.target), matrix.shape[1]))
        read = self.target >= 0
        out[read] = matrix[self.target[read]]
        return out


def is_indicator(encoder: Encoder) -> NDArray[np.bool_]:
    """Which features are indicators: 0 or 1 for a category, an item or a missing value.

    Args:
        encoder: The encoder that makes the features.

    Returns:
        One truth value per feature, [features].
    """
    found = []
    for block in encoder.blocks:
        alone = (isinstance(block, CategoryBlock) and block.encoding == "onehot") or isinstance(block, ItemsBlock)
        found += [alone or place > 0 for place in range(len(block.features))]  # a number's second is "missing"
    return np.asarray(found, dtype=bool)


@dataclass(frozen=True, eq=False)
class Layout:
    """How encoded rows become sums, and how solved coefficients become a network that takes encoded rows."""

    section: OneShotSection
    cells: InputCells
    numeric: NDArray[np.bool_]
    """Which inputs are mapped from [0, 1] to [-1, 1]; indicators stay 0 and 1."""
    design: OneLayer
    members: tuple[RandomFeatures, ...]
    clip: float | None = None
    """Largest norm of a row's inputs, under differential privacy."""
    _grid: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grid", 2.0**self.section.precision)

    @classmethod
    def of(cls, section: OneShotSection, encoder: Encoder, cells: InputCells, *, clip: float | None = None) -> Layout:
        """The layout for these columns; random layers are drawn from the public seed of the plan.

        Args:
            section: `[method.oneshot]`.
            encoder: The encoder that all sites share.
            cells: Which features are inputs.
            clip: Largest norm of a row's inputs, under differential privacy.
        """
        numeric = np.zeros(cells.inputs, dtype=bool)
        read = cells.target >= 0
        numeric[cells.target[read]] = ~is_indicator(encoder)[read]
        members: tuple[RandomFeatures, ...] = ()
        units = 0 if section.features == "bins" else section.features
        if units:
            members = _drawn(
                count=section.patches,
                columns=min(section.columns or cells.inputs, cells.inputs),
                kind=section.units,
                size=units,
                seed=section.seed.to_bytes(16, "little"),
                inputs=cells.inputs,
                scale=section.scale,
            )
        design = OneLayer(
            inputs=units or cells.inputs,
            classes=len(encoder.classes or ()),
            activation=section.activation,
        )
        return cls(section, cells, numeric, design, members, clip)

    @property
    def parts(self) -> int:
        """Number of ensemble members, each solved by itself."""
        return max(1, len(self.members))

    @property
    def length(self) -> int:
        """How many numbers are summed: members x folds x statistics."""
        return self.parts * self.section.deals * self.design.length

    def grid(self, sites: int) -> FixedPoint:
        """The fixed-point encoding of a sum over `sites` sites."""
        scale = self._grid**2
        return FixedPoint(bound=(2.0 ** (BITS - 1) - 1) / (scale * sites), scale=scale, sites=sites)

    def inputs(self, x: FloatArray) -> Floats:
        """Inputs within [-1, 1], before any random layer."""
        own = np.asarray(self.cells.apply(x), dtype=np.float64)
        return np.where(self.numeric, 2 * own - 1, own)

    def transform(self, x: FloatArray, part: int = 0) -> Floats:
        """The inputs of member `part` for encoded rows: clipped, and rounded to the grid."""
        own = self.inputs(x)
        if self.members:
            own = self.members[part].transform(own)
        if self.clip is not None:
            own = clip_rows(own, float(np.sqrt(1 + self.clip**2)))
        rounded: Floats = np.rint(own * self._grid) / self._grid
        return rounded

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the vector of sums to one clipped row, rounding included.

        Raises:
            ConfigError: Rows are not clipped.
        """
        if self.clip is None:
            raise ConfigError("rows that are not clipped can move a sum arbitrarily far")
        norm = self.clip + 0.5 * float(np.sqrt(self.design.inputs)) / self._grid
        return float(np.sqrt(self.parts)) * sensitivity(self.design, float(np.sqrt(1 + norm**2)))

    def network(self, coefficients: list[Floats], sizes: list[int], dtype: Literal["float32", "float64"]) -> _Fitted:
        """The network that takes encoded rows, and its flat weights.

        Args:
            coefficients: The solution of each ensemble member.
            sizes: The number of random features that each member uses.
            dtype: The type of the weights.
        """
        from kohort.models.closed_form.solve import network_of, unsigned

        design = self.design
        if not self.members:
            own = unsigned(coefficients[0], self.numeric)
            wide = OneLayer(inputs=len(self.cells.target), classes=design.classes, activation=design.activation)
            return network_of(wide, np.concatenate([own[:1], self.cells.spread(own[1:])]), dtype=dtype)
        members = [replace(member, size=size) for member, size in zip(self.members, sizes, strict=True)]
        made, flat = network_of_features(design, members, coefficients, signed=self.numeric)
        (hidden, offsets), top = made.layers(flat)
        network = Network(
            inputs=len(self.cells.target),
            hidden=made.hidden,
            outputs=made.outputs,
            activation=made.activation,
            loss=made.loss,
            dtype=dtype,
        )
        return network, network.flatten([(self.cells.spread(np.asarray(hidden, dtype=np.float64)), offsets), top])


_Fitted = tuple[Network, FloatArray]
_drawn = lru_cache(maxsize=4)(patches)
"""Cached: all simulated sites draw the same layers."""
