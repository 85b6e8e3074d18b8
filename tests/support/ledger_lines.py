"""Ledgers that tests write line by line, with real signatures: any line, receipt and head, right or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.forger import fresh_signer, hashed

from kohort.errors import IntegrityError
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.privacy.ledger.checks import START, canonical_bytes, digest_of, ends_digest
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import Verified, verify_ledger
from kohort.purposes import Purpose

NORTH, SOUTH, HUB = fresh_signer(1, "north"), fresh_signer(2, "south"), fresh_signer(3, "hub")
TEN = Aggregate(rows=10)


def sign(signer: Signer, message: bytes, purpose: Purpose | None) -> str:
    """A signature; without a purpose, as they were made before signatures had any."""
    return signer._key.sign(message).hex() if purpose is None else signer.sign(message, purpose=purpose)


class Book:
    """A ledger that is written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[bytes] = []
        self.receipts: list[bytes] = []
        self.ends: dict[str, list[Any]] = {}
        self.last = START
        self.order = ""

    def add(self, event: str, site: str = "north", **fields: Any) -> tuple[int, str]:
        """Write a line; where the chain ends after it."""
        length, prev = self.ends.get(site, [0, START])
        line = {"site": site, "seq": length, "prev": prev, "receipt": "", "event": event, **fields}
        raw, own = hashed(line)
        self.lines.append(raw)
        self.order += own
        self.ends[site] = [length + 1, own]
        return length + 1, own

    def open(self, site: str = "north", **binding: Any) -> None:
        self.add("open", site, binding=binding)

    def release(self, request: str, *, site: str = "north", claim: Guarantee | None = None, **more: Any) -> Any:
        said = {"what": "train", "to": "hub", "via": "", "round": 0, "request": request, "rows": 1, "size": 1}
        shown = json.loads((claim or TEN).text)
        return self.add("release", site, **{**said, "guarantee": shown, "digest": "", **more})

    def note(self, what: str, reason: str, **more: Any) -> None:
        said = {"what": what, "to": "hub", "via": "", "round": 0, "request": "", "reason": reason}
        self.add("note", **{**said, **more})

    def receipt(
        self, request: str, ends: list[list[Any]], *, by: Signer = NORTH, version: int = 2, **more: Any
    ) -> None:
        heads = ends_digest(ends)
        if version == 1:
            heads = digest_of("".join(end[2] for end in ends).encode())
        by_site, by_hub = (Purpose.LEDGER_HEAD, Purpose.RECEIPT) if version == 2 else (None, None)
        line = {"seq": len(self.receipts), "prev": self.last, "request": request, "sites": len(ends), "heads": heads}
        line |= {"version": 2} if version == 2 else {}
        line["site_signature"] = sign(by, heads.encode(), by_site)
        line["hub_signature"] = sign(HUB, canonical_bytes([self.last, request, heads]), by_hub)
        raw, self.last = hashed({**line, **more})
        self.receipts.append(raw)

    def head(self, *, by: Signer = NORTH, version: int = 2) -> dict[str, Any]:
        said: dict[str, Any] = {
            "version": version,
            "run": "r",
            "chains": self.ends,
            "order": digest_of(self.order.encode()),
        }
        said |= {"receipts": [len(self.receipts), self.last], "site_key": by.public, "hub_key": HUB.public}
        said |= {"signer": by.record} if version == 2 else {}
        return {**said, "signature": sign(by, canonical_bytes(said), Purpose.LEDGER_HEAD if version == 2 else None)}

    def write(self, head: dict[str, Any] | None = None) -> None:
        """Write the files."""
        (self.folder / "ledger.jsonl").write_bytes(b"".join(self.lines))
        (self.folder / "receipts.jsonl").write_bytes(b"".join(self.receipts))
        (self.folder / "head.json").write_bytes(canonical_bytes(head or self.head()) + b"\n")

    def verify(self, head: dict[str, Any] | None = None, pins: Pins | None = None) -> Verified:
        """Write the files, and verify them."""
        self.write(head)
        return verify_ledger(self.folder, pins=pins)

    def refused(self, against: str, head: dict[str, Any] | None = None) -> None:
        with pytest.raises(IntegrityError, match=against):
            self.verify(head)


def hand_over(old: Signer, new: Signer, *, by: Signer | None = None, plain: bool = False) -> str:
    message = (b"kohort ledger hand-over " if plain else b"") + new.public.encode()
    return f"{old.public} {new.public} {sign(by or old, message, None if plain else Purpose.HANDOVER)}"


def site_head(length: int, last: str, *, by: Signer = NORTH, site: str = "north") -> list[Any]:
    return [length, last, sign(by, ends_digest([[site, length, last]]).encode(), Purpose.LEDGER_HEAD)]
