"""How far a site's ledger has come, kept outside its ledger folder.

    SITE/ledger.mark                     beside the ledger folder
    ~/.local/state/kohort/sites/KEY      outside the site's folder, in the state folder of the user who runs the site

A ledger folder that was copied back from an earlier day, or deleted, would refill the site's budget and let it answer
what it answered before. So the site compares its chain with both marks at its start, and at every message with what
others return to it: the hub's receipts and its peers' memory hold heads that the site itself signed.

Guarantee: a site whose ledger lacks a line that it signed once, and that it is shown, answers nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic
from kohort.privacy.ledger.ledger import Chain, canonical

__all__ = ["MARK_FILE", "HighWater", "LedgerBehindError"]

MARK_FILE = "ledger.mark"


class LedgerBehindError(IntegrityError):
    """The site's ledger lacks lines that the site signed: it was restored or deleted."""

    def __init__(self, site: str, *, has: int, signed: int, source: str) -> None:
        super().__init__(
            f"the ledger of site {site!r} was copied back from an earlier day, cut or deleted: {source} shows that the "
            f"site signed line {signed}, and the ledger has {has} lines without it",
            hint="Put the newest copy of the site's folder back. If there is none, do not use this key any more: what "
            "the table's budget has left is not known. Make a new site (kohort site init) with a policy that allows "
            "only what you can prove was not spent; the hub's receipts show what was sent",
        )


@dataclass(frozen=True)
class HighWater:
    """The marks of one site. Without paths nothing is kept, as in tests without a disk."""

    paths: Sequence[Path] = ()

    def check(self, site: str, hashes: Sequence[str]) -> None:
        """Compare a ledger with the marks.

        Args:
            site: The site's name.
            hashes: The hashes of the lines of its chain.

        Raises:
            LedgerBehindError: The ledger lacks the line of a mark.
            IntegrityError: A mark is damaged.
        """
        for path in self.paths:
            mark = _read(path)
            if mark is not None and not stands_at(hashes, *mark):
                raise LedgerBehindError(site, has=len(hashes), signed=mark[0], source=str(path))

    def raise_to(self, chain: Chain) -> None:
        """Move the marks to the end of a chain whose lines are on the disk.

        Args:
            chain: The site's chain.
        """
        for path in self.paths:
            content = canonical({"site": chain.site, "length": chain.length, "hash": chain.head}) + "\n"
            write_atomic(path, content.encode(), durable=True, private=True)


def stands_at(hashes: Sequence[str], length: int, last: str) -> bool:
    """Whether a chain with these line hashes has the line `last` at that length."""
    return 0 < length <= len(hashes) and hashes[length - 1] == last


def _read(path: Path) -> tuple[int, str] | None:
    if not path.is_file():
        return None
    try:
        with disk_errors(path):
            mark = json.loads(path.read_bytes())
        return int(mark["length"]), str(mark["hash"])
    except (ValueError, TypeError, KeyError) as error:
        raise IntegrityError(
            f"{path} is damaged: it does not say how far the site's ledger has come",
            hint="Restore it together with the ledger folder it belongs to",
        ) from error
