"""The outbox: what a site answered, kept by the request's hash.

Write-ahead, as the ledger: a reply is stored before it is sent. The same request gets the same bytes again, so a crash
between storing and sending never makes a site draw fresh noise, or pay twice, for a round it already answered.
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
    """Replies of one site on disk; the last `keep` of them."""

    def __init__(self, folder: Path, *, keep: int = 64) -> None:
        self._folder = folder
        self._keep = keep

    def find(self, request: str) -> bytes | None:
        """The bytes that answered this request, if it was answered."""
        try:
            stored = self._path(request).read_bytes()
        except FileNotFoundError:
            return None
        digest, content = stored[:32], stored[32:]
        if hashlib.blake2b(content, digest_size=32).digest() != digest:
            raise IntegrityError("a stored reply was damaged", hint="Remove the outbox and start a new run")
        return content

    def store(self, request: str, reply: bytes) -> None:
        """Keep a reply before it is sent; the oldest ones beyond `keep` go."""
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
            raise IntegrityError("a request's hash is malformed")
        return self._folder / f"{request}.reply"
