"""What a site keeps of its learner between requests, and the digest of all that the learner follows from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.state import StateArrays, TaskState
from kohort.rounds.totals.learner import Learner, RowCache, Setting, Whole

__all__ = ["LearnerState", "first_key", "next_key"]


@dataclass
class LearnerState(TaskState):
    """A site's own learner."""

    NAME: ClassVar[str] = "learner"

    learner: Learner | None = field(default=None, repr=False)
    round: int = -1
    """The round that it is ready for."""
    members: int = 0
    """How many sites the sums are over."""
    seed: bytes = b""
    """The public seed; every round names it, so it is in the view of every sum."""
    key: bytes = b""
    """A digest of all that the learner follows from."""
    memory: RowCache = field(default_factory=RowCache, repr=False)
    """What the learner keeps about this site's rows."""
    stored: StateArrays = field(default_factory=dict, repr=False)
    """A restored learner, until the site is enrolled and can make it again."""

    def checkpoint(self) -> StateArrays:
        """The learner, its round, members, seed and digest, once there is one."""
        if self.learner is None:
            return dict(self.stored)
        own = {f"learner_{name}": array for name, array in self.learner.checkpoint().items()}
        numbers = np.asarray([self.round, self.members], dtype=np.int64)
        texts = {"seed": np.frombuffer(self.seed, dtype=np.uint8), "key": np.frombuffer(self.key, dtype=np.uint8)}
        return {"numbers": numbers, **texts, **own}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `checkpoint`; the learner itself is made when it is first needed."""
        self.stored = {name: array.copy() for name, array in arrays.items()}
        self.learner = None


def first_key(setting: Setting) -> bytes:
    """A digest of all that the learner of the start depends on.

    Args:
        setting: What hub and sites know before the first total.

    Returns:
        32 bytes, equal at two sites only if they start from the same plan, run, seed, number of sites, noise and
        encoder.
    """
    approved = setting.approved
    facts = [approved.run, approved.plan_hash, setting.seed.hex(), setting.members, repr(setting.sigma)]
    text = canonical([*facts, setting.encoder.to_mapping()])
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kohort-learner").digest()


def next_key(key: bytes, total: Whole, sites: int) -> bytes:
    """The digest of all that the learner depends on after one more round.

    Args:
        key: The digest before that round.
        total: The total of the round.
        sites: How many sites it is over.

    Returns:
        32 bytes.
    """
    digest = hashlib.blake2b(key, digest_size=32, person=b"kohort-learner")
    digest.update(sites.to_bytes(8, "little") + total.astype("<i8").tobytes())
    return digest.digest()
