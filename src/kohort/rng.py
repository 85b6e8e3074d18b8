"""One seed, many named streams.

Every random choice in kohort uses a stream with a name of its own ("start", "rows", site, round, ...). The same seed
and the same name give the same numbers, in whatever order streams are used and on every engine. Streams keep no hidden
state, so a run can be resumed at any round.

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
    """A root key from which named streams are derived. Make one with `seeded`, `secure` or `choose`.

    Example:
        >>> streams = Streams.seeded(7)
        >>> streams.key("rows") == Streams.seeded(7).key("rows")
        True
    """

    root: bytes = field(repr=False)
    seed: int | None

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Streams for a reproducible run.

        Args:
            seed: A whole number from 0 to 2^63 - 1.

        Returns:
            Streams that give the same numbers for the same seed.

        Raises:
            ConfigError: The seed is out of range.
        """
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed {seed} is out of range", hint="Use a whole number from 0 to 2^63 - 1")
        return cls(hashlib.blake2b(seed.to_bytes(8, "little"), person=b"kohort-seed").digest()[:32], seed)

    @classmethod
    def secure(cls) -> Streams:
        """Streams whose root key comes from the operating system, different in every run."""
        return cls(os.urandom(32), None)

    @classmethod
    def choose(cls, seed: int | None, *, secure: bool) -> Streams:
        """Seeded or secure streams, as a plan asks for them.

        Args:
            seed: The plan's seed; 0 is used when it has none.
            secure: Whether the root key shall come from the operating system.

        Returns:
            Secure streams when `secure` is set, seeded ones otherwise.

        Raises:
            ConfigError: Both were asked for.
        """
        if secure and seed is not None:
            raise ConfigError(
                "secure randomness and a seed exclude each other", hint="Remove the seed, or turn secure randomness off"
            )
        return cls.secure() if secure else cls.seeded(0 if seed is None else seed)

    @property
    def is_secure(self) -> bool:
        """Whether the root came from the operating system rather than from a seed."""
        return self.seed is None

    def bytes(self, *names: str | int, length: int = 32) -> bytes:
        """Pseudo-random bytes that depend on the root key and the name alone.

        Args:
            *names: The parts of the stream's name; 1 and "1" are different parts.
            length: How many bytes, at most 64.

        Returns:
            The bytes.
        """
        text = b""
        for name in names:
            part = str(name).encode()
            text += len(part).to_bytes(4, "little") + type(name).__name__[:1].encode() + part
        return hashlib.blake2b(text, key=self.root, digest_size=length).digest()

    def key(self, *names: str | int) -> int:
        """A 64-bit key for the counter-based random numbers of the training kernel.

        Args:
            *names: The parts of the stream's name.

        Returns:
            The key.
        """
        return int.from_bytes(self.bytes(*names, length=8), "little")

    def generator(self, *names: str | int) -> np.random.Generator:
        """A NumPy generator (keyed Philox). Not cryptographic: never use it for the noise of a release.

        Args:
            *names: The parts of the stream's name.

        Returns:
            A fresh generator at the beginning of the stream.
        """
        import numpy as np

        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.bytes(*names, length=16), "little")))
