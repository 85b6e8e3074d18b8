"""Compile the local search in a second process, while this one compiles what makes the classes it starts from.

Most of what the first release on a machine takes is compiling, and a process compiles one loop after the other. The
second process saves its code to disk, where this one finds it. Where there is no second core, nothing can be saved, or
no process can be started, this process compiles everything itself: the same code, later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kohort.anonymity.relational.problem import Problem

__all__ = ["compile_search_beside", "wait_for_search"]

_PROGRAM = "from kohort.anonymity.relational.algorithms.refine import compile_search; compile_search({}, {})"
_running: list[subprocess.Popen[bytes]] = []
"""The process at work, if there is one."""


def compile_search_beside(problem: Problem, first_loop: Any) -> None:
    """Start the second process, if this one is about to compile for such a problem.

    Args:
        problem: The coded table and the rule; the types of its arrays alone matter.
        first_loop: The compiled function that makes classes from codes, their shape, k and the requirements.
    """
    from kohort.saved_code import must_compile

    columns = np.ascontiguousarray(problem.columns()[:, :1])
    if _running or (os.cpu_count() or 1) < 2 or not Path(sys.executable or "").name.startswith("python"):
        return
    if not must_compile(first_loop, columns, *problem.shape, problem.rule.k, problem.requirements):
        return
    program = _PROGRAM.format(problem.table.codes.dtype.itemsize, problem.requirements is not None)
    command, silent = [sys.executable, "-c", program], subprocess.DEVNULL
    try:
        _running.append(subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent))
    except OSError:  # no process can be started: this one compiles the search when it needs it
        return


def wait_for_search() -> None:
    """Wait until the second process has saved its code, if there is one at work."""
    while _running:
        _running.pop().wait()
