"""One site's hash chain, and what is signed of its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from json.encoder import encode_basestring

from kohort.privacy.dp.budget import Budget

__all__ = ["GENESIS", "Chain", "canonical", "head_digest", "heads_digest", "quoted"]

GENESIS = "0" * 64
_UNKEYED = hashlib.blake2b(digest_size=32)  # copying a fresh state takes a fifth of the time of making one


# Made once: `json.dumps` with options makes a new encoder at every call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> str:
    """The canonical JSON of a value: sorted keys, no spaces, no NaN. Equal values have equal texts.

    Args:
        value: Plain values: objects with text keys, lists, text, numbers, booleans and None.

    Returns:
        The text.
    """
    return _ENCODER.encode(value)


quoted = encode_basestring
"""The canonical JSON of a string: the same as `canonical`, but faster."""


class Chain:
    """The end of one site's hash chain: its length, its last hash, and what the site has spent.

    Args:
        site: The site's name.
        secret: The site's secret, with which payload digests are keyed.
    """

    __slots__ = ("_key", "budget", "head", "length", "name", "receipt", "site")

    def __init__(self, site: str, *, secret: bytes) -> None:
        self.site = site
        self.length = 0
        self.head = GENESIS
        self.receipt = ""
        self.budget = Budget()
        self.name = quoted(site)
        # The key is hashed once and the state copied: a round may need a thousand digests.
        self._key = hashlib.blake2b(key=secret, digest_size=32)

    @property
    def spent(self) -> dict[str, float]:
        """Epsilon spent per recipient."""
        return self.budget.spent

    def digest(self, payload: bytes | memoryview) -> str:
        """The keyed digest of a payload: the site can prove what it sent, and nobody else can guess it.

        Args:
            payload: The bytes that leave.

        Returns:
            The digest in hexadecimal.
        """
        state = self._key.copy()
        state.update(payload)
        return state.hexdigest()

    def next_line(self, fields: str) -> bytes:
        """Append a line to the chain.

        Args:
            fields: The line's own fields as canonical JSON, without braces.

        Returns:
            The whole line: site, sequence number, previous hash, last receipt, `fields` and the line's own hash.
        """
        body = f'{{"site":{self.name},"seq":{self.length},"prev":"{self.head}","receipt":"{self.receipt}",{fields}'
        state = _UNKEYED.copy()
        state.update(body.encode())
        self.head = head = state.hexdigest()
        self.length += 1
        return f'{body},"hash":"{head}"}}\n'.encode()


def heads_digest(chains: Sequence[Chain]) -> str:
    """What is signed of the ends of chains: a digest over each name, length and last hash.

    Args:
        chains: The chains, in the order of a receipt.

    Returns:
        The digest in hexadecimal.
    """
    ends = ",".join([f'[{chain.name},{chain.length},"{chain.head}"]' for chain in chains])
    return hashlib.blake2b(f"[{ends}]".encode(), digest_size=32).hexdigest()


def head_digest(site: str, length: int, last: str) -> str:
    """What is signed of the end of one chain.

    Args:
        site: The chain's site.
        length: Its length.
        last: The hash of its last line.

    Returns:
        The digest in hexadecimal; that of `heads_digest` for one chain.
    """
    return hashlib.blake2b(f'[[{quoted(site)},{length},"{last}"]]'.encode(), digest_size=32).hexdigest()
