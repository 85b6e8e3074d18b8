"""Count rebuilt rows: of the rows that nobody else has, how many did an attacker name whole?

Rows that occur more than once are left aside, as somebody who names the commonest row of a table is right without
having seen anything. What chance does is counted by comparing what was read from one site with the rows of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, beside_control, not_attacked, share_interval

__all__ = ["rebuilt_finding"]

Floats = NDArray[np.float64]


def rebuilt_finding(
    attack: str,
    truth: Sequence[Floats],
    claims: Sequence[Floats],
    *,
    near: float,
    on: str,
    by: str,
    note: str = "",
    others: Sequence[Floats] | None = None,
) -> Finding:
    """How many rows of all sites an attacker has.

    Args:
        attack: What it is called.
        truth: The rows of each site.
        claims: The rows that were read from each site.
        near: How near every number of a claim must be to that of a row.
        on: What was attacked.
        by: Who has it.
        note: What a reader must know.
        others: For each site, rows that the claims are not about; by default those of the next site.

    Returns:
        The share of unique rows, beside the share of another site's rows that the same claims hit.
    """
    unique = _unique([*truth, *(others or ())])
    mine, theirs = unique[: len(truth)], unique[len(truth) :]
    every = sum(len(rows) for rows in mine)
    if not every:
        why = "every row occurs more than once, so that naming one shows nobody"
        return not_attacked(attack, "reconstruction", on=on, by=by, why=why)
    if others is None:
        theirs = [*mine[1:], *mine[:1]] if len(mine) > 1 else [rows[:0] for rows in mine]
    own = [_hits(rows, found, near) for rows, found in zip(mine, claims, strict=True)]
    chance = sum(_hits(rows, found, near) for rows, found in zip(theirs, claims, strict=True))
    asked = max(1, sum(len(rows) for rows in theirs))
    whole = sum(hits == len(rows) > 0 for hits, rows in zip(own, mine, strict=True))
    return Finding(
        attack=attack,
        family="reconstruction",
        on=on,
        by=by,
        measure="share of unique rows read whole",
        success=sum(own) / every,
        guess=chance / asked,
        interval=beside_control(sum(own), every, chance, asked) if chance else share_interval(sum(own), every),
        note=note,
        details={"rows": float(sum(own)), "sites_whole": whole / len(mine)},
    )


def _unique(truth: Sequence[Floats]) -> list[Floats]:
    """The rows of each site that occur once among all sites."""
    every = np.concatenate(truth)
    _, place, counts = np.unique(np.round(every, 4), axis=0, return_inverse=True, return_counts=True)
    once = counts[place.ravel()] == 1
    bounds = np.cumsum([0, *(len(rows) for rows in truth)])
    return [rows[once[begin : begin + len(rows)]] for rows, begin in zip(truth, bounds[:-1], strict=True)]


def _hits(rows: Floats, claims: Floats, near: float) -> int:
    """How many rows have a claim that is near them in every number; a claim stands for one row."""
    free = np.ones(len(rows), dtype=bool)
    for claim in claims if len(rows) else ():
        apart = np.abs(rows - claim).max(axis=1)
        apart[~free] = np.inf
        nearest = int(apart.argmin())
        free[nearest] &= not apart[nearest] < near
    return int((~free).sum())
