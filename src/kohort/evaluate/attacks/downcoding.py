"""Downcoding: finer values than a release shows, inferred from the fact that its cells are no wider than they must be.

In a local recoding every class has cells of its own, and some classes lie within wider ones. A maker who keeps the loss
small puts a row into the finest class that fits it. So whoever sees a wide class next to a finer one knows that rows of
the wide class are most likely not among those the finer one stands for, and what is left of the cell is a finer value
than the one released (Cohen, "Attacks on Deidentification's Defenses", USENIX Security 2022; Wong et al., VLDB 2007).
No fact about a person is needed; the attacker has the classes and knows how common values are in general.

For each class he draws rows that its cells allow, strikes out those that a finer class of the same release would have
taken, and bets on the value that is left most often: of a category the value, of a number which half of the cell. The
guess bets on the commonest value that the same cell allows, for the same rows.

What it cannot see: releases in which no class lies within another (cuts along boundaries, one level per column).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control, not_attacked
from kohort.evaluate.attacks.released import distinct, holds, texts_of
from kohort.tables.cells import Interval, Label, ValueSet, canonical_text, parse_cell
from kohort.tables.column_blocks import Taxonomy

__all__ = ["ATTACK", "Recoded", "downcode"]

ATTACK: Final = "attribute: finer values than released (downcoding)"
DRAWS: Final = 400
"""Rows that are imagined for each class."""
MOST_CLASSES: Final = 1_000
"""Classes that are bet on, at most; drawn at random where there are more."""
STRUCK: Final = 0.05
"""A class is bet on when finer classes would have taken at least this share of the imagined rows, and not all."""
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recoded:
    """Classes as they were released, and which rows are in them, for the referee alone.

    Attributes:
        cells: One row per class, one column per quasi-identifier.
        release: Which release (of which site) each class belongs to.
        rows: The rows of all releases, as they are.
        class_of: The class of each row. No bet looks at it.
        taxonomies: What labels stand for, by column.
    """

    cells: pl.DataFrame
    release: Integers
    rows: pl.DataFrame
    class_of: Integers
    taxonomies: Mapping[str, Taxonomy] = field(default_factory=dict)


@dataclass(frozen=True)
class _Column:
    """One column: its possible values, how common they are, and which of them each cell could stand for."""

    values: list[str]
    common: Floats
    cell_of: Integers
    covers: Bools
    loss: Floats
    number: bool
    truth: Integers
    """The value of every row, for the referee; -1 for one that nobody else has."""

    def of_class(self, place: int) -> Bools:
        """Which values the cell of a class could stand for."""
        return np.asarray(self.covers[self.cell_of[place]])


@dataclass
class _Score:
    """How often bets and guesses were right."""

    cells: int = 0
    right: int = 0
    guessed: int = 0

    def count(self, truth: Integers, bet: int, guess: int) -> None:
        """Add the true values of one class's rows."""
        self.cells += len(truth)
        self.right += int((truth == bet).sum())
        self.guessed += int((truth == guess).sum())


def downcode(table: Recoded, others: pl.DataFrame, *, on: str, by: str, seed: int = 0) -> Finding:
    """Bet on finer values for the rows of classes that lie around finer ones.

    Args:
        table: The classes.
        others: Rows of persons who are not in the release: how common values are in general.
        on: What was attacked.
        by: Who has it.
        seed: Of the draws.

    Returns:
        How often a bet was right, beside the commonest value that the same cells allow; a finding that says why not
        where no class lies around a finer one.
    """
    columns = [_column(table, others, name) for name in table.cells.columns]
    if not any((column.covers.sum(axis=1) > 1).any() for column in columns):
        return not_attacked(ATTACK, "attribute", on=on, by=by, why="no cell stands for several values")
    random = np.random.default_rng(seed)
    score, bet_on = _Score(), 0
    places = np.arange(table.cells.height)
    if len(places) > MOST_CLASSES:
        places = np.sort(random.choice(places, MOST_CLASSES, replace=False))
    for place in places.tolist():
        drawn, left = _imagined(columns, table.release, place, random)
        if not STRUCK <= 1 - left.mean() < 1:
            continue
        bet_on += 1
        rows = np.flatnonzero(table.class_of == place)
        for column, draws in zip(columns, drawn, strict=True):
            _bet(column, place, draws[left], column.truth[rows], score)
    if not score.cells:
        why = "no class lies around a finer one, so that narrow cells tell nothing of wide ones"
        return not_attacked(ATTACK, "attribute", on=on, by=by, why=why)
    return Finding(
        attack=ATTACK,
        family="attribute",
        on=on,
        by=by,
        measure="share of cells of which a finer value was inferred",
        success=score.right / score.cells,
        guess=score.guessed / score.cells,
        interval=beside_control(score.right, score.cells, score.guessed, score.cells),
        note=f"{bet_on:,} of {len(places):,} classes lie around finer ones; the guess: the commonest value that "
        "a cell allows",
        details={"cells": float(score.cells), "classes": float(bet_on)},
    )


