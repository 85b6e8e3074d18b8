"""Linked totals: counts of small combinations of bins that follow from sums over large bins.

A learner over totals opens how many rows each bin of each column holds, and in every round the sum of what the model
expected of them less their targets. The attacker knows the model of each round, so he knows what it expected of every
combination of bins. The rows of a combination are unknown but stay the same, and so do the targets of a bin:

    sum of bin a in round t = sum over combinations c in a of rows(c) expected(c, t) - targets(a)

Each round is a further linear equation about the same counts, although every opened cell is large. With few columns of
few bins there are as many different equations as combinations, and all counts follow, single persons among them.

The attacker solves for the counts nearest to those that he would expect if columns had nothing to do with each other,
as far as the equations leave room, and none below 0. Sums of squared residuals and of the loss are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control, not_attacked

__all__ = ["ATTACK", "MOST", "LinkedSums", "counts_by_chance", "counts_that_follow", "linked_finding"]

ATTACK: Final = "reconstruction: small combinations from linked totals"
MOST: Final = 1_500
"""Combinations that are solved for, at most."""
_BELOW: Final = -1e-3
"""A count so far below 0, in standard deviations of chance, is set to 0."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class LinkedSums:
    """What one round opened, and what the model before it expected.

    Attributes:
        sums: What was expected of the rows of each bin less their targets, [bins, outputs].
        expected: What was expected of a row of each combination, [combinations, outputs].
    """

    sums: Floats
    expected: Floats


def counts_by_chance(places: Integers, counts: Floats, columns: int) -> Floats:
    """How many rows combinations hold if columns have nothing to do with each other.

    Args:
        places: The bins of each combination, [columns and pairs, combinations].
        counts: The rows of each bin.
        columns: How many columns there are.

    Returns:
        A number per combination.
    """
    rows = counts[np.unique(places[0])].sum()
    return np.asarray(rows * np.prod(counts[places[:columns]] / rows, axis=0))


def counts_that_follow(
    opened: Sequence[LinkedSums], places: Integers, counts: Floats, *, columns: int, step: float
) -> Floats:
    """Solve for the rows of all combinations.

    Args:
        opened: The rounds in order. Bins of pairs may join in later ones; they stand behind all others.
        places: The bins of each combination, [columns and pairs, combinations], numbered over all of them.
        counts: The rows of each bin.
        columns: How many columns there are.
        step: The grid of what a row adds to a sum: how exact the sums are.

    Returns:
        A number per combination, not rounded.
    """
    inside = np.zeros((len(counts), places.shape[1]))
    for own in places:
        inside[own, np.arange(places.shape[1])] = 1.0
    exact = step * np.sqrt(np.maximum(counts, 1.0))
    equations, known = [inside / exact[:, None]], [counts / exact]
    for cell in np.flatnonzero(counts):
        there = [one for one in opened if len(one.sums) > cell]
        expected, sums = (np.stack(own) for own in ([one.expected for one in there], [one.sums[cell] for one in there]))
        # Differences from the mean over rounds: what is the same in all of them, the targets, is gone.
        apart = (expected - expected.mean(axis=0)).transpose(0, 2, 1).reshape(-1, places.shape[1])
        equations.append(apart * inside[cell] / exact[cell])
        known.append((sums - sums.mean(axis=0)).ravel() / exact[cell])
    return _nearest(np.concatenate(equations), np.concatenate(known), counts_by_chance(places, counts, columns))


def _nearest(equations: Floats, known: Floats, chance: Floats) -> Floats:
    """Counts that fulfil equations, else as near to those by chance as these vary, and none below 0."""
    spread = np.sqrt(np.maximum(chance, 1e-9))
    system = np.vstack([equations * spread, np.eye(len(chance))])
    triangle: Floats = np.asarray(np.linalg.qr(np.column_stack([system, np.concatenate([known, spread])]), mode="r"))
    left, right = triangle[: len(chance), :-1], triangle[: len(chance), -1]
    free, found = np.ones(len(chance), dtype=bool), np.zeros(len(chance))
    while free.any():
        found = np.zeros(len(chance))
        found[free] = np.linalg.lstsq(left[:, free], right, rcond=None)[0]
        if not (found < _BELOW).any():
            break
        free &= found >= _BELOW
    return np.asarray(found * spread)


def linked_finding(follow: Floats, chance: Floats, truth: Integers, *, least: int, on: str, by: str) -> Finding:
    """Compare counts of small combinations with the truth.

    Args:
        follow: What the attacker solved for.
        chance: What he would say without sums.
        truth: How many rows each combination holds, for the referee.
        least: A combination of fewer rows is small.
        on: What was attacked.
        by: Who has it.

    Returns:
        The share of small combinations whose count was found; a finding that says why not where none is small.
    """
    small = (truth > 0) & (truth < least)
    of = int(small.sum())
    if not of:
        why = f"none of {len(truth):,} combinations of bins holds fewer than {least:,}: there is nothing small to find"
        return not_attacked(ATTACK, "reconstruction", on=on, by=by, why=why)
    right, guessed = np.rint(follow) == truth, np.rint(chance) == truth
    hits, control, alone = int(right[small].sum()), int(guessed[small].sum()), truth == 1
    claimed = (np.rint(follow) > 0) & (np.rint(follow) < least)
    found = f"{of:,} of {len(truth):,} combinations of bins hold 1 to {least - 1:,}"
    single = f"{int((right & alone).sum()):,} of {int(alone.sum()):,} that hold one person were found"
    return Finding(
        attack=ATTACK,
        family="reconstruction",
        on=on,
        by=by,
        measure="share of small combinations whose count was found",
        success=hits / of,
        guess=control / of,
        interval=beside_control(hits, of, control, of),
        note=f"{found}; {single}. The guess: the counts if columns had nothing to do with each other",
        details={
            "combinations": float(len(truth)),
            "small": float(of),
            "alone": float(alone.sum()),
            "alone_found": float((right & alone).sum()),
            "claims_right": float(right[claimed].mean()) if claimed.any() else 0.0,
        },
    )
