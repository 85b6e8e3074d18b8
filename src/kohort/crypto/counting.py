"""Count keys over all sites: the hub sees totals of opaque keys, a site learns which of its own are frequent.

Keys are fingerprinted under a secret the hub does not know. Every site adds min(count, cap) for each of its keys to a
table of cells that travels inside a secure sum. A cell holds, modulo p = 2^61 - 1, (C, S, Q, H) = sums of (c, c f, c
f^2, c h) over the keys that fall into it, f and h being two fingerprints; it holds a single key iff C Q = S^2
(Cauchy-Schwarz; otherwise the chance is about 2 / p). Each key lies in three cells; single keys are taken out until
none is left.

Guarantee: a key that was approved has the claimed total, but for an error below 2^-40, while sites follow the
protocol. Two keys with the same f give a mean of their h that matches neither, so neither is approved. What does not
peel is withheld. Capping never changes whether a total reaches the cap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.modular import P61, join_halves, multiply
from kohort.crypto.sums.scheme import Integers

__all__ = [
    "FIELDS",
    "TABLES",
    "Counted",
    "Fingerprints",
    "cells_for",
    "estimate",
    "fingerprints",
    "peel",
    "sketch",
    "table",
]

FIELDS, TABLES = 4, 3
SKETCH = 1 << 13
_CELLS_A_KEY, _SPARE_CELLS = 1.5, 48
_WORD = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Two numbers below 2^61 - 1, neither 0, for each key."""

    f: Integers
    h: Integers


@dataclass(frozen=True, eq=False)
class Counted:
    """What peeled: fingerprints with their capped totals; and how many cells did not."""

    f: Integers
    h: Integers
    totals: NDArray[np.int64]
    stuck_cells: int


def fingerprints(secret: bytes, keys: Sequence[bytes]) -> Fingerprints:
    """Fingerprint keys under the secret of a group of sites.

    Args:
        secret: The group's secret, at most 64 bytes, which the hub must not know.
        keys: The keys, as bytes that are the same at every site.

    Returns:
        Two numbers per key, in the order of the keys.
    """
    state = hashlib.blake2b(key=secret, digest_size=16, person=b"kohort-count")
    made = [state.copy() for _ in keys]
    for digest, key in zip(made, keys, strict=True):
        digest.update(key)
    words = np.frombuffer(b"".join([digest.digest() for digest in made]), dtype="<u8").reshape(len(keys), 2)
    usable = words % np.uint64(P61 - 1) + np.uint64(1)
    return Fingerprints(np.ascontiguousarray(usable[:, 0]), np.ascontiguousarray(usable[:, 1]))


def sketch(prints: Fingerprints) -> Integers:
    """Mark the buckets that this site's keys fall into: from the marks of all sites, `estimate` counts the keys.

    Args:
        prints: Fingerprints of the site's keys.

    Returns:
        SKETCH numbers, each 0 or 1.
    """
    filled = np.zeros(SKETCH, dtype=np.uint64)
    filled[_mix(prints.f, 7) % np.uint64(SKETCH)] = 1
    return filled


def estimate(total: Integers) -> int:
    """Estimate how many different keys all sites have together (linear counting), rather too many than too few.

    Args:
        total: The sketches of all sites, added up.

    Returns:
        The estimate and four times its square root. Where no bucket is empty, twice the largest number that a sketch
        can tell.
    """
    empty = int((total == 0).sum())
    if empty == 0:
        return int(SKETCH * log(SKETCH) * 2)
    found = -SKETCH * log(empty / SKETCH)
    return ceil(found + 4 * sqrt(max(found, 1.0)))


def cells_for(keys: int) -> int:
    """How many cells a table needs so that this many keys can be taken out of it again.

    Args:
        keys: Number of different keys over all sites.

    Returns:
        A multiple of three: 1.5 cells per key, and some to spare for few keys.
    """
    return TABLES * ceil((_CELLS_A_KEY * keys + _SPARE_CELLS) / TABLES)


def table(prints: Fingerprints, counts: NDArray[np.int64], cells: int) -> Integers:
    """One site's table, to be added over sites in a secure sum modulo 2^61 - 1.

    Args:
        prints: Fingerprints of the site's keys, each key once.
        counts: The capped count of each key.
        cells: Number of cells, from `cells_for`; the same at every site.

    Returns:
        The table, flat: FIELDS blocks of `cells` numbers each.
    """
    c = counts.astype(np.uint64)
    once = multiply(c, prints.f)
    values = (c, once, multiply(once, prints.f), multiply(c, prints.h))
    places = np.concatenate(_places(prints.f, cells))  # the tables' cells are apart, so one pass fills all of them
    return np.concatenate([_sum_by(places, np.tile(numbers, TABLES), cells) for numbers in values])


def peel(total: Integers, cells: int) -> Counted:
    """Take single keys out of the added table until none is left.

    Args:
        total: The tables of all sites, added up.
        cells: Number of cells of each of these tables.

    Returns:
        The fingerprints that were found, their totals, and how many cells still hold keys.
    """
    columns = [numbers.tolist() for numbers in total.reshape(FIELDS, cells)]
    waiting = [cell for cell in range(cells) if columns[0][cell]]
    found: dict[int, tuple[int, int]] = {}
    while waiting:
        cell = waiting.pop()
        count, once, twice, second = (column[cell] for column in columns)
        if count == 0 or count * twice % P61 != once * once % P61:
            continue
        inverse = pow(count, -1, P61)
        f, h = once * inverse % P61, second * inverse % P61
        if f in found or cell not in (places := _places_of(f, cells)):
            continue
        found[f] = (h, count)
        for place in places:
            for column, number in zip(columns, (count, count * f, count * f % P61 * f, count * h), strict=True):
                column[place] = (column[place] - number) % P61
            waiting.append(place)
    stuck = sum(1 for cell in range(cells) if any(column[cell] for column in columns))
    return Counted(
        np.fromiter(found, dtype=np.uint64, count=len(found)),
        np.fromiter((h for h, _ in found.values()), dtype=np.uint64, count=len(found)),
        np.fromiter((count for _, count in found.values()), dtype=np.int64, count=len(found)),
        stuck,
    )


def _mix(numbers: Integers, salt: int) -> Integers:
    """A public scrambling of fingerprints (the finaliser of SplitMix64), to choose cells by."""
    mixed = numbers + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _places(f: Integers, cells: int) -> list[NDArray[np.int64]]:
    size = cells // TABLES
    return [(_mix(f, number + 1) % np.uint64(size)).astype(np.int64) + number * size for number in range(TABLES)]


def _places_of(f: int, cells: int) -> list[int]:
    """`_places` of one key, on plain integers: peeling asks one key at a time."""
    size = cells // TABLES
    return [_mix_one(f, number + 1) % size + number * size for number in range(TABLES)]


def _mix_one(number: int, salt: int) -> int:
    """`_mix` of one number."""
    mixed = (number + salt * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return mixed ^ (mixed >> 31)


def _sum_by(places: NDArray[np.int64], numbers: Integers, cells: int) -> Integers:
    """Sums modulo p by cell, exact: halves of 31 bits stay whole numbers in the floats bincount adds."""
    low = np.bincount(places, weights=(numbers & np.uint64(2**31 - 1)).astype(float), minlength=cells)
    high = np.bincount(places, weights=(numbers >> np.uint64(31)).astype(float), minlength=cells)
    return join_halves(high.astype(np.uint64), low.astype(np.uint64))
