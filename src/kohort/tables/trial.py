"""Files that a native reader may not survive, or that make it print what no user should see.

An Arrow file is read in a child process first: a damaged one can end the process that reads it. Polars trusts the
lengths that the file declares. One wrong bit there asks for more memory than any machine has, and the process aborts
without an exception. The lengths of a Parquet file are compared instead (`kohort.tables.parquet_pages`). A few damaged
ones still make the reader print a trace of its own, past Python: `quiet_reader` keeps that back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import polars as pl

__all__ = ["READER_ERRORS", "quiet_reader", "survives_reading", "unknown_zones"]

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

_ZONES: Final = """
import io, json, sys
import polars as pl
where, read = sys.argv[1], {"parquet": pl.read_parquet_schema, "arrow": pl.read_ipc_schema}[sys.argv[2]]
schema = read(io.BytesIO(sys.stdin.buffer.read()) if where == "-" else where)
print(json.dumps({name: kind.time_zone for name, kind in schema.items() if isinstance(kind, pl.Datetime)}))
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


def unknown_zones(source: bytes | Path, kind: str) -> tuple[str, ...]:
    """The columns of a file whose time zones the native reader does not know, which it takes for damage.

    Args:
        source: The bytes of the file, or its path.
        kind: "parquet" or "arrow".

    Returns:
        Their names; none where the file is damaged indeed.
    """
    given, where = (source, "-") if isinstance(source, bytes) else (b"", str(source))
    done = subprocess.run(
        [sys.executable, "-c", _ZONES, where, kind],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "POLARS_IGNORE_TIMEZONE_PARSE_ERROR": "1"},
        check=False,
    )
    zones = json.loads(done.stdout) if done.returncode == 0 else {}
    return tuple(name for name, zone in zones.items() if zone is not None and not _knows(zone))


def _knows(zone: str) -> bool:
    try:
        pl.Series([], dtype=pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)
    except READER_ERRORS:
        return False
    return True


@contextmanager
def quiet_reader() -> Iterator[None]:
    """Keep back what the native reader prints; it is shown afterwards unless the block failed, for it may hold cells.

    The process's standard error is held back as a whole, so nothing else should speak meanwhile.
    """
    sys.stderr.flush()
    usual = os.dup(STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), STDERR)
        failed = False
        try:
            yield
        except BaseException:  # the reader's own error may have been replaced by one of ours on the way
            failed = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(usual, STDERR)
            os.close(usual)
            if not failed:
                held.seek(0)
                with suppress(OSError):  # full, or nobody reads it
                    os.write(STDERR, held.read())
