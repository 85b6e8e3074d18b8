"""The one compiled kernel: trains dense networks of many sites on ragged rows in one call.

Guarantees: what a site learns depends on its own rows, key and starting weights alone, so training sites one by one,
many at once, or spread over threads gives the same bits. A number that is not finite never turns into a finite one:
no comparison here replaces a NaN, and the compiler may reorder sums but may not assume that NaN does not occur.

Layout: a chunk of at most `MAX_LANES` rows is held feature by feature, [unit, row], so that every inner loop runs over
adjacent rows whatever the width of a layer, and a mini-batch of any size needs the memory of one chunk. For each chunk:
forward keeps the activations of every layer; backward keeps the deltas (the loss differentiated by what enters a unit)
of every layer; `_scale` then weighs each row's deltas; only then are gradients formed. A row's gradient norm is
sum over layers of |delta|^2 (|activation below|^2 + 1), so clipping row by row belongs between `_backward` and `_scale`.

Compiled on the first call for each number type, and cached on disk.
"""

# The kernel is written for Numba: functions take what they need by position and get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912, PLR0915, PLR0917

from __future__ import annotations

import math
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ACTIVATIONS",
    "LOSSES",
    "OPTIMIZERS",
    "shuffled",
    "train_sites",
]

ACTIVATIONS: Final = {"relu": 0, "tanh": 1, "sigmoid": 2}
LOSSES: Final = {"softmax": 0, "logistic": 1, "hinge": 2, "perceptron": 3, "squared": 4}
OPTIMIZERS: Final = {"sgd": 0, "momentum": 1, "adam": 2}

_RELU, _TANH, _SIGMOID = 0, 1, 2
_SOFTMAX, _LOGISTIC, _HINGE, _PERCEPTRON, _SQUARED = 0, 1, 2, 3, 4
_SGD, _MOMENTUM, _ADAM = 0, 1, 2

# Rows of a chunk: enough to fill vector registers, few enough that the layers of a usual network stay in the cache.
MAX_LANES: Final = 128
# Lanes are filled up with empty rows to a multiple of this, so that no inner loop needs a scalar remainder.
LANE_STEP: Final = 8

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

