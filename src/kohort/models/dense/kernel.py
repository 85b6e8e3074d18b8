"""The one compiled kernel: trains dense networks of many sites on ragged rows in one call.

Guarantees: what a site learns depends on its own rows, key and starting weights alone, so training sites one by one,
many at once, or spread over threads gives the same bits. A number that is not finite never turns into a finite one:
no comparison here replaces a NaN, and the compiler may reorder sums but may not assume that NaN does not occur.

Layout: a chunk of at most `MAX_LANES` rows is held feature by feature, [unit, row], so that every inner loop runs over
adjacent rows whatever the width of a layer, and a mini-batch of any size needs the memory of one chunk. For each chunk,
`forward` keeps the activations of every layer; `output_deltas` and `backward` keep the deltas (the loss
differentiated by what enters a unit) of every layer; only then does `add_gradient` form gradients. A row's gradient
has the squared norm sum over layers of |delta|^2 (|activation below|^2 + 1), so clipping row by row is a matter of
calling `scale` on all deltas between `backward` and `add_gradient`. `private_kernel` does so with these same functions;
Numba does not notice a change here when it looks for that kernel in its cache, so touch that file too.

Compiled on the first call for each number type, and cached on disk.
"""

# The kernel is written for Numba: functions take what they need by position and get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

import math
from typing import Final

import numpy as np

from kohort.models.dense.compiled import exp, fused, in_order, shuffled

