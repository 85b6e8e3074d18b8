"""New keys for a site: made at the site, vouched for by the old ones, and let in by the hub in their place.

`handover.json`, from the site to the hub, holds both public identities with the signatures of both, and the site's new
node key with the new identity's signature. The site's ledger goes on: a line signed by the old key names the new one.

Guarantee: the old key is revoked wherever the hand-over was accepted, and never comes back; a hand-over from a key that
is not the site's current one, an older one among them, is refused. A rotation that was interrupted is taken up by the
next `rotate` where it stopped: the new key file takes the old one's place last, in one step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kohort.crypto.identity.certificates import make_node_key, node_public_key
from kohort.crypto.identity.keys import Rotation, accept_rotation, load_identity, rotate, save_identity
from kohort.crypto.identity.parties import Identity, bound_to
from kohort.crypto.identity.roster import Roster
from kohort.crypto.identity.user import remember_signer
from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.privacy.ledger.ledger import LEDGER_FILE
from kohort.purposes import Purpose
from kohort.transport.deployment.files import Invitation, Registration, signer_of
from kohort.transport.site_server import SiteServer

__all__ = ["HANDOVER_FILE", "KeyHandover", "rotate_site"]

HANDOVER_FILE = "handover.json"
KEYS_LINE = "keys"
"""What the ledger line of a hand-over is about; its reason holds old key, new key and the old one's signature."""
_NEXT_IDENTITY, _NEXT_NODE = "identity.next", "node.next"


@dataclass(frozen=True, kw_only=True)
class KeyHandover:
    """A site's change of keys, as it travels to the hub."""

    rotation: Rotation
    node_key: str
    """OpenSSH line; empty for a site without TLS."""
    by_new: bytes
    """The new identity's signature over its registration: identity and node key."""

    @classmethod
    def of(cls, old: Identity, new: Identity, node_key: str) -> KeyHandover:
        """Signed by both; the new identity is bound to the node key."""
        bound = replace(new, bound=bound_to(node_key))
        return cls(
            rotation=rotate(old, bound),
            node_key=node_key,
            by_new=bytes.fromhex(Registration.made(bound, node_key=node_key).signature),
        )

    def write(self, path: Path) -> None:
        """As a file to hand to the hub."""
        texts = {
            "rotation": self.rotation.to_bytes().decode(),
            "node_key": self.node_key,
            "by_new": self.by_new.hex(),
        }
        described = {"kohort": "handover", "version": 1, **texts}
        write_atomic(path, (json.dumps(described, indent=1) + "\n").encode(), durable=True)

    @classmethod
    def read(cls, path: Path) -> KeyHandover:
        """From such a file."""
        with disk_errors(path):
            content = path.read_bytes()
        try:
            found = json.loads(content)
            if (found["kohort"], found["version"]) != ("handover", 1):
                raise ValueError("another kind of file")
            return cls(
                rotation=Rotation.from_bytes(found["rotation"].encode()),
                node_key=str(found["node_key"]),
                by_new=bytes.fromhex(found["by_new"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IntegrityError(f"{path} is not a kohort handover, or damaged", hint="Ask for it again") from error

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether a file says that it is one; `read` judges it."""
        try:
            return bool(json.loads(path.read_bytes())["kohort"] == "handover")
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def accepted(self, known: Registration, revoked: Roster) -> tuple[Registration, Roster]:
        """What takes the place of `known`, and the hub's revoked keys with the old one among them; or a refusal."""
        new = self.rotation.new
        roster = Roster({known.site.name: known.site.fingerprint}, revoked.revoked)
        changed = accept_rotation(roster, self.rotation)
        fresh = Registration(site=new, node_key=self.node_key, signature=self.by_new.hex())
        fresh.check(f"the hand-over of site {new.name!r}")
        return fresh, Roster(revoked=changed.revoked)


class Rotates(Protocol):
    """What a rotation needs of a site's folder."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def invitation(self) -> Invitation:
        """The hub it belongs to."""
        ...

    def site_server(self, *, passphrase: str | None = None) -> SiteServer:
        """What writes its ledger."""
        ...


def rotate_site(site: Rotates, *, passphrase: str | None = None) -> KeyHandover:
    """Give a site that is not running new keys, and write what its hub must be told to `handover.json`.

    A rotation that was interrupted goes on with the keys it had made.

    Args:
        site: The site's folder.
        passphrase: What encrypts the site's private key, the new one as the old one; None where it is not encrypted.

    Returns:
        The hand-over, as it is in the file.

    Raises:
        ConfigError: There is no private key, the passphrase is missing or wrong, or the key signs a ledger and is not
            of the standard suite.
        IntegrityError: A key file is damaged.
    """
    path = site.path
    old = load_identity(path / "identity.key", passphrase=passphrase)
    pending = path / _NEXT_IDENTITY
    node_key = ""
    if site.invitation.ca:
        if not (path / _NEXT_NODE).exists():
            make_node_key(path / _NEXT_NODE, force=True)
        node_key = node_public_key(path / _NEXT_NODE).decode().strip()
    new = _pending(pending, old, bound_to(node_key), passphrase)
    made = KeyHandover.of(old, new, node_key)
    made.write(path / HANDOVER_FILE)
    Registration.made(new, node_key=node_key).write(path / "registration.json")
    _write_down(site, old, new, passphrase)
    roster = Roster.load(path / "peers.toml")
    if not roster.knows(new.name, new.public):
        accept_rotation(roster, made.rotation).save(path / "peers.toml")
    with disk_errors(path):
        if node_key:
            (path / f"{_NEXT_NODE}.pub").replace(path / "node.key.pub")
            (path / _NEXT_NODE).replace(path / "node.key")
        pending.replace(path / "identity.key")
    remember_signer(new.public, f"site {new.name!r}, whose key was rotated here")
    return made


def _pending(path: Path, old: Identity, bound: str, passphrase: str | None) -> Identity:
    """The keys to come: those of an interrupted rotation, or new ones."""
    if path.exists():
        found = load_identity(path, passphrase=passphrase)
        if found.bound == bound:
            return found
    made = Identity.generate(old.name, suite=old.suite, bound=bound)
    save_identity(path, made, passphrase=passphrase, force=True)
    return made


def _write_down(site: Rotates, old: Identity, new: Identity, passphrase: str | None) -> None:
    """The ledger line that lets the chain go on under the new key; none is needed where nothing was signed yet."""
    if not (site.path / "ledger" / LEDGER_FILE).is_file():
        return
    line = handover_line(old, new)
    if line in (site.path / "ledger" / LEDGER_FILE).read_text(encoding="utf-8"):
        return  # an interrupted rotation wrote it
    site_server = site.site_server(passphrase=passphrase)
    try:
        site_server.record_refusal(KEYS_LINE, line)
    finally:
        site_server.close()


def handover_line(old: Identity, new: Identity) -> str:
    """The ledger line by which an old key names its successor.

    Args:
        old: The key that signs.
        new: Its successor.

    Returns:
        Old key, new key, and the old one's signature over the new one.

    Raises:
        ConfigError: The old key is not of the standard suite.
    """
    if old.suite != "standard":
        raise ConfigError("ledgers are signed with keys of the standard suite", hint="Make the site anew")
    successor = new.public.signing.hex()
    signature = signer_of(old).sign(successor.encode(), purpose=Purpose.HANDOVER)
    return f"{old.public.signing.hex()} {successor} {signature}"
