"""Add-only homomorphic encryption: vectors of integers are encrypted, added while encrypted, and opened as a total.

Two schemes, each in two sizes of 128-bit security:

- `BFV` is exact. A slot holds integers modulo a prime.
- `CKKS` is approximate. A slot holds a multiple of a grid that is at least 33 or 43 times the standard deviation of the
  total's error, and what is decrypted is rounded to the grid before anybody sees it: raw decryptions leak key material.

| size | ring | slot of BFV | ciphertext | for vectors |
|---|---|---|---|---|
| `BFV`, `CKKS` | N = 4096, primes of 60 and 49 bits | 40 bits | 65,659 bytes | of any length, in several ciphertexts |
| their `smaller` | N = 2048, a prime of 54 bits | 33 bits | 30,900 bytes | short enough for one (`Packing.of`) |

Randomness is an argument: the same seed gives the same bytes, so seeded runs repeat and resume. Callers derive the seed
of an encryption from a secret and the plaintext; two different plaintexts then never share one.

Guarantee: whoever holds no `SecretKey` learns nothing from a ciphertext but its size. Exactness: `check` refuses more
sites than the noise budget is good for, before anything is encrypted. This is the one file that imports tenseal.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log2, sqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError

__all__ = ["BFV", "CKKS", "SEED", "CiphertextSum", "PublicKey", "Ring", "SecretKey", "Slots", "library"]

Slots = NDArray[np.int64]
SEED = 64
"""Bytes of randomness behind one key pair or one encryption."""
_LARGEST = 1 << 18
"""No honest key or ciphertext has more bytes."""
_DRAWN = 10.5
"""Variance of an error the library draws: the difference of two counts of 21 fair bits."""
_CHECK_PRIMES = (1048573, 1048571, 1048559, 1048549, 1048517)
"""The five largest primes below 2^20. Slots of `CKKS` add as integers: a change by a multiple of a prime passes that
prime's check. A total has less than 43 bits, so no change is a multiple of three of them, and at least three checks
remain (2^-59)."""
_SIGMAS = 9.0  # a normal variable is further out than this with probability 2^-62; there are 2^12 of them


@dataclass(frozen=True)
class Ring(ABC):
    """A scheme of one size, and what it can hold. `name` is the word of plans and ledgers."""

    name: ClassVar[str]
    degree: int
    prime_bits: tuple[int, ...]
    """One prime to encrypt under, or a second one that every encryption is scaled down by."""
    plain_modulus: int = 0
    """What slots add modulo, so that they can be padded; 0 where they add as integers and must not overflow."""
    smaller: Ring | None = None
    """The same scheme for short vectors."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """Integers of a ciphertext."""

    @property
    @abstractmethod
    def check_moduli(self) -> tuple[int, ...]:
        """The primes of a vector's check, one for each slot it takes; a wrong total passes with less than 2^-40."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the error of a fresh ciphertext, in its own units.

        Scaling down by a second prime divides what was drawn away and leaves the error of rounding both polynomials,
        uniform within half a unit: once by itself and once times the ternary secret. Without, an error is drawn for
        each polynomial, and the public key's own is multiplied by a ternary polynomial.
        """
        if len(self.prime_bits) > 1:
            return sqrt((1 + 2 * self.degree / 3) / 12 + 1 / 12)
        return sqrt(_DRAWN * (1 + 4 * self.degree / 3))

    @property
    def modulus(self) -> float:
        """The prime of ciphertexts is larger than this."""
        return 2.0 ** (self.prime_bits[0] - 1)

    @abstractmethod
    def is_good_for(self, sites: int) -> bool:
        """Whether a total over so many sites comes out exact."""

    @abstractmethod
    def check(self, sites: int) -> None:
        """Refuse a number of sites whose total would not come out exact."""

    @abstractmethod
    def capacity(self, sites: int) -> int:
        """The largest absolute value a slot of a total over `sites` sites can hold."""

    @property
    def title(self) -> str:
        """How ledgers name it."""
        return f"{self.name} N={self.degree}"

    @abstractmethod
    def _parameters(self, api: Any) -> Any:
        """The library's parameters without the primes."""

    @abstractmethod
    def _encoder(self, api: Any, context: Any) -> Any:
        """What puts integers into slots."""

    @abstractmethod
    def _encode(self, encoder: Any, slots: Slots, sites: int, plain: Any) -> None:
        """Write slots into a plaintext."""

    @abstractmethod
    def _decode(self, encoder: Any, plain: Any) -> Slots:
        """Read the slots of a plaintext."""


