"""Private training: clipped row gradients and Gaussian noise (DP-SGD; Abadi et al., CCS 2016), many sites per call.

Guarantees: with a key nobody else has, one step at a site is one Gaussian mechanism of noise multiplier `sigma` on a
sum to which a row adds at most `clip` in L2 norm, over a Poisson sample of `rate` (or over every row at rate 1), for
neighbours that differ in one row more or less. Batches are never cut or filled up; an empty one adds its noise and
takes its step. The divisor is the expected batch, rate times rows, so the number of a site's rows counts as public;
where only some of them take part, that is how many it declared.
Optimiser, penalties, momentum and tail averages come after the noise and cost nothing. No loss is reported, because
none was paid for. What a site learns depends on its own rows, key and weights alone: one by one equals many at once,
bit for bit.

A row whose gradient is not finite is an error, and nothing is returned: a number that is not finite has no norm to
bound. Encode features to finite numbers first. Which epsilon all this is worth is for the accountant to say; what
floating-point noise does not protect from is said in `dp_sgd.draws`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError
from kohort.models.dense.shape import DenseShape
from kohort.models.dense.training import as_matrix, check_rows, moments_for
from kohort.models.dp_sgd.draws import KeyStream, fill_normals, normal_words
from kohort.models.dp_sgd.options import AdaptiveClip, PrivateFit, PrivateSteps, PrivateTrainable, require
from kohort.models.dp_sgd.sites import sum_sites, train_sites
from kohort.models.options import FloatArray, OptimiserState, Training
from kohort.models.rows import StackedRows
from kohort.models.trainable import Scorer

__all__ = ["AdaptiveClip", "PrivateFit", "PrivateSteps", "clip_update", "clipped_sums", "fit_private", "gaussian"]

_NORMALS_AT_ONCE = 1 << 16


def fit_private(
    network: Scorer,
    weights: FloatArray,
    rows: StackedRows,
    *,
    training: Training,
    private: PrivateSteps,
    state: OptimiserState | None = None,
    keep_state: bool = False,
) -> PrivateFit:
    """Train every site of `rows` privately: clipped row gradients, Gaussian noise on their sum.

    A torch module trains on row gradients of Opacus, a network of kohort's own in the compiled kernel.

    Args:
        network: What is trained.
        weights: Starting weights, [parameters] for all alike or [sites, parameters].
        rows: The rows of all sites. A site without rows takes no step, unless it declares some.
        training: Optimiser, rates and penalties; `prox` pulls to the starting weights. Batch and epochs have no meaning
            here.
        private: Clip, noise, sampling, steps and noise keys.
        state: What the optimiser remembers of the last call for the same sites; None to begin anew.
        keep_state: Whether the optimiser's state is wanted back, though none was given.

    Returns:
        The trained weights, [sites, parameters], the steps taken, the optimiser's state, and the clips of all steps.

    Raises:
        ConfigError: There is not one key per site, a shape or the number type does not fit, or the model has no private
            training.
        DataError: The rows have another width, or a target is no class code.
        SiteError: The gradient of a row is not finite, so no bound holds for it.
    """
    check_rows(network, rows)
    if len(private.keys) != rows.sites:
        raise ConfigError(f"{len(private.keys)} noise keys for {rows.sites} sites", hint="Give one key per site")
    if isinstance(network, PrivateTrainable):
        return network.fit_private(
            weights, rows, training=training, private=private, state=state, keep_state=keep_state
        )
    if not isinstance(network, DenseShape):
        raise ConfigError("this model has no private training", hint="Use a dense network or a torch module")
    sites = rows.sites
    start = as_matrix("weights", weights, network, sites)
    trained = np.array(np.broadcast_to(start, (sites, network.parameter_count)), order="C")
    moments = moments_for(training, network, state, sites, keep_state)
    taken = np.where(private.divisors(rows.counts) > 0, private.steps, 0).astype(np.int64)
    clips, shares = private.histories(taken)
    train_sites(network, rows, training, private, start, trained, moments, clips, shares)
    moments.steps[:] += taken
    remembers = training.optimizer != "sgd" and len(moments.first) == sites
    return PrivateFit(trained, None, taken, moments if remembers else None, clips, shares)


def clipped_sums(network: DenseShape, weights: FloatArray, rows: StackedRows, *, clip: float) -> NDArray[np.float64]:
    """The sum of the clipped row gradients of each site over all its rows: no noise, no division.

    For a secure sum, in which every site adds a share of the noise. On its own it protects nobody.

    Args:
        network: What is trained.
        weights: The weights at which gradients are taken, [parameters] for all alike or [sites, parameters].
        rows: The rows of all sites.
        clip: The largest L2 norm of one row's gradient, above 0.

    Returns:
        The sums, [sites, parameters]; a row moves that of its site by at most `clip`.

    Raises:
        ConfigError: The clip is not above 0 and finite, or a shape or the number type does not fit.
        DataError: The rows have another width, or a target is no class code.
        SiteError: The gradient of a row is not finite.
    """
    require("clip", clip, 0 < clip < math.inf, "Use a bound above 0")
    check_rows(network, rows)
    return sum_sites(network, rows, as_matrix("weights", weights, network, rows.sites), float(clip))


def clip_update(update: FloatArray, clip: float) -> FloatArray:
    """A site's whole update, scaled to an L2 norm of at most `clip`.

    The bound of client-level privacy, where the unit is everything a site holds. An update within the bound comes back
    as it is.

    Args:
        update: The update, [parameters], or one per row of [sites, parameters].
        clip: The largest norm, above 0.

    Returns:
        The scaled update, of the same shape and type.

    Raises:
        ConfigError: The clip is not above 0 and finite.
        SiteError: An update is not finite, so no bound holds for it.
    """
    require("clip", clip, 0 < clip < math.inf, "Use a bound above 0")
    # In float64 and against the largest entry, squares neither overflow nor vanish.
    peak = np.abs(update).max(axis=-1, keepdims=True, initial=0.0).astype(np.float64)
    if not np.isfinite(peak).all():
        raise SiteError("an update is not finite, so no bound holds for it", hint="Train with a smaller train.lr")
    norm = peak * np.sqrt(np.square(update / np.where(peak > 0, peak, 1.0)).sum(axis=-1, keepdims=True))
    shrunk = np.where(norm > clip, clip * (1.0 - 2.0**-20) / np.maximum(norm, clip), 1.0)
    return np.asarray(update * shrunk, dtype=update.dtype)


def gaussian(key: bytes, count: int, *, label: bytes = b"") -> NDArray[np.float64]:
    """Standard normals from a ChaCha20 stream, which only the key and the label give.

    Args:
        key: 32 bytes. Whoever lacks them cannot tell the numbers from true randomness.
        count: How many normals.
        label: What they are for; another label gives an independent stream.

    Returns:
        The normals, [count]; the same for the same key and label.
    """
    stream = KeyStream(key, b"gaussian" + label)
    normals = np.empty(normal_words(count))
    words = np.empty(min(normals.size, _NORMALS_AT_ONCE), dtype=np.uint64)
    for begin in range(0, normals.size, _NORMALS_AT_ONCE):
        part = normals[begin : begin + _NORMALS_AT_ONCE]
        stream.fill(words[: part.size])
        fill_normals(words[: part.size], part)
    return normals[:count]
