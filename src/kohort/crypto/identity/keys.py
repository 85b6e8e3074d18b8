"""A site's keys over time: the file they are kept in, the keys of one run, and the change to new ones.

Guarantee: a private key is written once, whole, readable by its owner only, under a passphrase if one is given; a file
that others can read is not used. A run's key counts only with its owner's signature over run, plan and roster; a new
identity counts only with the signatures of both the old and the new one.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from kohort.crypto.identity.guarded_files import PRIVATE, read_guarded
from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.identity.roster import Approvals, Roster
from kohort.errors import ConfigError, IntegrityError
from kohort.files import require_new, write_atomic
from kohort.privacy.ledger.ledger import canonical
from kohort.purposes import Purpose

__all__ = [
    "Approvals",
    "Roster",
    "Rotation",
    "RunKey",
    "accept_rotation",
    "accept_run_key",
    "announce_run_key",
    "load_identity",
    "public_from_text",
    "public_text",
    "rotate",
    "save_identity",
]

_PBKDF2_ROUNDS = 600_000  # OWASP Password Storage Cheat Sheet, PBKDF2-HMAC-SHA256
_NONCE = bytes(12)  # every file has a salt, so a key, of its own


def save_identity(path: Path, identity: Identity, *, passphrase: str | None = None, force: bool = False) -> None:
    """Write the private keys to `path` (mode 0600).

    Args:
        path: The key file.
        identity: The identity whose keys are saved.
        passphrase: Encrypts the private keys; None leaves them readable to the file's owner.
        force: Replace an existing file.

    Raises:
        ConfigError: The passphrase is empty, or the file exists and `force` is not given.
    """
    require_new(path, force=force)
    if passphrase == "":
        raise ConfigError("the passphrase is empty", hint="Give one, or none at all")
    keys = (identity.signing_key, identity.exchange_key)
    secret = canonical([_base64(k.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())) for k in keys])
    record = {"kohort": "identity", "version": 1, "public": _record(identity.public)}
    if passphrase is None:
        record["secret"] = _base64(secret.encode())
    else:
        salt = os.urandom(16)
        sealed = AESGCM(_stretched(passphrase, salt)).encrypt(_NONCE, secret.encode(), canonical(record).encode())
        record |= {"salt": salt.hex(), "sealed": _base64(sealed)}
    write_atomic(path, canonical(record).encode() + b"\n", durable=True, private=True)


def load_identity(path: Path, *, passphrase: str | None = None) -> Identity:
    """Read the private keys that `save_identity` wrote.

    Args:
        path: The key file.
        passphrase: The one it was saved under; None for a file without one.

    Returns:
        The identity with its private keys.

    Raises:
        ConfigError: There is no file, or the passphrase is wrong, missing or not needed.
        IntegrityError: The file is damaged or no key file.
        RefusedError: Others may read or change the file.
    """
    if not path.exists():
        raise ConfigError(f"there is no key file {path}", hint="Make one with: kohort site init")
    content = read_guarded(path, forbidden=PRIVATE)
    damaged = IntegrityError(f"{path} is not a kohort key file, or damaged", hint="Restore it from a backup")
    try:
        record: dict[str, Any] = json.loads(content)
        if (record["kohort"], record["version"]) != ("identity", 1):
            raise damaged
        public = _from_record(record["public"])
        secret = _secret_of(path, record, passphrase)
        keys: list[Any] = [load_der_private_key(base64.b64decode(text), None) for text in json.loads(secret)]
        signing, exchange = keys
        identity = Identity(public.name, public.suite, signing, exchange, public.bound)
        if identity.public != public:
            raise damaged
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged from error
    return identity


def public_text(public: PublicIdentity) -> str:
    """A public identity as one line of JSON, for other operators. They must get its fingerprint another way.

    Args:
        public: The public identity.

    Returns:
        The line.
    """
    return canonical(_record(public))


def public_from_text(text: str | bytes) -> PublicIdentity:
    """Read a public identity from the line that `public_text` made. It is not verified: compare its fingerprint.

    Args:
        text: The line.

    Returns:
        The public identity.

    Raises:
        IntegrityError: The text is not one.
    """
    try:
        return _from_record(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise IntegrityError("this is not a site's public identity", hint="Ask its operator for it again") from error


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """A site's exchange key for one run, with its owner's word for it."""

    name: str
    run: str
    plan_hash: str
    roster_hash: str
    exchange: bytes
    signature: bytes

    def to_bytes(self) -> bytes:
        """What travels."""
        return canonical([*self._signed_texts(), self.signature.hex()]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RunKey:
        """What came."""
        try:
            name, run, plan_hash, roster_hash, exchange, signature = json.loads(data)
            key = cls(
                name=name,
                run=run,
                plan_hash=plan_hash,
                roster_hash=roster_hash,
                exchange=bytes.fromhex(exchange),
                signature=bytes.fromhex(signature),
            )
        except (ValueError, TypeError) as error:
            raise IntegrityError("a run key is malformed", hint="The site must announce it again") from error
        if key.to_bytes() != data:
            raise IntegrityError("a run key is not in its one form", hint="The site must announce it again")
        return key

    def signed_part(self) -> bytes:
        """What the signature is over."""
        return canonical(self._signed_texts()).encode()

    def _signed_texts(self) -> list[str]:
        return [self.name, self.run, self.plan_hash, self.roster_hash, self.exchange.hex()]


def announce_run_key(identity: Identity, *, run: str, plan_hash: str, roster_hash: str) -> RunKey:
    """Sign the exchange key of one run, so that peers can seal to it.

    Args:
        identity: The identity from `Identity.for_run`, whose exchange key is fresh.
        run: The run.
        plan_hash: Hash of the approved plan.
        roster_hash: Hash of this site's roster.

    Returns:
        The key with the site's signature over all of these.
    """
    unsigned = RunKey(
        name=identity.name,
        run=run,
        plan_hash=plan_hash,
        roster_hash=roster_hash,
        exchange=identity.public.exchange,
        signature=b"",
    )
    signature = identity.sign(unsigned.signed_part(), purpose=Purpose.RUN_KEY)
    return replace(unsigned, signature=signature)


def accept_run_key(
    key: RunKey, *, owner: PublicIdentity, roster: Roster, run: str, plan_hash: str, roster_hash: str
) -> PublicIdentity:
    """Verify a peer's run key.

    Args:
        key: The announced key.
        owner: The peer's long-term identity.
        roster: This site's roster, which must know `owner`.
        run: The run it must be for.
        plan_hash: Hash of the plan that it must be for.
        roster_hash: Hash of this site's own roster, which the peer must have signed too.

    Returns:
        The identity to seal to in this run.

    Raises:
        IntegrityError: The roster does not know the owner, the key is of another site, run, plan or roster, or it is
            not signed by the owner; the message names the site and what does not match.
    """
    roster.require(owner)
    for what, found, wanted in (
        ("is of another site", key.name, owner.name),
        ("is for another run", key.run, run),
        ("is for another plan", key.plan_hash, plan_hash),
        ("was made under another roster", key.roster_hash, roster_hash),
    ):
        if found != wanted:
            raise IntegrityError(
                f"the run key of site {owner.name!r} {what}", hint="Compare rosters and plan, then start a new run"
            )
    if not owner.signed(key.signed_part(), key.signature, purpose=Purpose.RUN_KEY):
        raise IntegrityError(
            f"the run key of site {owner.name!r} is not signed by it", hint="Somebody between the sites changed it"
        )
    return PublicIdentity(owner.name, owner.signing, key.exchange, owner.suite, owner.bound)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A site's word that it has new keys: signed by the old identity and by the new one."""

    old: PublicIdentity
    new: PublicIdentity
    by_old: bytes
    by_new: bytes

    def to_bytes(self) -> bytes:
        """What travels."""
        return canonical([_record(self.old), _record(self.new), self.by_old.hex(), self.by_new.hex()]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Rotation:
        """What came."""
        try:
            old, new, by_old, by_new = json.loads(data)
            return cls(
                old=_from_record(old),
                new=_from_record(new),
                by_old=bytes.fromhex(by_old),
                by_new=bytes.fromhex(by_new),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IntegrityError("a change of keys is malformed", hint="The site must announce it again") from error


def rotate(old: Identity, new: Identity) -> Rotation:
    """Announce that `new` takes the place of `old`, signed by both.

    Args:
        old: The identity in use.
        new: The identity that replaces it, under the same name.

    Returns:
        The announcement, for `accept_rotation`.
    """
    message = _rotation_message(old.public, new.public)
    return Rotation(
        old=old.public,
        new=new.public,
        by_old=old.sign(message, purpose=Purpose.ROTATION),
        by_new=new.sign(message, purpose=Purpose.ROTATION),
    )


def accept_rotation(roster: Roster, rotation: Rotation) -> Roster:
    """Replace a peer's identity on a roster.

    Args:
        roster: This site's roster, which must know the old identity.
        rotation: The peer's announcement.

    Returns:
        The roster with the new fingerprint; the old one is revoked.

    Raises:
        IntegrityError: The roster does not know the old identity, the names differ, or one of the two keys did not
            sign.
        RefusedError: The new fingerprint was revoked.
    """
    old, new = rotation.old, rotation.new
    roster.require(old)
    message = _rotation_message(old, new)
    if (
        old.name != new.name
        or not old.signed(message, rotation.by_old, purpose=Purpose.ROTATION)
        or not new.signed(message, rotation.by_new, purpose=Purpose.ROTATION)
    ):
        raise IntegrityError(
            f"the change of keys of site {old.name!r} is not signed by both its keys",
            hint="Ask its operator; trust the new fingerprint only if they confirm it",
        )
    return roster.remove(old.name).revoke(old.fingerprint).trust(new.name, new.fingerprint)


def _rotation_message(old: PublicIdentity, new: PublicIdentity) -> bytes:
    return canonical([_record(old), _record(new)]).encode()


def _record(public: PublicIdentity) -> dict[str, str]:
    bound = {"bound": public.bound} if public.bound else {}
    return {
        "name": public.name,
        "suite": public.suite,
        "signing": public.signing.hex(),
        "exchange": public.exchange.hex(),
        "fingerprint": public.fingerprint,
        **bound,
    }


def _from_record(record: dict[str, str]) -> PublicIdentity:
    """The identity; ValueError, TypeError or KeyError if it is none."""
    if not all(isinstance(text, str) for text in record.values()):
        raise TypeError("not texts")
    public = PublicIdentity(
        record["name"],
        bytes.fromhex(record["signing"]),
        bytes.fromhex(record["exchange"]),
        record["suite"],
        record.get("bound", ""),
    )
    if _record(public) != record:
        raise ValueError("the fingerprint is not that of the keys")
    return public


def _secret_of(path: Path, record: dict[str, Any], passphrase: str | None) -> bytes:
    if "secret" in record:
        if passphrase is not None:
            raise ConfigError(f"{path} has no passphrase", hint="Leave it out, or save the keys again under one")
        return base64.b64decode(record["secret"], validate=True)
    if passphrase is None:
        raise ConfigError(f"{path} needs its passphrase", hint="Give the one it was saved under")
    bound = canonical({key: record[key] for key in ("kohort", "version", "public")}).encode()
    try:
        key = _stretched(passphrase, bytes.fromhex(record["salt"]))
        return AESGCM(key).decrypt(_NONCE, base64.b64decode(record["sealed"], validate=True), bound)
    except InvalidTag as error:
        raise ConfigError(f"the passphrase does not open {path}", hint="Try again, or restore the file") from error


def _stretched(passphrase: str, salt: bytes) -> bytes:
    """PBKDF2, which both suites may use."""
    return PBKDF2HMAC(hashes.SHA256(), 32, salt, _PBKDF2_ROUNDS).derive(passphrase.encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