@dataclass(frozen=True)
class _Bfv(Ring):
    """`plain_modulus` is the largest prime of its bits that is 1 modulo 2 N: slots add and multiply by themselves."""

    name: ClassVar[str] = "bfv"

    @property
    def check_moduli(self) -> tuple[int, ...]:
        return (self.plain_modulus, self.plain_modulus)  # each is a little below 2^40, or 2^33

    @property
    def slots(self) -> int:
        return self.degree

    def noise(self, sites: int) -> float:
        """Bits of budget left in a total: log2 of the room over the largest error to expect."""
        error = sites / 2 + _SIGMAS * sqrt(sites) * self.deviation  # rounding the plaintexts, and what encryption adds
        return log2(self.modulus / (2 * self.plain_modulus)) - log2(error)

    def is_good_for(self, sites: int) -> bool:
        return self.noise(sites) >= 1

    def check(self, sites: int) -> None:
        if not self.is_good_for(sites):
            raise RefusedError(
                f"a total over {sites} sites would use up the noise budget of {self.title}",
                hint="Add fewer sites at a time, or use masks",
            )

    def capacity(self, sites: int) -> int:
        del sites
        return (self.plain_modulus - 1) // 2

    def _parameters(self, api: Any) -> Any:
        made = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
        made.set_plain_modulus(self.plain_modulus)
        return made

    def _encoder(self, api: Any, context: Any) -> Any:
        return api.BatchEncoder(context)

    def _encode(self, encoder: Any, slots: Slots, sites: int, plain: Any) -> None:
        del sites
        encoder.encode(slots.tolist(), plain)

    def _decode(self, encoder: Any, plain: Any) -> Slots:
        return np.asarray(encoder.decode_int64(plain), dtype=np.int64)


@dataclass(frozen=True)
class _Ckks(Ring):
    name: ClassVar[str] = "ckks"
    tolerance: ClassVar[float] = 0.47
    """How far from an integer a slot of an honest total may lie."""

    @property
    def check_moduli(self) -> tuple[int, ...]:
        return _CHECK_PRIMES

    @property
    def slots(self) -> int:
        return self.degree // 2

    @property
    def grid(self) -> int:
        """How many standard deviations of a total's error apart two integers lie.

        So many that an honest total has a slot that lies farther from an integer than `tolerance` with a probability
        below 2^-30. In a slot, what encryption adds is a product: an error that all sites drew, a normal variable,
        times the secret's own value there, another one. The real part of such a product has the distribution of
        Laplace, whose tails are exp(-sqrt(2) x) at x deviations, far heavier than those of a normal variable. Where
        nothing is scaled down there are two such products of the same size, and the tails of their sum are
        (1 + x) exp(-2 x).
        """
        return 43 if len(self.prime_bits) > 1 else 33

    def scale(self, sites: int) -> float:
        """Units of the ciphertext to the integer."""
        error = sqrt(self.degree / 2) * sqrt(sites) * self.deviation  # in a slot, which adds N / 2 coefficients up
        return 2.0 ** ceil(log2(self.grid * error))

    def is_good_for(self, sites: int) -> bool:
        return self.capacity(sites) >= sites << 20  # residues of all sites' checks add up in a slot

    def check(self, sites: int) -> None:
        if not self.is_good_for(sites):
            raise RefusedError(
                f"a total over {sites} sites leaves no room on the grid of {self.title}",
                hint="Add fewer sites at a time, or use bfv or masks",
            )

    def capacity(self, sites: int) -> int:
        return floor(self.modulus / 4 / self.scale(sites))

    def _parameters(self, api: Any) -> Any:
        return api.EncryptionParameters(api.SCHEME_TYPE.CKKS)

    def _encoder(self, api: Any, context: Any) -> Any:
        return api.CKKSEncoder(context)

    def _encode(self, encoder: Any, slots: Slots, sites: int, plain: Any) -> None:
        encoder.encode(slots.astype(np.float64).tolist(), self.scale(sites), plain)

    def _decode(self, encoder: Any, plain: Any) -> Slots:
        found = np.asarray(encoder.decode_double(plain), dtype=np.float64)
        rounded = np.rint(found)
        # A total of another key is anywhere between two integers in every slot, and does not pass.
        if not (np.abs(found - rounded) <= self.tolerance).all() or np.abs(rounded).max() >= 2.0**62:
            raise IntegrityError("a total does not lie on the grid; it was altered, or encrypted under another key")
        return rounded.astype(np.int64)


