"""The outbox: a real site's stored replies, by the digest of the request.

Like the ledger it is written ahead: a reply is stored before it is sent. A repeated request gets the same bytes, so a
crash between storing and sending never makes a site draw fresh noise, or pay twice, for a round it already answered.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from kohort.errors import IntegrityError
from kohort.files import write_atomic

__all__ = ["Outbox"]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Outbox:
    """The last replies of one site, on the disk.

    Args:
        folder: Where they are stored.
        keep: How many of them to keep.
    """

    def __init__(self, folder: Path, *, keep: int = 64) -> None:
        self._folder = folder
        self._keep = keep

    def find(self, request: str) -> bytes | None:
        """Look up the reply to a request.

        Args:
            request: The request's digest.

        Returns:
            The bytes of the reply; None when there is none.

        Raises:
            IntegrityError: The stored reply is damaged, or the digest is malformed.
        """
        try:
            stored = self._path(request).read_bytes()
        except FileNotFoundError:
            return None
        digest, content = stored[:32], stored[32:]
        if hashlib.blake2b(content, digest_size=32).digest() != digest:
            raise IntegrityError(
                "a stored reply is damaged", hint="Remove the site's outbox folder and start a new run"
            )
        return content

    def store(self, request: str, reply: bytes) -> None:
        """Store a reply before it is sent, and delete the oldest ones beyond `keep`.

        Args:
            request: The request's digest.
            reply: The bytes of the reply.

        Raises:
            IntegrityError: The digest is malformed.
            ResourceError: The disk is full.
        """
        write_atomic(
            self._path(request),
            hashlib.blake2b(reply, digest_size=32).digest() + reply,
            durable=True,
            private=True,
        )
        stored = sorted(self._folder.glob("*.reply"), key=lambda path: path.stat().st_mtime_ns)
        for old in stored[: -self._keep]:
            with suppress(OSError):
                old.unlink()

    def _path(self, request: str) -> Path:
        if not _DIGEST.fullmatch(request):
            raise IntegrityError("a request's digest is malformed")
        return self._folder / f"{request}.reply"