# Sums may be reordered and fused; NaN and infinity keep their meaning (no "nnan", no "ninf").
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
_nearly_exact = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
_exact = numba.njit(cache=True, nogil=True, error_model="numpy")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@_exact
def _mixed(value):
    """The finaliser of splitmix64: a bijection of 64-bit numbers in which every input bit moves every output bit."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@_exact
def shuffled(order, count, key, round_number, epoch):
    """Fill `order[:count]` with the permutation that (key, round, epoch) names: Fisher-Yates over a counter hash."""
    stream = _mixed(key + _GOLDEN)
    stream = _mixed(stream ^ (np.uint64(round_number) + _GOLDEN))
    stream = _mixed(stream ^ (np.uint64(epoch) + _GOLDEN))
    for index in range(count):
        order[index] = index
    for last in range(count - 1, 0, -1):
        number = _mixed(stream + np.uint64(last) * _GOLDEN)
        bound = np.uint64(last + 1)
        # The high word of number * bound: below `bound`, and even to within bound / 2^64.
        low = ((number & _LOW_HALF) * bound) >> _S32
        other = np.int64(((number >> _S32) * bound + low) >> _S32)
        order[last], order[other] = order[other], order[last]


@_nearly_exact
def _exp(value):
    """e to the power `value`, in float64 and without a branch, so that loops over it become vector instructions.

    exp(value) = 2^n * exp(rest) with |rest| <= ln(2) / 2: a Taylor polynomial for the rest, and n added to the exponent
    bits. Good to 1e-15; clamped to [e^-708, e^709] instead of 0 and infinity; NaN stays NaN.
    """
    x = np.float64(value)
    x = -708.0 if x < -708.0 else x
    x = 709.0 if x > 709.0 else x
    # Adding 1.5 * 2^52 rounds to a whole number and leaves it in the low bits of the mantissa.
    rounded = x * 1.4426950408889634 + 6755399441055744.0
    n = rounded - 6755399441055744.0
    rest = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    power = 1.0 / 479001600.0
    power = power * rest + 1.0 / 39916800.0
    power = power * rest + 1.0 / 3628800.0
    power = power * rest + 1.0 / 362880.0
    power = power * rest + 1.0 / 40320.0
    power = power * rest + 1.0 / 5040.0
    power = power * rest + 1.0 / 720.0
    power = power * rest + 1.0 / 120.0
    power = power * rest + 1.0 / 24.0
    power = power * rest + 1.0 / 6.0
    power = power * rest + 0.5
    power = power * rest + 1.0
    power = power * rest + 1.0
    bits = np.float64(power).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    result = np.int64(bits).view(np.float64)
    return x if x != x else result  # noqa: PLR0124 - true for NaN only


@_compiled
def _combine(out, first_row, rows, factors, start, row_step, term_step, terms, bias, values, source, lanes):
    """out[r] = bias[r] + sum over t of factors[r, t] * values[t], lanes side by side; bias < 0: no bias.

    Two rows and four terms at a time. Where fewer are left, the missing row goes to the spare last row of `out`
    and the missing terms repeat the last one with factor 0, which saves a second version of the inner loop.
    """
    zero = out.dtype.type(0)
    for row in range(0, rows, 2):
        paired = row + 1 < rows
        target0 = first_row + row
        target1 = target0 + 1 if paired else out.shape[0] - 1
        at0 = start + row * row_step
        at1 = at0 + row_step if paired else at0
        bias0 = factors[bias + row] if bias >= 0 else zero
        bias1 = factors[bias + row + 1] if bias >= 0 and paired else zero
        for term in range(0, terms, 4):
            left = terms - 1 - term
            v0 = source + term
            v1 = v0 + min(1, left)
            v2 = v0 + min(2, left)
            v3 = v0 + min(3, left)
            f00 = factors[at0]
            f10 = factors[at1]
            f01 = factors[at0 + term_step] if left >= 1 else zero
            f11 = factors[at1 + term_step] if left >= 1 else zero
            f02 = factors[at0 + 2 * term_step] if left >= 2 else zero
            f12 = factors[at1 + 2 * term_step] if left >= 2 else zero
            f03 = factors[at0 + 3 * term_step] if left >= 3 else zero
            f13 = factors[at1 + 3 * term_step] if left >= 3 else zero
            if term == 0:
                for lane in range(lanes):
                    x0, x1, x2, x3 = values[v0, lane], values[v1, lane], values[v2, lane], values[v3, lane]
                    out[target0, lane] = bias0 + f00 * x0 + f01 * x1 + f02 * x2 + f03 * x3
                    out[target1, lane] = bias1 + f10 * x0 + f11 * x1 + f12 * x2 + f13 * x3
            else:
                for lane in range(lanes):
                    x0, x1, x2, x3 = values[v0, lane], values[v1, lane], values[v2, lane], values[v3, lane]
                    out[target0, lane] += f00 * x0 + f01 * x1 + f02 * x2 + f03 * x3
                    out[target1, lane] += f10 * x0 + f11 * x1 + f12 * x2 + f13 * x3
            at0 += 4 * term_step
            at1 += 4 * term_step


@_compiled
def _activate(layer, activation):
    """Apply the activation function to one layer, all lanes of it in one run."""
    number = layer.dtype.type
    zero = number(0)
    if activation == _RELU:
        for i in range(layer.shape[0]):
            # Asked this way round, a NaN stays.
            layer[i] = zero if layer[i] < zero else layer[i]
    elif activation == _TANH:
        for i in range(layer.shape[0]):
            small = _exp(-2.0 * abs(layer[i]))
            size = (1.0 - small) / (1.0 + small)
            layer[i] = number(-size if layer[i] < zero else size)
    else:
        for i in range(layer.shape[0]):
            layer[i] = number(1.0 / (1.0 + _exp(-layer[i])))


@_compiled
def _times_slope(deltas, acts, activation):
    """Multiply the deltas of one layer with the derivative of its activation function, told from its activations."""
    one = acts.dtype.type(1)
    zero = acts.dtype.type(0)
    if activation == _RELU:
        for i in range(acts.shape[0]):
            deltas[i] = deltas[i] * (one if acts[i] > zero else zero)
    elif activation == _TANH:
        for i in range(acts.shape[0]):
            deltas[i] = deltas[i] * (one - acts[i] * acts[i])
    else:
        for i in range(acts.shape[0]):
            deltas[i] = deltas[i] * (acts[i] * (one - acts[i]))


@_compiled
def _forward(sizes, weights, acts, lanes, activation):
    """Activations of every layer from those of the inputs; the last layer keeps its raw scores."""
    depth = sizes.shape[0] - 1
    below = 0
    position = 0
    for layer in range(depth):
        fan_in = sizes[layer]
        fan_out = sizes[layer + 1]
        bias = position + fan_in * fan_out
        _combine(acts, below + fan_in, fan_out, weights, position, 1, fan_out, fan_in, bias, acts, below, lanes)
        if layer < depth - 1:
            _activate(acts[below + fan_in : below + fan_in + fan_out].reshape(-1), activation)
        position = bias + fan_out
        below += fan_in


@_compiled
def _output_deltas(scores, targets, deltas, peaks, totals, lanes, loss):
    """The loss of each row differentiated by each score. `peaks` and `totals` are scratch, one number a lane."""
    number = scores.dtype.type
    one, zero = number(1), number(0)
    outputs = scores.shape[0]
    if loss == _SOFTMAX:
        for lane in range(lanes):
            peaks[lane] = scores[0, lane]
            totals[lane] = zero
        for unit in range(1, outputs):
            for lane in range(lanes):
                peaks[lane] = scores[unit, lane] if scores[unit, lane] > peaks[lane] else peaks[lane]
        for unit in range(outputs):
            for lane in range(lanes):
                deltas[unit, lane] = number(_exp(scores[unit, lane] - peaks[lane]))
                totals[lane] += deltas[unit, lane]
        for unit in range(outputs):
            code = number(unit)
            for lane in range(lanes):
                deltas[unit, lane] = deltas[unit, lane] / totals[lane] - (one if targets[lane] == code else zero)
    elif loss == _LOGISTIC:
        for lane in range(lanes):
            deltas[0, lane] = number(1.0 / (1.0 + _exp(-scores[0, lane]))) - targets[lane]
    elif loss == _SQUARED:
        for lane in range(lanes):
            error = scores[0, lane] - targets[lane]
            deltas[0, lane] = error + error
    else:
        margin = one if loss == _HINGE else zero
        for unit in range(outputs):
            code = one if outputs == 1 else number(unit)
            for lane in range(lanes):
                side = one if targets[lane] == code else -one
                deltas[unit, lane] = zero if side * scores[unit, lane] > margin else -side


@_compiled
def _losses_total(scores, first_row, outputs, targets, row_weights, lanes, loss):
    """Weighted sum of the losses of the rows, in float64."""
    total = 0.0
    for lane in range(lanes):
        value = 0.0
        if loss == _SOFTMAX:
            peak = np.float64(scores[first_row, lane])
            for unit in range(1, outputs):
                peak = max(peak, np.float64(scores[first_row + unit, lane]))
            mass = 0.0
            for unit in range(outputs):
                mass += math.exp(np.float64(scores[first_row + unit, lane]) - peak)
            value = math.log(mass) + peak - scores[first_row + np.int64(targets[lane]), lane]
        elif loss == _LOGISTIC:
            score = np.float64(scores[first_row, lane])
            value = math.log1p(math.exp(-abs(score))) + max(score, 0.0) - score * targets[lane]
        elif loss == _SQUARED:
            error = np.float64(scores[first_row, lane]) - targets[lane]
            value = error * error
        else:
            margin = 1.0 if loss == _HINGE else 0.0
            for unit in range(outputs):
                code = 1 if outputs == 1 else unit
                side = 1.0 if targets[lane] == code else -1.0
                gap = margin - side * scores[first_row + unit, lane]
                value += 0.0 if gap < 0.0 else gap
        total += value * row_weights[lane]
    return total


@_compiled
def _backward(sizes, weights, acts, deltas, lanes, activation):
    """Deltas of every hidden layer from those of the outputs. Row u of `deltas` belongs to row inputs + u of `acts`."""
    depth = sizes.shape[0] - 1
    position = weights.shape[0]
    above = deltas.shape[0] - 1
    for layer in range(depth, 1, -1):
        fan_in = sizes[layer - 1]
        fan_out = sizes[layer]
        position -= (fan_in + 1) * fan_out
        above -= fan_out
        first = above - fan_in
        _combine(deltas, first, fan_in, weights, position, fan_out, 1, fan_out, -1, deltas, above, lanes)
        below = sizes[0] + first
        _times_slope(deltas[first:above].reshape(-1), acts[below : below + fan_in].reshape(-1), activation)


@_compiled
def _scale(deltas, scales, lanes):
    """Weigh each row's deltas, and so its share of the gradient; empty lanes weigh nothing."""
    for unit in range(deltas.shape[0]):
        for lane in range(lanes):
            deltas[unit, lane] = deltas[unit, lane] * scales[lane]


