"""Sealed peers: a message one site seals to another through a hub that cannot read, change, redirect or repeat it.

The shape is HPKE's (RFC 9180) with keys on both sides: an exchange of the sender's key with the recipient's, HKDF, an
authenticated cipher whose associated data is the header, and the sender's signature over header and ciphertext.

    box    = header's length (2 bytes), header, ciphertext with tag, signature (64 bytes)
    header = version (1), suite (1), round (8), sequence (8), salt (32); then, each after its length (2 bytes):
             run, plan hash, sender's name and fingerprint, recipient's name and fingerprint

Guarantee: `open_sealed` returns exactly the bytes that the owner of the sender's keys sealed, for this recipient, run,
round and plan, and each of them once; anything else is an IntegrityError that names the sender. The relay learns who
writes to whom, when, and a size class (at most an eighth above the size; 256 bytes at least).

A pair's secret is computed once for each identity object, and each message's key is derived from it and the header.
The salt in the header is a keyed hash of header and payload, so two different messages never share a key, even if a
sender that crashed uses a number again; and sealing is deterministic, so seeded runs repeat byte for byte.

Forward secrecy is by run, not by message: seal with `Identity.for_run()`, whose exchange key is fresh in every run and
never stored. Who steals a run's exchange key reads that run's messages from and to that site; who steals a signing key
later reads nothing that was sent before. The recipient sees the plain payload: sealing says nothing about its content.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from cryptography.exceptions import InvalidTag

from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.replay import SequenceMemory
from kohort.crypto.suites import SIGNATURE, SUITES, Suite, expand, find_suite
from kohort.errors import ConfigError, IntegrityError
from kohort.purposes import Purpose

__all__ = [
    "Header",
    "Identity",
    "PublicIdentity",
    "SequenceMemory",
    "open_sealed",
    "padded_size",
    "seal",
]

VERSION = 1
LARGEST = 2**30
_SMALLEST_CLASS, _STEPS = 256, 8
_SIZE, _FIXED, _LENGTH = Struct(">H"), Struct(">BBQQ32s"), Struct(">Q")
_NO_SALT = bytes(32)
_NONCE = bytes(12)  # a key seals one message, so the nonce need not change
_PURPOSE = Purpose.SEALED


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything about a box that its relay can read, and nobody can change."""

    version: int
    suite: str
    run: str
    plan_hash: str
    sender: str
    sender_fingerprint: str
    recipient: str
    recipient_fingerprint: str
    round: int
    sequence: int


_MISMATCH = {
    "version": "it is of another version",
    "suite": "it uses another suite",
    "run": "it belongs to another run",
    "plan_hash": "it belongs to another plan",
    "sender": "it names another sender",
    "sender_fingerprint": "it was sealed with other keys than the sender's known ones",
    "recipient": "it is addressed to another site",
    "recipient_fingerprint": "it is sealed to other keys than this site's",
    "round": "it belongs to another round",
}


def seal(
    payload: bytes,
    *,
    sender: Identity,
    recipient: PublicIdentity,
    run: str,
    round: int,
    sequence: int,
    plan_hash: str,
) -> bytes:
    """Seal a payload so that only the recipient can open it. The same arguments give the same bytes.

    Args:
        payload: The content, at most 2^30 bytes.
        sender: The sender's identity; one from `Identity.for_run` gives forward secrecy.
        recipient: The recipient's public identity, of the same suite.
        run: The run.
        round: The round of the run.
        sequence: Number of the message, above that of every earlier one from this sender to this recipient in this run.
        plan_hash: Hash of the plan.

    Returns:
        The box. Its size shows a size class of the payload, not its length.

    Raises:
        ConfigError: The payload is too long, or sender and recipient use different suites.
        IntegrityError: The recipient's exchange key is unusable.
    """
    if len(payload) > LARGEST:
        raise ConfigError(f"a sealed message holds at most {LARGEST} bytes", hint="Send it in parts")
    suite, pair = find_suite(sender.suite), sender.agreed_with(recipient)
    texts = _texts(run, plan_hash, sender.public, recipient)
    padded = (_LENGTH.pack(len(payload)) + payload).ljust(padded_size(len(payload)), b"\0")
    salt = hmac.digest(pair.salting, _packed(suite, round, sequence, _NO_SALT, texts) + padded, "sha256")
    head = _packed(suite, round, sequence, salt, texts)
    ciphertext = suite.cipher(expand(pair.sealing, head, 32)).encrypt(_NONCE, padded, head)
    signature = sender.sign(_to_sign(head, ciphertext), purpose=_PURPOSE)
    return b"".join((_SIZE.pack(len(head)), head, ciphertext, signature))


