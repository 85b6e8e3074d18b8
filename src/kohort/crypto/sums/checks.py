"""What a site and the key-holder know of a sum and nobody else does: pads of all slots, and the check of the total.

- A *pad* is added to every slot of every ciphertext before it is encrypted, modulo the plaintext prime. The key-holder
  takes the claimed sites' pads off again. A slot in which an honest site's vector does not count exactly once is
  uniform. Only exact encryption has a plaintext prime; approximate encryption is not padded.
- The *check* of a vector v is s = <r, v> + u for each of several primes, in the last slots of the last ciphertext. The
  weights r are known to all sites of the sum and the key-holder, u to this site and the key-holder alone. Checks add up
  with the vectors, so the key-holder can demand S = <r, V> + (sum of u over the claimed sites).

Guarantee: pads and u are derived from the exchange of the site's lasting key with a key the key-holder made for this
sum, and are bound to the offer of that key and to the sum's transcript, which covers its members and all public inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from kohort.crypto.identity.parties import PairKeys
from kohort.crypto.suites import expand, find_suite
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.residues import Weights, uniform
from kohort.errors import IntegrityError

__all__ = ["BOX", "SEED_OF_WEIGHTS", "SiteSecret", "weights_of"]

SEED_OF_WEIGHTS = 32
"""Bytes that the weights of a sum come from."""
BOX = SEED_OF_WEIGHTS + 16
"""Bytes of such a seed, sealed for one site."""
_NONCE = bytes(12)  # a key seals one seed, so the nonce need not change
_OFFSET = 16
"""Bytes behind one u: 128 bits modulo a prime below 2^40 have a bias below 2^-88."""


_weights = lru_cache(maxsize=2)(Weights)
"""Simulated sites of one sum share the weights, which all of them would make alike."""


def weights_of(seed: bytes, packing: Packing) -> Weights:
    """The weights r of a sum.

    Args:
        seed: What the key-holder drew for this sum.
        packing: The layout of the sum.

    Returns:
        The weights of all slots.
    """
    bound = expand(seed, b"sum seed" + packing.context.transcript, 32)
    return _weights(bound, packing.shape, packing.ring.check_moduli)


@dataclass(frozen=True, eq=False)
class SiteSecret:
    """What one site and the key-holder derive for one sum.

    Args:
        pair: The keys of the site and the key-holder's key of this sum.
        suite: The suite of both.
        site: The site's name.
        offer: The digest of the key-holder's offer.
        packing: The layout of the sum.
    """

    pair: PairKeys = field(repr=False)
    suite: str
    site: str
    offer: bytes
    packing: Packing

    def pads(self) -> NDArray[np.int64]:
        """The pads of all slots, one row a ciphertext; for a ring with a plaintext prime."""
        key = expand(self.pair.salting, b"sum pads" + self._bound, 32)
        rows, slots = self.packing.shape
        return uniform(key, rows * slots, self.packing.ring.plain_modulus).reshape(rows, slots)

    def offsets(self) -> list[int]:
        """The site's u, one for each prime of the check."""
        moduli = self.packing.ring.check_moduli
        data = expand(self.pair.salting, b"sum check" + self._bound, _OFFSET * len(moduli))
        return [
            int.from_bytes(data[place * _OFFSET : (place + 1) * _OFFSET], "little") % modulus
            for place, modulus in enumerate(moduli)
        ]

    def seal(self, seed: bytes) -> bytes:
        """The seed of the weights in a box for this site."""
        return find_suite(self.suite).cipher(self._box_key).encrypt(_NONCE, seed, None)

    def open(self, box: bytes) -> bytes:
        """The inverse of `seal`, at the site.

        Args:
            box: What came with the offer.

        Returns:
            The seed.

        Raises:
            IntegrityError: The box was altered, or made for another site or sum.
        """
        try:
            return find_suite(self.suite).cipher(self._box_key).decrypt(_NONCE, box, None)
        except InvalidTag as error:
            raise IntegrityError(
                "the sealed part of an offer for a secure sum was altered, or is for another site or sum",
                hint="Somebody between replaced it; nothing was sent",
            ) from error

    @property
    def _box_key(self) -> bytes:
        return expand(self.pair.sealing, b"sum seed" + self._bound, 32)

    @property
    def _bound(self) -> bytes:
        return self.offer + self.packing.context.transcript + self.site.encode()
