"""Bring a folder that an older version wrote to the present form: bound fingerprints, signed files, private modes.

Guarantee: keys stay the same, so ledgers go on and what was signed stays valid. A fingerprint that did not cover the
node key does now, so operators compare it again; nothing is renewed in silence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from kohort.crypto.identity.certificates import node_public_key
from kohort.crypto.identity.keys import load_identity, public_from_text, save_identity
from kohort.crypto.identity.parties import Identity, bound_to
from kohort.crypto.identity.roster import Roster
from kohort.crypto.identity.user import is_known, mark_of, remember_signer
from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.transport.deployment.files import Invitation, Registration

__all__ = ["Renewed", "bind_identity", "renew_site"]

_PRIVATE = ("site.toml", "peers.toml", "approved.toml", "openings.jsonl", "numbers", "answered", "hub.json")
_PRIVATE_FOLDERS = ("ledger", "runs", "openings", "log")


@dataclass(frozen=True)
class Renewed:
    """What was renewed, in words, and the fingerprint that holds now."""

    changes: tuple[str, ...]
    fingerprint: str
    changed: bool
    """Whether the fingerprint is another one than before."""


def bind_identity(path: Path, *texts: str, passphrase: str | None = None) -> tuple[Identity, bool]:
    """Bind the identity in a key file to what is trusted with it.

    Args:
        path: The key file.
        *texts: What its fingerprint has to cover.
        passphrase: The key file's, if it has one.

    Returns:
        The identity, and whether it was bound to something else before.
    """
    found = load_identity(path, passphrase=passphrase)
    wanted = bound_to(*texts)
    if found.bound == wanted:
        return found, False
    made = replace(found, bound=wanted)
    save_identity(path, made, passphrase=passphrase, force=True)
    if is_known(found.public):
        remember_signer(made.public, f"{made.name!r}, which was renewed here")
    return made, True


def renew_site(path: Path, *, invitation: Invitation | None = None, passphrase: str | None = None) -> Renewed:
    """Renew a site that is not running.

    Args:
        path: The site's folder.
        invitation: A new invitation of the same hub, whose fingerprint was compared with its operator.
        passphrase: The key file's, if it has one.

    Returns:
        What was renewed.

    Raises:
        ConfigError: The hub's file is an old one and no invitation is given.
        IntegrityError: The invitation is of another hub, or the old one is damaged.
    """
    changes: list[str] = []
    hub = _renewed_hub(path, invitation, changes)
    node_key = node_public_key(path / "node.key").decode().strip() if hub.ca else ""
    old = load_identity(path / "identity.key", passphrase=passphrase).public
    own, changed = bind_identity(path / "identity.key", node_key, passphrase=passphrase)
    if changed:
        changes.append("the fingerprint covers the node key now")
        roster = Roster.load(path / "peers.toml")
        if roster.knows(old.name, old):
            roster.remove(old.name).trust(own.name, own.public.fingerprint).save(path / "peers.toml")
        _move_mark(old.fingerprint, own.public.fingerprint)
    Registration.made(own, node_key=node_key).write(path / "registration.json")
    if _tighten(path):
        changes.append("files that only the owner may read or change have that mode now")
    return Renewed(tuple(changes), own.public.fingerprint, changed)


def _renewed_hub(path: Path, invitation: Invitation | None, changes: list[str]) -> Invitation:
    place = path / "hub.json"
    if invitation is None:
        return Invitation.read(place)  # says what to do when an older version wrote it
    try:
        known = public_from_text(json.loads(place.read_bytes())["hub"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IntegrityError(f"{place} is not a kohort invitation, or damaged", hint="Restore it") from error
    if (known.name, known.signing, known.exchange) != (
        invitation.hub.name,
        invitation.hub.signing,
        invitation.hub.exchange,
    ):
        raise IntegrityError(
            "the invitation is of another hub than this site's",
            hint="Make a new site for another hub: kohort site init",
        )
    if not invitation.ca and (path / "ca.pem").is_file():
        raise ConfigError("this site's hub had TLS, and the invitation has none", hint="Ask the hub's operator")
    invitation.write(place, private=True)
    if invitation.ca:
        write_atomic(path / "ca.pem", invitation.ca.encode(), durable=True)
    changes.append("the hub's invitation is a signed one now")
    return invitation


def _move_mark(old: str, new: str) -> None:
    """Keep how far the ledger has come under the new fingerprint, too."""
    before, after = mark_of(old), mark_of(new)
    if before.is_file() and not after.exists():
        write_atomic(after, before.read_bytes(), durable=True, private=True)


def _tighten(path: Path) -> bool:
    """Take the rights of others away; whether there were any."""
    places = [path / name for name in _PRIVATE] + [path / name for name in _PRIVATE_FOLDERS]
    places += [file for name in _PRIVATE_FOLDERS for file in (path / name).rglob("*")]
    loose = [place for place in [path, *places] if place.exists() and place.stat().st_mode & 0o077]
    with disk_errors(path):
        for place in loose:
            place.chmod(0o700 if place.is_dir() else 0o600)
    return bool(loose)
