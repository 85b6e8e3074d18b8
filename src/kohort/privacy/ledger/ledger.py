"""The ledger: one hash chain per site, append-only, of every release and every refusal.

Every line contains the hash of the line before it, so no line can be changed or removed unnoticed; the signed head
(`head.json`) contains the hash of the last one, so the end cannot be cut off. Payloads appear as digests keyed with a
secret of the site, because a plain hash of a small payload could be guessed. So could a line from its own hash, which
every reply carries as the head: each line holds such a digest, of its payload, its reason or what it binds.
`kohort.privacy.ledger.verify` checks all of this with code of its own.

Many simulated sites share one file (their chains stay separate), because a thousand open files cost more than the
training they record. A real site's ledger holds its own chain alone and is written through to the disk line by line.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic, write_whole
from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import DP, Guarantee, parse_guarantee
from kohort.privacy.ledger.chain import GENESIS, Chain, canonical, head_digest, heads_digest, quoted
from kohort.privacy.ledger.signing import Signer
from kohort.purposes import Purpose

__all__ = [
    "GENESIS",
    "Chain",
    "Disclosure",
    "Ledger",
    "LedgerContext",
    "canonical",
    "head_digest",
    "heads_digest",
    "quoted",
]

LEDGER_FILE, HEAD_FILE = "ledger.jsonl", "head.json"


class LedgerContext(NamedTuple):
    """What all ledger lines of one request have in common.

    `what` is the task, `to` the recipient, `via` who carries a sealed message to it, `request` the request's digest.
    """

    what: str
    to: str = "hub"
    via: str = ""
    request: str = ""
    round: int = 0
    site_head: str = ""
    """Where the site's own ledger ends, signed by the site, as canonical JSON; in the ledger of a hub only."""


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """One row of the summary: what a recipient was given, how often, from how many rows, under which guarantee."""

    recipient: str
    what: str
    kind: str
    guarantee: str
    releases: int
    rows: int
    size: int

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def _once(ledger_context: LedgerContext) -> str:
    """The key by which a repeated refusal or note is recognised, so that it is written once."""
    return f"{ledger_context.request} {ledger_context.what} {ledger_context.round}"


def _reason(chain: Chain, reason: str) -> str:
    """A line's reason and its keyed digest: the head goes with every reply, and who has it could try out reasons."""
    return f'"reason":{canonical(reason)},"digest":"{chain.digest(reason.encode())}"'


def _opened_before(site: str, bound: str) -> str:
    """The hash of a chain's first line as it was written before that line had a digest."""
    chain = Chain(site, secret=GENESIS.encode())
    chain.next_line(f'"event":"open","binding":{bound}')
    return chain.head


class _Tally:
    """Running totals of one (recipient, task, kind of guarantee)."""

    __slots__ = ("releases", "rows_by_site", "size", "weakest")

    def __init__(self, guarantee: Guarantee) -> None:
        self.weakest = guarantee
        self.releases = 0
        self.size = 0
        self.rows_by_site: dict[str, int] = {}

    def weaken(self, guarantee: Guarantee) -> None:
        """Take in the claim of a release; the weakest one is shown."""
        if guarantee.strength < self.weakest.strength:
            self.weakest = guarantee

    def add(self, site: str, rows: int, size: int) -> None:
        """Count a release."""
        self.releases += 1
        self.size += size
        if rows > self.rows_by_site.get(site, -1):
            self.rows_by_site[site] = rows


