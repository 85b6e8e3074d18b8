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

    Returns:
        The share of unique rows, beside the share of another site's rows that the same claims hit.
    """
    unique = _unique(truth)
    every = sum(len(rows) for rows in unique)
    if not every:
        why = "every row occurs more than once, so that naming one shows nobody"
        return not_attacked(attack, "reconstruction", on=on, by=by, why=why)
    own = [_hits(rows, found, near) for rows, found in zip(unique, claims, strict=True)]
    others = [*unique[1:], *unique[:1]] if len(unique) > 1 else [rows[:0] for rows in unique]
    chance = sum(_hits(rows, found, near) for rows, found in zip(others, claims, strict=True))
    whole = sum(hits == len(rows) > 0 for hits, rows in zip(own, unique, strict=True))
    return Finding(
        attack=attack,
        family="reconstruction",
        on=on,
        by=by,
        measure="share of unique rows read whole",
        success=sum(own) / every,
        guess=chance / every,
        interval=beside_control(sum(own), every, chance, every) if chance else share_interval(sum(own), every),
        note=note,
        details={"rows": float(sum(own)), "sites_whole": whole / len(unique)},
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
