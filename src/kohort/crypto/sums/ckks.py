"""`ckks`: a sum by approximate homomorphic encryption, on a grid coarse enough that totals come out exact."""

from __future__ import annotations

from typing import ClassVar

from kohort.crypto.sums.encrypted import EncryptedSum
from kohort.crypto.sums.he import CKKS, Ring

__all__ = ["SCHEME", "Ckks"]


class Ckks(EncryptedSum):
    """About 30,900 bytes for up to 1,019 slots, or 65,659 for every 2,048; with many sites a number takes several."""

    name: ClassVar[str] = "ckks"
    ring: ClassVar[Ring] = CKKS


SCHEME = Ckks()
