"""The key of the user of this machine, which signs the ledgers and results of simulated runs.

    ~/.local/state/kohort/identity.key    made at first use, mode 0600; KOHORT_STATE or XDG_STATE_HOME move the folder
    ~/.local/state/kohort/signers.json    fingerprints of this user's keys, and of hubs and sites made here

Guarantee: what this user signed verifies as signed by this user here, and nobody without the key file can forge it. For
everybody else the signer is unknown until they pin its fingerprint.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from kohort.crypto.identity.guarded_files import UNCHANGED, read_guarded
from kohort.crypto.identity.keys import load_identity, save_identity
from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.errors import ConfigError, IntegrityError, ResourceError
from kohort.files import disk_errors, scratch_folder, write_atomic
from kohort.privacy.ledger.pins import Pins

__all__ = ["is_known", "mark_of", "remember_signer", "state_folder", "user_identity", "user_pins"]

_KEY_FILE, _SIGNERS_FILE = "identity.key", "signers.json"


def state_folder() -> Path:
    """Where this user's key and memory are kept.

    Returns:
        `KOHORT_STATE`, or `kohort` in `XDG_STATE_HOME`, or `~/.local/state/kohort`.
    """
    own = os.environ.get("KOHORT_STATE")
    if own:
        return Path(own)
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "kohort"


def mark_of(fingerprint: str) -> Path:
    """Where this user keeps how far the ledger of a site that runs here has come.

    Args:
        fingerprint: Of the site's identity.

    Returns:
        The file, which need not exist.
    """
    return state_folder() / "sites" / fingerprint


def user_identity() -> Identity | None:
    """This user's identity, made at first use.

    Returns:
        The identity; None when the state folder cannot be written, so that no key can be kept.

    Raises:
        IntegrityError: The key file is damaged.
        RefusedError: Others may read the key file.
    """
    path = state_folder() / _KEY_FILE
    try:
        if not path.exists():
            _make(path)
    except (ConfigError, ResourceError):
        return None
    return load_identity(path)


def remember_signer(signer: PublicIdentity, whose: str) -> None:
    """Remember a key that signs ledgers here, so that they verify here without naming it.

    Args:
        signer: The public identity.
        whose: What `ledger verify` calls it.

    Raises:
        IntegrityError: The file of known signers is damaged.
    """
    known = _known()
    if known.get(signer.fingerprint) != whose:
        text = json.dumps({**known, signer.fingerprint: whose}, indent=1, ensure_ascii=False)
        with suppress(ConfigError, ResourceError):  # a folder that cannot be written: then the signer stays unknown
            write_atomic(state_folder() / _SIGNERS_FILE, (text + "\n").encode(), durable=True, private=True)


def is_known(signer: PublicIdentity) -> bool:
    """Whether this user made or ran what signs with a key: a key that lies in a folder says nothing by itself.

    Args:
        signer: The public identity.

    Returns:
        True if the key is remembered, or a site with it ran here.

    Raises:
        IntegrityError: The file of known signers is damaged.
    """
    return signer.fingerprint in _known() or mark_of(signer.fingerprint).is_file()


def user_pins() -> Pins:
    """The signers that are known to this user: his own keys, and those of hubs and sites that were made or ran here.

    Returns:
        The pins; another signer is unknown, not an error.

    Raises:
        IntegrityError: The file of known signers is damaged.
    """
    return Pins(signers=_known())


def _make(path: Path) -> None:
    """Make the key file. Where several processes do it at the same time, one of them wins."""
    identity = Identity.generate("user")
    with disk_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with scratch_folder(path) as folder:
            save_identity(folder / _KEY_FILE, identity)
            with suppress(FileExistsError):
                os.link(folder / _KEY_FILE, path)
    remember_signer(load_identity(path).public, "this user")


def _known() -> dict[str, str]:
    path = state_folder() / _SIGNERS_FILE
    if not path.is_file():
        return {}
    try:
        known = json.loads(read_guarded(path, forbidden=UNCHANGED))
        if all(isinstance(key, str) and isinstance(whose, str) for key, whose in known.items()):
            return dict(known)
    except (ValueError, AttributeError) as error:
        raise _damaged(path) from error
    raise _damaged(path)


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"{path} is damaged", hint="Restore it, or delete it: then older signers are unknown here")
