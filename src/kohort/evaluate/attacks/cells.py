"""Small cells: what totals per cell tell of the persons in them.

A learner over totals opens, for cells of some columns, how many persons are in each and the sum of their residuals.
While the model still says the same of everybody, that sum is a count: how many of the cell have which class. The
attacker knows a person's inputs and that he took part, looks his cells up, and bets on the class that the purest of
them has; a cell of one person tells that person's class for certain. Of a number, the smallest cell's mean is the bet.
Persons who did not take part are asked about in the same way: what is right for them, too, is a fact about everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control

__all__ = ["ATTACK", "OpenedCells", "cells_finding"]

ATTACK: Final = "attribute: targets told by small cells"
CLOSE: Final = 0.05
"""A number counts as told when it is off by at most this share of its range."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class OpenedCells:
    """Cells of one opened total, and where the persons who are asked about are.

    Attributes:
        rows: How many persons each cell holds.
        sums: How many of them have the class that the cell is about, or the sum of their numbers.
        about: The class that each cell is about: 1 of two classes; 0 for a number.
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
    return Finding(
        attack=ATTACK,
        family="attribute",
        on=on,
        by=by,
        measure="share of persons whose target was told",
        success=hits / counts[0],
        guess=max(control / counts[1], base),
        interval=beside_control(hits, counts[0], control, counts[1]),
        note=f"the smallest opened cell holds {smallest:,.0f}; {alone:.1%} of persons are alone in one. The guess: the "
        "same asked of persons who did not take part, or the commonest value",
        details={"alone": alone, "smallest": smallest, "control": control / counts[1], "commonest": base},
    )


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