BFV = _Bfv(4096, (60, 49), 1099511480321, smaller=_Bfv(2048, (54,), 8589905921))
CKKS = _Ckks(4096, (60, 49), smaller=_Ckks(2048, (54,)))


class PublicKey:
    """Encrypts, and can do nothing else."""

    def __init__(self, ring: Ring, data: bytes) -> None:
        self.ring = ring
        self._key = _loaded(_api().PublicKey(), _context(ring), data, "public key")

    def encrypt(self, slots: Slots, *, sites: int, seed: bytes) -> bytes:
        """The ciphertext of one vector of slots that goes into a total over at most `sites` sites."""
        self.ring.check(sites)
        if slots.shape != (self.ring.slots,) or int(np.abs(slots).max()) > self.ring.capacity(sites):
            raise IntegrityError("a vector does not fit the slots of a ciphertext")
        api, context, plain = _api(), _seeded(self.ring, seed), _api().Plaintext()
        self.ring._encode(_encoder(self.ring), slots, sites, plain)
        made = api.Ciphertext(context)
        api.Encryptor(context, self._key).encrypt(plain, made)
        return _SCRATCH.save(made)


class SecretKey:
    """Makes a key pair and opens what was encrypted under it; after `destroy`, nothing."""

    def __init__(self, ring: Ring, seed: bytes) -> None:
        api = _api()
        self.ring = ring
        # Two seeds: under one, the library would draw the public key's error from the same stream as the secret.
        secret = api.KeyGenerator(_seeded(ring, _derived(seed, b"secret"))).secret_key()
        public = api.PublicKey()
        api.KeyGenerator(_seeded(ring, _derived(seed, b"public")), secret).create_public_key(public)
        self.public = _SCRATCH.save(public)
        self._opener: Any = api.Decryptor(_context(ring), secret)

    def open(self, ciphertext: bytes, *, sites: int) -> Slots:
        """The slots of a total over at most `sites` sites."""
        if self._opener is None:
            raise IntegrityError("the key of this sum was destroyed")
        total = _ciphertext(self.ring, ciphertext)
        if isinstance(self.ring, _Bfv) and self._opener.invariant_noise_budget(total) < 1:
            raise IntegrityError("a total has no noise budget left; it was altered, or encrypted under another key")
        if isinstance(self.ring, _Ckks) and total.scale != self.ring.scale(sites):
            raise IntegrityError("a total was made for another number of sites")
        plain = _api().Plaintext()
        self._opener.decrypt(total, plain)
        return self.ring._decode(_encoder(self.ring), plain)

    def destroy(self) -> None:
        """Forget the secret; what was encrypted under it stays closed for good."""
        self._opener = None


