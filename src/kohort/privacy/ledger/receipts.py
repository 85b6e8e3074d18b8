"""The hub's receipts: after every exchange it counter-signs the ends of the sites' chains.

The receipt's hash is part of each site's next ledger line, so neither side can later deny or rewrite an exchange alone.
A chain that is shorter than at its last receipt is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_whole
from kohort.privacy.ledger.ledger import GENESIS, Chain, Ledger, LedgerContext, quoted
from kohort.privacy.ledger.signing import Signer
from kohort.purposes import Purpose

__all__ = ["RECEIPTS_FILE", "Receipts", "SignsHeads"]

RECEIPTS_FILE = "receipts.jsonl"
_site = attrgetter("site")


class SignsHeads(Protocol):
    """A party that signs the ends of chains: a ledger, or a remote site through its answer."""

    def sign_heads(self, chains: Sequence[Chain], /) -> tuple[str, str]:
        """One digest over the ends of `chains`, and the signature over it."""
        ...


class Receipts:
    """The hub's own hash chain of receipts.

    Args:
        signer: The hub's key.
        folder: Where the file is written; None keeps the lines in memory.
    """

    def __init__(self, *, signer: Signer, folder: Path | None = None) -> None:
        self.length = 0
        self.head = GENESIS
        self.lines: list[str] = []
        self._signer = signer
        self._seen: dict[str, int] = {}
        self._issued: dict[str, str] = {}
        self._file = None
        if folder is not None:
            self._path = folder / RECEIPTS_FILE
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)

    @property
    def public(self) -> str:
        """The hub's public key."""
        return self._signer.public

    def issue(self, ledger: SignsHeads, chains: Sequence[Chain], ledger_context: LedgerContext) -> str:
        """Counter-sign the ends of `chains` and store the receipt's hash in each of them.

        Args:
            ledger: Who signs for the sites: their ledger, or a remote site's answer.
            chains: The chains that were written to.
            ledger_context: The request they answered; one receipt is issued per request.

        Returns:
            The receipt's hash.

        Raises:
            IntegrityError: A chain is shorter than it was at its last receipt.
        """
        if ledger_context.request in self._issued:
            return self._issued[ledger_context.request]
        chains = sorted(chains, key=_site)  # the verifier knows no other order
        seen = self._seen
        for chain in chains:
            if chain.length < seen.get(chain.site, 0):
                raise IntegrityError(
                    f"the ledger of site {chain.site!r} is shorter than at its last receipt",
                    hint="Its file was replaced or cut: restore it from a backup",
                )
            seen[chain.site] = chain.length
        heads, site_signature = ledger.sign_heads(chains)
        statement = f"[{quoted(self.head)},{quoted(ledger_context.request)},{quoted(heads)}]"
        hub_signature = self._signer.sign(statement.encode(), purpose=Purpose.RECEIPT)
        body = (
            f'{{"version":2,"seq":{self.length},"prev":"{self.head}","request":"{ledger_context.request}",'
            f'"sites":{len(chains)},"heads":"{heads}"{self._ends(chains)},"site_signature":"{site_signature}",'
            f'"hub_signature":"{hub_signature}"'
        )
        self.head = hashlib.blake2b(body.encode(), digest_size=32).hexdigest()
        self.length += 1
        self._write(f'{body},"hash":"{self.head}"}}\n')
        for chain in chains:
            chain.receipt = self.head
        return self.head

    def adopt(
        self, ledger: Ledger, history: Sequence[Mapping[str, Any]], sites_of: Mapping[str, Sequence[str]]
    ) -> None:
        """Continue after the verified receipts of an interrupted run.

        Args:
            ledger: The ledger, which has adopted its own lines already.
            history: All receipts of the interrupted run, in order.
            sites_of: By request, the sites that wrote ledger lines for it.
        """
        for line in history:
            self.length, self.head = line["seq"] + 1, line["hash"]
            self._issued[line["request"]] = line["hash"]
            for site in sites_of.get(line["request"], ()):
                ledger.chains[site].receipt = line["hash"]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _ends(self, chains: Sequence[Chain]) -> str:
        """More fields of a receipt; none where the ledger beside the receipts shows which lines they are about."""
        del chains
        return ""

    def _write(self, line: str) -> None:
        if self._file is None:
            self.lines.append(line)
            return
        with disk_errors(self._path):
            write_whole(self._file, line.encode())