@_compiled
def _add_gradient(sizes, acts, deltas, gradient, lanes):
    """gradient += activations below, transposed, times deltas, for every layer.

    Four inputs and two outputs at a time; where fewer are left, the last one is repeated and its sum thrown away.
    """
    zero = acts.dtype.type(0)
    position = 0
    below = 0
    above = 0
    for layer in range(sizes.shape[0] - 1):
        fan_in = sizes[layer]
        fan_out = sizes[layer + 1]
        for unit in range(0, fan_in, 4):
            more = fan_in - 1 - unit
            a0 = below + unit
            a1, a2, a3 = a0 + min(1, more), a0 + min(2, more), a0 + min(3, more)
            for out in range(0, fan_out, 2):
                paired = out + 1 < fan_out
                d0 = above + out
                d1 = d0 + 1 if paired else d0
                s00 = s01 = s10 = s11 = s20 = s21 = s30 = s31 = zero
                for lane in range(lanes):
                    x0, x1 = deltas[d0, lane], deltas[d1, lane]
                    s00 += acts[a0, lane] * x0
                    s01 += acts[a0, lane] * x1
                    s10 += acts[a1, lane] * x0
                    s11 += acts[a1, lane] * x1
                    s20 += acts[a2, lane] * x0
                    s21 += acts[a2, lane] * x1
                    s30 += acts[a3, lane] * x0
                    s31 += acts[a3, lane] * x1
                at = position + unit * fan_out + out
                gradient[at] += s00
                if more >= 1:
                    gradient[at + fan_out] += s10
                if more >= 2:
                    gradient[at + 2 * fan_out] += s20
                if more >= 3:
                    gradient[at + 3 * fan_out] += s30
                if paired:
                    gradient[at + 1] += s01
                    if more >= 1:
                        gradient[at + fan_out + 1] += s11
                    if more >= 2:
                        gradient[at + 2 * fan_out + 1] += s21
                    if more >= 3:
                        gradient[at + 3 * fan_out + 1] += s31
        bias = position + fan_in * fan_out
        for out in range(0, fan_out, 4):
            more = fan_out - 1 - out
            d0 = above + out
            d1, d2, d3 = d0 + min(1, more), d0 + min(2, more), d0 + min(3, more)
            s00 = s10 = s20 = s30 = zero
            for lane in range(lanes):
                s00 += deltas[d0, lane]
                s10 += deltas[d1, lane]
                s20 += deltas[d2, lane]
                s30 += deltas[d3, lane]
            gradient[bias + out] += s00
            if more >= 1:
                gradient[bias + out + 1] += s10
            if more >= 2:
                gradient[bias + out + 2] += s20
            if more >= 3:
                gradient[bias + out + 3] += s30
        position = bias + fan_out
        below += fan_in
        above += fan_out


