"""The key-holder's book: for which sums it offered keys, which it opened, and which runs ended with a failed check.

Two totals of one sum over different sites would show the difference, so a sum (one task in one round of one run) is
offered keys for one context and opened once, whatever attempt, member list or public inputs a hub names.

Guarantee: what the book says was written, and flushed to the disk, before the key or the total left; a key-holder that
restarts goes by the same book. It holds hashes alone.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from kohort.errors import IntegrityError, RefusedError
from kohort.files import disk_errors, write_whole

__all__ = ["KeyBook", "SumName"]

_DIGEST = 64
"""Characters of a hash."""


class SumName(NamedTuple):
    """One task in one round of one run."""

    run: str
    request: str
    """Plan and task."""
    round: int


class KeyBook:
    """An append-only list of what the key-holder did.

    Args:
        path: The file that keeps it; None keeps it in memory, for simulation.

    Raises:
        IntegrityError: The file holds a line that no key-holder wrote.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._offered: dict[str, str] = {}
        self._opened: set[str] = set()
        self._ended: set[str] = set()
        if path is not None and path.exists():
            self._load(path)

    def offer(self, name: SumName, content: bytes) -> None:
        """Note that a key for a sum is about to leave.

        Args:
            name: The sum.
            content: A hash over everything that binds it.

        Raises:
            RefusedError: It was opened before, offered with other content, or its run ended with a failed check.
        """
        self._refuse_ended(name.run)
        key, bound = _hash(*map(str, name)), content.hex()
        if key in self._opened:
            raise RefusedError("this sum was opened already, and its key destroyed", hint="Begin a new round")
        if self._offered.get(key, bound) != bound:
            raise RefusedError(
                "the same sum was begun over other sites, numbers or public inputs", hint="Begin a new round"
            )
        if key not in self._offered:
            self._append("offer", key, bound)

    def open(self, name: SumName) -> None:
        """Note that a sum is about to be opened; from now on it counts as opened, whatever comes of it.

        Args:
            name: The sum.

        Raises:
            RefusedError: It was opened before, or its run ended with a failed check.
        """
        self._refuse_ended(name.run)
        key = _hash(*map(str, name))
        if key in self._opened:
            raise RefusedError("this sum was opened already, and its key destroyed", hint="Begin a new round")
        self._append("open", key)

    def end(self, run: str) -> None:
        """Note that a check failed in a run: nothing of it is opened any more.

        Args:
            run: The run's id.
        """
        self._append("end", _hash(run))

    def _refuse_ended(self, run: str) -> None:
        if _hash(run) in self._ended:
            raise RefusedError(
                "the check of a total failed in this run, so nothing more of it is opened", hint="Start a new run"
            )

    def _append(self, *words: str) -> None:
        if self._path is not None:
            with disk_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(handle, "wb", buffering=0) as file:
                    write_whole(file, " ".join(words).encode() + b"\n")
                    os.fsync(file.fileno())
        self._take(words)

    def _load(self, path: Path) -> None:
        with disk_errors(path):
            whole = path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if kept != whole:  # a crash cut the last line short, so nothing left because of it
                os.truncate(path, len(kept))
        for line in kept.decode("ascii", errors="replace").splitlines():
            self._take(tuple(line.split(" ")))

    def _take(self, words: tuple[str, ...]) -> None:
        hashes = all(len(word) == _DIGEST and set(word) <= set("0123456789abcdef") for word in words[1:])
        if hashes and len(words) == 3 and words[0] == "offer":
            self._offered[words[1]] = words[2]
        elif hashes and len(words) == 2 and words[0] == "open":
            self._opened.add(words[1])
        elif hashes and len(words) == 2 and words[0] == "end":
            self._ended.add(words[1])
        else:
            raise IntegrityError(
                "the key-holder's book was altered", hint="Restore it from a copy; without it nothing may be opened"
            )


def _hash(*texts: str) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST // 2, person=b"kohort-book")
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
