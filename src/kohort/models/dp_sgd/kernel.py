"""The compiled kernel of private training: clipped row gradients summed, noise added, and the optimiser's step.

Guarantees: a row adds at most `clip` (L2 norm over all layers, weights and biases together) to a sum, whatever its
values, because its deltas are scaled before any gradient is formed. No gradient of a single row is ever in memory: its
squared norm is the sum over layers of |delta|^2 (|activation below|^2 + 1). Norms, sums over chunks, noise and division
by the expected batch are in float64, and only then rounded to the network's number type.

A row whose gradient is not finite cannot be scaled to a bound; it is counted in `broken`, and the caller must throw the
result away. Chunks, layout and layers are those of `kohort.models.dense.kernel`; noise comes from `dp_sgd.draws`.
"""

# Written for Numba: functions take what they need by position and get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from typing import Final

import numpy as np

from kohort.models.dense.compiled import exp, fused
from kohort.models.dense.kernel import (
    LANE_STEP,
    MAX_LANES,
    add_gradient,
    backward,
    forward,
    gather,
    optimiser_step,
    output_deltas,
    scale,
)
from kohort.models.dp_sgd.draws import fill_normals
from kohort.models.dp_sgd.options import LEAST_CLIP, MOST_CLIP

__all__ = ["ROUNDING", "sum_clipped", "train_private"]

ROUNDING: Final = 1.0 - 2.0**-19
"""Deltas and factors are rounded to the network's number type. Clipping to this share of the bound makes up for it."""

_ZERO = np.int64(0)


@fused
def _add_squares(values, first, units, totals, lanes):
    """totals += the squares of `units` rows of values from row `first` on, lane by lane, four rows at a time."""
    unit = first
    last = first + units
    while unit + 4 <= last:
        for lane in range(lanes):
            a, b, c, d = values[unit, lane], values[unit + 1, lane], values[unit + 2, lane], values[unit + 3, lane]
            totals[lane] += a * a + b * b + c * c + d * d
        unit += 4
    while unit < last:
        for lane in range(lanes):
            totals[lane] += values[unit, lane] * values[unit, lane]
        unit += 1


@fused
def _squared_norms(sizes, acts, deltas, squares, lanes):
    """squares[0] = the squared norm of each lane's gradient, in float64; squares[1] and squares[2] are scratch."""
    norms, below_squares, delta_squares = squares[0], squares[1], squares[2]
    below = above = _ZERO
    for lane in range(lanes):
        norms[lane] = 0.0
    for layer in range(sizes.shape[0] - 1):
        fan_in = sizes[layer]
        fan_out = sizes[layer + 1]
        for lane in range(lanes):
            below_squares[lane] = 1.0
            delta_squares[lane] = 0.0
        _add_squares(acts, below, fan_in, below_squares, lanes)
        _add_squares(deltas, above, fan_out, delta_squares, lanes)
        for lane in range(lanes):
            norms[lane] += below_squares[lane] * delta_squares[lane]
        below += fan_in
        above += fan_out


@fused
def _clip_factors(norms, factors, clip, lanes):
    """From squared norms, what brings each lane's gradient to at most `clip`; how many of them are not finite."""
    number = factors.dtype.type
    bound = clip * ROUNDING
    broken = 0
    for lane in range(lanes):
        norm = math.sqrt(norms[lane])
        factors[lane] = number(bound / (norm if norm > bound else bound))
        broken += 0 if norms[lane] < np.inf else 1
    return broken


