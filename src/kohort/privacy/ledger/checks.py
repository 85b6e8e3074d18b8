"""What the verifiers of ledgers, receipts and results share: reading lines, hashes, signatures and signers.

None of it is shared with the code that writes them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kohort.errors import IntegrityError

__all__ = [
    "START",
    "SignedBy",
    "canonical_bytes",
    "checked_line",
    "digest_of",
    "ends_digest",
    "holds",
    "parse_line",
    "raw_lines",
    "signed_statement",
]

START = "0" * 64
_LINE = re.compile(rb'\A(\{.*),"hash":"([0-9a-f]{64})"\}\Z', re.DOTALL)
_RECORD = {"name", "suite", "signing", "exchange", "fingerprint"}


@dataclass(frozen=True)
class SignedBy:
    """Who signed a statement, by its own word: the key, and the identity where the statement names one."""

    key: str
    fingerprint: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        """The identity's fingerprint or, without one, the key."""
        return self.fingerprint or self.key


def raw_lines(path: Path) -> list[bytes]:
    """The lines of a file, whose last one must be complete.

    Args:
        path: The file, such as a ledger.

    Returns:
        The lines, without their ends.

    Raises:
        IntegrityError: The file is missing, unreadable or cut off.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path.name} is missing or unreadable") from error
    if content and not content.endswith(b"\n"):
        raise IntegrityError(f"{path.name} ends in the middle of a line")
    return content.split(b"\n")[:-1]


def parse_line(raw: bytes, name: str) -> dict[str, Any]:
    """A line as a mapping.

    Args:
        raw: One line of JSON.
        name: What errors call the file.

    Returns:
        The object on the line.

    Raises:
        IntegrityError: It is not a JSON object.
    """
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{name} holds a line that is not JSON") from error
    if not isinstance(line, dict):
        raise IntegrityError(f"{name} holds a line that is not an object")
    return line


def checked_line(raw: bytes, name: str, number: int) -> tuple[dict[str, Any], str]:
    """Parse a line, check its own hash, and return both.

    Args:
        raw: One line of a ledger.
        name: What errors call the file.
        number: The line's number in the file, for errors.

    Returns:
        The line as a mapping, and its hash.

    Raises:
        IntegrityError: The line is malformed or was changed.
    """
    match = _LINE.match(raw)
    if match is None:
        raise IntegrityError(f"{name}, line {number}: malformed")
    body, claimed = match.groups()
    actual = digest_of(body)
    if actual != claimed.decode():
        raise IntegrityError(f"{name}, line {number}: the hash does not match, the line was changed")
    return parse_line(raw, name), actual


def canonical_bytes(value: object) -> bytes:
    """The one form of a value that is signed: sorted keys, no spaces, no NaN.

    Args:
        value: A JSON value.

    Returns:
        Its bytes in UTF-8; equal values have equal bytes.

    Raises:
        ValueError: The value holds NaN or an infinite number.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(content: bytes) -> str:
    """BLAKE2b with 32 bytes, in hexadecimal.

    Args:
        content: Any bytes.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def ends_digest(ends: list[list[Any]]) -> str:
    """The digest of the ends of ledger chains that sites sign.

    Args:
        ends: For each chain a list of its name, length and last hash.

    Returns:
        The digest, in hexadecimal.
    """
    return digest_of(canonical_bytes(ends))


def holds(public: str, message: bytes, signature: str, *, purpose: str | None) -> bool:
    """Whether the owner of `public` signed `message` for this purpose.

    Args:
        public: The Ed25519 public key, in lower-case hexadecimal.
        message: The bytes that were signed.
        signature: The signature, in lower-case hexadecimal.
        purpose: What the signature is for; None for signatures from before they had purposes.

    Returns:
        True if it holds; False also for a malformed key or signature.
    """
    signed = message if purpose is None else b"kohort " + purpose.encode() + b"\0" + message
    try:
        key, claimed = bytes.fromhex(public), bytes.fromhex(signature)
        Ed25519PublicKey.from_public_bytes(key).verify(claimed, signed)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return (
        key.hex() == public and claimed.hex() == signature
    )  # hexadecimal with capitals or spaces would be a second spelling


def signed_statement(statement: Mapping[str, Any], *, purpose: str, where: str) -> SignedBy:
    """Check the signature of a statement that names its signer.

    Args:
        statement: It holds `signer` (an identity's record, or a key alone) and `signature`, over all other fields.
        purpose: What it must have been signed for.
        where: What errors call it.

    Returns:
        Who signed it. Whether that is anybody to be believed is for pins to say.

    Raises:
        IntegrityError: The signature does not hold, or the record of the signer is not that of its keys.
    """
    signer, signature = statement.get("signer"), statement.get("signature")
    said = {key: value for key, value in statement.items() if key != "signature"}
    if not isinstance(signer, Mapping) or not isinstance(signature, str):
        raise IntegrityError(f"{where} does not say who signed it")
    if not holds(signer.get("signing", ""), canonical_bytes(said), signature, purpose=purpose):
        raise IntegrityError(f"the signature of {where} is invalid")
    if set(signer) == {"signing"}:
        return SignedBy(key=signer["signing"])
    if set(signer) - {"bound"} != _RECORD or signer["fingerprint"] != _fingerprint(signer):
        raise IntegrityError(f"{where} names a signer whose fingerprint is not that of its keys")
    return SignedBy(key=signer["signing"], fingerprint=signer["fingerprint"], name=str(signer["name"]))


def _fingerprint(record: Mapping[str, str]) -> str:
    """SHA-256 over suite, both keys and what is trusted together with them, each with its length before it."""
    keys = (bytes.fromhex(record[name]) for name in ("signing", "exchange"))
    parts = [b"kohort identity", record["suite"].encode(), *keys]
    parts += [record["bound"].encode()] if "bound" in record else []
    return hashlib.sha256(b"".join(len(part).to_bytes(2, "big") + part for part in parts)).hexdigest()
