"""Rows that were added to a class since it was released: two releases together show them by themselves.

Whoever has the earlier release takes its rows out of the class, and what is left is the rows that were added. So they
must be a class that meets the rule themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.measures import unmet

__all__ = ["added_rows_meet"]

_ADDED = "(added since)"


def added_rows_meet(frame: pl.DataFrame, places: NDArray[np.int64], **rules: Any) -> bool:
    """Whether some rows of a release meet its rule as a class of their own, and so do the others.

    Args:
        frame: All rows of the release: the columns that the rule is about, sensitive ones, items and persons.
        places: The rows that were added.
        **rules: The rule, as keyword arguments of `judged`, without `quasi`. A rule about the table's distribution
            compares both with that of all rows.

    Returns:
        True if the checker finds nothing wrong.
    """
    added = np.zeros(frame.height, np.int64)
    added[places] = 1
    return not unmet(frame.with_columns(pl.Series(_ADDED, added)), quasi=[_ADDED], **rules)
