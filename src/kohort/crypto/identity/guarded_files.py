"""Reading files that somebody else must not have touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kohort.errors import ConfigError, RefusedError
from kohort.files import write_atomic

__all__ = ["PRIVATE", "UNCHANGED", "kept_secret", "read_guarded"]

PRIVATE = 0o077
"""Nobody but the owner may read or change the file."""
UNCHANGED = 0o022
"""Nobody but the owner may change it."""


def read_guarded(path: Path, *, forbidden: int) -> bytes:
    """A file's content, unless others have one of the `forbidden` rights; checked on the file that is read."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if not mode & forbidden:
                return file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {os.strerror(error.errno or 0).lower()}", hint="Check the path and its owner"
        ) from error
    may = "read or change" if forbidden == PRIVATE else "change"
    raise RefusedError(f"others may {may} {path} (mode {mode:03o})", hint=f"If nobody did, run: chmod 600 {path}")


def kept_secret(path: Path) -> bytes:
    """32 bytes drawn once from the operating system and kept, readable by the owner only."""
    if not path.exists():
        write_atomic(path, os.urandom(32), durable=True, private=True)
    return read_guarded(path, forbidden=PRIVATE)
