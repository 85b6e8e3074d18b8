"""`mask:COLUMN=3`: texts are the same when their first characters are, as with the leading digits of a ZIP code.

A number is read as its text. Null stays null.
"""

from __future__ import annotations

import polars as pl

from kohort.anonymity.gate.keys import GateKey, KeyFunction
from kohort.errors import ConfigError, nearest
from kohort.tables.domain import category_text

__all__ = ["KEY"]

LONGEST = 1_000_000


def _make(argument: str) -> KeyFunction:
    name, _, kept = argument.rpartition("=")
    if not name or not (kept.isascii() and kept.isdigit()):
        raise ConfigError("the key function 'mask' needs a column and a length", hint="Write mask:COLUMN=3")
    length = int(kept)
    if length > LONGEST:
        raise ConfigError(f"a mask keeps at most {LONGEST:,} characters", hint="Write a smaller length")

    def keep_the_start(columns: pl.DataFrame) -> pl.DataFrame:
        if name not in columns.columns:
            raise ConfigError(f"a mask is given for {name!r}, no quasi-identifier", hint=nearest(name, columns.columns))
        return columns.with_columns(category_text(columns[name]).str.head(length).alias(name))

    return keep_the_start


KEY = GateKey(name="mask", make=_make)
