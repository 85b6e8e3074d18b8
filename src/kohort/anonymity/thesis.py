"""The partition of Saleh (2022), kept as the thesis has it so that its figures can be set beside ours.

Guarantee: every class meets the rule. Every other anonymiser here loses less; use this one for the study.
"""

from __future__ import annotations

import numpy as np

from kohort.anonymity.partition import Partition, Problem

__all__ = ["thesis_mondrian"]


def thesis_mondrian(problem: Problem) -> Partition:
    """Widest relative span first; numbers at the median, categories by halves of the value set."""
    from kohort.anonymity.kernels.thesis import thesis_partition

    order = np.arange(problem.table.rows, dtype=np.int64)
    starts = thesis_partition(problem.columns(), order, *problem.shape, *problem.demands)
    return Partition(order, np.append(starts, len(order)))
