"""Whose signature the ledger in a folder must carry: what the folder itself, or the user, knows of its signer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.crypto.identity.guarded_files import PRIVATE, read_guarded
from kohort.crypto.identity.keys import public_from_text
from kohort.crypto.identity.roster import Roster
from kohort.crypto.identity.user import is_known, user_pins
from kohort.crypto.sealed import PublicIdentity
from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.checks import SignedBy
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify_receipts import verify_site_receipts
from kohort.transport.deployment.files import Invitation, Registration

_OF_RUNS = ("ledger", "run.json", "model", "results.jsonl")

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
    """A site's own ledger: signed with the key in its folder, with the receipts of the hub it belongs to.

    Whoever can write to the folder can put a key into it, so that key vouches for the ledger only where this user made
    or ran the site.
    """
    own = _own_identity(folder)
    hub = folder / "hub.json"  # whose app runs behind a door has none
    whose = f"site {own.name!r}, with the key in its folder"
    keys = {own.fingerprint: whose, own.signing.hex(): whose}
    known = is_known(own)
    return Pins(
        signers=keys if known else {},
        unvouched={} if known else keys,
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

    signer: str
    """The fingerprint of the hub's key."""
    signed_by: str
    """Whose signature that is; empty when the signer is not known."""
    sites: int
    receipts: int
    by_site: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each site: receipts, how long its ledger is known to be, and receipts under former keys."""
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether the hub's key is known here, and there is something that it signed."""
        return bool(self.signed_by) and self.receipts > 0


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder is a hub's.

    Args:
        folder: Any path; it need not exist.

    Returns:
        True if it holds a `hub.toml`, and neither a ledger nor the results of a run.
    """
    return (folder / "hub.toml").is_file() and not any((folder / name).exists() for name in _OF_RUNS)


def verify_hub_folder(folder: Path, *, key: str = "", roster: Path | None = None) -> VerifiedHub:
    """Verify every site's receipts at a hub.

    Args:
        folder: The hub's folder.
        key: The hub's fingerprint or signing key, if the reader knows it; else it must have been made or used here.
        roster: A roster with fingerprints of sites, such as `peers.toml`; None for none.

    Returns:
        What they show.

    Raises:
        ConfigError: The key is malformed, or the roster cannot be read.
        IntegrityError: A receipt was changed, or the hub or a registered site did not sign it; or the key is another
            than the named one, or a site's another than on the roster.
    """
    hub = _own_identity(folder)
    signed_by = f"hub {hub.name!r}, with the key in its folder" if is_known(hub) else ""
    if key:
        signed_by = pins_for(folder, key=key).whose(SignedBy(hub.signing.hex(), hub.fingerprint))
    sites = Pins() if roster is None else pins_for(folder, roster=roster)
    found: dict[str, dict[str, int]] = {}
    notes = []
    registered = [Registration.read(path).site for path in sorted((folder / "sites").glob("*.json"))]
    for site in registered:
        sites.check_site(site.name, site.fingerprint)
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
        signer=hub.fingerprint,
        signed_by=signed_by,
        sites=len(found),
        receipts=sum(item["receipts"] for item in found.values()),
        by_site=found,
        notes=notes,
    )
