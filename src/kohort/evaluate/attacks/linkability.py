"""Linkability: does a released table join what two sources know of the same person?

One source knows some columns of a person, another the others. Each takes the released row nearest to what it knows; the
person is linked when both take the same row (Giomi et al., PoPETs 2023). Among rows that are equally near, one is
drawn. Persons who are not in the table are linked by chance as often as the guess says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control
from kohort.evaluate.attacks.inference import TARGETS, drawn
from kohort.evaluate.attacks.released import Attacked, Released

__all__ = ["link"]


def link(asked: Attacked, *, columns: Sequence[str]) -> Finding:
    """Try to join two halves of what is known of persons by a released table.

    Args:
        asked: The release, and persons in it and not in it.
        columns: The columns that the two sources share out, every other one each.

    Returns:
        How often both sources took the same row.
    """
    random, table = np.random.default_rng(asked.seed), asked.table
    counts, hits = [], []
    for part in (asked.members, asked.others):
        persons = drawn(part, TARGETS, random)
        first, second = (_nearest(table, persons, half, random) for half in (columns[::2], columns[1::2]))
        hits.append(int((first == second).sum()))
        counts.append(max(1, persons.height))
    return Finding(
        attack="linkage: two sources by the table",
        family="linkage",
        on=asked.on,
        by=asked.by,
        measure="share of persons linked",
        success=hits[0] / counts[0],
        guess=hits[1] / counts[1],
        interval=beside_control(hits[0], counts[0], hits[1], counts[1]),
        note="the guess: the same tried on persons who are not in the table",
    )


def _nearest(
    table: Released, persons: pl.DataFrame, columns: Sequence[str], random: np.random.Generator
) -> NDArray[np.int64]:
    far = table.distances(persons, columns)
    near = far <= far.min(axis=1, keepdims=True) + 1e-6
    return np.asarray((near * random.random(near.shape, dtype=np.float32)).argmax(axis=1))
