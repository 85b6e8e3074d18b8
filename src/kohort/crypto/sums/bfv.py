"""`bfv`: a sum by exact homomorphic encryption; totals are those of `none` and `masks`, bit for bit."""

from __future__ import annotations

from typing import ClassVar

from kohort.crypto.sums.encrypted import EncryptedSum
from kohort.crypto.sums.he import BFV, Ring

__all__ = ["SCHEME", "Bfv"]


class Bfv(EncryptedSum):
    """About 30,900 bytes for up to 2,046 slots, or 65,659 for every 4,096."""

    name: ClassVar[str] = "bfv"
    ring: ClassVar[Ring] = BFV


SCHEME = Bfv()
