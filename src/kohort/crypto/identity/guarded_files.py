"""Reading files that somebody else must not have touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kohort.errors import ConfigError, RefusedError
from kohort.files import write_atomic

__all__ = ["PRIVATE", "UNCHANGED", "check_folder", "kept_secret", "read_guarded"]

PRIVATE = 0o077
"""Nobody but the owner may read or change the file."""
UNCHANGED = 0o022
"""Nobody but the owner may change it."""


def read_guarded(path: Path, *, forbidden: int) -> bytes:
    """A file's content, unless others have one of the `forbidden` rights; checked on the file that is read.

    Args:
        path: The file.
        forbidden: The rights nobody but the owner may have: `PRIVATE` or `UNCHANGED`.

    Returns:
        The content.

    Raises:
        RefusedError: Others have such a right, or the file is another user's.
        ConfigError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            mode = stat.S_IMODE(facts.st_mode)
            if _is_strangers(facts.st_uid):
                raise RefusedError(
                    f"{path} belongs to another user, who may change it", hint="Copy it, or run kohort as its owner"
                )
            if not mode & forbidden:
                return file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {os.strerror(error.errno or 0).lower()}", hint="Check the path and its owner"
        ) from error
    may = "read or change" if forbidden == PRIVATE else "change"
    raise RefusedError(f"others may {may} {path} (mode {mode:03o})", hint=f"If nobody did, run: chmod 600 {path}")


def check_folder(path: Path) -> None:
    """Refuse a folder in which others may replace the files that decide whom this machine trusts.

    Args:
        path: The folder of a hub or a site.

    Raises:
        RefusedError: Others may change it.
    """
    if not path.is_dir():
        return
    facts = path.stat()
    mode = stat.S_IMODE(facts.st_mode)
    if mode & UNCHANGED or _is_strangers(facts.st_uid):
        raise RefusedError(
            f"others may replace files in {path} (mode {mode:03o})", hint=f"If nobody did, run: chmod 700 {path}"
        )


def _is_strangers(owner: int) -> bool:
    """Whether a file's owner is neither this user nor the administrator."""
    return os.geteuid() != 0 and owner not in {0, os.geteuid()}


def kept_secret(path: Path) -> bytes:
    """32 bytes drawn once from the operating system and kept, readable by the owner only.

    Args:
        path: Where the secret is kept; the file is made on the first call.

    Returns:
        The 32 bytes; the same in every call.

    Raises:
        RefusedError: Others may read or change the file.
        ConfigError: The file cannot be read or written.
    """
    if not path.exists():
        write_atomic(path, os.urandom(32), durable=True, private=True)
    return read_guarded(path, forbidden=PRIVATE)