__all__ = [
    "ACTIVATIONS",
    "LANE_STEP",
    "LOSSES",
    "MAX_LANES",
    "OPTIMIZERS",
    "add_gradient",
    "backward",
    "count_misfits",
    "forward",
    "gather",
    "optimiser_step",
    "output_deltas",
    "scale",
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

# Plain literals would make Numba compile a version of the called function for each of them.
_ZERO, _ONE, _NO_BIAS = np.int64(0), np.int64(1), np.int64(-1)


@fused
def _combine(out, first_row, rows, factors, start, row_step, term_step, terms, bias, values, source, lanes):  # noqa: C901
    """out[r] = bias[r] + sum over t of factors[r, t] * values[t], lanes side by side, or without bias when `bias` < 0.

    Two rows at a time, an odd last one together with the spare last row of `out`, and four terms at a time after
    the terms % 4 that come first one by one.
    """
    zero = out.dtype.type(0)
    for row in range(0, rows, 2):
        paired = row + 1 < rows
        t0 = first_row + row
        t1 = t0 + 1 if paired else out.shape[0] - 1
        f0 = start + row * row_step
        f1 = f0 + row_step if paired else f0
        bias0 = factors[bias + row] if bias >= 0 else zero
        bias1 = factors[bias + row + 1] if bias >= 0 and paired else zero
        term = 0
        while term < terms:
            v = source + term
            if (terms - term) % 4:
                a0, b0 = factors[f0], factors[f1]
                if term == 0:
                    for lane in range(lanes):
                        out[t0, lane] = bias0 + a0 * values[v, lane]
                        out[t1, lane] = bias1 + b0 * values[v, lane]
                else:
                    for lane in range(lanes):
                        out[t0, lane] += a0 * values[v, lane]
                        out[t1, lane] += b0 * values[v, lane]
                done = 1
            else:
                a0, a1 = factors[f0], factors[f0 + term_step]
                b0, b1 = factors[f1], factors[f1 + term_step]
                a2, a3 = factors[f0 + 2 * term_step], factors[f0 + 3 * term_step]
                b2, b3 = factors[f1 + 2 * term_step], factors[f1 + 3 * term_step]
                if term == 0:
                    for lane in range(lanes):
                        x0, x1 = values[v, lane], values[v + 1, lane]
                        x2, x3 = values[v + 2, lane], values[v + 3, lane]
                        out[t0, lane] = bias0 + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                        out[t1, lane] = bias1 + b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                else:
                    for lane in range(lanes):
                        x0, x1 = values[v, lane], values[v + 1, lane]
                        x2, x3 = values[v + 2, lane], values[v + 3, lane]
                        out[t0, lane] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                        out[t1, lane] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                done = 4
            term += done
            f0 += done * term_step
            f1 += done * term_step


@fused
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
            small = exp(-2.0 * abs(layer[i]))
            size = (1.0 - small) / (1.0 + small)
            layer[i] = number(-size if layer[i] < zero else size)
    else:
        for i in range(layer.shape[0]):
            layer[i] = number(1.0 / (1.0 + exp(-layer[i])))


@fused
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


@fused
def forward(sizes, weights, acts, lanes, activation):
    """Activations of every layer from those of the inputs; the last layer keeps its raw scores."""
    depth = sizes.shape[0] - 1
    below = position = _ZERO
    for layer in range(depth):
        fan_in = sizes[layer]
        fan_out = sizes[layer + 1]
        bias = position + fan_in * fan_out
        _combine(acts, below + fan_in, fan_out, weights, position, _ONE, fan_out, fan_in, bias, acts, below, lanes)
        if layer < depth - 1:
            _activate(acts[below + fan_in : below + fan_in + fan_out].reshape(-1), activation)
        position = bias + fan_out
        below += fan_in


@fused
def output_deltas(scores, targets, deltas, peaks, totals, lanes, loss):  # noqa: C901
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
                deltas[unit, lane] = number(exp(scores[unit, lane] - peaks[lane]))
                totals[lane] += deltas[unit, lane]
        for unit in range(outputs):
            code = number(unit)
            for lane in range(lanes):
                deltas[unit, lane] = deltas[unit, lane] / totals[lane] - (one if targets[lane] == code else zero)
    elif loss == _LOGISTIC:
        for lane in range(lanes):
            deltas[0, lane] = number(1.0 / (1.0 + exp(-scores[0, lane]))) - targets[lane]
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


@fused
def _losses_total(scores, targets, row_weights, peaks, totals, used, loss):
    """Weighted sum of the losses of the rows, in float64; `peaks` and `totals` are what `output_deltas` left."""
    outputs = scores.shape[0]
    total = 0.0
    for lane in range(used):
        target = targets[lane]
        if loss == _SOFTMAX:
            value = math.log(np.float64(totals[lane])) + peaks[lane] - scores[np.int64(target), lane]
        elif loss == _LOGISTIC:
            score = np.float64(scores[0, lane])
            value = math.log(1.0 + exp(-abs(score))) + (0.0 if score < 0.0 else score) - score * target
        elif loss == _SQUARED:
            error = np.float64(scores[0, lane]) - target
            value = error * error
        else:
            margin = 1.0 if loss == _HINGE else 0.0
            value = 0.0
            for unit in range(outputs):
                side = 1.0 if target == (1 if outputs == 1 else unit) else -1.0
                gap = margin - side * scores[unit, lane]
                value += 0.0 if gap < 0.0 else gap
        total += value * row_weights[lane]
    return total


@fused
def backward(sizes, weights, acts, deltas, lanes, activation):
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
        _combine(deltas, first, fan_in, weights, position, fan_out, _ONE, fan_out, _NO_BIAS, deltas, above, lanes)
        below = sizes[0] + first
        _times_slope(deltas[first:above].reshape(-1), acts[below : below + fan_in].reshape(-1), activation)


@fused
def scale(deltas, scales, lanes):
    """Weigh each row's deltas, and so its share of the gradient; empty lanes weigh nothing."""
    for unit in range(deltas.shape[0]):
        for lane in range(lanes):
            deltas[unit, lane] = deltas[unit, lane] * scales[lane]


@fused
def _add_layer_gradient(acts, below, fan_in, deltas, above, fan_out, gradient, position, lanes):  # noqa: C901
    """gradient += activations below, transposed, times deltas; then the sums of the deltas for the biases.

    Four inputs and two outputs at a time; where fewer are left, the last one is repeated and its sum thrown away.
    """
    zero = acts.dtype.type(0)
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
            for row, (left, right) in enumerate(((s00, s01), (s10, s11), (s20, s21), (s30, s31))):
                if row <= more:
                    gradient[at + row * fan_out] += left
                    if paired:
                        gradient[at + row * fan_out + 1] += right
    bias = position + fan_in * fan_out
    for out in range(fan_out):
        total = zero
        for lane in range(lanes):
            total += deltas[above + out, lane]
        gradient[bias + out] += total


@fused
def add_gradient(sizes, acts, deltas, gradient, lanes):
    """Add the gradient of every layer, from its deltas and the activations below it."""
    position = below = above = _ZERO
    for layer in range(sizes.shape[0] - 1):
        fan_in = sizes[layer]
        fan_out = sizes[layer + 1]
        _add_layer_gradient(acts, below, fan_in, deltas, above, fan_out, gradient, position, lanes)
        position += (fan_in + 1) * fan_out
        below += fan_in
        above += fan_out


@fused
def optimiser_step(weights, gradient, first, second, done, optimizer, lr, momentum, beta1, beta2, epsilon):
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


@in_order
def count_misfits(y, start, count, loss, outputs):
    """How many targets are no class code of the network."""
    if loss == _SQUARED:
        return 0
    classes = max(2, outputs)
    found = 0
    for row in range(start, start + count):
        value = y[row]
        found += 0 if value >= 0 and value < classes and value == math.floor(value) else 1
    return found


@fused
def gather(x, y, row_weight, start, order, begin, used, lanes, share, acts, targets, weights, scales):
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


@fused
def train_sites(  # noqa: C901
    begin_site, end_site, x, y, row_weight, starts, counts, keys, round_number, sizes, activation, loss,
    epochs, batch, optimizer, lr, momentum, beta1, beta2, epsilon, l2, prox,
    weights, anchor, shift, first, second, done, taken, losses, misfits, measure,
):  # fmt: skip
    """Train sites `begin_site` to `end_site` in place: `weights`, `first`, `second`, `done`, `taken`, `losses`.

    Arrays with fewer rows than sites stand for one row shared by all (`anchor`), a scratch row (`first`, `second`)
    or nothing at all (`shift`, `row_weight` of length 0). A site whose targets are no class codes is left untouched
    and counted in `misfits`. A shorter last mini-batch counts by its rows: its gradient, corrections included, is
    multiplied with its share of a full one, so that one left-over row does not decide a whole step.
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
        misfits[site] = count_misfits(y, start, count, loss, outputs)
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
                    gather(
                        x, y, row_weight, start, order, begin, used, lanes, share, acts, targets, row_weights, scales
                    )
                    forward(sizes, own, acts, lanes, activation)
                    output_deltas(scores, targets, score_deltas, peaks, totals, lanes, loss)
                    if measure:
                        total += _losses_total(scores, targets, row_weights, peaks, totals, used, loss)
                    scale(score_deltas, scales, lanes)
                    backward(sizes, own, acts, deltas, lanes, activation)
                    add_gradient(sizes, acts, deltas, gradient, lanes)
                if shift.shape[0]:
                    for p in range(parameters):
                        gradient[p] += shift[site, p]
                if decay != 0:
                    for p in range(parameters):
                        gradient[p] += decay * own[p]
                if pull != 0:
                    for p in range(parameters):
                        gradient[p] += pull * (own[p] - home[p])
                if batch_end - batch_begin < size:
                    portion = number((batch_end - batch_begin) / size)
                    for p in range(parameters):
                        gradient[p] *= portion
                optimiser_step(
                    own, gradient, own_first, own_second, done[site], optimizer, lr, momentum, beta1, beta2, epsilon
                )
                done[site] += 1
                taken[site] += 1
        if measure:
            losses[site] = total / (np.float64(count) * epochs)
