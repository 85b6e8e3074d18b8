"""Prove that totals are below a threshold without showing them, to sites that share a secret the prover does not know.

For each of several counts a site contributes c and m = D c + k modulo p = 2^61 - 1, and for each of `least` - 1 masks w
and n = D w + l: the factor D and the pads k and l come from the sites' secret and the transcript, pads also from the
site's name; w is the site's own randomness. The hub opens the totals C, M, W and N, where M = D C + K. The polynomial
prod over j < least of (M - (C - j) Y) is at Y = D the product of the (K + j D), whatever C is; its highest coefficient
is zero exactly when C is one of 0 .. least - 1. So the hub sends the lower coefficients of the sum over all counts,
each with a public weight of its own, plus the masks' polynomial, sum of (N - W Y) Y^h. Sites evaluate it at D.

Guarantee: a hub without the secret passes with a count of `least` or more with probability below 2^-50: the pads hide
D, and two different polynomials of degree `least` agree in at most `least` points. A site learns that all counts are
below, and nothing else, while another site draws its masks honestly: the coefficients are uniform among those with the
right value at D. Counts are shuffled by the secret, so the hub sees totals of unnamed counts. It holds against a
hub without a site on its side, because every site knows the secret. Use a secret and a transcript for one sum only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from kohort.crypto.suites import expand, extract
from kohort.crypto.sums.checked import stream
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers

__all__ = ["contribution", "is_below", "length_of", "prove", "totals_of"]

_KEY = 32


def length_of(counts: int, least: int) -> int:
    """How many numbers a site contributes.

    Args:
        counts: How many counts are proven to be below.
        least: The threshold.

    Returns:
        Two for each count, and two for each mask.
    """
    return 2 * counts + 2 * (least - 1)


def contribution(
    secret: bytes, transcript: bytes, site: str, counts: Sequence[int], *, least: int, randomness: bytes
) -> Integers:
    """What a site adds to the sum.

    Args:
        secret: What the sites share and the hub does not know.
        transcript: What binds the sum; the same for no other one.
        site: The site's name.
        counts: Its own counts, in the order that all sites have.
        least: The threshold.
        randomness: 32 bytes that nobody else knows.

    Returns:
        Numbers below 2^61 - 1.
    """
    own = np.asarray([count % P61 for count in counts], dtype=np.uint64)[_shuffled(secret, transcript, len(counts))]
    masks = stream(randomness, least - 1)
    factor, pads = _factor(secret, transcript), _pads(secret, transcript, site, len(counts) + least - 1)
    values = [*own.tolist(), *masks.tolist()]
    tags = [(factor * value + pad) % P61 for value, pad in zip(values, pads, strict=True)]
    return np.asarray([*values, *tags], dtype=np.uint64)


def totals_of(opened: Integers, counts: int) -> list[int]:
    """The totals of the unnamed counts.

    Args:
        opened: The opened sum.
        counts: How many counts there are.

    Returns:
        Them, in a shuffled order.
    """
    return [int(value) for value in opened[:counts]]


def prove(opened: Integers, public: bytes, *, counts: int, least: int) -> Integers:
    """What shows the sites that all totals are below the threshold.

    Args:
        opened: The opened sum of what `contribution` made.
        public: What hub and sites both know of the sum, for the weights.
        counts: How many counts there are.
        least: The threshold.

    Returns:
        `least` numbers. They convince nobody where a total is not below.
    """
    values, tags = opened[: len(opened) // 2].tolist(), opened[len(opened) // 2 :].tolist()
    found = [0] * (least + 1)
    weights = _weights(public, counts)
    for value, tag, weight in zip(values[:counts], tags[:counts], weights, strict=True):
        factors = [(tag, (j - value) % P61) for j in range(least)]
        product = reduce(_times, factors, [weight])
        found = [(one + other) % P61 for one, other in zip(found, product, strict=True)]
    for power, (mask, tag) in enumerate(zip(values[counts:], tags[counts:], strict=True)):
        found[power] = (found[power] + tag) % P61
        found[power + 1] = (found[power + 1] - mask) % P61
    return np.asarray(found[:least], dtype=np.uint64)


def is_below(
    secret: bytes, transcript: bytes, public: bytes, sites: Sequence[str], proof: Integers, *, counts: int, least: int
) -> bool:
    """Whether a proof shows that all totals over these sites are below the threshold.

    Args:
        secret: What the sites share.
        transcript: What binds the sum.
        public: As for `prove`.
        sites: Whose contributions are in it.
        proof: What the hub announced.
        counts: How many counts there are.
        least: The threshold.

    Returns:
        True if it does.
    """
    if proof.shape != (least,) or proof.dtype != np.uint64 or (proof >= np.uint64(P61)).any():
        return False
    factor = _factor(secret, transcript)
    each = [_pads(secret, transcript, site, counts + least - 1) for site in sites]
    pads = [sum(own) % P61 for own in zip(*each, strict=True)]
    wanted = 0
    for pad, weight in zip(pads[:counts], _weights(public, counts), strict=True):
        wanted += weight * reduce(lambda product, j: product * (pad + j * factor) % P61, range(least), 1)
    for power, pad in enumerate(pads[counts:]):
        wanted += pad * pow(factor, power, P61)
    said = sum(number * pow(factor, power, P61) for power, number in enumerate(proof.tolist()))
    return bool((said - wanted) % P61 == 0)


def _times(polynomial: list[int], factor: tuple[int, int]) -> list[int]:
    """A polynomial, lowest coefficient first, times (constant + slope Y)."""
    constant, slope = factor
    lower, higher = [*polynomial, 0], [0, *polynomial]
    return [(constant * one + slope * other) % P61 for one, other in zip(lower, higher, strict=True)]


def _key(secret: bytes, transcript: bytes, purpose: bytes) -> bytes:
    return expand(extract(b"kohort below a threshold" + transcript, secret), purpose, _KEY)


def _factor(secret: bytes, transcript: bytes) -> int:
    return int(stream(_key(secret, transcript, b"factor"), 1)[0])


def _pads(secret: bytes, transcript: bytes, site: str, number: int) -> list[int]:
    pads: list[int] = stream(_key(secret, transcript, b"pads" + site.encode()), number).tolist()
    return pads


def _weights(public: bytes, counts: int) -> list[int]:
    """Public weights: the sum of highest coefficients is zero by chance with probability 1 / p."""
    weights: list[int] = stream(_key(b"", public, b"weights"), counts).tolist()
    return weights


def _shuffled(secret: bytes, transcript: bytes, counts: int) -> Integers:
    return np.argsort(stream(_key(secret, transcript, b"order"), counts), kind="stable").astype(np.uint64)