class CiphertextSum:
    """Adds ciphertexts as they come in, one at a time; it holds the total alone and no key."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._evaluator = _api().Evaluator(_context(ring))
        self._total: Any = None

    def add(self, data: bytes) -> None:
        """One more ciphertext."""
        item = _ciphertext(self.ring, data)
        if self._total is None:
            self._total = item
        elif item.scale != self._total.scale:
            raise IntegrityError("a ciphertext was made for another number of sites")
        else:
            self._evaluator.add_inplace(self._total, item)

    def ciphertext(self) -> bytes:
        """The ciphertext of the sum."""
        if self._total is None:
            raise IntegrityError("no ciphertext was added")
        return _SCRATCH.save(self._total)


class _Scratch(threading.local):
    """A file for each thread, written over again and again: the library reads and writes files alone. No secret in it.

    It lies in memory where the system has such files.
    """

    def __init__(self) -> None:
        self._process = 0

    def _open(self) -> None:
        if self._process == os.getpid():
            return
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
            self._handle = os.memfd_create("kohort")
            self.path = f"/proc/self/fd/{self._handle}"
        else:
            self._handle, self.path = tempfile.mkstemp(prefix="kohort-")
            weakref.finalize(self, os.unlink, self.path)
        self._process = os.getpid()  # a fork must not write into its parent's file

    def save(self, item: Any) -> bytes:
        self._open()
        item.save(self.path)
        return os.pread(self._handle, _LARGEST, 0)

    def load(self, item: Any, context: Any, data: bytes) -> None:
        self._open()
        os.pwrite(self._handle, data, 0)
        os.ftruncate(self._handle, len(data))
        item.load(context, self.path)


_SCRATCH = _Scratch()


def _api() -> Any:
    import tenseal.sealapi  # takes 0.15 s, and most runs encrypt nothing

    return tenseal.sealapi


@cache
def _context(ring: Ring) -> Any:
    """Parameters and tables, without a key and without randomness."""
    return _seeded(ring, None)


@cache
def _encoder(ring: Ring) -> Any:
    """Puts integers into the slots of a plaintext and reads them; the same whatever is drawn."""
    return ring._encoder(_api(), _context(ring))


@cache
def _parameters(ring: Ring) -> Any:
    api = _api()
    made = ring._parameters(api)
    made.set_poly_modulus_degree(ring.degree)
    made.set_coeff_modulus(api.CoeffModulus.Create(ring.degree, list(ring.prime_bits)))
    return made


def _derived(seed: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(seed, digest_size=SEED, person=purpose).digest()


def _seeded(ring: Ring, seed: bytes | None) -> Any:
    api = _api()
    made = api.EncryptionParameters(_parameters(ring))  # a copy: no two encryptions may ever meet in one
    if seed is not None:
        if len(seed) != SEED:
            raise ValueError(f"a seed has {SEED} bytes")
        made.set_random_generator(api.Blake2xbPRNGFactory(np.frombuffer(seed, dtype="<u8").tolist()))
    return api.SEALContext(made, True, api.SEC_LEVEL_TYPE.TC128)


def _loaded(item: Any, context: Any, data: bytes, what: str) -> Any:
    if not 0 < len(data) <= _LARGEST:
        raise IntegrityError(f"a {what} of {len(data)} bytes cannot be right")
    try:
        _SCRATCH.load(item, context, data)
    except (ValueError, RuntimeError) as error:  # what the library raises for cut and altered bytes
        raise IntegrityError(f"a {what} is cut short, altered or of other parameters") from error
    return item


def _ciphertext(ring: Ring, data: bytes) -> Any:
    context = _context(ring)
    item = _loaded(_api().Ciphertext(), context, data, "ciphertext")
    if item.size() != 2 or item.parms_id() != context.first_parms_id():
        raise IntegrityError("a ciphertext does not have the agreed form")
    return item


def library() -> Any:
    """The library itself, for `kohort.methods.oneshot.paper_ckks`."""
    import tenseal

    return tenseal
