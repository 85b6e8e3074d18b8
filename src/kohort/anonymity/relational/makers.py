"""Which algorithms `auto` tries on a table: those that fit its columns and its rule, and that its size allows.

| algorithm | tried |
|---|---|
| exact-cluster | where the rule asks for k rows alone |
| cluster, mondrian | always where a rule is about sensitive values, else on up to MANY_CELLS cells |
| mdav | where all quasi-identifiers are numbers and the rule asks for k rows alone, on up to FEW_CELLS cells |
| lattice | on up to FEW_CELLS cells, over hierarchies that look at no row; not with means or a suppression budget |

A cell is a row times a quasi-identifier. The rule is about size and not about a clock, so that the same table always
gets the same release. What fits and was not tried is named in a note.
"""

from __future__ import annotations

from typing import NamedTuple

from kohort.anonymity.relational.problem import Problem

__all__ = ["FEW_CELLS", "MANY_CELLS", "Makers", "makers_for"]

MANY_CELLS = 1_000_000
FEW_CELLS = 20_000


class Makers(NamedTuple):
    """What to try.

    Attributes:
        techniques: Names of class techniques.
        lattice: Whether the lattice is tried too.
        notes: What fits and is not tried.
    """

    techniques: tuple[str, ...]
    lattice: bool
    notes: tuple[str, ...]


def makers_for(problem: Problem, *, labels: bool, rows: int | None = None) -> Makers:
    """The algorithms to try on a table.

    Args:
        problem: The coded table and the rule.
        labels: Whether labels of hierarchies may be released.
        rows: Rows of the table, where the problem holds only some of them.

    Returns:
        The names, and a note on those left out.
    """
    table, sizes_alone = problem.table, problem.requirements is None
    count = table.rows if rows is None else rows
    cells = count * len(table.columns)
    basic = ("exact-cluster", "cluster", "mondrian") if sizes_alone else ("cluster", "mondrian")
    numbers = all(column.is_number and column.values.dtype.is_numeric() for column in table.columns)
    extra = (("mdav",) if sizes_alone and numbers else ()) + (("lattice",) if labels else ())
    tried: tuple[str, ...] = basic[:1] if sizes_alone and cells > MANY_CELLS else basic
    if cells <= FEW_CELLS:
        tried += extra
    left = [name for name in basic + extra if name not in tried]
    size = f"{count:,} rows x {len(table.columns)} quasi-identifiers"
    note = (f"auto did not try {', '.join(left)}: {size} are too many",)
    return Makers(tuple(name for name in tried if name != "lattice"), "lattice" in tried, note if left else ())
