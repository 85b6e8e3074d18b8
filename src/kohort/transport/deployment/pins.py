"""Whose signature the ledger in a folder must carry: what the folder itself, or the user, knows of its signer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.crypto.identity.guarded_files import PRIVATE, read_guarded
from kohort.crypto.identity.keys import public_from_text
from kohort.crypto.identity.roster import Roster
from kohort.crypto.identity.user import user_pins
from kohort.crypto.sealed import PublicIdentity
from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify_receipts import verify_site_receipts
from kohort.transport.deployment.files import Invitation, Registration

__all__ = ["VerifiedHub", "is_hub_folder", "pins_for", "verify_hub_folder"]


def pins_for(folder: Path, *, key: str = "", roster: Path | None = None) -> Pins:
    """The pins for a ledger: the named key or roster, else the site's own key, else what this user knows.

    Args:
        folder: A run folder, a site's folder, or a ledger folder.
        key: A fingerprint, or a signing key; empty for none.
        roster: A roster such as `peers.toml`; None for none.

    Returns:
        The pins.

    Raises:
        ConfigError: The key is malformed, or a file cannot be read.
        IntegrityError: A key file or an invitation is damaged.
    """
    if key:
        clean = "".join(key.split()).replace(":", "").lower()
        if len(clean) != 64 or not set(clean) <= set("0123456789abcdef"):
            raise ConfigError("a fingerprint is 64 hexadecimal digits", hint="Copy it whole from its owner")
        return Pins(signers={clean: f"{clean[:16]}…, the key you named"}, required=True)
    if roster is not None:
        if not roster.is_file():
            raise ConfigError(f"there is no roster at {roster}", hint="Give a peers.toml")
        known = Roster.load(roster).valid
        return Pins(signers={text: f"{name!r}, by {roster.name}" for name, text in known.items()}, sites=known)
    site = folder.resolve().parent if folder.resolve().name == "ledger" else folder.resolve()
    return _of_site(site) if (site / "identity.key").is_file() else user_pins()


def _of_site(folder: Path) -> Pins:
    """A site's own ledger: signed with the key in its folder, with the receipts of the hub it belongs to."""
    own = _own_identity(folder)
    hub = folder / "hub.json"  # whose app runs behind a door has none
    whose = f"site {own.name!r}, with the key in its folder"
    return Pins(
        signers={own.fingerprint: whose, own.signing.hex(): whose},
        required=True,
        site=own.name,
        hub_key=Invitation.read(hub).hub.signing.hex() if hub.is_file() else "",
    )


def _own_identity(folder: Path) -> PublicIdentity:
    """The public half of the key file; no passphrase is needed for it."""
    path = folder / "identity.key"
    try:
        record: dict[str, Any] = json.loads(read_guarded(path, forbidden=PRIVATE))
        return public_from_text(json.dumps(record["public"]))
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path} is not a kohort key file, or damaged", hint="Restore it from a backup") from error


@dataclass(frozen=True, kw_only=True)
class VerifiedHub:
    """The receipts of a hub's folder, checked against the hub's key and the keys of its registered sites."""

    signed_by: str
    sites: int
    receipts: int
    by_site: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each site: receipts, how long its ledger is known to be, and receipts under former keys."""
    notes: list[str] = field(default_factory=list)


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder is a hub's.

    Args:
        folder: Any path; it need not exist.

    Returns:
        True if it holds a `hub.toml`.
    """
    return (folder / "hub.toml").is_file()


def verify_hub_folder(folder: Path) -> VerifiedHub:
    """Verify every site's receipts at a hub.

    Args:
        folder: The hub's folder.

    Returns:
        What they show.

    Raises:
        IntegrityError: A receipt was changed, or the hub or a registered site did not sign it.
    """
    hub = _own_identity(folder)
    found: dict[str, dict[str, int]] = {}
    notes = []
    registered = [Registration.read(path).site for path in sorted((folder / "sites").glob("*.json"))]
    for site in registered:
        path = folder / "receipts" / site.name / "receipts.jsonl"
        if path.is_file():
            try:
                checked = verify_site_receipts(
                    path, site=site.name, site_key=site.signing.hex(), hub_key=hub.signing.hex()
                )
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise IntegrityError(f"the receipts of site {site.name!r} hold values of the wrong type") from error
            found[site.name] = dict(vars(checked))
        else:
            notes.append(f"no receipts of site {site.name!r}: it never answered, or they were deleted")
    names = {site.name for site in registered}
    strangers = sorted(path.name for path in (folder / "receipts").glob("*") if path.name not in names)
    notes += [f"receipts of {name!r}, which is not registered, were not checked" for name in strangers]
    return VerifiedHub(
        signed_by=f"hub {hub.name!r}, with the key in its folder",
        sites=len(found),
        receipts=sum(item["receipts"] for item in found.values()),
        by_site=found,
        notes=notes,
    )
