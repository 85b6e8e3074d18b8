"""What a run left out or changed, counted by reason: nothing vanishes in silence.

At a hub such counts speak of rows it never saw, so they are totals, small ones are shown as "<10" (the minimum cell),
and a plan with a budget shows none: they would have to be paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["LeftOut", "public_counts", "rows_of_sites", "shown"]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Something that was left out, clipped or changed.

    Attributes:
        what: What it is, in the plural, such as "rows" or "values of age".
        why: The reason, in words that follow "left out:".
        count: How many; a text such as "<10" where the number itself must not be told.
        done: What happened to it: left out, clipped or changed.
        of_rows: Whether it counts persons' rows or values, so that small counts must not be told.
    """

    what: str
    why: str
    count: int | str
    done: str = "left out"
    of_rows: bool = True

    def to_mapping(self) -> dict[str, Any]:
        """The entry of `left_out` in the JSON of a command."""
        return {"what": self.what, "why": self.why, "count": self.count}


def public_counts(entries: Iterable[LeftOut], *, min_cell: int, has_budget: bool) -> tuple[LeftOut, ...]:
    """The entries as a hub may tell them.

    Args:
        entries: What was counted.
        min_cell: Fewest rows that may be told apart.
        has_budget: Whether the plan spends a budget, under which row counts are absent.

    Returns:
        Entries with something in them; counts of rows below `min_cell` as text.
    """
    entries_shown = []
    for entry in entries:
        if not entry.count or (has_budget and entry.of_rows):
            continue
        small = entry.of_rows and isinstance(entry.count, int) and entry.count < min_cell
        entries_shown.append(replace(entry, count=f"<{min_cell}") if small else entry)
    return tuple(entries_shown)


def rows_of_sites(counted: Mapping[str, int], target: str | None, *, drops: bool, min_cell: int) -> list[LeftOut]:
    """Rows that real sites leave out, as a secure count told them.

    Args:
        counted: Totals by reason, "target" or "drop"; 0 where fewer persons than the minimum are behind one.
        target: The column to predict.
        drops: Whether the plan drops rows with a missing value.
        min_cell: The minimum.

    Returns:
        One entry per reason that the plan has.
    """
    why = {"target": f"the target {target} is missing", "drop": 'another value is missing, and missing = "drop"'}
    return [
        LeftOut(what="rows", why=why[reason], count=count or f"<{min_cell}")
        for reason, count in counted.items()
        if reason != "drop" or drops
    ]


def shown(entries: Sequence[LeftOut]) -> list[str]:
    """The entries as sentences.

    Args:
        entries: What was left out, as a reader may be told.

    Returns:
        One sentence per entry.
    """
    return [f"{_count(entry.count)} {entry.what} {entry.done}: {entry.why}" for entry in entries]


def _count(count: int | str) -> str:
    return f"{count:,}" if isinstance(count, int) else count
