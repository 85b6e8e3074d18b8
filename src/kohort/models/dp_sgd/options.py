"""Inputs and results of private training: bounds, noise, sampling and steps of every site."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.options import Fitted, FloatArray, OptimiserState, Training
from kohort.models.rows import StackedRows

__all__ = ["LEAST_CLIP", "MOST_CLIP", "AdaptiveClip", "Histories", "PrivateFit", "PrivateSteps", "PrivateTrainable"]

Histories = tuple[NDArray[np.float64], ...]
LEAST_CLIP, MOST_CLIP = 1e-9, 1e9
"""An adaptive clip stays between these, so that noise on a tiny batch cannot make it zero or infinite."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptiveClip:
    """Move the clip towards a quantile of the gradient norms (Andrew et al., NeurIPS 2021).

    After every step, clip = clip * exp(-rate * (share - quantile)), where share is the noisy share of the batch's rows
    whose norm was at most the clip. A row changes the count behind it by 1/2, and its noise has standard deviation
    `sigma_b`: a second Gaussian mechanism of noise multiplier 2 * sigma_b on the same sample, to be charged. `start`
    gives each site the clip it ended a call with; without it all start at `PrivateSteps.clip`.
    """

    quantile: float = 0.5
    rate: float = 0.2
    sigma_b: float
    start: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        require("quantile", self.quantile, 0 <= self.quantile <= 1, "Use a number from 0 to 1")
        require("rate", self.rate, 0 < self.rate < math.inf, "Use more than 0; 0.2 is usual")
        require(
            "sigma_b", self.sigma_b, 0 < self.sigma_b < math.inf, "Use more than 0; a twentieth of a batch is usual"
        )
        if self.start is not None and not (np.isfinite(self.start).all() and (np.asarray(self.start) > 0).all()):
            raise ConfigError("a site would start with a clip of 0 or less", hint="Pass on the clips of the last call")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateSteps:
    """The private side of training: bound, noise, sampling and steps of every site, and the keys to draw them with.

    `clip` bounds the L2 norm of one row's gradient, all layers, weights and biases together. `sigma` [sites]: noise on
    the sum of clipped gradients has standard deviation sigma * clip; 0 adds none and guarantees nothing. `rate`
    [sites]: the chance of each row to be in a batch; exactly 1.0 takes every row and samples nothing. `steps` [sites]:
    steps of this call. `keys`: 32 bytes per site, never used for two requests. `average`: answer with the mean of the
    weights after the last share of the steps. `declared` [sites]: how many rows the divisor counts, where how many
    take part must not be seen; by default those that are given.
    """

    clip: float
    sigma: NDArray[np.float64]
    rate: NDArray[np.float64]
    steps: NDArray[np.int64]
    keys: tuple[bytes, ...] = field(repr=False)
    adaptive: AdaptiveClip | None = None
    average: float = 0.0
    declared: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        require("clip", self.clip, 0 < self.clip < math.inf, "Use a bound above 0")
        require("average", self.average, 0 <= self.average <= 1, "Use a share of the steps from 0 to 1")
        sites = len(self.keys)
        for name in ("sigma", "rate", "steps", *(() if self.declared is None else ("declared",))):
            if np.shape(getattr(self, name)) != (sites,):
                raise ConfigError(f"{name} has another length than the {sites} keys", hint="Give one number per site")
        if not (np.isfinite(self.sigma).all() and (self.sigma >= 0).all()):
            raise ConfigError("sigma below 0 or not finite", hint="Use the noise multiplier the accountant gave")
        if not ((self.rate > 0) & (self.rate <= 1)).all():
            raise ConfigError("a sampling rate outside 0 to 1", hint="Use batch / rows, at most 1; 1 takes every row")
        if (self.steps < 0).any() or not np.issubdtype(np.asarray(self.steps).dtype, np.integer):
            raise ConfigError("steps are no whole numbers, 0 or more", hint="Use whole numbers of steps")
        if any(len(key) != 32 for key in self.keys) or len(set(self.keys)) != sites:
            raise ConfigError(
                "two sites share a noise key, or a key has not 32 bytes",
                hint="Equal noise cancels out and protects nobody: draw 32 new bytes for every site and request",
            )
        if self.adaptive is not None and self.adaptive.start is not None and len(self.adaptive.start) != sites:
            raise ConfigError(f"{len(self.adaptive.start)} clips for {sites} sites", hint="Give one clip per site")

    def divisors(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of each site that its expected batch is a share of; a site with none takes no step."""
        return counts if self.declared is None else self.declared

    def histories(self, taken: NDArray[np.int64]) -> tuple[Histories, Histories]:
        """Room for the clips and noisy shares of so many steps per site; every clip is the first one until it moves."""
        given = None if self.adaptive is None else self.adaptive.start
        first = np.full(len(taken), float(self.clip)) if given is None else np.asarray(given, dtype=np.float64)
        clips = np.split(np.repeat(first, taken + 1), np.cumsum(taken + 1)[:-1])
        none = np.full(taken.sum() if self.adaptive is not None else 0, np.nan)
        return tuple(clips), tuple(np.split(none, np.cumsum(taken)[:-1]))

    @cached_property
    def moving(self) -> tuple[float, float, float]:
        """Quantile, rate and noise of the adaptive clip; all 0 when it does not move."""
        found = self.adaptive
        return (0.0, 0.0, 0.0) if found is None else (float(found.quantile), float(found.rate), float(found.sigma_b))


@dataclass(frozen=True, eq=False)
class PrivateFit(Fitted):
    """`Fitted`, and for every site the clip of each step with the next one behind, and the noisy shares they follow.

    `shares` are empty without adaptive clipping; with it, each entry is one release for the accountant to charge.
    """

    clips: Histories
    shares: Histories

    @property
    def next_clip(self) -> NDArray[np.float64]:
        """The clip every site ended with: `AdaptiveClip.start` of the next call."""
        return np.array([clips[-1] for clips in self.clips])


@runtime_checkable
class PrivateTrainable(Protocol):
    """What brings private training of its own, as torch modules do; dense networks have the compiled kernel."""

    def fit_private(
        self,
        weights: FloatArray,
        rows: StackedRows,
        *,
        training: Training,
        private: PrivateSteps,
        state: OptimiserState | None = None,
        keep_state: bool = False,
    ) -> PrivateFit:
        """`kohort.models.dp_sgd.fit.fit_private` for this model."""
        ...


def require(name: str, value: float, holds: bool, hint: str) -> None:
    """Refuse a number that is out of range.

    Raises:
        ConfigError: when it does not hold.
    """
    if not holds:
        raise ConfigError(f"{name} = {value} is out of range", hint=hint)
