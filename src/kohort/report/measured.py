"""What an audit measured beside attacks, as a report reads it: risk before and after, calibration, groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from annotated_types import Ge, Le

from kohort.report import words

__all__ = ["Calibration", "GroupScore", "GroupScores", "MeasuredRisk", "RiskFigures"]

Count = Annotated[int, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class RiskFigures:
    """Re-identification risk of one table, for somebody who knows that a person is in it (prosecutor).

    Attributes:
        rows: Rows of the table.
        largest: Largest chance to pick the right row.
        mean: Mean chance over the rows.
        unique: Share of rows that nobody else is like.
    """

    rows: Count
    largest: Share
    mean: Share
    unique: Share


_CLASSES_LEFT: Final = "classes of at least k rows left, and no row by itself: there is none to pick"


@dataclass(frozen=True, kw_only=True)
class MeasuredRisk:
    """Re-identification risk before and after.

    Attributes:
        rows: Training rows of all sites.
        quasi: What an attacker knows of a person.
        before: Of the sites' own tables, counted inside the sites; None where it is not told.
        after: Of the rows that the hub received; None where no row left.
        why: Why nothing was counted.
        withheld: Whether the risk before is left out of this edition.
    """

    rows: Count
    quasi: list[str] = field(default_factory=list)
    before: RiskFigures | None = None
    after: RiskFigures | None = None
    why: str = ""
    withheld: bool = False

    def lines(self, *, classes: bool = False) -> list[tuple[str, RiskFigures | str]]:
        """What the table on page one shows: a name, and figures or the reason why there are none.

        Args:
            classes: Whether classes of rows left, and no rows by themselves.
        """
        before = "counted inside the sites, and not opened to outsiders" if self.withheld else "not counted"
        left = _CLASSES_LEFT if classes else "no row left the sites: there is none to pick"
        return [
            ("before: each site's own table", self.before or before),
            ("after: rows that the hub received", self.after or left),
        ]

    def short(self, *, classes: bool = False) -> str:
        """Unique rows before and after, in a few words; `classes` as in `lines`."""
        if self.why:
            return f"not counted: {self.why}"
        first = "before: not opened" if self.before is None else f"before {words.share(self.before.unique)}"
        left = "classes left, no single row" if classes else "no row left"
        then = left if self.after is None else f"after {words.share(self.after.unique)}"
        return f"{first}, {then}"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How often what a model calls likely is so.

    Attributes:
        of: Whose probability.
        bins: Mean probability, share that was so, and test rows of each bin.
        gap: The mean distance of both, weighted by rows.
        brier: The Brier score over all classes.
    """

    of: str
    bins: list[tuple[Share, Share, Count]]
    gap: float
    brier: float


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """The score of a model on the test rows of one group."""

    name: str
    rows: Count
    score: float | None


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """Scores by the values of one column.

    Attributes:
        column: The column.
        groups: Groups that are large enough to be named.
        unnamed: Test rows of the others.
    """

    column: str
    groups: list[GroupScore]
    unnamed: Count = 0
