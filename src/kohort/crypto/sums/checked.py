"""Checked totals: sites that share a secret verify a total that the hub opened and announces.

Each site adds to its vector v_i one number s_i = <r, v_i> + u_i modulo 2^61 - 1. The weights r and the pads u_i come
from the sites' group secret and the sum's transcript, the pad also from the site's name. The total over a list of
sites is then V with S = <r, V> + the sum of their u_i, and every site can compute the right side.

Guarantee: without the secret, a changed total, a multiple of it, or one over another list of sites passes with
probability 2^-60 per attempt, whatever the hub saw: the pads hide the weights. It holds against a hub without a site
on its side, because every site knows the secret. Use a secret and a transcript for one sum only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kohort.crypto.suites import expand, extract
from kohort.crypto.sums.modular import P61, multiply, total
from kohort.crypto.sums.scheme import Integers
from kohort.errors import IntegrityError

__all__ = ["CHECKS", "from_residues", "proven_total", "sealed", "stream", "to_residues", "unsealed", "with_check"]

_COUNTER = modes.CTR(bytes(16))
CHECKS = 1
"""How many numbers a check adds to a vector."""


def with_check(secret: bytes, transcript: bytes, site: str, vector: Integers) -> Integers:
    """A site's contribution to a checked sum.

    Args:
        secret: What the sites share and the hub does not know.
        transcript: What binds the sum; the same for no other one.
        site: The site's name.
        vector: Its numbers, below 2^61 - 1.

    Returns:
        The vector with its check value at the end.
    """
    root = _root(secret, transcript)
    check = (_weighted(root, vector) + _pad(root, site)) % P61
    return np.append(vector, np.uint64(check))


def proven_total(secret: bytes, transcript: bytes, sites: Sequence[str], announced: Integers) -> Integers:
    """The total that was announced, if it is the sum of exactly these sites' contributions.

    Args:
        secret: What the sites share and the hub does not know.
        transcript: What binds the sum.
        sites: Whose contributions are in it.
        announced: The opened sum of what `with_check` made.

    Returns:
        The total without its check value.

    Raises:
        IntegrityError: It is another total, or one over other sites.
    """
    if len(announced) < CHECKS or (announced >= np.uint64(P61)).any():
        raise IntegrityError("an announced total cannot be the result of a checked sum")
    root, vector = _root(secret, transcript), announced[:-CHECKS]
    wanted = _weighted(root, vector) + sum(_pad(root, site) for site in sites)
    if wanted % P61 != int(announced[-1]):
        raise IntegrityError("an announced total is not the sum of what the listed sites contributed")
    return vector


def sealed(secret: bytes, transcript: bytes, vector: Integers) -> Integers:
    """A vector for a total that only those who know the secret can read.

    Every site adds the same stream of pseudo-random numbers, so a total over n sites holds n times that stream: without
    the secret it is uniform. Use a secret and a transcript for one total only.

    Args:
        secret: What the sites share and the hub does not know.
        transcript: What binds the sum; the same for no other one.
        vector: The site's numbers, below 2^61 - 1.

    Returns:
        Numbers of the same length; `with_check` comes after this.
    """
    seal = stream(_key(_root(secret, transcript), b"seal"), len(vector))
    return (vector + seal) % np.uint64(P61)


def unsealed(secret: bytes, transcript: bytes, sites: int, opened: Integers) -> Integers:
    """The inverse of `sealed`, for a total.

    Args:
        secret: What the sites share.
        transcript: What binds the sum.
        sites: How many sites are in the total; `proven_total` showed that it is over them.
        opened: The total without its check value.

    Returns:
        The total of the vectors.
    """
    seal = stream(_key(_root(secret, transcript), b"seal"), len(opened))
    all_seals = multiply(seal, np.full(len(seal), sites, dtype=np.uint64))
    return (opened + (np.uint64(P61) - all_seals)) % np.uint64(P61)


def to_residues(signed: Integers) -> Integers:
    """Signed 64-bit numbers modulo 2^61 - 1.

    Args:
        signed: Numbers below 2^60 either way, as two's complement.

    Returns:
        Residues.
    """
    return np.mod(signed.view(np.int64), P61).astype(np.uint64)


def from_residues(residues: Integers) -> Integers:
    """The inverse of `to_residues`.

    Args:
        residues: Residues modulo 2^61 - 1.

    Returns:
        Signed 64-bit numbers, as two's complement.
    """
    numbers = residues.astype(np.int64)
    return np.where(numbers > P61 // 2, numbers - P61, numbers).view(np.uint64)


def _root(secret: bytes, transcript: bytes) -> bytes:
    """What the keys of one sum come from."""
    return extract(b"kohort checked total" + transcript, secret)


def _weighted(root: bytes, vector: Integers) -> int:
    """<r, vector> modulo 2^61 - 1."""
    return total(multiply(stream(_key(root, b"weights"), len(vector)), vector))


def _pad(root: bytes, site: str) -> int:
    """The first number of the site's stream, without arrays: every site needs the pads of all of them."""
    encryptor = Cipher(algorithms.AES256(_key(root, b"pad" + site.encode())), _COUNTER).encryptor()
    return int.from_bytes(encryptor.update(bytes(8)), "little") % P61


def _key(root: bytes, purpose: bytes) -> bytes:
    return expand(root, purpose, 32)


def stream(key: bytes, count: int) -> Integers:
    """Numbers modulo 2^61 - 1 from AES-256 in counter mode; reducing 64 bits biases them by less than 2^-60.

    Args:
        key: 32 bytes, for one purpose.
        count: How many numbers.

    Returns:
        The numbers.
    """
    encryptor = Cipher(algorithms.AES256(key), _COUNTER).encryptor()
    words = np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")
    return (words % np.uint64(P61)).astype(np.uint64, copy=False)