@_compiled
def _step(weights, gradient, first, second, done, optimizer, lr, momentum, beta1, beta2, epsilon):
    """One optimiser step, with the conventions of torch.optim; `done` steps came before."""
    number = weights.dtype.type
    rate = number(lr)
    if optimizer == _SGD:
        for p in range(weights.shape[0]):
            weights[p] -= rate * gradient[p]
    elif optimizer == _MOMENTUM:
        keep = number(momentum)
        for p in range(weights.shape[0]):
            first[p] = keep * first[p] + gradient[p]
            weights[p] -= rate * first[p]
    else:
        keep1, new1 = number(beta1), number(1.0 - beta1)
        keep2, new2 = number(beta2), number(1.0 - beta2)
        rate = number(lr / (1.0 - beta1 ** (done + 1)))
        unbias = number(1.0 / math.sqrt(1.0 - beta2 ** (done + 1)))
        small = number(epsilon)
        for p in range(weights.shape[0]):
            g = gradient[p]
            m = keep1 * first[p] + new1 * g
            v = keep2 * second[p] + new2 * g * g
            first[p] = m
            second[p] = v
            weights[p] -= rate * m / (math.sqrt(v) * unbias + small)


@_exact
def _misfits(y, start, count, loss, outputs):
    """How many targets are no class code of the network."""
    if loss == _SQUARED:
        return 0
    classes = max(2, outputs)
    found = 0
    for row in range(start, start + count):
        value = y[row]
        found += 0 if value >= 0 and value < classes and value == math.floor(value) else 1
    return found


@_compiled
def _gather(x, y, row_weight, start, order, begin, used, lanes, share, acts, targets, weights, scales):
    """Bring rows order[begin : begin + used] into lanes; the lanes left over become empty rows that weigh nothing."""
    zero = acts.dtype.type(0)
    one = acts.dtype.type(1)
    inputs = x.shape[1]
    for lane in range(used):
        row = start + order[begin + lane]
        for column in range(inputs):
            acts[column, lane] = x[row, column]
        targets[lane] = y[row]
        weights[lane] = row_weight[row] if row_weight.shape[0] else one
        scales[lane] = weights[lane] * share
    for lane in range(used, lanes):
        for column in range(inputs):
            acts[column, lane] = zero
        targets[lane] = zero
        weights[lane] = zero
        scales[lane] = zero


