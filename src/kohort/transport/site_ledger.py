"""The ledger of a real site: one chain over all its runs, and the hub's receipts beside it.

Lines are synced to the disk before anything leaves, and the head is signed at every answer. The operator may change
the policy: the chain goes on, with a line that says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_whole
from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import Guarantee
from kohort.privacy.ledger.ledger import GENESIS, LEDGER_FILE, Chain, Ledger, LedgerContext, canonical, head_digest
from kohort.privacy.ledger.receipts import RECEIPTS_FILE
from kohort.privacy.ledger.reopen import drop_cut_lines
from kohort.privacy.ledger.signing import Signer, signature_holds
from kohort.privacy.ledger.verify import checked_chain, checked_receipts
from kohort.purposes import Purpose
from kohort.transport.high_water import LedgerBehindError, stands_at

__all__ = ["Claimed", "KeptReceipts", "SiteLedger", "open_site_ledger"]

MONTH = 30 * 24 * 3600


@dataclass(frozen=True)
class Claimed:
    """What the last line of a release or a refusal said."""

    guarantee: Guarantee
    rows: int
    ledger_context: LedgerContext
    refused: bool = False


class SiteLedger(Ledger):
    """The ledger of one site. Every run of the site writes to the same chain."""

    def __init__(
        self, *, signer: Signer, folder: Path | None = None, history: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(signer=signer, folder=folder, durable=folder is not None)
        self.last: Claimed | None = None
        self._chain: Chain | None = None
        self._first = dict(history[0]["binding"]) if history else None
        self._times = [(str(line["what"]), int(line.get("time", 0))) for line in history if line["event"] == "release"]
        self.hashes = [str(line["hash"]) for line in history]
        """The hash of every line, in order."""
        self.adopt(history)

    def open_chain(
        self, site: str, *, secret: bytes, binding: Mapping[str, Any], budget: Budget | None = None
    ) -> Chain:
        """The site's one chain; opened once in a process, and bound to what the site was when it began."""
        if self._chain is None:
            opened_with = dict(binding) if self._first is None else self._first
            self._chain = super().open_chain(site, secret=secret, binding=opened_with, budget=budget)
            if canonical(opened_with) != canonical(dict(binding)):
                self.note(self._chain, LedgerContext(what="policy"), reason=f"goes on under {canonical(dict(binding))}")
        return self._chain

    @property
    def chain(self) -> Chain:
        """The chain, once it is open."""
        if self._chain is None:
            raise IntegrityError("the site's ledger is not open")
        return self._chain

    def record(
        self,
        chains: Sequence[Chain],
        ledger_context: LedgerContext,
        *,
        guarantees: Sequence[Guarantee],
        rows: Sequence[int],
        payloads: Sequence[bytes | memoryview],
        refusals: Sequence[str | None],
    ) -> None:
        """As in every ledger; the claim is remembered for the answer."""
        super().record(chains, ledger_context, guarantees=guarantees, rows=rows, payloads=payloads, refusals=refusals)
        is_released = refusals[0] is None
        self.last = Claimed(guarantees[0], rows[0] if is_released else 0, ledger_context, not is_released)
        if is_released:
            self._times.append((ledger_context.what, int(time.time())))

    def refuse(self, chain: Chain, ledger_context: LedgerContext, *, guarantee: Guarantee, reason: str) -> None:
        """As in every ledger; the claim is remembered for the answer."""
        super().refuse(chain, ledger_context, guarantee=guarantee, reason=reason)
        self.last = Claimed(guarantee, 0, ledger_context, refused=True)

    def _write(self) -> None:
        fresh = [line[-67:-3].decode() for line in self._unwritten]
        super()._write()
        self.hashes += fresh

    def check_end(self, length: int, last: str, *, source: str) -> None:
        """Compare the chain with an end of it that the site signed once.

        Args:
            length: How long the chain was.
            last: The hash of its last line.
            source: Who returned it, in words.

        Raises:
            LedgerBehindError: The chain lacks that line.
        """
        if not stands_at(self.hashes, length, last):
            raise LedgerBehindError(self.chain.site, has=len(self.hashes), signed=length, source=source)

    def answered_lately(self, task: str, *, seconds: float = MONTH) -> int:
        """How many releases of a task left in the last month."""
        since = time.time() - seconds
        return sum(what == task and when >= since for what, when in self._times)