def _imagined(
    columns: Sequence[_Column], release: Integers, place: int, random: np.random.Generator
) -> tuple[list[Integers], Bools]:
    """Rows that a class allows, as values of each column, and which of them no finer class would take."""
    drawn = []
    for column in columns:
        weight = np.where(column.of_class(place), column.common, 0.0)
        drawn.append(random.choice(len(weight), DRAWS, p=weight / weight.sum()))
    loss = np.sum([column.loss[column.cell_of] for column in columns], axis=0)
    finer = np.flatnonzero((release == release[place]) & (loss < loss[place] - 1e-12))
    takes = np.ones((len(finer), DRAWS), dtype=bool)
    for column, draws in zip(columns, drawn, strict=True):
        takes &= column.covers[column.cell_of[finer]][:, draws]
    return drawn, np.asarray(~takes.any(axis=0))


def _bet(column: _Column, place: int, left: Integers, truth: Integers, score: _Score) -> None:
    """Bet on what is left of one cell; a cell of one value is no bet."""
    allowed = column.of_class(place)
    if allowed.sum() < 2:
        return
    weight = np.where(allowed, column.common, 0.0)
    counts = np.bincount(left, minlength=len(weight)).astype(np.float64)
    if column.number:  # which half of the cell, cut where half of all persons it allows are
        cut = int(np.searchsorted(np.cumsum(weight), weight.sum() / 2))
        upper = np.arange(len(weight)) > cut
        weight, counts = (np.array([one[~upper].sum(), one[upper].sum()]) for one in (weight, counts))
        truth = np.where(truth < 0, -1, (truth > cut).astype(np.int64))
    score.count(truth, int(counts.argmax()), int(weight.argmax()))


def _column(table: Recoded, others: pl.DataFrame, name: str) -> _Column:
    cells, cell_of = distinct(table.cells[name])
    number, taxonomy = others.schema[name].is_numeric(), table.taxonomies.get(name)
    seen = texts_of(others[name])
    members = {"" if one is None else one for cell in cells for one in _members(cell, taxonomy)}
    values = sorted({*seen, *members}, key=_as_number if number else str)
    code = {value: place for place, value in enumerate(values)}
    common = np.bincount([code[value] for value in seen], minlength=len(values)).astype(np.float64) + 0.5
    texts = np.array(values)
    covers = np.array([holds(cell, texts, taxonomy) for cell in cells])
    truth = np.array([code.get(value, -1) for value in texts_of(table.rows[name])], dtype=np.int64)
    return _Column(values, common, cell_of, covers, _losses(cells, covers, texts, number=number), number, truth)


def _members(cell: str, taxonomy: Taxonomy | None) -> Sequence[str | None]:
    """Values that a cell names itself: the ends of an interval, the members of a set, the leaves of a label."""
    read = parse_cell(cell)
    if isinstance(read, ValueSet):
        return read.values
    if isinstance(read, Interval):
        return canonical_text(read.low), canonical_text(read.high)
    if isinstance(read, Label) and taxonomy is not None:
        return taxonomy.leaves(read.text)
    return (read,) if isinstance(read, str) else ()


def _losses(cells: NDArray[np.str_], covers: Bools, values: NDArray[np.str_], *, number: bool) -> Floats:
    """What a cell loses, 0 to 1: the width of an interval, or the share of values that a set or label stands for."""
    count = covers.sum(axis=1)
    share = np.where(count > 1, count / max(1, len(values)), 0.0)
    if not number:
        return np.asarray(share)
    known = [_as_number(text) for text in values if text]
    span = (max(known) - min(known)) or 1.0
    reads = [parse_cell(cell) for cell in cells]
    return np.array(
        [
            (read.high - read.low) / span if isinstance(read, Interval) else own
            for read, own in zip(reads, share, strict=True)
        ]
    )


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("-inf")
