"""How kernels are compiled, and the two small functions they share: the order of rows, and exp.

Guarantees: the order of rows is a function of (key, round, epoch) alone; `exp` keeps NaN. Numba notices a change of the
file a cached function is in but not of this one: after a change here, touch `kernel.py` too.
"""

# Written for Numba: functions get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np

from kohort.saved_code import compile_and_save

__all__ = ["exp", "fused", "in_order", "shuffled"]


# Sums may be reordered and fused; NaN and infinity keep their meaning (no "nnan", no "ninf").
fused: Any = compile_and_save(fastmath={"reassoc", "contract", "nsz"})
# No reordering: for arithmetic in which the order is the point.
in_order: Any = compile_and_save(fastmath={"contract"})

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@in_order
def _mixed(value):
    """The finaliser of splitmix64: a bijection of 64-bit numbers in which every input bit moves every output bit."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@in_order
def shuffled(order, count, key, round_number, epoch):
    """Fill `order[:count]` with the permutation that (key, round, epoch) names: Fisher-Yates over a counter hash.

    Args:
        order: Where it is written, int64, at least `count` long.
        count: How many rows there are; fewer than 2^32.
        key: The site's key, uint64.
        round_number: The round, from 0.
        epoch: The pass within the round, from 0.
    """
    stream = _mixed(key + _GOLDEN)
    stream = _mixed(stream ^ (np.uint64(round_number) + _GOLDEN))
    stream = _mixed(stream ^ (np.uint64(epoch) + _GOLDEN))
    for index in range(count):
        order[index] = index
    for last in range(count - 1, 0, -1):
        number = _mixed(stream + np.uint64(last) * _GOLDEN)
        bound = np.uint64(last + 1)
        # The high word of number * bound: below `bound`, and even to within bound / 2^64, for fewer than 2^32 rows.
        low = ((number & _LOW_HALF) * bound) >> _S32
        other = np.int64(((number >> _S32) * bound + low) >> _S32)
        order[last], order[other] = order[other], order[last]


@in_order
def exp(value):
    """e to the power `value`, in float64 and without a branch, so that loops over it become vector instructions.

    exp(value) = 2^n * exp(rest) with |rest| <= ln(2) / 2: a Taylor polynomial for the rest, and n added to the exponent
    bits. Good to 1e-15 of the result; e^-708 and e^709 stand for everything beyond; NaN stays NaN.

    Args:
        value: The exponent.
    """
    wide = np.float64(value)
    least = -708.0 if wide < -708.0 else wide
    x = 709.0 if least > 709.0 else least
    # Adding 1.5 * 2^52 rounds to a whole number and leaves it in the low bits of the mantissa.
    rounded = x * 1.4426950408889634 + 6755399441055744.0
    n = rounded - 6755399441055744.0
    # ln(2) in two parts, the first short enough that n times it is exact.
    rest = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    power = (1.0 / 479001600.0 * rest + 1.0 / 39916800.0) * rest + 1.0 / 3628800.0
    power = ((power * rest + 1.0 / 362880.0) * rest + 1.0 / 40320.0) * rest + 1.0 / 5040.0
    power = ((power * rest + 1.0 / 720.0) * rest + 1.0 / 120.0) * rest + 1.0 / 24.0
    power = (((power * rest + 1.0 / 6.0) * rest + 0.5) * rest + 1.0) * rest + 1.0
    bits = np.float64(power).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    result = np.int64(bits).view(np.float64)
    return x if x != x else result  # noqa: PLR0124 - true of NaN only
