"""`bins:COLUMN=1,2,3`: numbers are the same when no cut point lies between them.

As in a schema, a cut point belongs to the bin below it: with 20,40 the bins are x <= 20, 20 < x <= 40 and x > 40. Null
stays null, a bin of its own.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import polars as pl

from kohort.anonymity.gate.keys import GateKey, KeyFunction
from kohort.errors import ConfigError, nearest
from kohort.tables.domain import number

__all__ = ["KEY"]


def _make(argument: str) -> KeyFunction:
    name, _, listed = argument.rpartition("=")
    try:
        cuts = [float(part) for part in listed.split(",")]
    except ValueError:
        cuts = []
    rising = all(low < high for low, high in pairwise(cuts))
    if not name or not cuts or not rising or not all(map(math.isfinite, cuts)):
        raise ConfigError("the key function 'bins' needs rising cut points", hint="Write bins:COLUMN=20,40,60")

    def put_in_bins(columns: pl.DataFrame) -> pl.DataFrame:
        if name not in columns.columns:
            raise ConfigError(f"bins are given for {name!r}, no quasi-identifier", hint=nearest(name, columns.columns))
        values = number(columns[name])
        codes = np.searchsorted(np.array(cuts), values.fill_null(0.0).to_numpy(), side="left")
        binned = pl.select(pl.when(values.is_not_null()).then(pl.Series(codes, dtype=pl.Int64))).to_series()
        return columns.with_columns(binned.alias(name))

    return put_in_bins


KEY = GateKey(name="bins", make=_make)
