"""Five folds of a split's training rows, by patient: no row to test on is in them, and nobody is in two of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.rng import Streams
from kohort.runs.simulation import Population
from kohort.tables.persons import persons_of

__all__ = ["FOLDS", "fold_numbers", "left_out", "measured_on_fold"]

FOLDS: Final = 5


def fold_numbers(whole: Population, seed: int) -> NDArray[np.int64]:
    """The fold of each training row.

    Args:
        whole: The sites of a seed.
        seed: The seed, which the folds are drawn with.

    Returns:
        A number below `FOLDS` per row: a fifth of every site's rows each where everybody has one row, otherwise a fifth
        of the persons.
    """
    generator = Streams.seeded(seed).generator("study", "folds")
    named = whole.schema.identifiers
    persons = persons_of(whole.frame[named[0]]) if named else None
    if persons is not None:
        drawn: NDArray[np.int64] = generator.permutation(int(persons.max()) + 1)[persons] % FOLDS
        return drawn
    return np.concatenate([generator.permutation(int(size)) % FOLDS for size in np.diff(whole.starts)])


def left_out(whole: Population, fold: NDArray[np.int64], number: int) -> tuple[Population, pl.DataFrame]:
    """The sites without the rows of a fold, and those rows.

    Args:
        whole: The sites.
        fold: The fold of each of their rows.
        number: The fold to leave out.

    Returns:
        The sites that learn, and the rows that they do not have.
    """
    aside = fold == number
    left = np.add.reduceat(~aside, whole.starts[:-1])
    starts = np.concatenate([[0], np.cumsum(left)]).astype(np.int64)
    part = replace(whole, frame=whole.frame.filter(pl.Series(~aside)), starts=starts)
    return part, whole.frame.filter(pl.Series(aside))


def measured_on_fold(whole: Population, seed: int, number: int) -> Population:
    """The sites without the rows of a fold, which take the place of the test rows.

    Args:
        whole: The sites of a seed.
        seed: The seed.
        number: The fold.

    Returns:
        The sites; the test rows of the seed are in neither part.
    """
    part, aside = left_out(whole, fold_numbers(whole, seed), number)
    return replace(part, test=aside, test_sites=None)
