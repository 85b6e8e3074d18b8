"""The hub's receipts: after every exchange it counter-signs where the sites' chains stood.

The receipt's hash enters each site's next line, so neither side can later deny or rewrite an exchange alone. A head
that goes back (a shorter chain than last time) is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from kohort.background import Deferred, defer
from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_whole
from kohort.privacy.ledger.ledger import GENESIS, Chain, Ledger, LedgerContext, quoted
from kohort.privacy.ledger.signing import Signer

__all__ = ["RECEIPTS_FILE", "Receipts", "SignsHeads"]

RECEIPTS_FILE = "receipts.jsonl"
_site = attrgetter("site")


class SignsHeads(Protocol):
    """Who tells where chains stand, and signs for it: a ledger, or a site's answer."""

    def sign_heads(self, chains: Sequence[Chain], /) -> tuple[str, str]:
        """The hash of the heads, and the signature over it."""
        ...


class Receipts:
    """The hub's own chain of receipts."""

    def __init__(self, *, signer: Signer, folder: Path | None = None) -> None:
        self._length = 0
        self._head = GENESIS
        self._lines: list[str] = []
        self._pending: Deferred | None = None
        self._signer = signer
        self._seen: dict[str, int] = {}
        self._issued: dict[str, str] = {}
        self._asked: Sequence[Chain] = ()
        self._sorted: Sequence[Chain] = ()
        self._file = None
        if folder is not None:
            self._path = folder / RECEIPTS_FILE
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)

    @property
    def length(self) -> int:
        """How many receipts there are."""
        self.settle()
        return self._length

    @property
    def head(self) -> str:
        """The hash of the last one."""
        self.settle()
        return self._head

    @property
    def lines(self) -> list[str]:
        """The receipts, where no folder keeps them."""
        self.settle()
        return self._lines

    @property
    def public(self) -> str:
        """The hub's public key."""
        return self._signer.public

    def issue(self, ledger: SignsHeads, chains: Sequence[Chain], ledger_context: LedgerContext) -> str:
        """Counter-sign the heads of `chains` and hand the receipt's hash back to each of them."""
        self.settle()
        return self._issue(ledger, chains, ledger_context)

    def issue_later(self, ledger: Ledger, chains: Sequence[Chain], ledger_context: LedgerContext) -> None:
        """As `issue`, at the latest before the next line of the ledger or the next receipt.

        Nothing can tell the difference but a crash: one before that leaves an exchange without its receipt, as one just
        before `issue` would. Who notes elsewhere that the exchange is over settles first.
        """
        self.settle()
        self._pending = defer(partial(self._issue, ledger, chains, ledger_context))
        ledger.settle_first(self._pending)

    def settle(self) -> None:
        """Return when every receipt is written; from an error on, there is no way past it."""
        if self._pending is not None:
            self._pending.settle()
            self._pending = None

    def _issue(self, ledger: SignsHeads, chains: Sequence[Chain], ledger_context: LedgerContext) -> str:
        if ledger_context.request in self._issued:
            return self._issued[ledger_context.request]
        if chains is not self._asked:  # the same sites mostly come in the same tuple
            # The order of names is all the checker knows.
            self._asked, self._sorted = tuple(chains), sorted(chains, key=_site)
        chains = self._sorted
        seen = self._seen
        for chain in chains:
            site, length = chain.site, chain.length
            if length < seen.get(site, 0):
                raise IntegrityError(f"the ledger of site {site!r} went back", hint="Its file was replaced")
            seen[site] = length
        heads, site_signature = ledger.sign_heads(chains)
        statement = f"[{quoted(self._head)},{quoted(ledger_context.request)},{quoted(heads)}]"
        body = (
            f'{{"seq":{self._length},"prev":"{self._head}","request":"{ledger_context.request}",'
            f'"sites":{len(chains)},"heads":"{heads}","site_signature":"{site_signature}",'
            f'"hub_signature":"{self._signer.sign(statement.encode())}"'
        )
        self._head = hashlib.blake2b(body.encode(), digest_size=32).hexdigest()
        self._length += 1
        self._write(f'{body},"hash":"{self._head}"}}\n')
        for chain in chains:
            chain.receipt = self._head
        return self._head

    def adopt(
        self, ledger: Ledger, history: Sequence[Mapping[str, Any]], sites_of: Mapping[str, Sequence[str]]
    ) -> None:
        """Take up the verified receipts of an interrupted run; `sites_of` tells whose lines each request caused."""
        for line in history:
            self._length, self._head = line["seq"] + 1, line["hash"]
            self._issued[line["request"]] = line["hash"]
            for site in sites_of.get(line["request"], ()):
                ledger.chains[site].receipt = line["hash"]

    def close(self) -> None:
        """Let go of the file."""
        try:
            self.settle()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, line: str) -> None:
        if self._file is None:
            self._lines.append(line)
            return
        with disk_errors(self._path):
            write_whole(self._file, line.encode())
