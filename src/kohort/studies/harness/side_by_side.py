"""Jobs of a study side by side, on as many processes as the machine has or KOHORT_PROCESSES says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kohort.errors import ConfigError

__all__ = ["processes_here", "spread"]

T = TypeVar("T")


def spread(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> list[T]:
    """`function` of every job, in order; so many at a time, which changes nothing but the time it takes."""
    if processes == 1 or len(jobs) < 2:
        return [function(*job) for job in jobs]
    from sklearn.utils.parallel import Parallel, delayed

    made: list[T] = Parallel(n_jobs=processes)(delayed(function)(*job) for job in jobs)
    return made


def processes_here() -> int:
    """How many runs are made side by side: KOHORT_PROCESSES, or one a core."""
    text = os.environ.get("KOHORT_PROCESSES", "")
    if not text:
        return os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"KOHORT_PROCESSES is {text!r}", hint="Give a whole number from 1 on")
    return int(text)
