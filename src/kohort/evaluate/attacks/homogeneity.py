"""Homogeneity: classes of a released table in which everybody has the same sensitive value.

Whoever knows that a person is in such a class knows the value, however large the class is (Machanavajjhala et al.,
2007). The guess is the share of persons in such classes when the same values are dealt out to the same classes at
random: small classes agree by chance, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, share_interval
from kohort.evaluate.attacks.released import Released

__all__ = ["in_one_class"]

DEALS: Final = 20


def in_one_class(table: Released, *, quasi: Sequence[str], secret: str, on: str, by: str, seed: int = 0) -> Finding:
    """How many persons of a release are in a class with a single value of one column.

    Args:
        table: The release.
        quasi: Its quasi-identifiers.
        secret: The sensitive column.
        on: What was attacked.
        by: Who has it.
        seed: Of the random deals.

    Returns:
        The share of persons.
    """
    _, place = table.classes(quasi)
    values = table.frame[secret].cast(pl.String).fill_null("").rank("dense").to_numpy().astype(np.int64)
    random = np.random.default_rng(seed)
    alike = _alike(place, values)
    chance = float(np.mean([_alike(place, random.permutation(values)) for _ in range(DEALS)]))
    rows = table.frame.height
    return Finding(
        attack=f"attribute: classes with one value of {secret}",
        family="attribute",
        on=on,
        by=by,
        measure="share of persons in such classes",
        success=alike / rows,
        guess=chance / rows,
        interval=share_interval(alike, rows),
        note="the guess deals the same values out to the same classes at random",
        details={"classes": float(place.max() + 1)},
    )


def _alike(place: NDArray[np.int64], values: NDArray[np.int64]) -> int:
    """Rows in classes whose least and greatest value are the same."""
    classes = int(place.max()) + 1
    low, high = np.full(classes, np.iinfo(np.int64).max), np.full(classes, -1)
    np.minimum.at(low, place, values)
    np.maximum.at(high, place, values)
    return int((low == high)[place].sum())
