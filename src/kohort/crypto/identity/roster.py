"""Whom a site trusts, and which plans its operator approved: two small files that the hub cannot write.

Guarantee: a name stands for one fingerprint and a fingerprint for one name, so no site counts twice and the hub cannot
invent one; a revoked fingerprint is known no more, and every roster hash it was part of is void.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kohort.crypto.identity.guarded_files import UNCHANGED, read_guarded
from kohort.crypto.identity.parties import PublicIdentity
from kohort.errors import ConfigError, IntegrityError, RefusedError, nearest
from kohort.files import write_atomic
from kohort.privacy.ledger.ledger import canonical

__all__ = ["Approvals", "Roster", "require_fingerprint"]

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Roster:
    """Names with the fingerprints their operators told each other, and the fingerprints that hold no more.

    A site is on its own roster too: the sites of a federation then have the same roster, and the same hash of it.
    """

    peers: Mapping[str, str] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "peers", dict(self.peers))
        owners: dict[str, str] = {}
        for name, fingerprint in self.peers.items():
            if not (0 < len(name) <= _LONGEST_NAME and name.isprintable() and name.strip() == name):
                raise ConfigError("a site's name is 1 to 64 printable characters", hint="Choose a simpler name")
            if owners.setdefault(fingerprint, name) != name:
                raise RefusedError(
                    f"{name!r} has the fingerprint of {owners[fingerprint]!r}: one site would count as two",
                    hint="Remove one of the two names",
                )

    @classmethod
    def of(cls, identities: Iterable[PublicIdentity]) -> Roster:
        """The roster of a simulation: the plan's sites."""
        roster = cls()
        for identity in identities:
            roster = roster.trust(identity.name, identity.fingerprint)
        return roster

    @classmethod
    def load(cls, path: Path) -> Roster:
        """Read `peers.toml`; no file is an empty roster."""
        found = _load_toml(path, {"peers", "revoked"})
        peers, revoked = _table(path, found.get("peers", {})), found.get("revoked", [])
        if not isinstance(revoked, list) or not all(isinstance(text, str) for text in revoked):
            raise _no_texts(path)
        return cls({name: _fingerprint(text) for name, text in peers.items()}, frozenset(map(_fingerprint, revoked)))

    def save(self, path: Path) -> None:
        """Write `peers.toml`."""
        lines = [f"revoked = {_quoted(sorted(self.revoked))}", "", "[peers]"]
        lines += [f"{_quoted(name)} = {_quoted(fingerprint)}" for name, fingerprint in sorted(self.peers.items())]
        write_atomic(path, ("\n".join(lines) + "\n").encode(), durable=True, private=True)

    def trust(self, name: str, fingerprint: str) -> Roster:
        """With `name` standing for `fingerprint`, which its operator told outside the hub."""
        clean = _fingerprint(fingerprint)
        if clean in self.revoked:
            raise RefusedError(
                f"the fingerprint given for {name!r} was revoked", hint="Ask the site's operator for its new one"
            )
        if self.valid.get(name, clean) != clean:
            raise RefusedError(
                f"{name!r} is trusted with another fingerprint",
                hint="If its operator confirms the new one, revoke the old one first: kohort site revoke",
            )
        return replace(self, peers={**self.peers, name: clean})

    def remove(self, name: str) -> Roster:
        """Without `name`; its fingerprint may be trusted again later."""
        if name not in self.peers:
            raise ConfigError(f"{name!r} is not on the roster", hint=nearest(name, self.peers))
        return replace(self, peers={other: text for other, text in self.peers.items() if other != name})

    def revoke(self, fingerprint: str) -> Roster:
        """With a fingerprint that holds no more, whoever has it. It is never trusted again."""
        return replace(self, revoked=self.revoked | {_fingerprint(fingerprint)})

    def knows(self, name: str, identity: PublicIdentity) -> bool:
        """Whether `identity` is the one trusted as `name`, and not revoked."""
        return identity.name == name and self.valid.get(name) == identity.fingerprint

    def require(self, identity: PublicIdentity) -> None:
        """Refuse an identity that this roster does not know."""
        if self.knows(identity.name, identity):
            return
        trusted = self.peers.get(identity.name)
        if trusted is None:
            why = "is not on this site's roster"
        elif trusted in self.revoked or identity.fingerprint in self.revoked:
            why = "has a revoked key"
        else:
            why = "has another key than the trusted one"
        raise IntegrityError(
            f"site {identity.name!r} {why}",
            hint="Ask its operator for the fingerprint, then: kohort site trust NAME FINGERPRINT",
        )

    @property
    def valid(self) -> dict[str, str]:
        """The peers that are not revoked."""
        return {name: text for name, text in self.peers.items() if text not in self.revoked}

    def hash(self, sites: Iterable[str] | None = None) -> str:
        """What run keys are signed over: all valid peers, or those of `sites`, which must all be there."""
        valid = self.valid
        names = sorted(valid) if sites is None else sorted(set(sites))
        unknown = [name for name in names if name not in valid]
        if unknown:
            raise RefusedError(
                f"{', '.join(map(repr, unknown))} not on this site's roster, or revoked",
                hint="Ask for the fingerprint, then: kohort site trust NAME FINGERPRINT",
            )
        content = canonical([[name, valid[name]] for name in names])
        return hashlib.blake2b(content.encode(), digest_size=32, person=b"kohort-roster").hexdigest()


