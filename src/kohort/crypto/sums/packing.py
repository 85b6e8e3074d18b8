"""How the integers of a sum lie in the slots of ciphertexts; the last slots of the last one are left for the check.

Which size of ciphertext is used follows from the sum alone (`Packing.of`): sites, numbers and their bits.

A number whose total fits a slot lies in one slot, signed. A wider one (`bits` above what a slot holds, or residues
modulo 2^61 - 1) is cut into digits that are small enough for all sites' digits to add up in a slot.

Guarantee: `unpack` of the sum of packed vectors is the sum of the vectors, exactly and for every number of sites up to
the context's; a number that leaves no headroom for that is refused before anything is sent, never wrapped. Totals of
slots stay within half of the plaintext prime either way, so slots that are added modulo that prime say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from kohort.crypto.sums.he import Ring, Slots
from kohort.crypto.sums.modular import P61, add, multiply
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import IntegrityError, RefusedError

__all__ = ["Packing"]

_FEWEST_BITS = 4


@dataclass(frozen=True)
class Packing:
    """The layout of one sum under one ring."""

    ring: Ring
    context: SumContext

    def __post_init__(self) -> None:
        if self.context.modulus not in {0, P61} or not 2 <= self.context.bits <= 64:
            raise RefusedError("an encrypted sum adds signed numbers of 2 to 64 bits, or residues modulo 2^61 - 1")
        self.ring.check(len(self.context.sites))
        if self.digits > 1 and self.digit_bits < _FEWEST_BITS:
            raise RefusedError(
                f"{len(self.context.sites)} sites leave no headroom in a slot of {self.ring.title}",
                hint="Add fewer sites at a time, or use masks",
            )

    @classmethod
    def of(cls, ring: Ring, context: SumContext) -> Packing:
        """The layout everybody in this sum uses: in one small ciphertext where all of it fits, else in large ones."""
        small = ring.smaller
        if small is not None and small.is_good_for(len(context.sites)):
            packing = cls(small, context)
            if packing.ciphertexts == 1:
                return packing
        return cls(ring, context)

    @property
    def bound(self) -> int:
        """The largest absolute value a site may contribute (of a signed number)."""
        largest: int = 2 ** (self.context.bits - 1) - 1
        if self.digits == 1:
            largest = min(largest, self._capacity)
        return largest // len(self.context.sites)

    @cached_property
    def digits(self) -> int:
        """Slots a number takes."""
        if self.context.modulus:
            return ceil(P61.bit_length() / max(1, self.digit_bits))
        # A slot of 40 bits holds a little less than 39 bits either way; `bound` says how much.
        if self.context.bits - 1 <= self._capacity.bit_length():
            return 1
        return ceil(self.context.bits / max(1, self.digit_bits))

    @cached_property
    def digit_bits(self) -> int:
        """Bits of a digit: as many as let all sites' digits add up in a slot."""
        return (self._capacity // len(self.context.sites)).bit_length() - 1

    @cached_property
    def _capacity(self) -> int:
        return self.ring.capacity(len(self.context.sites))

    @property
    def checks(self) -> int:
        """Slots that the check of a vector takes."""
        return len(self.ring.check_moduli)

    @cached_property
    def ciphertexts(self) -> int:
        """How many ciphertexts a vector takes with its check."""
        return ceil((self.digits * self.context.length + self.checks) / self.ring.slots)

    @property
    def shape(self) -> tuple[int, int]:
        """Ciphertexts, and slots of each."""
        return self.ciphertexts, self.ring.slots

    def pack(self, vector: Integers) -> Slots:
        """The slots of a site's vector, one row a ciphertext; those of the check are zero."""
        if vector.shape != (self.context.length,) or vector.dtype != np.uint64:
            raise IntegrityError("a site takes part in a secure sum with a vector of the agreed length")
        self._refuse_overflow(vector)
        out = np.zeros(self.ciphertexts * self.ring.slots, dtype=np.int64)
        out[: self.digits * self.context.length] = self._cut(vector).reshape(-1)
        return out.reshape(self.shape)

    def unpack(self, totals: Slots) -> Integers:
        """The sum, from the opened slots."""
        flat = totals.reshape(-1)[: self.digits * self.context.length].reshape(self.digits, self.context.length)
        single = self.digits == 1 and not self.context.modulus
        sites = len(self.context.sites)
        low, high = (-self.bound, self.bound) if single else (0, 2**self.digit_bits - 1)
        if int(flat.min()) < low * sites or int(flat.max()) > high * sites:
            raise IntegrityError("an opened total is out of range; some site did not follow the protocol")
        if single:
            return np.ascontiguousarray(flat[0]).view(np.uint64)
        joined = np.zeros(self.context.length, dtype=np.uint64)
        for place, digit in enumerate(flat.view(np.uint64)):
            shift = place * self.digit_bits
            if self.context.modulus:
                weight = np.full(len(joined), pow(2, shift, P61), dtype=np.uint64)
                joined = add(joined, multiply(digit % np.uint64(P61), weight), P61)
            else:
                joined += digit << np.uint64(shift)  # wraps modulo 2^64, as a total of 64 bits does
        return joined if self.context.modulus else _signed(joined, self.context.bits)

    def _cut(self, vector: Integers) -> Slots:
        if self.digits == 1:
            return vector.view(np.int64)
        mask = np.uint64(2**self.digit_bits - 1)
        width = P61.bit_length() if self.context.modulus else self.context.bits
        low = vector & np.uint64(2**width - 1)
        cut = [(low >> np.uint64(place * self.digit_bits)) & mask for place in range(self.digits)]
        return np.stack(cut).view(np.int64)

    def _refuse_overflow(self, vector: Integers) -> None:
        if self.context.modulus:
            if (vector >= np.uint64(P61)).any():
                raise IntegrityError("a residue of a secure sum is outside the agreed range")
            return
        signed = vector.view(np.int64)
        if max(int(signed.max()), -int(signed.min())) > self.bound:
            raise RefusedError(
                f"a number is above {self.bound}: with {len(self.context.sites)} sites the total might not fit",
                hint="Use a coarser scale or tighter bounds, or let the sum have more bits",
            )


def _signed(numbers: Integers, bits: int) -> Integers:
    """Numbers modulo 2^bits as signed 64-bit ones."""
    spare = 64 - bits
    return ((numbers << np.uint64(spare)).view(np.int64) >> np.int64(spare)).view(np.uint64)
