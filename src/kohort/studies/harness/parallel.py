"""Jobs of a study in parallel processes: as many as KOHORT_PROCESSES says, or one per core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kohort.errors import ConfigError

__all__ = ["in_parallel", "process_count"]

T = TypeVar("T")


def in_parallel(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[T]:
    """Call a function once per job.

    Args:
        function: Called with the members of a job as its arguments.
        jobs: The arguments of each call.
        processes: How many calls run at the same time. The results do not depend on it.

    Returns:
        The results in the order of the jobs, each as soon as it and those before it are ready.
    """
    if processes == 1 or len(jobs) < 2:
        yield from (function(*job) for job in jobs)
        return
    from sklearn.utils.parallel import Parallel, delayed

    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(function)(*job) for job in jobs)


def process_count() -> int:
    """How many runs are made in parallel: KOHORT_PROCESSES, or one per core.

    Raises:
        ConfigError: KOHORT_PROCESSES is not a whole number above 0.
    """
    text = os.environ.get("KOHORT_PROCESSES", "")
    if not text:
        return os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"KOHORT_PROCESSES is {text!r}", hint="Give a whole number from 1 on")
    return int(text)
