"""Atomic file writes: a file is complete or absent.

`write_atomic` replaces a file in one step: a crash, a full disk or an interrupt leaves the old file or none, never half
of the new one. `FolderLock` keeps a second process out of a folder.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from kohort.errors import ConfigError, ResourceError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "OUT_OF_RESOURCES",
    "UNFINISHED",
    "FolderLock",
    "disk_errors",
    "remove_unfinished",
    "require_new",
    "scratch_folder",
    "write_atomic",
    "write_whole",
]

UNFINISHED = ".unfinished"
"""How the name of a file ends that is still being written; it begins with a dot."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
OUT_OF_RESOURCES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG})
"""Errors of the operating system that say that something is used up: space, a quota or file handles."""


class FolderLock:
    """A folder for one process alone, until it lets go of it or dies: the kernel keeps the lock, and no file does.

    Guarantee: of two processes that take the same folder, the second one is told so. Where the system or the disk has
    no such locks, as on some network disks, everybody gets the folder.

    Args:
        folder: The folder; it has to be there to be taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None

    def take(self, *, wait: bool = False) -> bool:
        """Take the folder; it may be taken already.

        Args:
            wait: Whether to wait until another process lets go of it.

        Returns:
            False where another process has it.
        """
        if self._handle is not None or sys.platform == "win32":
            return True
        try:
            handle = os.open(self._folder, os.O_RDONLY)
        except OSError:
            return True  # it is not there, or cannot be read: whoever uses it says so better
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            return error.errno not in _TAKEN
        self._handle = handle
        return True

    def release(self) -> None:
        """Let go of the folder, if it was taken."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class disk_errors:  # noqa: N801 - used like a function; as a class it costs little around a write of every round
    """Context manager: turn an `OSError` inside the block into a KohortError with the right exit code.

    Args:
        path: The file or folder being written, named in the message.

    Raises:
        ResourceError: The disk, a quota or the file handles are exhausted.
        ConfigError: Any other reason the path cannot be written.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError):
            return
        message = f"cannot write {self._path}: {os.strerror(error.errno or 0).lower()}"
        if error.errno in OUT_OF_RESOURCES:
            raise ResourceError(message, hint="Free some space or choose another --out") from error
        raise ConfigError(message, hint="Choose another --out") from error


def require_new(path: Path, *, force: bool) -> None:
    """Refuse to overwrite existing output. An empty folder counts as new.

    Args:
        path: The output file or folder.
        force: Whether the user allowed overwriting it.

    Raises:
        ConfigError: `path` exists and `force` is not set.
    """
    with disk_errors(path):
        exists = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if exists and not force:
        raise ConfigError(f"{path} already exists", hint="Choose another --out, or add --force to replace it")


def write_whole(file: FileIO, content: bytes) -> None:
    """Write all of `content` to an unbuffered file, whose `write` may stop after a part of it.

    Args:
        file: The file, opened without buffering.
        content: The bytes to append.
    """
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def remove_unfinished(folder: Path) -> None:
    """Delete what a writer left that was killed, or whose disk let it delete nothing.

    Args:
        folder: A folder that nobody else writes to; its folders, too.

    Raises:
        ConfigError: A file cannot be deleted.
    """
    with disk_errors(folder):
        for left in [*folder.rglob(f".*{UNFINISHED}")]:
            if left.is_dir():
                shutil.rmtree(left)
            elif left.exists():  # it may have been in such a folder
                left.unlink()


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Context manager: a folder of one's own for unfinished files, on the same disk as what they become.

    Guarantee: after the block, an error or an interrupt it is gone. `tempfile` leaves it where an interrupt comes just
    after it is made, or while it is removed.

    Args:
        beside: The file or folder that is being made; missing parent folders are created, too.

    Yields:
        The folder, which only its owner may read.

    Raises:
        OSError: It cannot be made or removed.
    """
    folder = beside.with_name(f".kohort-{secrets.token_hex(8)}{UNFINISHED}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def write_atomic(path: Path, content: bytes, *, durable: bool = False, private: bool = False) -> None:
    """Replace `path` with `content` in one step: write a temporary file beside it, then rename.

    Guarantee: after a crash, a full disk or an interrupt, `path` holds the old content or the new, never a mixture.

    Args:
        path: The file to write; missing parent folders are created.
        content: Its new content.
        durable: Whether to flush to the disk (fsync) before renaming.
        private: Whether only the owner may read the file (mode 0600 instead of 0644).

    Raises:
        ResourceError: The disk, a quota or the file handles are exhausted.
        ConfigError: The file cannot be written for another reason.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
        try:  # an interrupt may come as soon as the file is there
            with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.chmod(0o600 if private else 0o644)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
