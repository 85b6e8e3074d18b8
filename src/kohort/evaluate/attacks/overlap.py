"""Two releases of the same persons: the two classes that a person is in may have few persons in common.

The attacker knows persons by their quasi-identifiers and finds the class of each in both releases. How many rows two
classes have in common is counted by the checker of `kohort check A B`. The guess is what he isolates with one release
alone: nobody, where cells say whom they stand for, and a few whom he takes for others where cells are means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from kohort.anonymity.checker.joint_release import joint_release
from kohort.anonymity.checker.measures import k_anonymity
from kohort.evaluate.attacks.finding import Finding, share_interval
from kohort.evaluate.attacks.released import Released

__all__ = ["both_together"]

_AT_ONCE = 2_000


def both_together(
    first: Released, second: Released, members: pl.DataFrame, *, quasi: Sequence[str], on: str, by: str
) -> Finding:
    """How many persons two releases isolate together.

    Args:
        first: A release.
        second: Another one.
        members: Rows of persons in both, as they are.
        quasi: The quasi-identifiers that both releases have.
        on: What was attacked.
        by: Who has both.

    Returns:
        The share of persons whose two classes have fewer persons in common than each release promises.
    """
    tables = (first, second)
    promised = min(k_anonymity(table.frame, quasi=quasi) for table in tables)
    one, two = (_as_released(table, members, quasi) for table in tables)
    found = joint_release(one, two, quasi=quasi, promised=promised)
    alone = [joint_release(release, release, quasi=quasi, promised=promised).isolated for release in (one, two)]
    return Finding(
        attack="linkage: two releases together",
        family="linkage",
        on=on,
        by=by,
        measure=f"share of persons in a crowd below {found.promised:,}",
        success=found.isolated / found.rows,
        guess=max(alone) / found.rows,
        interval=share_interval(found.isolated, found.rows),
        note=f"a crowd of {found.k:,} is left in the worst case; the guess is what one release alone isolates",
        details={"k": float(found.k), "promised": float(found.promised)},
    )


def _as_released(table: Released, members: pl.DataFrame, quasi: Sequence[str]) -> pl.DataFrame:
    """The released cells of every member: of the nearest class."""
    classes, _ = table.classes(quasi)
    own = Released(classes, table.ranges, table.hierarchies)
    places = [
        own.distances(members[begin : begin + _AT_ONCE], quasi).argmin(axis=1)
        for begin in range(0, members.height, _AT_ONCE)
    ]
    return classes[np.concatenate(places)].with_columns(pl.all().cast(pl.String))