class Ledger:
    """The hash chains of one or many sites, their file and their signed head.

    Args:
        signer: The key that signs the head.
        folder: Where the file is written; None keeps the lines in memory.
        run: The run's identifier.
        durable: Whether every write reaches the disk (fsync) before it returns, and lines carry the time. For real
            sites; the ledgers of simulated sites are reproducible instead.
        sealer: Who signs `head.json`, if not `signer`: the user who made a simulation, whose sites have keys of the
            run's seed.
    """

    def __init__(
        self,
        *,
        signer: Signer,
        folder: Path | None = None,
        run: str = "",
        durable: bool = False,
        sealer: Signer | None = None,
    ) -> None:
        self.run = run
        self.chains: dict[str, Chain] = {}
        self.lines: list[str] = []
        self._signer = signer
        self._sealer = sealer or signer
        self._folder = folder
        self._durable = durable
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        self._refusals: dict[str, str] = {}
        self._answered: dict[tuple[str, str, str], str] = {}
        self._order = hashlib.blake2b(digest_size=32)  # the chains bind each site's lines, this the order of them all
        self._unwritten: list[bytes] = []
        self._file = None
        if folder is not None:
            self._path = folder / LEDGER_FILE
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)

    def open_chain(
        self, site: str, *, secret: bytes, binding: Mapping[str, Any], budget: Budget | None = None
    ) -> Chain:
        """Start a site's chain with the line that binds its schema and policy, or continue an interrupted run's chain.

        Args:
            site: The site's name.
            secret: The site's secret, with which payload digests are keyed.
            binding: What the first line records: schema, policy and the like.
            budget: What the site's data set spent in other runs, if the site keeps count of it.

        Returns:
            The chain; its budget includes `budget` and what its own lines spent.

        Raises:
            IntegrityError: The interrupted run had another schema or policy.
        """
        known = self.chains.get(site)
        chain = self.chains[site] = Chain(site, secret=secret)
        bound = canonical(dict(binding))
        line = chain.next_line(f'"event":"open","binding":{bound},"digest":"{chain.digest(bound.encode())}"')
        if budget is not None:
            chain.budget.add(budget)
        if known is None:
            self._unwritten.append(line)
            self._write()
        elif self._answered.get((site, "open", "")) not in {chain.head, _opened_before(site, bound)}:
            raise IntegrityError(
                f"the ledger of site {site!r} was opened under another schema or policy",
                hint="Restore the schema and the policy of the interrupted run, or start a new run",
            )
        else:
            chain.length, chain.head, chain.receipt = known.length, known.head, known.receipt
            chain.budget.add(known.budget)
        return chain

    def adopt(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Continue after the verified lines of an interrupted run; what they record is not written twice.

        Args:
            history: All lines of the interrupted run, in order.
        """
        for line in history:
            self._order.update(line["hash"].encode())
            site, event = str(line["site"]), str(line["event"])
            chain = self.chains.setdefault(site, Chain(site, secret=GENESIS.encode()))
            chain.length, chain.head, chain.receipt = line["seq"] + 1, line["hash"], line["receipt"]
            if event == "open":
                self._answered[site, event, ""] = line["hash"]
                continue
            ledger_context = LedgerContext(
                what=line["what"], to=line["to"], via=line["via"], request=line["request"], round=line["round"]
            )
            if event != "release":
                self._answered[site, event, _once(ledger_context)] = line["reason"]
                if event == "refusal":
                    self._refusals[site] = line["reason"]
                continue
            claim = parse_guarantee(line["guarantee"])
            self._answered[site, event, ledger_context.request] = line["digest"]
            tally = self._tally_of(ledger_context, claim)
            tally.weaken(claim)
            tally.add(site, line["rows"], line["size"])
            if isinstance(claim, DP):
                chain.budget.charge(claim, to=ledger_context.to, what=ledger_context.what, round=ledger_context.round)

    def has_answered(self, chain: Chain, ledger_context: LedgerContext, payload: bytes | memoryview) -> bool:
        """Whether this payload already left in answer to this request.

        Args:
            chain: The site's chain.
            ledger_context: The request.
            payload: What the site would send now.

        Returns:
            True when the same bytes were recorded for the same request, False when none were.

        Raises:
            IntegrityError: Different bytes were recorded for the same request.
        """
        known = self._answered.get((chain.site, "release", ledger_context.request))
        if known is None:
            return False
        if known != chain.digest(payload):
            raise IntegrityError(
                f"site {chain.site!r} would answer the same request with different bytes",
                hint="The code or the data changed since the run was interrupted: start a new run",
            )
        return True

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
        """Write one line per site for what is about to leave or was refused, before any byte is sent.

        Args:
            chains: The chains of the sites, in the order of their lines.
            ledger_context: Task, recipient, carrier and request.
            guarantees: What each site claims of its payload.
            rows: How many rows each payload was computed from.
            payloads: The bytes themselves; a line keeps their size and keyed digest.
            refusals: Why a payload may not leave; None if it may.

        Raises:
            IntegrityError: A site answered the same request with different bytes before.
            ResourceError: The lines could not be written.
        """
        fields = self._common("release", ledger_context)
        claimed: Guarantee | None = None
        written = self._unwritten
        try:
            for chain, guarantee, count, payload, reason in zip(
                chains, guarantees, rows, payloads, refusals, strict=True
            ):
                if reason is not None:
                    self._refuse(chain, ledger_context, guarantee, reason)
                    continue
                if self._answered and self.has_answered(chain, ledger_context, payload):
                    continue
                if guarantee is not claimed:  # of simulated sites, many in a row share one
                    claimed, claim = guarantee, f'{fields},"guarantee":{guarantee.text},"rows":'
                    tally = self._tally_of(ledger_context, guarantee)
                    tally.weaken(guarantee)
                size, digest = len(payload), chain.digest(payload)
                tally.add(chain.site, count, size)
                written.append(chain.next_line(f'{claim}{count},"size":{size},"digest":"{digest}"'))
        finally:
            self._write()

    def refuse(self, chain: Chain, ledger_context: LedgerContext, *, guarantee: Guarantee, reason: str) -> None:
        """Write the line of a refusal. Repeating the last refusal of a request writes nothing.

        Args:
            chain: The site's chain.
            ledger_context: The request.
            guarantee: What the refused release claimed.
            reason: Why it was refused (columns and counts only, never a cell).
        """
        self._refuse(chain, ledger_context, guarantee, reason)
        self._write()

    def _refuse(self, chain: Chain, ledger_context: LedgerContext, guarantee: Guarantee, reason: str) -> None:
        if self._answered.get((chain.site, "refusal", _once(ledger_context))) == reason:
            return
        fields = self._common("refusal", ledger_context)
        self._unwritten.append(chain.next_line(f'{fields},"guarantee":{guarantee.text},{_reason(chain, reason)}'))
        self._refusals[chain.site] = reason

    def note(self, chain: Chain, ledger_context: LedgerContext, *, reason: str) -> None:
        """Write a line about the run itself, such as a site that did not answer or whose reply was excluded.

        Args:
            chain: The site's chain.
            ledger_context: The request.
            reason: What happened.
        """
        if self._answered.get((chain.site, "note", _once(ledger_context))) == reason:
            return
        self._unwritten.append(chain.next_line(f"{self._common('note', ledger_context)},{_reason(chain, reason)}"))
        self._write()

    def seal(self, *, receipts: tuple[int, str], hub_key: str) -> None:
        """Sign the end of every chain and write `head.json`; a ledger that is kept in memory has no such file.

        Args:
            receipts: Number of receipts, and the hash of the last one.
            hub_key: The hub's public key, which signed the receipts.
        """
        if self._folder is not None:
            head = self.head(receipts=receipts, hub_key=hub_key)
            write_atomic(self._folder / HEAD_FILE, (canonical(head) + "\n").encode(), durable=self._durable)

    def head(self, *, receipts: tuple[int, str], hub_key: str) -> dict[str, Any]:
        """The signed statement of where every chain ends.

        Args:
            receipts: Number of receipts, and the hash of the last one.
            hub_key: The hub's public key, which signed the receipts.

        Returns:
            The content of `head.json`.
        """
        statement = {
            "version": 2,
            "run": self.run,
            "chains": {name: [chain.length, chain.head] for name, chain in self.chains.items()},
            "order": self._order.hexdigest(),
            "receipts": list(receipts),
            "site_key": self._signer.public,
            "hub_key": hub_key,
            "signer": self._sealer.record,
        }
        return {**statement, "signature": self._sealer.sign(canonical(statement).encode(), purpose=Purpose.LEDGER_HEAD)}

    def sign_heads(self, chains: Sequence[Chain]) -> tuple[str, str]:
        """Sign the current ends of some chains, for a receipt.

        Args:
            chains: The chains, in the order the receipt uses.

        Returns:
            One digest over their names, lengths and last hashes, and the signature over it.
        """
        digest = heads_digest(chains)
        return digest, self._signer.sign(digest.encode(), purpose=Purpose.LEDGER_HEAD)

    def disclosures(self) -> list[Disclosure]:
        """What left, by recipient, task and kind of guarantee; each site's rows count once."""
        return [
            Disclosure(
                recipient=recipient,
                what=what,
                kind=kind,
                guarantee=tally.weakest.shown,
                releases=tally.releases,
                rows=sum(tally.rows_by_site.values()),
                size=tally.size,
            )
            for (recipient, what, kind), tally in self._tallies.items()
        ]

    def claims(self) -> list[Guarantee]:
        """The weakest claim per recipient, task and kind of guarantee."""
        return [tally.weakest for tally in self._tallies.values()]

    def fingerprint(self) -> str:
        """A short hash over the ends of all chains. A copy kept elsewhere reveals any later rewriting of the ledger."""
        ends = canonical({name: [chain.length, chain.head] for name, chain in self.chains.items()})
        return hashlib.blake2b(ends.encode(), digest_size=16).hexdigest()

    @property
    def length(self) -> int:
        """Number of lines of all chains together."""
        return sum(chain.length for chain in self.chains.values())

    @property
    def refusals(self) -> dict[str, str]:
        """The last reason each refusing site gave."""
        return dict(self._refusals)

    def close(self) -> None:
        """Flush to the disk and close the file."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _common(self, event: str, ledger_context: LedgerContext) -> str:
        moment = f',"time":{int(time.time())}' if self._durable else ""  # simulated ledgers are reproducible
        head = f',"site_head":{ledger_context.site_head}' if ledger_context.site_head else ""
        return (
            f'"event":"{event}","what":{quoted(ledger_context.what)},"to":{quoted(ledger_context.to)},'
            f'"via":{quoted(ledger_context.via)},"round":{ledger_context.round},"request":"{ledger_context.request}"'
            f"{moment}{head}"
        )

    def _write(self) -> None:
        lines, self._unwritten = self._unwritten, []
        self._order.update(b"".join([line[-67:-3] for line in lines]))
        if self._file is None:
            self.lines.extend([line.decode() for line in lines])
        elif lines:
            with disk_errors(self._path):
                write_whole(self._file, b"".join(lines))
                if self._durable:
                    os.fsync(self._file.fileno())

    def _tally_of(self, ledger_context: LedgerContext, guarantee: Guarantee) -> _Tally:
        """The totals that a release belongs to: of its recipient, task and kind of guarantee."""
        place = (ledger_context.to, ledger_context.what, guarantee.kind)
        tally = self._tallies.get(place)
        if tally is None:
            tally = self._tallies[place] = _Tally(guarantee)
        return tally
