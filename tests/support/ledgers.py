"""Ledgers for tests: opened, written and sealed by the real ledger and receipts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.contracts import ANY_STEP

from kohort.privacy.door import door
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, Public
from kohort.privacy.ledger.ledger import Chain, Ledger, LedgerContext
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.policy import Policy

SITES = ("north", "süd", "west")


@dataclass
class FakeSite:
    """As much of a site as the door needs."""

    name: str
    policy: Policy
    chain: Chain
    count: int = 200


@dataclass
class Written:
    """A ledger with its receipts and sites, open or sealed."""

    ledger: Ledger
    receipts: Receipts
    sites: list[FakeSite]
    folder: Path | None
    encoded: list[bytes] = field(default_factory=list)

    def seal(self) -> None:
        self.ledger.seal(receipts=(self.receipts.length, self.receipts.head), hub_key=self.receipts.public)
        self.ledger.close()
        self.receipts.close()


def open_ledger(folder: Path | None, *, policy: Policy, names: tuple[str, ...] = SITES) -> Written:
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), folder=folder, run="run")
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32), folder=folder)
    sites = [
        FakeSite(name, policy, ledger.open_chain(name, secret=name.encode().ljust(32), binding={"schema": "x"}))
        for name in names
    ]
    return Written(ledger, receipts, sites, folder)


def record_one(
    ledger: Ledger, chain: Chain, ledger_context: LedgerContext, claim: Guarantee, rows: int, payload: bytes
) -> None:
    """Write the line of one release, past the door."""
    ledger.record([chain], ledger_context, guarantees=[claim], rows=[rows], payloads=[payload], refusals=[None])


def write_small_ledger(folder: Path) -> Written:
    written = open_ledger(folder, policy=Policy(epsilon=1.0))
    sites, ledger, receipts = written.sites, written.ledger, written.receipts
    for number in range(2):
        ledger_context = LedgerContext(what="train", request=f"{number:064x}", round=number)
        encoded = [f"{site.name} {number}".encode() for site in sites]
        claims = [Aggregate(rows=150), Public(what="row count"), DP(epsilon=0.7, delta=1e-6)]
        door(
            sites,
            encoded,
            ledger=ledger,
            ledger_context=ledger_context,
            step=ANY_STEP,
            guarantees=claims,
            rows=[150, 200, 10],
        )
        receipts.issue(ledger, [site.chain for site in sites], ledger_context)
    ledger.note(sites[1].chain, LedgerContext(what="train", round=1), reason="the reply was excluded")
    written.seal()
    return written
