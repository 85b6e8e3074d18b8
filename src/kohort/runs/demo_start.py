"""What a demo begins with, before its machinery is loaded: its folder, and the processes beside this one.

Loading takes each process a second of its processor, so the others load while this one does.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from kohort.collector import suit_one_job
from kohort.errors import ConfigError
from kohort.files import disk_errors, write_atomic

__all__ = ["MARK", "HelperProcesses", "other_processes", "prepare_folder"]

MARK = ".kohort-demo"
"""A folder with this file is a demo's own and may be replaced by the next one."""
MOST_OTHERS = 8
"""Processes beside this one: no more than there are methods beside the first."""


def prepare_folder(folder: Path, *, force: bool) -> None:
    """Make an empty, marked folder.

    Args:
        folder: Where; a former demo's is replaced.
        force: Replace anything else, too.

    Raises:
        ConfigError: It exists, is no demo's, and is not to be replaced.
    """
    occupied = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if occupied and not force and not (folder / MARK).is_file():
        raise ConfigError(
            f"{folder} exists and is not a demo's folder", hint="Choose another --out, or add --force to replace it"
        )
    with disk_errors(folder):
        if occupied:
            shutil.rmtree(folder)
    write_atomic(folder / MARK, b"Written by kohort demo; the next demo replaces this folder.\n")


class HelperProcesses(NamedTuple):
    """Processes beside this one."""

    pool: ProcessPoolExecutor
    size: int


@contextmanager
def other_processes(wanted: int, *, loading: str) -> Iterator[HelperProcesses | None]:
    """Start processes that load what runs need. At the end they are told to end, which nobody waits for.

    Args:
        wanted: How many; there are no more than `MOST_OTHERS`.
        loading: The module of what they will be asked to do, which each loads at once.

    Yields:
        The processes; None where none are wanted.
    """
    count = min(wanted, MOST_OTHERS)
    if count < 1:
        yield None
        return
    # Spawned: a fork would take over threads of libraries that do not survive it.
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_load, initargs=(loading,))
    try:
        # An interrupt is this process's to handle. One that comes now waits, and the new processes never see any.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(count):
                pool.submit(int)  # a process starts with the first thing to do
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        yield HelperProcesses(pool, count)
    finally:
        pool.shutdown(wait=False)


def _load(module: str) -> None:
    """Get a new process ready for runs."""
    suit_one_job()
    import_module(module)