class KeptReceipts:
    """The receipts the hub gave this site, beside the ledger they are about."""

    def __init__(
        self,
        *,
        hub_key: str,
        site_key: str,
        folder: Path | None,
        history: Sequence[Mapping[str, Any]] = (),
        former_keys: Sequence[str] = (),
    ):
        self.hub_key = hub_key
        self.length = len(history)
        self.head = str(history[-1]["hash"]) if history else GENESIS
        self._site_keys = (site_key, *former_keys)
        self._path = None if folder is None else folder / RECEIPTS_FILE
        if self._path is not None:
            with disk_errors(self._path):
                self._path.touch()

    def take(self, lines: bytes, ledger: SiteLedger) -> None:
        """Add the receipts that are new, if they go on from the last one and both signatures hold.

        Raises:
            LedgerBehindError: One of them is about a line that the site signed and its ledger lacks.
            IntegrityError: One of them is malformed, does not go on from the last one, or is not signed.
        """
        fresh = []
        for text in lines.splitlines(keepends=True):
            line = self._read(text)
            is_ours = self._is_ours(line, ledger.chain.site)
            if is_ours and "end" in line:
                ledger.check_end(*line["end"], source="a receipt of the hub")
            if line["seq"] < self.length:
                continue
            message = canonical([self.head, line["request"], line["heads"]]).encode()
            purpose = Purpose.RECEIPT if "end" in line else None
            if (
                line["seq"] != self.length
                or line["prev"] != self.head
                or not is_ours
                or not signature_holds(self.hub_key, message, str(line["hub_signature"]), purpose=purpose)
            ):
                raise IntegrityError("a receipt of the hub does not go on from the last one, or is not signed")
            self.length, self.head = self.length + 1, str(line["hash"])
            fresh.append(text)
        if fresh and self._path is not None:
            with disk_errors(self._path), self._path.open("ab", buffering=0) as file:
                write_whole(file, b"".join(fresh))
        if fresh:
            ledger.chain.receipt = self.head

    def _is_ours(self, line: Mapping[str, Any], site: str) -> bool:
        """Whether this site signed it, be it before it changed its keys or before signatures had purposes."""
        purpose, signed = None, str(line["heads"])
        if "end" in line:
            length, last = line["end"]
            if head_digest(site, length, last) != signed:
                return False
            purpose = Purpose.LEDGER_HEAD
        signature = str(line["site_signature"])
        return any(signature_holds(key, signed.encode(), signature, purpose=purpose) for key in self._site_keys)

    @staticmethod
    def _read(text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
            int(line["seq"]), line["prev"], line["request"], line["heads"], line["hash"], line["hub_signature"]
            if "end" in line:
                length, last = line["end"]
                if type(length) is not int or not isinstance(last, str):
                    raise TypeError("not the end of a chain")
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError("a receipt of the hub is malformed") from error
        return dict(line)


def open_site_ledger(folder: Path | None, *, signer: Signer, hub_key: str) -> tuple[SiteLedger, KeptReceipts]:
    """The ledger and the receipts of a site, with all that was written before.

    A last line that a crash cut short is removed. Keys that the ledger says the site gave up still verify old receipts.

    Args:
        folder: The ledger folder; None for a ledger in memory, without a past.
        signer: Signs the heads of the ledger.
        hub_key: The hub's public signing key, in hexadecimal; it must have signed every receipt.

    Returns:
        The ledger and the receipts.

    Raises:
        IntegrityError: A line of the ledger or a receipt was changed, removed or moved.
    """
    lines: list[dict[str, Any]] = []
    receipts: list[dict[str, Any]] = []
    if folder is not None and (folder / LEDGER_FILE).is_file():
        drop_cut_lines(folder)
        lines = checked_chain(folder / LEDGER_FILE)
        if (folder / RECEIPTS_FILE).is_file():
            receipts = checked_receipts(folder / RECEIPTS_FILE)
    ledger = SiteLedger(signer=signer, folder=folder, history=lines)
    changes = [str(line["reason"]) for line in lines if line["event"] == "note" and line["what"] == "keys"]
    former = [change.partition(" ")[0] for change in changes]
    kept = KeptReceipts(hub_key=hub_key, site_key=signer.public, folder=folder, history=receipts, former_keys=former)
    return ledger, kept
