"""The one-layer network in closed form: what each site adds up, in one pass over its rows.

A network without hidden layers, y = f(w [1, x]), is fitted before its activation (Fontenla-Romero et al., FGCS 2023):
with d the wanted output, dbar = f^-1(d) and F = diag(f'(dbar)), the weights minimise |F (dbar - Z w)|^2 + lambda |w|^2,
Z being the rows [1, x]. So Z'F^2 Z (the Gram matrix) and Z'F^2 dbar are all anyone needs to know, and both are sums
over rows: over chunks, over sites, over sites that join and, subtracted, over sites that leave.

What is added up here carries no weight and no unit that the hub cannot apply later:

| target | grams | moments | more |
|---|---|---|---|
| classes, f'(dbar) the same for both wanted values (logistic, linear) | Z'Z | Z'y of the indicators y | |
| classes, otherwise (softplus) | Z'Z of the rows of each class | inside: the first column of each | |
| a number | Z'F^2 Z | Z'F^2 dbar | dbar'F^2 dbar, rows |

Two classes need one indicator, that of class 1. The first entry of Z'Z is the number of rows and the first entries of
the moments are the rows of each class, so counts, means and variances come along and inputs are standardised after
aggregation, without another round (`kohort.models.closed_form.solve`).

Guarantees: memory is that of one chunk of rows, however long a site's table is; a site's numbers do not depend on the
sites beside it, to the bit; a number that is not finite is refused and never summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted
from kohort.models.closed_form.design import WANTED, Floats, OneLayer, inverse, slope
from kohort.models.options import FloatArray
from kohort.models.rows import StackedRows
from kohort.models.scoring import one_blas_thread

__all__ = [
    "Statistics",
    "Transform",
    "class_moments",
    "fold_of",
    "leading",
    "statistics_of_sites",
    "unpack",
]

Transform: TypeAlias = Callable[[FloatArray], FloatArray]

# Numbers of a chunk [rows, width]: 8 MB.
_CHUNK_NUMBERS = 2**20


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over rows: `grams` [grams, width, width], `moments` [width, columns], `more` (a number's squares, rows)."""

    grams: Floats
    moments: Floats
    more: Floats

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.grams + other.grams, self.moments + other.moments, self.more + other.more)

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(self.grams - other.grams, self.moments - other.moments, self.more - other.more)

    @property
    def gram(self) -> Floats:
        """The Gram matrix of all rows."""
        total: Floats = self.grams.sum(axis=0)
        return total

    @property
    def rows(self) -> float:
        """How many rows were added up."""
        return float(self.more[1] if len(self.more) else self.gram[0, 0])

    def class_rows(self, design: OneLayer) -> Floats:
        """How many rows of each class were added up; empty for a number."""
        if design.classes == 0:
            return np.zeros(0)
        return np.asarray(class_moments(design, self)[0])


def class_moments(design: OneLayer, statistics: Statistics) -> Floats:
    """Z'y of the indicator of every class.

    Args:
        design: What is fitted, with classes.
        statistics: Sums over rows.

    Returns:
        The sums of [1, x] over the rows of each class, [width, classes]; the first row counts the rows.
    """
    if not design.shares_gram:
        return np.ascontiguousarray(statistics.grams[:, :, 0].T)
    if design.classes == 2:
        second = statistics.moments[:, 0]
        return np.stack([statistics.grams[0][:, 0] - second, second], axis=1)
    return statistics.moments


def unpack(design: OneLayer, vector: NDArray[Any]) -> Statistics:
    """Statistics from one flat vector: the upper triangle of each Gram matrix, the moments row by row, the rest.

    Args:
        design: What is fitted, which gives the length.
        vector: The packed statistics, [length].

    Returns:
        The statistics.

    Raises:
        DataError: The vector has another length, or a number is not finite.
    """
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.shape != (design.length,):
        raise DataError(
            f"statistics of shape {numbers.shape} do not fit {design.inputs} inputs and {design.classes} classes",
            hint=f"Expected {design.length} numbers: fit all sites with the same columns and classes",
        )
    require_finite(numbers)
    width = design.width
    triangle = width * (width + 1) // 2
    upper = np.triu_indices(width)
    grams = np.zeros((design.grams, width, width))
    for index, gram in enumerate(grams):
        gram[upper] = numbers[index * triangle : (index + 1) * triangle]
        gram.T[upper] = gram[upper]
    begin = design.grams * triangle
    end = begin + width * design.moment_columns
    return Statistics(grams, numbers[begin:end].reshape(width, design.moment_columns), numbers[end:])


def leading(design: OneLayer, statistics: Statistics, inputs: int) -> tuple[OneLayer, Statistics]:
    """The statistics of a smaller model, of the first inputs alone, taken out of those that are there.

    Args:
        design: What was summed.
        statistics: Its statistics.
        inputs: How many of the inputs to keep, the first ones.

    Returns:
        The smaller model and its statistics.

    Raises:
        ConfigError: There are not so many inputs, or it is less than one.
    """
    if not 1 <= inputs <= design.inputs:
        raise ConfigError(
            f"{inputs} columns cannot be taken out of {design.inputs}", hint="Choose a size within what was summed"
        )
    smaller = OneLayer(inputs=inputs, classes=design.classes, activation=design.activation)
    kept = slice(0, inputs + 1)
    return smaller, Statistics(statistics.grams[:, kept, kept], statistics.moments[kept], statistics.more)


