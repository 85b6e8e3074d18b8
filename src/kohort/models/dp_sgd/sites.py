"""Takes the private steps of sites with the compiled kernel: random words, batches and steps, part by part.

Guarantees: memory for words and batches stays within a few megabytes per call, however many steps there are; the parts
a site's steps are taken in follow from its own numbers and change no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError, SiteError
from kohort.models.dense.kernel import LOSSES, OPTIMIZERS, count_misfits
from kohort.models.dense.shape import DenseShape
from kohort.models.dense.training import shape_of
from kohort.models.dp_sgd.draws import KeyStream, RowSampler, normal_words
from kohort.models.dp_sgd.kernel import sum_clipped, train_private
from kohort.models.dp_sgd.options import Histories, PrivateSteps
from kohort.models.options import FloatArray, OptimiserState, Training
from kohort.models.rows import StackedRows, read_only

__all__ = ["sum_sites", "train_sites"]

_CHUNK_WORDS = 1 << 16
"""Random words made at once: half a megabyte, which stays in the cache until the kernel reads it."""
_CHUNK_ROWS = 1 << 18
_CHUNK_STEPS = 1 << 12


def train_sites(
    network: DenseShape,
    rows: StackedRows,
    training: Training,
    private: PrivateSteps,
    start: FloatArray,
    trained: FloatArray,
    moments: OptimiserState,
    clips: Histories,
    shares: Histories,
) -> None:
    """Take len(clips[site]) - 1 private steps at every site, in place.

    Args:
        network: What is trained.
        rows: The rows of all sites.
        training: Optimiser, rates and penalties.
        private: Noise, sampling and noise keys of every site.
        start: Where `prox` pulls to, [sites, parameters], or [1, parameters] for all alike.
        trained: The weights, [sites, parameters]: starting weights before, trained ones after.
        moments: What the optimiser remembers, without rows where nothing is kept. Its count of steps stays as it is.
        clips: Per site the clip of each step and the one that follows; written where clips adapt.
        shares: Per site the noisy share of rows within the clip at each step; written where clips adapt, else empty.

    Raises:
        DataError: A target is no class code.
        SiteError: The gradient of a row is not finite; nothing of the result may be used.
    """
    data, shape = _rows_of(network, rows), shape_of(network)
    options = (OPTIMIZERS[training.optimizer], *training.rates)
    starts, counts = rows.starts.tolist(), rows.counts.tolist()
    sigmas, rates = (np.asarray(numbers, dtype=np.float64).tolist() for numbers in (private.sigma, private.rate))
    divisors, done = private.divisors(rows.counts).tolist(), moments.steps.tolist()
    home = read_only(start)
    forgotten = np.empty((2, network.parameter_count), dtype=network.dtype)
    active = [site for site, history in enumerate(clips) if len(history) > 1]
    # Setting up the streams of all sites in one go is faster than between the steps of one site and the next.
    draws = [
        _Draws(private.keys[site], rate=rates[site], count=counts[site], normals=network.parameter_count + 1)
        for site in active
    ]
    for site, drawn in zip(active, draws, strict=True):
        # What is not kept after the call is still remembered within it.
        forgotten[:] = 0
        own, history = trained[site], clips[site]
        first = moments.first[site] if len(moments.first) else forgotten[0]
        second = moments.second[site] if len(moments.second) else forgotten[1]
        model = (*shape, *options, own, home[site if len(home) > 1 else 0], first, second)
        noise = (sigmas[site], rates[site] * divisors[site], *private.moving)
        steps = len(history) - 1
        average_from = steps - math.ceil(private.average * steps)
        tail_sum = np.zeros(len(own) if average_from < steps else 0)
        for begin, end, batches, words in drawn.parts(steps):
            seen = (average_from - begin, tail_sum, history[begin : end + 1], shares[site][begin:end])
            _refuse_broken(
                train_private(*data, starts[site], *batches, words, *model, done[site] + begin, *noise, *seen)
            )
        if average_from < steps:
            own[:] = tail_sum / (steps - average_from)


def sum_sites(network: DenseShape, rows: StackedRows, start: FloatArray, clip: float) -> NDArray[np.float64]:
    """The clipped gradients of all rows of every site, added up.

    Args:
        network: What is trained.
        rows: The rows of all sites.
        start: The weights at which gradients are taken, [sites, parameters], or [1, parameters] for all alike.
        clip: The largest L2 norm of one row's gradient.

    Returns:
        The sums, [sites, parameters], without noise.

    Raises:
        DataError: A target is no class code.
        SiteError: The gradient of a row is not finite.
    """
    data, shape = _rows_of(network, rows), shape_of(network)
    weights = start.copy()  # writable, as in `train_private`, or every kernel below would be compiled a second time
    sums = np.zeros((rows.sites, network.parameter_count))
    for site in range(rows.sites):
        own = weights[site if len(weights) > 1 else 0]
        _refuse_broken(sum_clipped(*data, rows.starts[site], rows.counts[site], *shape, own, clip, sums[site]))
    return sums


class _Draws:
    """The batches and the random words of one site's steps."""

    def __init__(self, key: bytes, *, rate: float, count: int, normals: int) -> None:
        self._sampler = RowSampler(key, rate=rate, count=count)
        self._noise = KeyStream(key, b"noise")
        self._words = normal_words(normals)
        self._at_once = max(
            1, min(_CHUNK_STEPS, _CHUNK_WORDS // self._words, int(_CHUNK_ROWS / max(1.0, rate * count)))
        )

    def parts(self, steps: int) -> Iterator[tuple[int, int, tuple[Any, ...], NDArray[np.uint64]]]:
        """(begin, end, batches, words [steps, words]) of some steps after the other; words are overwritten."""
        words = np.empty((min(steps, self._at_once), self._words), dtype=np.uint64)
        for begin in range(0, steps, self._at_once):
            end = min(begin + self._at_once, steps)
            part = words[: end - begin]
            self._noise.fill(part)
            yield begin, end, self._sampler.batches(end - begin), part


def _rows_of(network: DenseShape, rows: StackedRows) -> tuple[Any, ...]:
    """Features, targets and weights; refuses targets that are no class codes, which no score belongs to."""
    x, y, weight, *_ = rows.for_kernels
    for start, count in zip(rows.starts.tolist(), rows.counts.tolist(), strict=True):
        if count_misfits(y, start, count, LOSSES[network.loss], network.outputs):
            raise DataError("some targets are no class codes", hint=f"Encode them as 0 to {network.classes - 1}")
    return x, y, weight


def _refuse_broken(broken: int) -> None:
    if broken:
        raise SiteError(
            "the gradient of a row is not finite, so no bound holds for it and nothing was released",
            hint="Scale features to a few units around 0, or use a smaller train.lr",
        )
