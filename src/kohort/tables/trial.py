"""Files that a native reader may not survive, or that make it print what no user should see.

An Arrow file is read in a child process first: a damaged one can end the process that reads it. Polars trusts the
lengths that the file declares. One wrong bit there asks for more memory than any machine has, and the process aborts
without an exception. The lengths of a Parquet file are compared instead (`kohort.tables.parquet_pages`). A few damaged
ones still make the reader print a trace of its own, past Python: `quiet_reader` keeps that back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import polars as pl

__all__ = ["READER_ERRORS", "quiet_reader", "survives_reading"]

# A Rust panic reaches Python as a BaseException; on a damaged file it is a fact about the file.
READER_ERRORS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
STDERR: Final = 2

_READ: Final = """
import io, sys
import polars as pl
try:
    pl.read_ipc(io.BytesIO(sys.stdin.buffer.read()))
except BaseException:
    sys.exit(3)
"""


def survives_reading(content: bytes) -> bool:
    """Whether a process that reads this Arrow file lives to tell, and finds it whole.

    Args:
        content: The bytes of the file.

    Returns:
        False where the reader failed, was aborted or was killed. What it printed is dropped: it may hold cells.
    """
    command = [sys.executable, "-c", _READ]
    done = subprocess.run(command, input=content, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


@contextmanager
def quiet_reader() -> Iterator[None]:
    """Keep back what the native reader prints; it is shown afterwards unless the reader failed, for it may hold cells.

    The process's standard error is held back as a whole, so nothing else should speak meanwhile.
    """
    sys.stderr.flush()
    usual = os.dup(STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), STDERR)
        failed = False
        try:
            yield
        except READER_ERRORS:
            failed = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(usual, STDERR)
            os.close(usual)
            if not failed:
                held.seek(0)
                os.write(STDERR, held.read())
