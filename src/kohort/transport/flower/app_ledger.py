"""The ledger of a site that runs somebody else's app: its own keys, and a chain over all replies of all apps.

    FOLDER/identity.key  ledger.key  lock  ledger/  ledger.mark

The folder has the form of a site's folder, so `kohort ledger verify FOLDER` checks it against the site's own key.
Flower may start a process for every message: the ledger is read and checked when it is opened, and one process has it
at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.crypto.identity.guarded_files import kept_secret
from kohort.crypto.identity.keys import load_identity, save_identity
from kohort.crypto.identity.names import check_name
from kohort.crypto.identity.parties import Identity
from kohort.crypto.identity.signers import signer_of
from kohort.crypto.identity.user import mark_of, remember_signer
from kohort.files import disk_errors
from kohort.transport.high_water import MARK_FILE, HighWater
from kohort.transport.site_ledger import SiteLedger, open_site_ledger

__all__ = ["AppLedger"]


@dataclass(frozen=True)
class AppLedger:
    """Where a site writes down what apps sent."""

    folder: Path
    name: str = ""
    """The site's name, for the first use; the folder's own name when it is empty."""

    def identity(self) -> Identity:
        """The site's keys, made at the first use.

        Returns:
            The identity that signs this ledger.

        Raises:
            ConfigError: The name is none, or the key file cannot be read.
            RefusedError: Others may read the key file.
        """
        path = self.folder / "identity.key"
        if not path.exists():
            made = Identity.generate(check_name(self.name or self.folder.resolve().name))
            save_identity(path, made)
            remember_signer(made.public, f"site {made.name!r}, which was made here")
        return load_identity(path)

    @contextmanager
    def opened(self, binding: Mapping[str, Any]) -> Iterator[SiteLedger]:
        """The ledger, for this process alone; its head is signed when the block ends without an error.

        Args:
            binding: What the chain is bound to: the policy, and what the door was told.

        Yields:
            The ledger with its chain open.

        Raises:
            IntegrityError: The ledger was changed, or copied back from an earlier day.
            ResourceError: It cannot be written.
        """
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            identity = self.identity()
            own = identity.public.signing.hex()
            # Nobody counter-signs: a hub of Flower's knows no receipts.
            ledger, receipts = open_site_ledger(self.folder / "ledger", signer=signer_of(identity), hub_key=own)
            marks = HighWater((self.folder / MARK_FILE, mark_of(identity.public.fingerprint)))
            try:
                marks.check(identity.name, ledger.hashes)
                ledger.open_chain(identity.name, secret=kept_secret(self.folder / "ledger.key"), binding=binding)
                yield ledger
                ledger.seal(receipts=(receipts.length, receipts.head), hub_key=own)
                marks.raise_to(ledger.chain)
            finally:
                ledger.close()
        finally:
            os.close(lock)
