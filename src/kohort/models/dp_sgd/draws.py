"""Rows and Gaussian noise for private training, drawn from ChaCha20 streams.

Guarantees: everything is a function of a site's 32-byte key, and whoever does not have the key cannot tell the draws
from true randomness. Seeded runs and releases run the same code: only where the key comes from differs. Each purpose
has a stream of its own, keyed by the hash of its name under the site's key, so no two draws share a word.

Rows are drawn by the gaps between them: when each row comes independently with probability q, the rows skipped before
the next one are geometric, floor(log(u) / log(1 - q)). That is Poisson sampling for the cost of the rows that come
rather than of all rows; batches follow each other without a break, so one gap may reach over many empty batches.

Normals are made in pairs by the method of Box and Muller: a radius sqrt(-2 log u) from all 64 bits of one word, so
tails reach to 9.4 standard deviations, and an angle from 53 bits of another word, its octant from three more. They are
floating-point numbers: an attacker who sees noisy values to their last bit learns more than real-valued noise would
tell (Mironov, CCS 2012); nothing here protects from that.
"""

# The compiled functions get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import hashlib
import math
import sys
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.compiled import in_order

__all__ = ["KEY_BYTES", "KeyStream", "RowSampler", "fill_normals", "normal_words"]

Words = NDArray[np.uint64]

KEY_BYTES: Final = 32
_ZEROS: Final = memoryview(bytes(1 << 19))
_FURTHEST: Final = 2.0**52
"""No gap counts as longer: more rows than any site has, and still a whole number in float64."""

_1, _2, _11, _63 = np.uint64(1), np.uint64(2), np.uint64(11), np.uint64(63)


class KeyStream:
    """The words of one ChaCha20 stream, in order."""

    def __init__(self, key: bytes, label: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"a noise key of {len(key)} bytes", hint=f"Use {KEY_BYTES} bytes, new for every request")
        own = hashlib.blake2b(label, key=key, digest_size=KEY_BYTES, person=b"kohort-noise").digest()
        self._cipher = Cipher(algorithms.ChaCha20(own, bytes(16)), mode=None).encryptor()

    def fill(self, words: Words) -> None:
        """Overwrite `words` with the next of the stream."""
        into = words.data.cast("B")
        for begin in range(0, len(into), len(_ZEROS)):
            part = into[begin : begin + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)
        if sys.byteorder == "big":
            words.byteswap(inplace=True)


