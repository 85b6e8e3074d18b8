"""One seed, many named streams.

Every random choice in kohort asks for a stream by name ("start", "rows", site, round, ...). The same seed and the same
name give the same numbers, in any order of asking, on any engine. Nothing keeps a hidden state, so a run can be resumed
at any round.

Guarantee: two different names give independent streams (the name is hashed with BLAKE2b under the root key).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kohort.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Streams"]


@dataclass(frozen=True)
class Streams:
    """A root key from which named streams are derived. Make one with `seeded`, `secure` or `choose`."""

    root: bytes = field(repr=False)
    seed: int | None

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Streams for a reproducible run."""
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed {seed} is out of range", hint="Use a whole number from 0 to 2^63 - 1")
        return cls(hashlib.blake2b(seed.to_bytes(8, "little"), person=b"kohort-seed").digest()[:32], seed)

    @classmethod
    def secure(cls) -> Streams:
        """Streams keyed by the operating system, never the same twice."""
        return cls(os.urandom(32), None)

    @classmethod
    def choose(cls, seed: int | None, *, secure: bool) -> Streams:
        """Seeded streams, or secure ones; both at once is a contradiction and refused."""
        if secure and seed is not None:
            raise ConfigError("secure randomness and a seed exclude each other", hint="Drop one of the two")
        return cls.secure() if secure else cls.seeded(0 if seed is None else seed)

    @property
    def is_secure(self) -> bool:
        """Whether the root came from the operating system rather than from a seed."""
        return self.seed is None

    def bytes(self, *names: str | int, length: int = 32) -> bytes:
        """`length` (at most 64) bytes that only this root and this name give."""
        text = b""
        for name in names:
            part = str(name).encode()
            text += len(part).to_bytes(4, "little") + type(name).__name__[:1].encode() + part
        return hashlib.blake2b(text, key=self.root, digest_size=length).digest()

    def key(self, *names: str | int) -> int:
        """A 64-bit key for the counter hashes of the training kernel."""
        return int.from_bytes(self.bytes(*names, length=8), "little")

    def generator(self, *names: str | int) -> np.random.Generator:
        """A NumPy generator (Philox, keyed) for this name. Not cryptographic: never use it for release noise."""
        import numpy as np

        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.bytes(*names, length=16), "little")))
