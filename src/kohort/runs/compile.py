"""Compile the kernels of all methods ahead of the first run, in as many processes as there are cores.

Kernels are compiled when they are first called and kept on disk. Which types they are called with is known only to the
methods, so each method runs once, for one round, on the demo's plan.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from kohort.errors import KohortError
from kohort.methods.registry import find_method, methods
from kohort.runs.demo import demo_plan
from kohort.runs.run import run

__all__ = ["compile_kernels"]


def compile_kernels(workers: int | None = None) -> tuple[str, ...]:
    """Run every method for one round, so that what it compiles is on disk.

    Args:
        workers: Number of processes; by default the number of cores.

    Returns:
        Names of the methods that could not run, whose kernels are compiled when they are needed.
    """
    # fedavg first and alone: most others need its kernel, and two processes would compile it twice
    names = sorted(methods(), key=lambda name: (name == "fedavg", name), reverse=True)
    context = get_context("spawn")  # a fork would take over threads of libraries that do not survive it
    with ProcessPoolExecutor(max_workers=workers or os.cpu_count(), mp_context=context) as pool:
        done = list(pool.map(_runs, names))
    return tuple(name for name, well in zip(names, done, strict=True) if not well)


def _runs(name: str) -> bool:
    try:
        run(demo_plan(find_method(name), rounds=1), seed=0, baselines=False)
    except KohortError:
        return False
    return True
