"""`similarity:12`: rows of numbers are the same when they lie on the same side of each of twelve fixed planes.

For images and other vectors whose columns are on one scale. The numbers of a row are taken relative to their mean, so
that all of them brighter or darker is the same; a missing number is that mean. The planes are drawn from a fixed seed
and from no row, so any two sites give the same row the same key (random hyperplanes: Charikar, 2002). Fewer planes make
rows more alike: more of them pass, and the key says less.

What it is not: a proof that rows are alike. Two images with one key can differ in every pixel, and a person who is in
one of them can be recognised. It decides which rows a gate looks at together, no more.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.keys import GateKey, KeyFunction
from kohort.errors import ConfigError, DataError

__all__ = ["KEY"]

MOST = 64
DIGITS = 9
"""Sums are rounded before their signs are taken: two machines may add the same numbers in another order."""


def _make(argument: str) -> KeyFunction:
    count = argument.strip()
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= MOST):
        raise ConfigError(
            f"the key function 'similarity' needs a number of planes, 1 to {MOST}", hint="Write similarity:12"
        )
    planes = int(count)

    def sides(columns: pl.DataFrame) -> NDArray[np.bool_]:
        texts = [name for name, dtype in columns.schema.items() if not (dtype.is_numeric() or dtype == pl.Null)]
        if texts:
            raise DataError(
                f"a similarity needs numbers, and these columns hold none: {', '.join(texts)}",
                hint="Choose numeric quasi-identifiers, or another key",
            )
        values = columns.cast(pl.Float64).fill_nan(None).to_numpy().astype(np.float64)
        known = np.isfinite(values)
        there = np.where(known, values, 0.0)
        means = there.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
        directions = np.random.default_rng(0).normal(size=(planes, values.shape[1]))
        found = np.round(np.where(known, there - means, 0.0) @ directions.T, DIGITS) > 0
        return np.asarray(found, dtype=np.bool_)

    return sides


KEY = GateKey(name="similarity", make=_make)
