"""Reopen the ledger of an interrupted run.

The last line may be incomplete when a process was killed while writing. It is removed: no payload is sent before its
line is complete. Everything else must verify: the hashes of the sites' chains and of the receipts.
"""

from __future__ import annotations

from pathlib import Path

from kohort.files import disk_errors
from kohort.privacy.ledger.ledger import LEDGER_FILE, Ledger
from kohort.privacy.ledger.receipts import RECEIPTS_FILE, Receipts
from kohort.privacy.ledger.verify import checked_chain, checked_receipts

__all__ = ["drop_cut_lines", "reopen"]


def drop_cut_lines(folder: Path) -> None:
    """Remove an incomplete last line from the ledger and the receipts. Call it before they are opened for writing.

    Args:
        folder: The ledger folder; missing files are skipped.
    """
    for name in (LEDGER_FILE, RECEIPTS_FILE):
        path = folder / name
        if not path.is_file():
            continue
        with disk_errors(path):
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with path.open("r+b") as file:
                    file.truncate(whole)


def reopen(folder: Path, ledger: Ledger, receipts: Receipts) -> None:
    """Load what an interrupted run wrote.

    Args:
        folder: The ledger folder.
        ledger: A fresh ledger that writes to the same folder.
        receipts: Fresh receipts that are written to the same folder.

    Raises:
        IntegrityError: A line was changed, removed or moved.
    """
    lines = checked_chain(folder / LEDGER_FILE)
    ledger.adopt(lines)
    sites_of: dict[str, list[str]] = {}
    for line in lines:
        if line["event"] in {"release", "refusal"}:
            sites_of.setdefault(line["request"], []).append(line["site"])
    receipts.adopt(ledger, checked_receipts(folder / RECEIPTS_FILE), sites_of)
