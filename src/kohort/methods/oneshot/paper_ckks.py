"""Encryption as the FedHEONN paper uses it: CKKS under one key pair that all sites share, with homomorphic products.

For comparison only. Every site can decrypt every other site's ciphertexts, and whoever has the key can decrypt the
model. Decryptions are not rounded, which leaks key material to whoever receives them. See `kohort.crypto.sums.he`.

The paper assumes that keys are distributed before a run; in a simulation they are made once per run, in this process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.he import library
from kohort.errors import IntegrityError

__all__ = ["PaperKeys", "PaperTotals", "paper_keys"]

PRIME_BITS = (60, 40, 40, 60)
SCALE = 2.0**40


class PaperKeys:
    """The key pair that all sites share. `public`, the hub's part, can add and multiply but not decrypt."""

    def __init__(self, degree: int) -> None:
        api = library()
        self._context = api.context(api.SCHEME_TYPE.CKKS, degree, coeff_mod_bit_sizes=list(PRIME_BITS))
        self._context.global_scale = SCALE
        self._context.generate_galois_keys()
        self.public: Any = self._context.copy()
        self.public.make_context_public()

    def encrypt(self, vector: NDArray[np.float64]) -> bytes:
        """Encrypt one vector."""
        data: bytes = library().ckks_vector(self._context, vector.tolist()).serialize()
        return data

    def decrypt(self, data: bytes) -> NDArray[np.float64]:
        """Decrypt one vector; it has the approximation error of CKKS.

        Raises:
            IntegrityError: The ciphertext is malformed.
        """
        return np.asarray(_read(self._context, data).decrypt())


class PaperTotals:
    """The hub's part: add encrypted vectors, and multiply the totals by plain matrices."""

    def __init__(self, public: Any, count: int) -> None:
        self._public = public
        self._totals: list[Any] = [None] * count

    def add(self, vectors: list[bytes]) -> None:
        """Add the vectors of one site.

        Raises:
            IntegrityError: Their number is wrong, or one is malformed.
        """
        if len(vectors) != len(self._totals):
            raise IntegrityError(f"{len(vectors)} ciphertexts came to a sum of {len(self._totals)}")
        for index, data in enumerate(vectors):
            vector = _read(self._public, data)
            total = self._totals[index]
            self._totals[index] = vector if total is None else total + vector

    def times(self, index: int, *matrices: NDArray[np.float64]) -> bytes:
        """The encrypted product of total `index`, a row vector, with the matrices in order."""
        vector = self._totals[index]
        for matrix in matrices:
            vector = vector.mm(matrix.tolist())
        data: bytes = vector.serialize()
        return data


@lru_cache(maxsize=1)
def paper_keys(run: str, degree: int) -> PaperKeys:
    """The keys of a run, made at the first call.

    Args:
        run: The name of the run. Each has keys of its own, which are forgotten once those of another are asked for.
        degree: The ring degree of CKKS.

    Returns:
        The key pair, the same object for all sites and the hub of this process.
    """
    del run
    return PaperKeys(degree)


def _read(context: Any, data: bytes) -> Any:
    try:
        return library().ckks_vector_from(context, data)
    except (ValueError, RuntimeError, TypeError) as error:
        raise IntegrityError("a ciphertext is cut short, altered or of other parameters") from error
