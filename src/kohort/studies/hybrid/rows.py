"""The rows of the study's tables, in shuffled order, because accuracy by round is measured on the first test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import polars as pl

from kohort.runs.config import Plan
from kohort.tables.datasets.catalogue import open_table

__all__ = ["ShuffledRows", "table_rows"]

SHUFFLE: Final = 7


@dataclass(frozen=True)
class ShuffledRows:
    """The rows of a plan's table, shuffled; of a table in `limits`, no more than so many.

    Where clusters are the values of a column, `regions` keeps the rows of so many values, those with most rows.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    regions: int = 0

    def __call__(self, plan: Plan) -> dict[str, pl.DataFrame]:
        """The rows that replace the plan's table."""
        name, clusters = str(plan.data.table), str(plan.sites.clusters)
        column = clusters.removeprefix("column:") if clusters.startswith("column:") else ""
        return {"rows": table_rows(name, self.limits.get(name, 0), column if self.regions else "", self.regions)}


@lru_cache(maxsize=3)
def table_rows(name: str, limit: int = 0, column: str = "", most: int = 0) -> pl.DataFrame:
    """A table in shuffled order, the same every time.

    Args:
        name: The dataset.
        limit: How many rows are drawn; 0 for all.
        column: A column of which only the most frequent values are kept, before rows are drawn; "" keeps all.
        most: How many values of that column are kept.

    Returns:
        The rows.
    """
    frame = open_table(name).frame
    if column:
        counted = frame.group_by(column).len().sort("len", column, descending=[True, False])
        frame = frame.filter(pl.col(column).is_in(counted[column].head(most).implode()))
    return frame.sample(n=min(limit or frame.height, frame.height), shuffle=True, seed=SHUFFLE)