def fold_of(count: int, *, folds: int, key: int) -> NDArray[np.int64]:
    """The fold of each row: a keyed hash of the row's place, the same in every round.

    Args:
        count: How many rows there are.
        folds: How many folds.
        key: What the hash is keyed by; any whole number, read modulo 2^64.

    Returns:
        A number from 0 to folds - 1 per row, [rows]. Folds are about equally large, not exactly.
    """
    with np.errstate(over="ignore"):
        value = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        value ^= np.uint64(key % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
        value ^= value >> np.uint64(31)
    return (value % np.uint64(folds)).astype(np.int64)


def statistics_of_sites(design: OneLayer, rows: StackedRows, *, transform: Transform | None = None) -> Floats:
    """The packed statistics of every site, in one pass over its rows.

    Args:
        design: What is fitted.
        rows: The rows of all sites, without weights.
        transform: Makes the design's inputs of a chunk of encoded rows, such as another scale or random features. None:
            the rows are the inputs.

    Returns:
        One vector per site, [sites, length]; zeros for a site without rows.

    Raises:
        DataError: Rows have weights or another width, a target is no class code or no number within [0, 1], or a sum is
            not finite.
    """
    if rows.weight is not None:
        raise DataError("rows with weights have no closed form here", hint="Leave the row weights out")
    out = np.zeros((rows.sites, design.length))
    with one_blas_thread():
        for sites, first, count in _batches(rows, design.width):
            x, y = _gather(rows, sites, first, count)
            z = with_bias(design, x if transform is None else transform(x), (len(sites), count))
            targets = checked_targets(design, y).reshape(len(sites), count)
            out[sites] += _sums(design, z, targets)
    require_finite(out)
    return out


def require_finite(numbers: NDArray[Any]) -> None:
    """Refuse NaN and infinity."""
    wrong = int(numbers.size - np.isfinite(numbers).sum())
    if wrong:
        raise DataError(
            f"{wrong:,} of {numbers.size:,} statistics are not finite",
            hint="A column holds NaN, infinite or huge numbers: mend it, or declare its bounds",
        )


def chunk_rows(width: int) -> int:
    """Rows of a chunk of `width` columns."""
    return max(1, _CHUNK_NUMBERS // width)


def _batches(rows: StackedRows, width: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """(sites, first row, rows) of every chunk: many short sites of one length together, a long site in parts."""
    most = chunk_rows(width)
    for length in np.unique(rows.counts[rows.counts > 0]).tolist():
        sites = np.flatnonzero(rows.counts == length)
        together = max(1, most // length)
        for begin in range(0, len(sites), together):
            for first in range(0, length, most):
                yield sites[begin : begin + together], first, min(most, length - first)


def _gather(rows: StackedRows, sites: NDArray[np.int64], first: int, count: int) -> tuple[FloatArray, FloatArray]:
    if len(sites) == 1:
        begin = int(rows.starts[sites[0]]) + first
        return rows.x[begin : begin + count], rows.y[begin : begin + count]
    places = (rows.starts[sites][:, None] + np.arange(first, first + count)).reshape(-1)
    return rows.x[places], rows.y[places]


def with_bias(design: OneLayer, x: FloatArray, shape: tuple[int, int]) -> Floats:
    """Rows [1, x] in float64, shaped [sites, rows, width]."""
    if x.shape[1] != design.inputs:
        raise DataError(f"rows have {x.shape[1]} columns, not {design.inputs}", hint="Encode all sites alike")
    z = np.empty((x.shape[0], design.width))
    z[:, 0] = 1.0
    z[:, 1:] = x
    return z.reshape(*shape, design.width)


def checked_targets(design: OneLayer, y: FloatArray) -> Floats:
    """Targets in float64: class codes, or numbers within [0, 1]; anything else is counted and refused."""
    targets = np.asarray(y, dtype=np.float64)
    if design.classes:
        wrong = int((~((targets >= 0) & (targets < design.classes) & (targets == np.floor(targets)))).sum())
        expected = f"a class code from 0 to {design.classes - 1}"
    else:
        wrong = int((~((targets >= 0) & (targets <= 1))).sum())
        expected = "a number scaled to [0, 1] by its bounds"
    if wrong:
        raise DataError(
            f"the target is not {expected} in {counted(wrong, 'row')}", hint="Encode all sites with one encoder"
        )
    return targets


@lru_cache(maxsize=8)
def _upper(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper triangle; short sites take less time to sum than these to make."""
    return np.triu_indices(width)


def _sums(design: OneLayer, z: Floats, targets: Floats) -> Floats:
    """Packed statistics [sites, length] of rows z [sites, rows, width]."""
    flipped = z.transpose(0, 2, 1)
    upper = _upper(design.width)

    def triangle(weights: Floats | None) -> Floats:
        weighted = flipped if weights is None else flipped * weights[:, None, :]
        product: Floats = (weighted @ z)[:, upper[0], upper[1]]
        return product

    if design.classes == 0:
        low, high = WANTED[design.activation]
        dbar = inverse(design.activation, low + (high - low) * targets)
        weights = slope(design.activation, dbar) ** 2
        moments = np.einsum("snm,sn->sm", z, weights * dbar)
        rows = np.ones_like(targets).sum(axis=1)
        more = np.stack([np.einsum("sn,sn->s", weights, dbar**2), rows], axis=1)
        return np.concatenate([triangle(weights), moments, more], axis=1)
    codes = [1] if design.classes == 2 and design.shares_gram else range(design.classes)
    indicators = np.stack([(targets == code).astype(np.float64) for code in codes], axis=2)
    if not design.shares_gram:
        return np.concatenate([triangle(indicators[:, :, code]) for code in range(design.classes)], axis=1)
    return np.concatenate([triangle(None), (flipped @ indicators).reshape(len(z), -1)], axis=1)
