"""Inference: does a released table tell something of a person that one did not know?

The attacker knows a person's columns but one, takes the released rows nearest to them, and guesses the commonest value
of the secret among these. Persons who are not in the table are asked about in the same way: what is right for them
too is a fact about everybody, not a leak of the table (the inference question of WP216, as Giomi et al. ask it, PoPETs
2023). A guess is right as often as for those, or as the commonest value of all, whichever is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control
from kohort.evaluate.attacks.released import Attacked, Released
from kohort.tables.cells import canonical_text

__all__ = ["TARGETS", "infer"]

TARGETS: Final = 500
"""Persons who are asked about, at most."""
CLOSE: Final = 0.05
"""A number counts as inferred when it is off by at most this share of the column's range."""


def infer(asked: Attacked, *, secret: str, known: Sequence[str]) -> Finding:
    """Ask a released table for one column of persons.

    Args:
        asked: The release, and persons in it and not in it.
        secret: The column that is asked for.
        known: The columns that the attacker knows.

    Returns:
        How often the secret was inferred.
    """
    random, table = np.random.default_rng(asked.seed), asked.table
    persons = [drawn(part, TARGETS, random) for part in (asked.members, asked.others)]
    right = [_right(table, part, secret, known) for part in persons]
    hits, control = (int(one.sum()) for one in right)
    counts = [max(1, part.height) for part in persons]
    base = _base_rate(table, asked.members, secret)
    guess = max(control / counts[1], base)
    return Finding(
        attack=f"attribute: inference of {secret}",
        family="attribute",
        on=asked.on,
        by=asked.by,
        measure="share of persons whose value was inferred",
        success=hits / counts[0],
        guess=guess,
        interval=beside_control(hits, counts[0], control, counts[1]),
        note="the guess: the same asked of persons who are not in the table, or the commonest value",
        details={"control": control / counts[1], "commonest": base},
    )


def drawn(frame: pl.DataFrame, most: int, random: np.random.Generator) -> pl.DataFrame:
    """At most so many rows, drawn at random."""
    if frame.height <= most:
        return frame
    return frame[np.sort(random.choice(frame.height, most, replace=False))]


def _right(table: Released, persons: pl.DataFrame, secret: str, known: Sequence[str]) -> NDArray[np.bool_]:
    """Of whom the secret was inferred."""
    far = table.distances(persons, known)
    nearest = far <= far.min(axis=1, keepdims=True) + 1e-6
    span = table.ranges.get(secret)
    truth = persons[secret]
    if span is not None:
        values = table.frame[secret].cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()
        if not np.isnan(values).any():
            estimate = (nearest @ values) / nearest.sum(axis=1)
            off = np.abs(estimate - truth.cast(pl.Float64).fill_null(float("nan")).to_numpy())
            return np.asarray(off <= CLOSE * span)
    cells, of_row = np.unique([_text(value) for value in table.frame[secret].to_list()], return_inverse=True)
    votes = nearest.astype(np.float32) @ np.eye(len(cells), dtype=np.float32)[of_row]
    said = cells[votes.argmax(axis=1)]
    return np.asarray(said == np.array([_text(value) for value in truth.to_list()]))


def _base_rate(table: Released, members: pl.DataFrame, secret: str) -> float:
    """How often the commonest value, or the middle one of numbers, is right."""
    span = table.ranges.get(secret)
    if span is not None and members[secret].dtype.is_numeric():
        values = members[secret].cast(pl.Float64).drop_nulls().to_numpy()
        return float((np.abs(values - np.median(values)) <= CLOSE * span).mean())
    return float(members[secret].value_counts(sort=True)["count"][0] / members.height)


def _text(value: object) -> str:
    return "" if value is None else canonical_text(value)
