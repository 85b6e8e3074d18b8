"""`exact`: rows are the same when all their quasi-identifiers are equal."""

from __future__ import annotations

import polars as pl

from kohort.anonymity.gate.keys import GateKey, KeyFunction
from kohort.errors import ConfigError

__all__ = ["KEY"]


def _make(argument: str) -> KeyFunction:
    if argument:
        raise ConfigError("the key function 'exact' takes nothing after a colon", hint="Write --key exact")
    return _as_they_are


def _as_they_are(columns: pl.DataFrame) -> pl.DataFrame:
    return columns


KEY = GateKey(name="exact", make=_make)
