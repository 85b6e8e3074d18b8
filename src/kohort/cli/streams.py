"""Standard streams that are closed, full, or of an alphabet that lacks letters: no command may fail for them alone.

A process may be started with a standard stream closed. The next file it opens then takes the stream's number, and what
is printed lands in that file. And a stream that cannot take what is printed fails once more when Python ends, with an
exit code of Python's own.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

if sys.platform != "win32":
    import resource

__all__ = ["ERRORS", "OUTPUT", "file_handles", "flush_messages", "make_usable", "silence", "write_message"]

OUTPUT, ERRORS = 1, 2
"""Numbers of the standard streams that are written."""


def make_usable() -> None:
    """Open closed standard streams on the null device, and let text that a stream cannot express be written escaped."""
    for number in range(ERRORS + 1):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name, number in (("stdin", 0), ("stdout", OUTPUT), ("stderr", ERRORS)):
        stream = getattr(sys, name)
        if stream is None:
            stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
        if number and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def file_handles() -> int | None:
    """How many files this process may have open at once.

    Returns:
        The limit; None where there is none.
    """
    if sys.platform == "win32":
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def silence(number: int) -> None:
    """Send what is still printed on a standard stream to the null device.

    Args:
        number: The stream: `OUTPUT` or `ERRORS`.
    """
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def write_message(content: bytes) -> None:
    """Write a message past Python's buffers; where it cannot be written, it is dropped.

    Args:
        content: Its bytes, with the end of the line.
    """
    with suppress(OSError):
        os.write(ERRORS, content)


def flush_messages() -> None:
    """Write what is left of the messages; where they cannot be written, they are dropped."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(ERRORS)