@dataclass(frozen=True)
class Approvals:
    """The plan hashes a site's operator approved, with a note each, in one file."""

    path: Path

    def approve(self, plan_hash: str, *, note: str = "") -> None:
        """Allow requests of this plan from now on."""
        if not note.isprintable():
            raise ConfigError("a note is one line of printable characters", hint="Shorten it")
        self._save({**self.listed(), _hash(plan_hash): note})

    def withdraw(self, plan_hash: str) -> None:
        """Allow them no more."""
        listed = self.listed()
        if listed.pop(_hash(plan_hash), None) is None:
            raise ConfigError("this plan was not approved", hint="kohort site approve lists the approved plans")
        self._save(listed)

    def is_approved(self, plan_hash: str) -> bool:
        """Whether the operator approved exactly this plan."""
        return plan_hash in self.listed()

    def require(self, plan_hash: str) -> None:
        """Refuse a plan nobody approved."""
        if not self.is_approved(plan_hash):
            raise RefusedError(
                "this site's operator did not approve the plan",
                hint=f"Read it, then: kohort site approve {plan_hash}",
                code="approval",
            )

    def listed(self) -> dict[str, str]:
        """Every approved hash with its note."""
        approved = _table(self.path, _load_toml(self.path, {"approved"}).get("approved", {}))
        return {_hash(plan_hash): note for plan_hash, note in approved.items()}

    def _save(self, listed: Mapping[str, str]) -> None:
        lines = ["[approved]", *(f"{_quoted(plan_hash)} = {_quoted(note)}" for plan_hash, note in listed.items())]
        write_atomic(self.path, ("\n".join(lines) + "\n").encode(), durable=True, private=True)


def require_fingerprint(identity: PublicIdentity, expected_fingerprint: str) -> None:
    """Refuse an identity whose fingerprint is not the one its operator told.

    Args:
        identity: Whose keys came in a file.
        expected_fingerprint: The fingerprint that came another way; empty when operators compare it themselves.

    Raises:
        IntegrityError: It is another one.
    """
    if expected_fingerprint and _fingerprint(expected_fingerprint) != identity.fingerprint:
        raise IntegrityError(
            f"the file of {identity.name!r} has another fingerprint than its operator told",
            hint="Do not use it: somebody changed or replaced it on its way. Ask for it again, another way",
        )


def _load_toml(path: Path, allowed: set[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(read_guarded(path, forbidden=UNCHANGED).decode())
    except (ValueError, RecursionError) as error:  # TOML or UTF-8
        raise ConfigError(f"{path} is not valid TOML", hint="Mend it, or restore it from a backup") from error
    for key in found:
        if key not in allowed:
            raise ConfigError(f"{path} has an unknown key {key!r}", hint=nearest(key, allowed))
    return found


def _table(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _no_texts(path)
    return value


def _no_texts(path: Path) -> ConfigError:
    return ConfigError(f"{path} holds something else than texts", hint="Every entry is a name or a hash in quotes")


def _quoted(value: str | list[str]) -> str:
    """The TOML form: that of JSON, as everything written here is printable."""
    return json.dumps(value, ensure_ascii=False)


def _fingerprint(text: str) -> str:
    clean = re.sub(r"[\s:]", "", text).lower()
    if not _FINGERPRINT.fullmatch(clean):
        raise ConfigError("a fingerprint is 64 hexadecimal digits", hint="Copy it whole from the site's operator")
    return clean


def _hash(text: str) -> str:
    if not _FINGERPRINT.fullmatch(text):
        raise ConfigError("a plan's hash is 64 hexadecimal digits", hint="Copy it whole from the refusal")
    return text
