"""Singling out: does a released table give a description that fits exactly one person?

The attacker takes a released row and some of its columns: "sex is F, age at least 83, ward is north". Where that fits
one released row alone, he bets that it fits one person alone (Giomi et al., PoPETs 2023; Cohen and Nissim, 2020, for
the definition). Descriptions put together from columns of different rows, and the same bets on persons who are not in
the table, show how often that is right by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control
from kohort.evaluate.attacks.released import Attacked, distinct, holds, texts_of
from kohort.tables.cells import Interval, parse_cell
from kohort.tables.column_blocks import Taxonomy

__all__ = ["single_out"]

BETS: Final = 300
TRIES: Final = 4_000
MOST_COLUMNS: Final = 6
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Texts:
    """A column of categories: its distinct values, and which of them each row has."""

    values: NDArray[np.str_]
    of_row: NDArray[np.int64]

    def fits(self, cell: str, hierarchy: Taxonomy | None) -> Bools:
        """Which rows a released cell could stand for."""
        return holds(cell, self.values, hierarchy)[self.of_row]


@dataclass(frozen=True)
class _Column:
    """One column, as descriptions use it."""

    cells: list[str]
    """The cell of every released row."""
    groups: Mapping[str, _Texts | NDArray[np.float64]]
    """The same column of released rows, of persons in the table, and of others; as numbers where they are."""
    middle: float
    hierarchy: Taxonomy | None

    def fits(self, cell: str, whom: str) -> Bools:
        """Which persons meet the condition of this cell.

        On numbers it is "at least" above the middle and "at most" below it: few persons are at the ends.
        """
        group = self.groups[whom]
        if isinstance(group, _Texts):
            return group.values[group.of_row] == cell if whom == "released" else group.fits(cell, self.hierarchy)
        low, high = _ends(cell)
        return np.asarray(group >= low if (low + high) / 2 >= self.middle else group <= high)


def single_out(asked: Attacked, *, columns: Sequence[str]) -> Finding:
    """Bet on descriptions that a released table gives.

    Args:
        asked: The release, and persons in it and not in it.
        columns: The columns that descriptions may use.

    Returns:
        How often a bet was right.
    """
    random, table = np.random.default_rng(asked.seed), asked.table
    known = [_column(asked, name) for name in columns]
    bets, alone, alone_outside = 0, 0, 0
    chance, chance_alone = 0, 0
    for _ in range(TRIES):
        chosen = random.choice(len(known), int(random.integers(1, min(MOST_COLUMNS, len(known)) + 1)), replace=False)
        own = [known[place] for place in chosen]
        row = int(random.integers(table.frame.height))
        mixed = random.integers(0, table.frame.height, len(own))
        if _fits(own, [row] * len(own), "released") == 1:
            bets += 1
            alone += _fits(own, [row] * len(own), "persons") == 1
            alone_outside += _fits(own, [row] * len(own), "others") == 1
        if chance < BETS:
            chance += 1
            chance_alone += _fits(own, mixed.tolist(), "persons") == 1
        if bets >= BETS:
            break
    return _finding(asked, bets, alone, max(alone_outside / max(1, bets), chance_alone / max(1, chance)))


def _finding(asked: Attacked, bets: int, alone: int, guess: float) -> Finding:
    made = bets or TRIES
    return Finding(
        attack="linkage: singling out",
        family="linkage",
        on=asked.on,
        by=asked.by,
        measure="share of bets that fit one person",
        success=alone / made,
        guess=guess,
        interval=beside_control(alone, made, round(guess * made), made),
        note=f"{bets:,} {'description fits' if bets == 1 else 'descriptions fit'} a single released row"
        if bets
        else f"none of {TRIES:,} descriptions fits a single released row, so there is nothing to bet on",
        details={"bets": float(bets)},
    )


def _fits(columns: Sequence[_Column], rows: Sequence[int], whom: str) -> int:
    """How many a description fits: of each column the cell of one released row."""
    fit: Bools | None = None
    for column, row in zip(columns, rows, strict=True):
        own = column.fits(column.cells[row], whom)
        fit = own if fit is None else fit & own
    return 0 if fit is None else int(fit.sum())


def _column(asked: Attacked, name: str) -> _Column:
    table, members, others = asked.table, asked.members, asked.others
    cells = texts_of(table.frame[name])
    if name not in table.ranges:
        groups: dict[str, _Texts | NDArray[np.float64]] = {
            whom: _Texts(*distinct(part[name]))
            for whom, part in (("released", table.frame), ("persons", members), ("others", others))
        }
        return _Column(cells, groups, 0.0, table.hierarchies.get(name))
    middles = np.array([sum(_ends(cell)) / 2 for cell in cells])
    numbers = {
        whom: part[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for whom, part in (("persons", members), ("others", others))
    }
    return _Column(cells, {"released": middles, **numbers}, float(np.nanmedian(middles)), None)


def _ends(cell: str) -> tuple[float, float]:
    read = parse_cell(cell)
    if isinstance(read, Interval):
        return read.low, read.high
    try:
        return float(cell), float(cell)
    except ValueError:
        return float("nan"), float("nan")
