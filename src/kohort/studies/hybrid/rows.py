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
    """The rows of a plan's table, shuffled; of a table in `limits`, no more than so many."""

    limits: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> dict[str, pl.DataFrame]:
        """The rows that replace the plan's table."""
        name = str(plan.data.table)
        return {"rows": table_rows(name, self.limits.get(name, 0))}


@lru_cache(maxsize=3)
def table_rows(name: str, limit: int = 0) -> pl.DataFrame:
    """A table in shuffled order, the same every time; with a limit, so many of its rows."""
    frame = open_table(name).frame
    return frame.sample(n=min(limit or frame.height, frame.height), shuffle=True, seed=SHUFFLE)