@fused
def _add_clipped(
    x, y, row_weight, start, order, begin, end, sizes, activation, loss, own, clip,
    acts, deltas, lane_numbers, squares, gradient, total,
):  # fmt: skip
    """total += the clipped gradients of rows order[begin:end]; (rows at or below the clip, rows not finite)."""
    number = own.dtype.type
    outputs = sizes[sizes.shape[0] - 1]
    scores = acts[acts.shape[0] - 1 - outputs : acts.shape[0] - 1]
    units = deltas.shape[0] - 1
    score_deltas = deltas[units - outputs : units]
    targets, row_weights, scales = lane_numbers[0], lane_numbers[1], lane_numbers[2]
    peaks, totals, norms = lane_numbers[3], lane_numbers[4], squares[0]
    width = acts.shape[1]
    limit = clip * clip
    inside = broken = 0
    for chunk in range(begin, end, width):
        used = min(width, end - chunk)
        lanes = -(-used // LANE_STEP) * LANE_STEP
        gather(x, y, row_weight, start, order, chunk, used, lanes, number(1), acts, targets, row_weights, scales)
        forward(sizes, own, acts, lanes, activation)
        output_deltas(scores, targets, score_deltas, peaks, totals, lanes, loss)
        # A row's weight belongs to its loss, so it counts before clipping; empty lanes get weight 0.
        scale(score_deltas, scales, lanes)
        backward(sizes, own, acts, deltas, lanes, activation)
        _squared_norms(sizes, acts, deltas, squares, lanes)
        broken += _clip_factors(norms, scales, clip, lanes)
        for lane in range(used):
            inside += 1 if norms[lane] <= limit else 0
        scale(deltas[:units], scales, lanes)
        for p in range(gradient.shape[0]):
            gradient[p] = 0
        add_gradient(sizes, acts, deltas, gradient, lanes)
        for p in range(gradient.shape[0]):
            total[p] += gradient[p]
    return inside, broken


@fused
def _scratch(sizes, parameters, largest, own):
    """Activations, deltas, numbers and norms a lane, and a gradient, wide enough for batches of `largest` rows."""
    units = np.int64(0)
    for size in sizes:
        units += size
    width = max(LANE_STEP, min(MAX_LANES, -(-largest // LANE_STEP) * LANE_STEP))
    # One spare row each, see `kernel._combine`.
    acts = np.zeros((units + 1, width), own.dtype)
    deltas = np.zeros((units - sizes[0] + 1, width), own.dtype)
    lane_numbers = np.zeros((5, width), own.dtype)
    return acts, deltas, lane_numbers, np.zeros((3, width), np.float64), np.zeros(parameters, own.dtype)


@fused
def sum_clipped(x, y, row_weight, start, count, sizes, activation, loss, own, clip, total):
    """Add the clipped gradients of all rows of one site to `total`.

    Args:
        x: Encoded rows of all sites, [rows, inputs].
        y: Their targets, [rows].
        row_weight: Their weights, [rows]; of length 0 for all ones. A weight counts before clipping.
        start: The site's first row.
        count: How many rows it has.
        sizes: The sizes of the layers, from inputs to outputs.
        activation: A number of `ACTIVATIONS`.
        loss: A number of `LOSSES`.
        own: The weights at which gradients are taken, [parameters].
        clip: The largest L2 norm of one row's gradient.
        total: What they are added to, float64 [parameters].

    Returns:
        How many gradients were not finite; if any, `total` may not be used.
    """
    acts, deltas, lane_numbers, squares, gradient = _scratch(sizes, own.shape[0], count, own)
    order = np.arange(count)
    _, broken = _add_clipped(
        x, y, row_weight, start, order, _ZERO, count, sizes, activation, loss, own, clip,
        acts, deltas, lane_numbers, squares, gradient, total,
    )  # fmt: skip
    return broken


@fused
def train_private(  # noqa: C901
    x, y, row_weight, start, order, begins, ends, words, sizes, activation, loss,
    optimizer, lr, momentum, beta1, beta2, epsilon, l2, prox,
    own, home, first, second, done, sigma, expected, quantile, clip_rate, count_sigma,
    tail_from, tail_sum, clips, shares,
):  # fmt: skip
    """One site takes as many steps as there are batches, in place: `own`, `first`, `second`, `clips`, `shares`.

    Args:
        x: Encoded rows of all sites, [rows, inputs].
        y: Their targets, [rows].
        row_weight: Their weights, [rows]; of length 0 for all ones. A weight counts before clipping.
        start: The site's first row.
        order: The rows of all batches, one batch after the other, counted from `start`.
        begins: Where each batch begins in `order`, [steps].
        ends: One past its end, [steps].
        words: Random words, [steps, words]: a normal per parameter, and one for the share of rows at or below the clip.
        sizes: The sizes of the layers, from inputs to outputs.
        activation: A number of `ACTIVATIONS`.
        loss: A number of `LOSSES`.
        optimizer: A number of `OPTIMIZERS`.
        lr: The learning rate.
        momentum: Read by the optimiser "momentum" alone.
        beta1: Read by adam alone, like the next two: the decay of the first moments.
        beta2: The decay of the second moments.
        epsilon: Added to the root of the second moments.
        l2: Weight decay; 0 for none.
        prox: The strength of the pull towards `home`; 0 for none.
        own: The weights, [parameters].
        home: Where `prox` pulls to, [parameters].
        first: The optimiser's first moments, [parameters].
        second: Its second moments, [parameters].
        done: How many steps the optimiser took before.
        sigma: The noise multiplier: noise on a sum has standard deviation sigma * clip.
        expected: The expected rows of a batch, which sums are divided by.
        quantile: The share of rows that an adaptive clip aims at.
        clip_rate: How fast the clip adapts; 0 for a clip that stays.
        count_sigma: Standard deviation of the noise on the count of rows at or below the clip.
        tail_from: The step from which on weights are added up.
        tail_sum: What they are added to, float64 [parameters]; of length 0 where `tail_from` is not reached.
        clips: The clip of each step, [steps + 1]. Where it adapts, step i writes clips[i + 1].
        shares: The noisy share of rows at or below the clip, [steps]; written where the clip adapts.

    Returns:
        How many row gradients were not finite; if any, nothing of the result may be used.
    """
    number = own.dtype.type
    parameters = own.shape[0]
    largest = np.int64(0)
    for step in range(begins.shape[0]):
        largest = max(largest, ends[step] - begins[step])
    acts, deltas, lane_numbers, squares, gradient = _scratch(sizes, parameters, largest, own)
    total = np.empty(parameters, np.float64)
    normals = np.empty(words.shape[1], np.float64)
    decay, pull = number(l2), number(prox)
    share = 1.0 / expected
    for step in range(begins.shape[0]):
        clip = clips[step]
        total[:] = 0
        inside, broken = _add_clipped(
            x, y, row_weight, start, order, begins[step], ends[step], sizes, activation, loss, own, clip,
            acts, deltas, lane_numbers, squares, gradient, total,
        )  # fmt: skip
        if broken:
            return broken
        fill_normals(words[step], normals)
        spread = sigma * clip
        for p in range(parameters):
            gradient[p] = number((total[p] + spread * normals[p]) * share)
        if clip_rate > 0.0:
            # Counted as +1/2 or -1/2, a row moves the sum by 1/2 at most.
            above_half = inside - 0.5 * (ends[step] - begins[step])
            shares[step] = 0.5 + (above_half + count_sigma * normals[parameters]) * share
            clips[step + 1] = min(MOST_CLIP, max(LEAST_CLIP, clip * exp(-clip_rate * (shares[step] - quantile))))
        # Penalties know nothing of the rows but the weights, so they come after the noise.
        if decay != 0:
            for p in range(parameters):
                gradient[p] += decay * own[p]
        if pull != 0:
            for p in range(parameters):
                gradient[p] += pull * (own[p] - home[p])
        optimiser_step(own, gradient, first, second, done + step, optimizer, lr, momentum, beta1, beta2, epsilon)
        if step >= tail_from:
            for p in range(parameters):
                tail_sum[p] += own[p]
    return 0