@_compiled
def train_sites(
    begin_site, end_site, x, y, row_weight, starts, counts, keys, round_number, sizes, activation, loss,
    epochs, batch, optimizer, lr, momentum, beta1, beta2, epsilon, l2, prox,
    weights, anchor, shift, first, second, done, taken, losses, misfits, measure,
):  # fmt: skip
    """Train sites `begin_site` to `end_site` in place: `weights`, `first`, `second`, `done`, `taken`, `losses`.

    Arrays with fewer rows than sites stand for one row shared by all (`anchor`), a scratch row (`first`, `second`)
    or nothing at all (`shift`, `row_weight` of length 0). A site whose targets are no class codes is left untouched
    and counted in `misfits`.
    """
    number = weights.dtype.type
    parameters = weights.shape[1]
    inputs = sizes[0]
    units = np.int64(0)
    for size in sizes:
        units += size
    outputs = sizes[sizes.shape[0] - 1]
    longest = np.int64(0)
    for site in range(begin_site, end_site):
        longest = max(longest, counts[site])
    largest = longest if batch == 0 else min(batch, longest)
    width = min(MAX_LANES, -(-largest // LANE_STEP) * LANE_STEP)
    # One spare row each, see `_combine`.
    acts = np.zeros((units + 1, width), weights.dtype)
    deltas = np.zeros((units - inputs + 1, width), weights.dtype)
    scores = acts[units - outputs : units]
    score_deltas = deltas[units - inputs - outputs : units - inputs]
    peaks = np.zeros(width, weights.dtype)
    totals = np.zeros(width, weights.dtype)
    targets = np.zeros(width, weights.dtype)
    row_weights = np.zeros(width, weights.dtype)
    scales = np.zeros(width, weights.dtype)
    gradient = np.zeros(parameters, weights.dtype)
    order = np.zeros(longest, np.int64)
    scratch = np.zeros((2, parameters), weights.dtype)
    decay, pull = number(l2), number(prox)
    for site in range(begin_site, end_site):
        count = counts[site]
        start = starts[site]
        misfits[site] = _misfits(y, start, count, loss, outputs)
        if count == 0 or misfits[site]:
            continue
        own = weights[site]
        home = anchor[site if anchor.shape[0] > 1 else 0]
        kept = first.shape[0] == weights.shape[0]
        if not kept:
            scratch[:] = 0
        own_first = first[site] if kept else scratch[0]
        own_second = second[site] if kept and second.shape[0] == weights.shape[0] else scratch[1]
        size = count if batch == 0 else min(batch, count)
        total = 0.0
        for epoch in range(epochs):
            if size < count:
                shuffled(order, count, keys[site], round_number, epoch)
            else:
                # One mini-batch holds every row: an order would change nothing but the speed of reading.
                for row in range(count):
                    order[row] = row
            for batch_begin in range(0, count, size):
                batch_end = min(batch_begin + size, count)
                share = number(1.0 / (batch_end - batch_begin))
                gradient[:] = 0
                for begin in range(batch_begin, batch_end, width):
                    used = min(width, batch_end - begin)
                    lanes = -(-used // LANE_STEP) * LANE_STEP
                    _gather(x, y, row_weight, start, order, begin, used, lanes, share, acts, targets, row_weights, scales)
                    _forward(sizes, own, acts, lanes, activation)
                    if measure:
                        total += _losses_total(acts, units - outputs, outputs, targets, row_weights, used, loss)
                    _output_deltas(scores, targets, score_deltas, peaks, totals, lanes, loss)
                    _scale(score_deltas, scales, lanes)
                    _backward(sizes, own, acts, deltas, lanes, activation)
                    _add_gradient(sizes, acts, deltas, gradient, lanes)
                if shift.shape[0]:
                    for p in range(parameters):
                        gradient[p] += shift[site, p]
                if decay != 0:
                    for p in range(parameters):
                        gradient[p] += decay * own[p]
                if pull != 0:
                    for p in range(parameters):
                        gradient[p] += pull * (own[p] - home[p])
                _step(own, gradient, own_first, own_second, done[site], optimizer, lr, momentum, beta1, beta2, epsilon)
                done[site] += 1
                taken[site] += 1
        if measure:
            losses[site] = total / (np.float64(count) * epochs)