def open_sealed(
    box: bytes,
    *,
    recipient: Identity,
    sender: PublicIdentity,
    run: str,
    round: int,
    plan_hash: str,
    memory: SequenceMemory,
) -> bytes:
    """Verify and open a box. A box opens once: its sequence number is remembered after all other checks have passed.

    Args:
        box: The sealed message.
        recipient: This site's identity.
        sender: The public identity that the message must be from.
        run: The run that it must belong to.
        round: The round that it must belong to.
        plan_hash: Hash of the plan that it must belong to.
        memory: The recipient's last sequence numbers, which the call updates.

    Returns:
        The payload.

    Raises:
        IntegrityError: Something does not match, was changed or was delivered before; the message names the sender and
            what.
        ConfigError: The sender uses another suite.
    """
    if len(box) < _SIZE.size + _FIXED.size + SIGNATURE:
        raise _refused(sender.name, "it is cut short")
    suite, end = find_suite(sender.suite), _SIZE.size + _SIZE.unpack_from(box)[0]
    *_, sequence, salt = _FIXED.unpack_from(box, _SIZE.size)
    head, ciphertext, signature = box[_SIZE.size : end], box[end:-SIGNATURE], box[-SIGNATURE:]
    expected = _packed(suite, round, sequence, salt, _texts(run, plan_hash, sender, recipient.public))
    if head != expected:
        raise _refused(sender.name, _difference(head, expected))
    if not sender.signed(_to_sign(head, ciphertext), signature, purpose=_PURPOSE):
        raise _refused(sender.name, "its signature does not hold")
    key = expand(recipient.agreed_with(sender).sealing, head, 32)
    try:
        padded = suite.cipher(key).decrypt(_NONCE, ciphertext, head)
    except InvalidTag as error:
        raise _refused(sender.name, "it does not open with the keys of this pair") from error
    payload = _unpadded(padded)
    if payload is None:
        raise _refused(sender.name, "its padding is not what it must be")
    memory.accept(run, sender.name, sequence)
    return payload


def padded_size(length: int) -> int:
    """The size class of a payload: eight classes from one power of two to the next, 256 bytes at least.

    Args:
        length: Bytes of the payload.

    Returns:
        The size in bytes to which the payload and its length are padded.
    """
    needed = max(length + _LENGTH.size, _SMALLEST_CLASS)
    step = (1 << (needed - 1).bit_length()) // (2 * _STEPS)
    return -(-needed // step) * step


def _unpadded(padded: bytes) -> bytes | None:
    length = _LENGTH.unpack_from(padded)[0] if len(padded) >= _SMALLEST_CLASS else LARGEST + 1
    if length > LARGEST or len(padded) != padded_size(length):
        return None
    end = _LENGTH.size + length
    return padded[_LENGTH.size : end] if padded[end:] == bytes(len(padded) - end) else None


def _texts(run: str, plan_hash: str, sender: PublicIdentity, recipient: PublicIdentity) -> bytes:
    return _by_length(run, plan_hash, sender.name, sender.fingerprint, recipient.name, recipient.fingerprint)


@lru_cache(maxsize=4096)
def _by_length(*texts: str) -> bytes:
    """Each text after its length, so that different texts give different bytes. A pair's stay the same in a run."""
    try:
        made = b"".join(_SIZE.pack(len(part)) + part for part in (text.encode() for text in texts))
        _SIZE.pack(_FIXED.size + len(made))
    except (struct.error, ValueError) as error:
        raise ConfigError("a name, a run or a plan hash is too long or no text", hint="Use short names") from error
    return made


def _packed(suite: Suite, round: int, sequence: int, salt: bytes, texts: bytes) -> bytes:
    try:
        return _FIXED.pack(VERSION, suite.code, round, sequence, salt) + texts
    except struct.error as error:
        raise ConfigError("rounds and sequence numbers are whole numbers from 0 to 2^64 - 1") from error


def _parsed(head: bytes) -> Header:
    """The header that `head` encodes; ValueError or struct.error if it encodes none."""
    version, code, round_, sequence, _ = _FIXED.unpack_from(head)
    texts, place = [], _FIXED.size
    while place < len(head):
        end = place + _SIZE.size + _SIZE.unpack_from(head, place)[0]
        texts.append(head[place + _SIZE.size : end].decode())
        place = end
    if place != len(head):
        raise ValueError("cut short")
    run, plan_hash, sender, sender_fingerprint, recipient, recipient_fingerprint = texts
    return Header(
        version=version,
        suite=next((suite.name for suite in SUITES.values() if suite.code == code), f"unknown ({code})"),
        run=run,
        plan_hash=plan_hash,
        sender=sender,
        sender_fingerprint=sender_fingerprint,
        recipient=recipient,
        recipient_fingerprint=recipient_fingerprint,
        round=round_,
        sequence=sequence,
    )


def _difference(head: bytes, expected: bytes) -> str:
    """In words, the first thing in which a header is not the expected one."""
    try:
        found, wanted = _parsed(head), _parsed(expected)
    except (struct.error, ValueError):
        return "its header is malformed"
    return next(words for name, words in _MISMATCH.items() if getattr(found, name) != getattr(wanted, name))


def _to_sign(head: bytes, ciphertext: bytes) -> bytes:
    """Header and ciphertext, the latter by its hash: Ed25519 would read a long message twice."""
    return head + hashlib.sha256(ciphertext).digest()


def _refused(sender: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"a sealed message from {sender!r} was refused: {why}",
        hint="Nothing of it was used; ask that site to send again, and find out who relayed it if it happens twice",
    )
