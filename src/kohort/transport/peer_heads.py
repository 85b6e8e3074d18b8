"""What a site remembers of its peers' ledgers: the newest head of each that its owner signed.

The hub hands heads around with a run's plan; each site keeps the newest one of every peer on its roster and returns
what it keeps with its first reply. So a hub that lost its receipts, and through it a site whose whole machine was
restored, are shown how far the site's ledger had come. A head counts by its owner's signature alone; a hub that lies
cannot invent one, it can only withhold it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kohort.crypto.sealed import PublicIdentity
from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.privacy.ledger.ledger import canonical, head_digest
from kohort.purposes import Purpose

__all__ = ["Head", "PeerHeads", "head_lines", "is_head_of", "read_head", "read_heads"]

Head = tuple[int, str, str]
"""Length, last hash, and the site's signature over name, length and hash."""
MOST_HEADS = 1000


def is_head_of(site: PublicIdentity, head: Head) -> bool:
    """Whether a site signed this head of its ledger.

    Args:
        site: The site.
        head: What came in.

    Returns:
        True if the signature holds; False for a malformed one, too.
    """
    length, last, signature = head
    try:
        claimed = bytes.fromhex(signature)
    except ValueError:
        return False
    return site.signed(head_digest(site.name, length, last).encode(), claimed, purpose=Purpose.LEDGER_HEAD)


def head_lines(heads: Iterable[tuple[str, Head]]) -> bytes:
    """Heads as they travel in a request: one line for each.

    Args:
        heads: Names and heads.

    Returns:
        The lines.
    """
    return "".join(canonical([name, *head]) + "\n" for name, head in heads).encode()


def read_heads(lines: bytes) -> Iterator[tuple[str, Head]]:
    """The heads in lines from anywhere.

    Args:
        lines: What came in.

    Yields:
        Names and heads, of the right form; nothing says yet that they are signed.

    Raises:
        IntegrityError: A line is malformed.
    """
    for text in lines.splitlines()[:MOST_HEADS]:
        try:
            name, *head = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise IntegrityError("the head of a peer's ledger is malformed") from error
        yield str(name), read_head(head)


def read_head(value: Any) -> Head:
    """A head from anywhere.

    Args:
        value: What came in.

    Returns:
        Length, hash and signature, of the right form; nothing says yet that they are signed.

    Raises:
        IntegrityError: It is malformed.
    """
    try:
        length, last, signature = value
        if type(length) is int and length > 0 and isinstance(last, str) and isinstance(signature, str):
            return length, last, signature
    except (ValueError, TypeError):
        pass
    raise IntegrityError("the head of a peer's ledger is malformed")


class PeerHeads:
    """The newest signed heads of a site's peers, on the disk.

    Args:
        path: The file that keeps them; None keeps them in memory.

    Raises:
        IntegrityError: The file is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Head] = {}
        if path is not None and path.exists():
            with disk_errors(path):
                content = path.read_bytes()
            self._known = dict(read_heads(content))

    def take(self, lines: bytes, find_peer: Callable[[str], PublicIdentity | None]) -> None:
        """Keep the heads that are newer than the known ones.

        Args:
            lines: Heads as the hub handed them around.
            find_peer: The identity of a peer on this site's roster.

        Raises:
            IntegrityError: A line is malformed.
        """
        newer = {}
        for name, head in read_heads(lines):
            peer = find_peer(name)
            known = self._known.get(name)
            if peer is not None and (known is None or head[0] > known[0]) and is_head_of(peer, head):
                newer[name] = head
        if newer:
            self._known |= newer
            if self._path is not None:
                write_atomic(self._path, head_lines(self._known.items()), durable=True, private=True)

    def returned(self) -> Mapping[str, list[Any]]:
        """What goes back with a first reply.

        Returns:
            By name, length, last hash and signature.
        """
        return {name: list(head) for name, head in self._known.items()}
