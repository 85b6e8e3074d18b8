"""How much memory is left, and a refusal before a table is read that would not fit.

A native reader that runs out of memory ends the process without a word. So what reading takes is estimated first, from
the size of the file and, in Parquet, from its rows and columns. Estimates are rough and on the small side: a table that
fits is never refused because of a guess, and one that is many times too large is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from kohort.errors import ResourceError

if sys.platform != "win32":
    import resource

__all__ = [
    "ARROW_HELD",
    "CELLS_HELD",
    "LIBRARIES",
    "TEXT_HELD",
    "cell_bytes",
    "free_memory",
    "require_address_space",
    "require_memory",
]

_EIGHT: Final = {pl.Int64, pl.UInt64, pl.Float64, pl.Datetime, pl.Duration, pl.Time}
_FOUR: Final = {pl.Int32, pl.UInt32, pl.Float32, pl.Date}
_READER: Final = 800_000_000
"""Bytes of addresses that the streaming reader reserves beside the file that it maps; few of them are ever used."""
LIBRARIES: Final = 600_000_000
"""Bytes of addresses that native libraries reserve for the smallest table. With fewer they abort, or wait for ever."""
TEXT_HELD: Final = 12
"""Addresses that reading takes at least per byte of a text file: its bytes, texts, separators and types. One file took
25 to 29; a table that fits is not refused, and where one does not the command ends with exit 7 all the same."""
ARROW_HELD: Final = 5
"""The same for an Arrow file; one took 10 to 12."""
CELLS_HELD: Final = 3
"""The same per byte of the cells of a Parquet file that is read as a whole; not measured."""
_PROCESS, _MACHINE = Path("/proc/self/statm"), Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def cell_bytes(schema: Mapping[str, pl.DataType], rows: int) -> int:
    """What the cells of a table take in memory, without what long texts take elsewhere.

    Args:
        schema: The types of its columns.
        rows: Its rows.

    Returns:
        Bytes.
    """
    return rows * sum(
        16 if kind == pl.String else 8 if kind.base_type() in _EIGHT else 4 if kind.base_type() in _FOUR else 1
        for kind in schema.values()
    )


def free_memory() -> int | None:
    """Bytes that this process may still take.

    Returns:
        The least that the machine, the process's limits and its control group leave; None where nothing says so.
    """
    left = [_of_machine(), _of_group(), *_of_limits()]
    known = [amount for amount in left if amount is not None]
    return max(0, min(known)) if known else None


def require_memory(needed: int, name: str, *, hint: str) -> None:
    """Refuse work that takes more memory than there is.

    Args:
        needed: Bytes it takes at least.
        name: What errors call the table.
        hint: What would help.

    Raises:
        ResourceError: There is less.
    """
    free = free_memory()
    if free is not None and needed > free:
        raise ResourceError(
            f"{name} takes at least {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are left", hint=hint
        )


def require_address_space(size: int, name: str, *, reserved: int = _READER, doing: str = "reading") -> None:
    """Refuse to read a file, or do something else, under a limit on addresses (`ulimit -v`) that it would run into.

    Args:
        size: Bytes of the file.
        name: What errors call the table.
        reserved: What is reserved beside the file: by default what reading in parts reserves.
        doing: What errors call what is done with it.

    Raises:
        ResourceError: There are fewer addresses than the reader reserves.
    """
    free, needed = min(_of_limits(), default=None), size + reserved
    if free is not None and needed > free:
        raise ResourceError(
            f"{doing} {name} reserves {needed / 1e9:.1f} GB of addresses, and the limit leaves {free / 1e9:.1f} GB",
            hint="Raise ulimit -v; the memory that is used is far less",
        )


def _of_machine() -> int | None:
    try:
        lines = _MACHINE.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_group() -> int | None:
    """What a container's limit leaves."""
    try:
        most = (_GROUP / "memory.max").read_text(encoding="ascii").strip()
        taken = (_GROUP / "memory.current").read_text(encoding="ascii")
        return None if most == "max" else int(most) - int(taken)
    except (OSError, ValueError):
        return None


def _of_limits() -> list[int]:
    """What limits on the address space and on data (`ulimit -v`, `ulimit -d`) leave."""
    if sys.platform == "win32":
        return []
    try:
        pages = [int(number) * resource.getpagesize() for number in _PROCESS.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []
    taken = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
    limits = {which: resource.getrlimit(which)[0] for which in taken}
    return [limit - taken[which] for which, limit in limits.items() if 0 <= limit < sys.maxsize]
