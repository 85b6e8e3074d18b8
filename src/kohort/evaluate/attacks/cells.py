"""Small cells: what totals per cell tell of the persons in them.

A learner over totals opens, for cells of some columns, how many persons are in each and the sum of their residuals.
While the model still says the same of everybody, that sum is a count: how many of the cell have which class. The
attacker knows a person's inputs and that he took part, looks his cells up, and bets on the class that the purest of
them has; a cell of one person tells that person's class for certain. Of a number, the smallest cell's mean is the bet.
Persons who did not take part are asked about in the same way: what is right for them, too, is a fact about everybody.

After the first step rows have scores of their own, and a cell's sum is that of targets less what the model expects. The
attacker knows the model before every total, so he knows what it expected of the person. Persons of a cell are alike to
him: his bet is what the model expected plus the cell's mean residual, in the smallest cell the person is in over all
totals. Alone in a cell, a person's target is known for certain; in larger cells the bet is nearly the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control, not_attacked

__all__ = ["ATTACK", "LATER", "OpenedCells", "SmallestCells", "cells_finding"]

ATTACK: Final = "attribute: targets inferred from small cells"
LATER: Final = "attribute: targets inferred from small cells of later totals"
CLOSE: Final = 0.05
"""A number counts as inferred when it is off by at most this share of its range."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class OpenedCells:
    """Cells of one opened total, and where the persons who are asked about are.

    Attributes:
        rows: How many persons each cell holds.
        sums: How many of them have the class that the cell is about, or the sum of their numbers; of later totals, the
            sum of what they are above what the model expects.
        about: The class that each cell is about: 1 of two classes; 0 for a number. Of later totals, which output.
        members: The cells of each person who took part, [persons, cells of one]; -1 for none.
        others: The same of persons who did not.
    """

    rows: Floats
    sums: Floats
    about: Integers
    members: Integers
    others: Integers


def cells_finding(
    opened: list[OpenedCells],
    truth: tuple[Floats, Floats],
    *,
    classes: int,
    on: str,
    by: str,
) -> Finding:
    """Bet on the targets of persons by the cells that they are in.

    Args:
        opened: All opened totals that the bets may use.
        truth: The class codes, or numbers from 0 to 1, of members and of others.
        classes: How many classes there are; 0 for a number.
        on: What was attacked.
        by: Who has it.

    Returns:
        How often a bet was right, beside persons who did not take part, or the commonest value.
    """
    sides = ([one.members for one in opened], [one.others for one in opened])
    bets = [_bets(opened, places, len(own), classes) for places, own in zip(sides, truth, strict=True)]
    right = [_right(bet, own, classes) for bet, own in zip(bets, truth, strict=True)]
    (hits, control), counts = (int(one.sum()) for one in right), [max(1, len(own)) for own in truth]
    base = _base_rate(truth[0], classes)
    alone = _alone(opened, sides[0], len(truth[0]))
    smallest = min((float(one.rows[one.rows > 0].min(initial=np.inf)) for one in opened), default=np.inf)
    found = f"the smallest opened cell holds {smallest:,.0f}; {alone:.1%} of persons are alone in one"
    return _finding(ATTACK, on, by, (hits, control), counts, base, found, {"alone": alone, "smallest": smallest})


