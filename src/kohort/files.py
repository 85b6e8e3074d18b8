"""Files that are whole or absent.

`write_atomic` replaces a file in one step: a crash, a full disk or an interrupt leaves the old file or none, never half
of the new one.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from io import FileIO
from pathlib import Path

from kohort.errors import ConfigError, ResourceError

__all__ = ["disk_errors", "require_new", "write_atomic", "write_whole"]

_OUT_OF_RESOURCES = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG}


class disk_errors:  # noqa: N801 - used like a function; as a class it costs little around a write of every round
    """Turn the operating system's write errors into one clear line with the right exit code."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError):
            return
        message = f"cannot write {self._path}: {os.strerror(error.errno or 0).lower()}"
        if error.errno in _OUT_OF_RESOURCES:
            raise ResourceError(message, hint="Free some space or choose another --out") from error
        raise ConfigError(message, hint="Choose another --out") from error


def require_new(path: Path, *, force: bool) -> None:
    """Refuse to touch existing output unless the user said so."""
    with disk_errors(path):
        exists = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if exists and not force:
        raise ConfigError(f"{path} exists", hint="Choose another --out, or add --force to replace it")


def write_whole(file: FileIO, content: bytes) -> None:
    """Write all of `content`: an unbuffered write may take a part and say so only in its result."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def write_atomic(path: Path, content: bytes, *, durable: bool = False, private: bool = False) -> None:
    """Write `content` to a temporary neighbour, then rename it over `path`; `private` means mode 0600."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            Path(temporary).chmod(0o600 if private else 0o644)
            Path(temporary).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise
