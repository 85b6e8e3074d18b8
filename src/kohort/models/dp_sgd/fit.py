"""Private training: clipped row gradients and Gaussian noise (DP-SGD; Abadi et al., CCS 2016), many sites a call.

Guarantees: with a key nobody else has, one step at a site is one Gaussian mechanism of noise multiplier `sigma` on a
sum to which a row adds at most `clip` in L2 norm, over a Poisson sample of `rate` (or over every row at rate 1), for
neighbours that differ in one row more or less. Batches are never cut or filled up; an empty one adds its noise and
takes its step. The divisor is the expected batch, rate times rows, so the number of a site's rows counts as public.
Optimiser, penalties, momentum and tail averages come after the noise and cost nothing. No loss is reported, because
none was paid for. What a site learns depends on its own rows, key and weights alone: one by one equals many at once,
bit for bit.

A row whose gradient is not finite is an error, and nothing is returned: a number that is not finite has no norm to
bound. Encode features to finite numbers first. Which epsilon all this is worth is for the accountant to say; what
floating-point noise does not protect from is said in `private_draws`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError
from kohort.models.dense.network import FloatArray, Network
from kohort.models.dense.training import Fitted, OptimiserState, Training, as_matrix, check_rows, moments_for
from kohort.models.rows import StackedRows

if TYPE_CHECKING:
    from kohort.models.trainable import Trainable

__all__ = ["AdaptiveClip", "PrivateFit", "PrivateSteps", "clip_update", "clipped_sums", "fit_private", "gaussian"]

Histories = tuple[NDArray[np.float64], ...]
LEAST_CLIP, MOST_CLIP = 1e-9, 1e9
"""An adaptive clip stays between these, so that noise on a tiny batch cannot make it zero or infinite."""
_NORMALS_AT_ONCE = 1 << 16


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
        _require("quantile", self.quantile, 0 <= self.quantile <= 1, "Use a number from 0 to 1")
        _require("rate", self.rate, 0 < self.rate < math.inf, "Use more than 0; 0.2 is usual")
        _require(
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
    steps of this call. `keys`: 32 bytes a site, never used for two requests. `tail`: answer with the mean of the
    weights after the last share of the steps.
    """

    clip: float
    sigma: NDArray[np.float64]
    rate: NDArray[np.float64]
    steps: NDArray[np.int64]
    keys: tuple[bytes, ...] = field(repr=False)
    adaptive: AdaptiveClip | None = None
    tail: float = 0.0

    def __post_init__(self) -> None:
        _require("clip", self.clip, 0 < self.clip < math.inf, "Use a bound above 0")
        _require("tail", self.tail, 0 <= self.tail <= 1, "Use a share of the steps from 0 to 1")
        sites = len(self.keys)
        for name in ("sigma", "rate", "steps"):
            if np.shape(getattr(self, name)) != (sites,):
                raise ConfigError(f"{name} has another length than the {sites} keys", hint="Give one number a site")
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
            raise ConfigError(f"{len(self.adaptive.start)} clips for {sites} sites", hint="Give one clip a site")

    def histories(self, taken: NDArray[np.int64]) -> tuple[Histories, Histories]:
        """Room for the clips and noisy shares of so many steps a site; every clip is the first one until it moves."""
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


def fit_private(
    network: Trainable,
    weights: FloatArray,
    rows: StackedRows,
    *,
    training: Training,
    private: PrivateSteps,
    state: OptimiserState | None = None,
    keep_state: bool = False,
) -> PrivateFit:
    """Train every site of `rows` privately from `weights`, [parameters] for all alike or [sites, parameters].

    `training` gives optimiser, rates and penalties (`prox` pulls to the starting weights); its batch and epochs have no
    meaning here. A site without rows takes no step. A torch module trains on row gradients of Opacus, a network of
    kohort's own in the compiled kernel.
    """
    check_rows(network, rows)
    if len(private.keys) != rows.sites:
        raise ConfigError(f"{len(private.keys)} noise keys for {rows.sites} sites", hint="Give one key a site")
    if not isinstance(network, Network):
        from kohort.models.torch.module import TorchModel
        from kohort.models.torch.private import fit_private_module

        if not isinstance(network, TorchModel):
            raise ConfigError("this model has no private training", hint="Use a dense network or a torch module")
        return fit_private_module(
            network, weights, rows, training=training, private=private, state=state, keep_state=keep_state
        )
    from kohort.models.dp_sgd.sites import train_sites

    sites = rows.sites
    start = as_matrix("weights", weights, network, sites)
    trained = np.array(np.broadcast_to(start, (sites, network.parameter_count)), order="C")
    moments = moments_for(training, network, state, sites, keep_state)
    taken = np.where(rows.counts > 0, private.steps, 0).astype(np.int64)
    clips, shares = private.histories(taken)
    train_sites(network, rows, training, private, start, trained, moments, clips, shares)
    moments.steps[:] += taken
    remembers = training.optimizer != "sgd" and len(moments.first) == sites
    return PrivateFit(trained, None, taken, moments if remembers else None, clips, shares)


def clipped_sums(network: Network, weights: FloatArray, rows: StackedRows, *, clip: float) -> NDArray[np.float64]:
    """The sum of the clipped row gradients of each site over all its rows, [sites, parameters]: no noise, no division.

    For a secure sum, in which every site adds a share of the noise. On its own it protects nobody.
    """
    _require("clip", clip, 0 < clip < math.inf, "Use a bound above 0")
    check_rows(network, rows)
    from kohort.models.dp_sgd.sites import sum_sites

    return sum_sites(network, rows, as_matrix("weights", weights, network, rows.sites), float(clip))


def clip_update(update: FloatArray, clip: float) -> FloatArray:
    """A site's whole update, or one a row of [sites, parameters], scaled to an L2 norm of at most `clip`.

    The bound of client-level privacy, where the unit is everything a site holds. An update within the bound comes back
    as it is.
    """
    _require("clip", clip, 0 < clip < math.inf, "Use a bound above 0")
    # In float64 and against the largest entry, squares neither overflow nor vanish.
    peak = np.abs(update).max(axis=-1, keepdims=True, initial=0.0).astype(np.float64)
    if not np.isfinite(peak).all():
        raise SiteError("an update is not finite, so no bound holds for it", hint="Train with a smaller train.lr")
    norm = peak * np.sqrt(np.square(update / np.where(peak > 0, peak, 1.0)).sum(axis=-1, keepdims=True))
    shrunk = np.where(norm > clip, clip * (1.0 - 2.0**-20) / np.maximum(norm, clip), 1.0)
    return np.asarray(update * shrunk, dtype=update.dtype)


def gaussian(key: bytes, count: int, *, label: bytes = b"") -> NDArray[np.float64]:
    """`count` standard normals that only this 32-byte key and this label give, from a ChaCha20 stream."""
    from kohort.models.dp_sgd.draws import KeyStream, fill_normals, normal_words

    stream = KeyStream(key, b"gaussian" + label)
    normals = np.empty(normal_words(count))
    words = np.empty(min(normals.size, _NORMALS_AT_ONCE), dtype=np.uint64)
    for begin in range(0, normals.size, _NORMALS_AT_ONCE):
        part = normals[begin : begin + _NORMALS_AT_ONCE]
        stream.fill(words[: part.size])
        fill_normals(words[: part.size], part)
    return normals[:count]


def _require(name: str, value: float, holds: bool, hint: str) -> None:
    if not holds:
        raise ConfigError(f"{name} = {value} is out of range", hint=hint)