@dataclass
class SmallestCells:
    """What the smallest cell of each person tells, over all later totals.

    Attributes:
        truth: The class codes, or numbers from 0 to 1, of members and of others; no bet looks at them.
        classes: How many classes there are; 0 for a number.
        rows: How many persons the smallest cell holds, [persons, outputs], of members and of others.
        estimates: The bet on each output.
        totals: How many totals were looked at.
    """

    truth: tuple[Floats, Floats]
    classes: int
    rows: tuple[Floats, Floats]
    estimates: tuple[Floats, Floats]
    totals: int = 0

    @classmethod
    def of(cls, truth: tuple[Floats, Floats], *, classes: int) -> SmallestCells:
        """Before the first total: nobody is in a cell.

        Args:
            truth: As in the attributes.
            classes: As in the attributes.
        """
        outputs = classes if classes > 2 else 1
        rows = tuple(np.full((len(own), outputs), np.inf) for own in truth)
        estimates = tuple(np.full((len(own), outputs), np.nan) for own in truth)
        return cls(truth, classes, (rows[0], rows[1]), (estimates[0], estimates[1]))

    def take(self, cells: OpenedCells, expected: tuple[Floats, Floats]) -> None:
        """Look up everybody's cells in one more total.

        Args:
            cells: Its cells.
            expected: What the model before it says of members and of others, [persons, outputs].
        """
        self.totals += 1
        for side, places in enumerate((cells.members, cells.others)):
            for own in places.T:
                self._look_up(side, own, cells, expected[side])

    def _look_up(self, side: int, place: Integers, cells: OpenedCells, expected: Floats) -> None:
        persons = np.flatnonzero((place >= 0) & (cells.rows[place] > 0))
        cell = place[persons]
        output, held = cells.about[cell], cells.rows[cell]
        smaller = held < self.rows[side][persons, output]
        persons, cell, output, held = persons[smaller], cell[smaller], output[smaller], held[smaller]
        self.rows[side][persons, output] = held
        self.estimates[side][persons, output] = expected[persons, output] + cells.sums[cell] / held

    def finding(self, *, on: str, by: str) -> Finding:
        """How often the bets are right.

        Args:
            on: What was attacked.
            by: Who has it.

        Returns:
            The finding; one that says why not where no later total was opened.
        """
        inside = [np.isfinite(own).all(axis=1) for own in self.estimates]
        if not inside[0].any() or not inside[1].any():
            why = "no total was opened after the first step"
            return not_attacked(LATER, "attribute", on=on, by=by, why=why)
        hits, control = (
            int(_right(self._bet(own[kept]), truth[kept], self.classes).sum())
            for own, truth, kept in zip(self.estimates, self.truth, inside, strict=True)
        )
        counts = [int(kept.sum()) for kept in inside]
        base = _base_rate(self.truth[0], self.classes)
        alone = float((self.rows[0] == 1).any(axis=1).mean())
        smallest = float(min(own.min() for own in self.rows))
        cells = f"the smallest cell holds {smallest:,.0f}, {alone:.1%} of persons are alone in one"
        found = f"{self.totals:,} totals; {cells}"
        return _finding(LATER, on, by, (hits, control), counts, base, found, {"alone": alone, "smallest": smallest})

    def _bet(self, estimates: Floats) -> Floats:
        if not self.classes:
            return np.asarray(np.clip(estimates[:, 0], 0.0, 1.0))
        if self.classes > 2:
            return np.asarray(estimates.argmax(axis=1), dtype=np.float64)
        return np.asarray(estimates[:, 0] > 0.5, dtype=np.float64)


def _bets(opened: list[OpenedCells], places: list[Integers], persons: int, classes: int) -> Floats:
    """What the attacker says of each person."""
    best, said = np.full(persons, -1.0), np.zeros(persons)
    for one, place in zip(opened, places, strict=True):
        known = np.where(one.rows > 0, one.rows, 1.0)
        share = one.sums / known
        for own in place.T:
            inside = (own >= 0) & (one.rows[own] > 0)
            held, here = np.clip(share[own], 0.0, 1.0), one.rows[own]
            if not classes:
                sure, bet = 1.0 / here.clip(1.0), held
            else:
                sure, bet = _surest(held, here, one.about[own], classes)
            better = inside & (sure > best)
            best, said = np.where(better, sure, best), np.where(better, bet, said)
    return said


def _surest(share: Floats, rows: Floats, about: Integers, classes: int) -> tuple[Floats, Floats]:
    """How sure a cell is of its likeliest class, and which that is; a pure cell is certain, larger ones first."""
    pure = 1.0 + rows / (1.0 + rows)
    yes = np.where(share > 1 - 1e-9, pure, share)
    if classes > 2:  # that somebody is not of one class tells little
        return yes, about.astype(np.float64)
    no = np.where(share < 1e-9, pure, 1.0 - share)
    return np.maximum(yes, no), (yes >= no).astype(np.float64)


def _right(bets: Floats, truth: Floats, classes: int) -> NDArray[np.bool_]:
    return np.asarray(bets == truth if classes else np.abs(bets - truth) <= CLOSE)


def _base_rate(truth: Floats, classes: int) -> float:
    if not len(truth):
        return 0.0
    if classes:
        return float(np.bincount(truth.astype(np.int64)).max() / len(truth))
    return float((np.abs(truth - np.median(truth)) <= CLOSE).mean())


def _alone(opened: list[OpenedCells], places: list[Integers], persons: int) -> float:
    """The share of persons who are the only one in an opened cell."""
    found = np.zeros(persons, dtype=bool)
    for one, place in zip(opened, places, strict=True):
        found |= ((place >= 0) & (one.rows[place] == 1)).any(axis=1)
    return float(found.mean()) if persons else 0.0


def _finding(
    attack: str,
    on: str,
    by: str,
    right: tuple[int, ...],
    counts: list[int],
    base: float,
    found: str,
    details: dict[str, float],
) -> Finding:
    """How many members' targets were inferred, beside those of persons who took no part and the commonest value."""
    (hits, control), (members, others) = right, counts
    return Finding(
        attack=attack,
        family="attribute",
        on=on,
        by=by,
        measure="share of persons whose target was inferred",
        success=hits / members,
        guess=max(control / others, base),
        interval=beside_control(hits, members, control, others),
        note=f"{found}. The guess: the same asked of persons who did not take part, or the commonest value",
        details={**details, "control": control / others, "commonest": base},
    )