class RowSampler:
    """Poisson batches of one site's rows: each row comes into each batch with probability `rate`, independently."""

    def __init__(self, key: bytes, *, rate: float, count: int) -> None:
        self._rate, self._count = rate, count
        if rate < 1.0:
            self._stream = KeyStream(key, b"rows")
        self._left = np.empty(0, dtype=np.uint64)
        # The row that came last, counted from the first row of the next batch.
        self._last = -1

    def batches(self, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(rows, begins, ends) of the next `steps` batches: batch i holds rows[begins[i]:ends[i]], in rising order."""
        if self._rate == 1.0:
            every = np.full(steps, self._count, dtype=np.int64)
            return np.arange(self._count), np.zeros(steps, dtype=np.int64), every
        expected = steps * self._count * self._rate
        cuts = np.zeros(steps + 1, dtype=np.int64)
        begins, ends = cuts[:-1], cuts[1:]
        words = self._more(int(expected + 4 * math.sqrt(expected)) + 16 - self._left.size)
        while True:
            rows = np.empty(words.size, dtype=np.int64)
            used, last = _choose(words, self._last, math.log1p(-self._rate), self._count, rows, ends)
            if used >= 0:
                break
            self._left = words
            words = self._more(words.size)
        self._left, self._last = words[used:], last
        return rows, begins, ends

    def _more(self, count: int) -> Words:
        """The words left over, and `count` new ones behind them."""
        kept = self._left.size
        words = np.empty(kept + max(0, count), dtype=np.uint64)
        words[:kept] = self._left
        self._stream.fill(words[kept:])
        return words


def normal_words(count: int) -> int:
    """How many words `fill_normals` takes.

    Args:
        count: How many normals are wanted.

    Returns:
        The same number, or the next even one.
    """
    return count + count % 2


@in_order
def _log(value):
    """Natural logarithm of a positive, normal float64, without a branch and good to 1e-15.

    value = 2^n * m with m around 1, and log(m) = 2 artanh((m - 1) / (m + 1)) by its series.
    """
    bits = np.float64(value).view(np.int64)
    # Taking off the bits of sqrt(1/2) makes n the exponent for which m is between sqrt(1/2) and sqrt(2).
    n = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = np.int64(bits - (n << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = (((1.0 / 19.0 * z + 1.0 / 17.0) * z + 1.0 / 15.0) * z + 1.0 / 13.0) * z + 1.0 / 11.0
    tail = (((tail * z + 1.0 / 9.0) * z + 1.0 / 7.0) * z + 1.0 / 5.0) * z + 1.0 / 3.0
    return n * 0.6931471805599453 + 2.0 * (s + s * z * tail)


@in_order
def _unit(word):
    """A number above 0 and up to 1 from all bits of a word, as fine near 0 as 2^-64 allows."""
    return (np.float64(word) + 0.5) * 5.421010862427522e-20


@in_order
def fill_normals(words, normals):
    """Standard normals from as many words: the first half of them gives radii, the second half angles.

    Args:
        words: Random words, uint64, as many as `normals`.
        normals: Where they are written, float64 of an even length (`normal_words`).
    """
    half = normals.shape[0] // 2
    for i in range(half):
        word = words[half + i]
        radius = math.sqrt(-2.0 * _log(_unit(words[i])))
        # An angle between 0 and pi/4; three low bits that it does not use say in which octant.
        a = (np.float64(word >> _11) + 0.5) * 8.719671245021581e-17
        z = a * a
        sine = ((-1.0 / 1307674368000.0 * z + 1.0 / 6227020800.0) * z - 1.0 / 39916800.0) * z + 1.0 / 362880.0
        sine = a + a * z * (((sine * z - 1.0 / 5040.0) * z + 1.0 / 120.0) * z - 1.0 / 6.0)
        cosine = ((1.0 / 20922789888000.0 * z - 1.0 / 87178291200.0) * z + 1.0 / 479001600.0) * z - 1.0 / 3628800.0
        cosine = (((cosine * z + 1.0 / 40320.0) * z - 1.0 / 720.0) * z + 1.0 / 24.0) * z - 0.5
        cosine = 1.0 + z * cosine
        swapped = (word & _1) != 0
        first = sine if swapped else cosine
        second = cosine if swapped else sine
        # The sign is the highest bit of a float64.
        first_bits = np.float64(first * radius).view(np.uint64) ^ ((word >> _1) << _63)
        second_bits = np.float64(second * radius).view(np.uint64) ^ ((word >> _2) << _63)
        normals[i] = np.uint64(first_bits).view(np.float64)
        normals[half + i] = np.uint64(second_bits).view(np.float64)


@in_order
def _choose(words, last, log_keep, count, rows, ends):
    """Lay gaps one after the other over the batches; (words used, last row seen from the batch after these).

    Words used is -1 when there were too few. The word whose gap leads beyond the last batch is not used up: the next
    call lays the same gap from the same row again.
    """
    gaps = np.empty(words.shape[0], np.float64)
    for i in range(words.shape[0]):
        gap = _log(_unit(words[i])) / log_keep
        gaps[i] = gap if gap < _FURTHEST else _FURTHEST
    steps = ends.shape[0]
    step = 0
    for i in range(words.shape[0]):
        row = last + 1 + np.int64(gaps[i])  # rounds down
        before = step
        while row >= count and step < steps:
            row -= count
            ends[step] = i
            step += 1
        if step == steps:
            return i, last - (steps - before) * count
        rows[i] = row
        last = row
    return -1, last
