"""The ledger: one hash chain a site, append-only, of every release and every refusal.

A line binds the line before it, so nothing in the middle can change unseen; the signed head (`head.json`) binds the
last one, so the tail cannot be cut. Payloads appear as digests keyed with a secret of the site: a plain hash of a small
payload could be guessed. `kohort.privacy.ledger.verify` checks all of this with code of its own.

Many simulated sites share one file (their chains stay separate), because a thousand open files cost more than the
training they record. A real site's ledger holds its own chain alone and is written through to the disk line by line.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from kohort.background import Deferred
from kohort.errors import IntegrityError
from kohort.files import disk_errors, write_atomic, write_whole
from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import DP, Guarantee, parse_guarantee
from kohort.privacy.ledger.hashing import sizes_of
from kohort.privacy.ledger.panel import Panel
from kohort.privacy.ledger.signing import Signer

__all__ = ["GENESIS", "Chain", "Disclosure", "Ledger", "LedgerContext", "canonical", "quoted"]

GENESIS = "0" * 64
_UNKEYED = hashlib.blake2b(digest_size=32)  # copying a fresh state costs a fifth of making one
LEDGER_FILE, HEAD_FILE = "ledger.jsonl", "head.json"


# Made once: `json.dumps` would make one for every call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(value)


quoted = encode_basestring
"""The canonical JSON of a text: what `canonical` gives, without asking what it is."""


class Chain:
    """The growing end of one site's ledger."""

    __slots__ = ("budget", "head", "key", "length", "name_text", "passed", "receipt", "secret", "site")

    def __init__(self, site: str, *, secret: bytes) -> None:
        self.site = site
        self.name_text = json.dumps(site, ensure_ascii=False)
        self.length = 0
        self.head = GENESIS
        self.receipt = ""
        self.budget = Budget()
        self.passed: object = None
        """The last case the door judged good for this site, so that it need not judge the very same one again."""
        self.secret = secret
        # Hashing the key once and copying the state is what keeps a thousand digests a round cheap.
        self.key = hashlib.blake2b(key=secret, digest_size=32)

    @property
    def spent(self) -> dict[str, float]:
        """Epsilon spent by recipient."""
        return self.budget.spent

    def digest(self, payload: bytes | memoryview) -> str:
        """The keyed digest of a payload: proof for the site, no help to a guesser."""
        state = self.key.copy()
        state.update(payload)
        return state.hexdigest()


class LedgerContext(NamedTuple):
    """What is common to the lines one request causes: task, recipient, carrier, request hash."""

    what: str
    to: str = "hub"
    via: str = ""
    request: str = ""
    round: int = 0


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
    """What makes a refusal or a note the same as one that was already written."""
    return f"{ledger_context.request} {ledger_context.what} {ledger_context.round}"


def _next_line(chain: Chain, middle: str) -> str:
    """The next line of a chain, which then ends with it."""
    body = f'{{"site":{chain.name_text},"seq":{chain.length},"prev":"{chain.head}","receipt":"{chain.receipt}",{middle}'
    state = _UNKEYED.copy()
    state.update(body.encode())
    chain.head = head = state.hexdigest()
    chain.length += 1
    return f'{body},"hash":"{head}"}}\n'


_strength = attrgetter("strength")


class _Tally:
    """Running totals of one (recipient, task, kind of guarantee)."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.weakest = guarantee
        self.releases = 0
        self.size = 0
        self.rows_by_site: dict[str, int] = {}


_Shares = list[tuple[_Tally, int, int]]
"""Totals, and the releases and bytes that some sites add to each of them."""


class Ledger:
    """Chains, their file and their signed head. `folder=None` keeps the lines in memory."""

    def __init__(self, *, signer: Signer, folder: Path | None = None, run: str = "", durable: bool = False) -> None:
        self.run = run
        self.chains: dict[str, Chain] = {}
        self.lines: list[str] = []
        self.passed: object = None
        """The last case the door judged good for all its sites, so that it need not judge the very same one again."""
        self._signer = signer
        self._folder = folder
        self._durable = durable
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        self._refusals: dict[str, str] = {}
        self._answered: dict[tuple[str, str, str], str] = {}
        self._panels: dict[tuple[str, str], tuple[Panel, _Shares]] = {}
        self._order = hashlib.blake2b(digest_size=32)  # the chains bind each site's lines, this the order of them all
        self._unordered: list[bytes] = []
        """Hashes `_order` has yet to take; it does so while a kernel runs, with the signatures."""
        self._latest: Panel | None = None
        """Whose lines are the last ones of the ledger."""
        self._pending: Deferred | None = None
        self._file = None
        if folder is not None:
            self._path = folder / LEDGER_FILE
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)

    def settle_first(self, pending: Deferred) -> None:
        """Settle `pending`, which reads the chains and hands them a receipt, before any of them changes."""
        self.settle()
        self._pending = pending

    def settle(self) -> None:
        """Return when what left so far has its receipt; from an error on, there is no way past it."""
        if self._pending is not None:
            self._pending.settle()
            self._pending = None

    def open_chain(
        self, site: str, *, secret: bytes, binding: Mapping[str, Any], budget: Budget | None = None
    ) -> Chain:
        """Start a site's chain with the line that binds its schema and policy, or take up the chain of a former run.

        `budget` is what the site's data set spent in other runs, for a site that keeps count of it; the chain adds to
        it what its own lines spend.
        """
        self.settle()
        self._latest = None
        known = self.chains.get(site)
        chain = self.chains[site] = Chain(site, secret=secret)
        line = _next_line(chain, f'"event":"open","binding":{canonical(dict(binding))}')
        if budget is not None:
            chain.budget.add(budget)
        if known is None:
            self._write(line)
        elif self._answered.get((site, "open", "")) != chain.head:
            raise IntegrityError(f"the ledger of site {site!r} was opened under another schema or policy")
        else:
            chain.length, chain.head, chain.receipt = known.length, known.head, known.receipt
            chain.budget.add(known.budget)
        return chain

    def adopt(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Take up the verified lines of an interrupted run: what was answered then is not written twice."""
        self.settle()
        self._latest = None
        self._panels.clear()
        for line in history:
            self._unordered.append(line["hash"].encode())
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
            self._count([chain], ledger_context, [claim], [line["rows"]], [line["size"]])
            if isinstance(claim, DP):
                chain.budget.charge(claim, to=ledger_context.to, what=ledger_context.what, round=ledger_context.round)

    def has_answered(self, chain: Chain, ledger_context: LedgerContext, parcel: bytes | memoryview) -> bool:
        """Whether this very parcel already left for this very request; another parcel for it is an error."""
        known = self._answered.get((chain.site, "release", ledger_context.request))
        if known is None:
            return False
        if known != chain.digest(parcel):
            raise IntegrityError(
                f"site {chain.site!r} would answer the same request with other bytes",
                hint="The code or the data changed since the run was interrupted; start a new run",
            )
        return True

    def record(
        self,
        chains: Sequence[Chain],
        ledger_context: LedgerContext,
        *,
        guarantees: Sequence[Guarantee],
        rows: Sequence[int],
        parcels: Sequence[bytes | memoryview],
    ) -> None:
        """One line a site for what is about to leave. Written before a byte is sent."""
        self.settle()
        if self._answered:
            fresh = [i for i, chain in enumerate(chains) if not self.has_answered(chain, ledger_context, parcels[i])]
            if len(fresh) < len(chains):
                chains, guarantees = [chains[i] for i in fresh], [guarantees[i] for i in fresh]
                rows, parcels = [rows[i] for i in fresh], [parcels[i] for i in fresh]
        sizes = sizes_of(parcels)
        place = (ledger_context.to, ledger_context.what)
        panel, shares = self._panels.get(place, (None, []))
        is_known = panel is not None and panel.fits(chains, guarantees, rows, sizes)
        if panel is None or not is_known:
            panel = Panel(chains, guarantees, rows, sizes)
        is_next, self._latest = self._latest is panel, None
        self._append(*panel.write(self._common("release", ledger_context), parcels, is_next=is_next))
        self._latest = panel
        if is_known:  # the same rows of the same sites under the same claims as the last time: they only add up
            for tally, releases, size in shares:
                tally.releases += releases
                tally.size += size
        else:
            self._panels[place] = panel, self._count(chains, ledger_context, guarantees, rows, sizes)

    def refuse(self, chain: Chain, ledger_context: LedgerContext, *, guarantee: Guarantee, reason: str) -> None:
        """The line of a release that stayed inside."""
        self.settle()
        if self._answered.get((chain.site, "refusal", _once(ledger_context))) == reason:
            return
        common = self._common("refusal", ledger_context)
        self._write(_next_line(chain, f'{common},"guarantee":{guarantee.text},"reason":{canonical(reason)}'))
        self._refusals[chain.site] = reason

    def note(self, chain: Chain, ledger_context: LedgerContext, *, reason: str) -> None:
        """A line about the run itself, such as a site that did not answer or whose reply was excluded."""
        self.settle()
        if self._answered.get((chain.site, "note", _once(ledger_context))) == reason:
            return
        self._write(_next_line(chain, f'{self._common("note", ledger_context)},"reason":{canonical(reason)}'))

    def seal(self, *, receipts: tuple[int, str], hub_key: str) -> None:
        """Sign every chain's length and hash, and write `head.json`."""
        head = self.head(receipts=receipts, hub_key=hub_key)
        if self._folder is not None:
            write_atomic(self._folder / HEAD_FILE, (canonical(head) + "\n").encode(), durable=self._durable)

    def head(self, *, receipts: tuple[int, str], hub_key: str) -> dict[str, Any]:
        """The signed statement of where every chain ends."""
        statement = {
            "version": 1,
            "run": self.run,
            "chains": {name: [chain.length, chain.head] for name, chain in self.chains.items()},
            "order": self._ordered(),
            "receipts": list(receipts),
            "site_key": self._signer.public,
            "hub_key": hub_key,
        }
        return {**statement, "signature": self._signer.sign(canonical(statement).encode())}

    def sign_heads(self, chains: Sequence[Chain]) -> tuple[str, str]:
        """One digest over the ends of `chains`, and the sites' signature over it."""
        self._ordered()  # here, because heads are signed while a kernel runs
        digest = hashlib.blake2b("".join([chain.head for chain in chains]).encode(), digest_size=32).hexdigest()
        return digest, self._signer.sign(digest.encode())

    def disclosures(self) -> list[Disclosure]:
        """What left, by recipient, task and kind; rows count each site once."""
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
        """The weakest claim of every kind that left."""
        return [tally.weakest for tally in self._tallies.values()]

    def fingerprint(self) -> str:
        """A short hash of all chains' ends: print it somewhere else, and nobody can rewrite the ledger unseen."""
        ends = canonical({name: [chain.length, chain.head] for name, chain in self.chains.items()})
        return hashlib.blake2b(ends.encode(), digest_size=16).hexdigest()

    @property
    def length(self) -> int:
        """Lines of all chains together."""
        return sum(chain.length for chain in self.chains.values())

    @property
    def refusals(self) -> dict[str, str]:
        """The last reason each refusing site gave."""
        return dict(self._refusals)

    def close(self) -> None:
        """Flush to the disk and let go of the file."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _common(self, event: str, ledger_context: LedgerContext) -> str:
        moment = f',"time":{int(time.time())}' if self._durable else ""  # simulated ledgers are reproducible
        return (
            f'"event":"{event}","what":{quoted(ledger_context.what)},"to":{quoted(ledger_context.to)},'
            f'"via":{quoted(ledger_context.via)},"round":{ledger_context.round},"request":"{ledger_context.request}"{moment}'
        )

    def _ordered(self) -> str:
        """A hash of the hashes of all lines, in their order."""
        self._order.update(b"".join(self._unordered))
        self._unordered.clear()
        return self._order.hexdigest()

    def _write(self, line: str) -> None:
        self._latest = None
        self._append(line.encode(), line[-67:-3].encode())

    def _append(self, lines: bytes | memoryview, hashes: bytes) -> None:
        """Add whole lines, which end with `hashes`."""
        self._unordered.append(hashes)
        if self._file is None:
            self.lines.extend(f"{line}\n" for line in str(lines, "utf-8").split("\n")[:-1])
            return
        with disk_errors(self._path):
            write_whole(self._file, cast(bytes, lines))  # any buffer will do
            if self._durable:
                os.fsync(self._file.fileno())

    def _count(
        self,
        chains: Sequence[Chain],
        ledger_context: LedgerContext,
        guarantees: Sequence[Guarantee],
        rows: Sequence[int],
        sizes: Sequence[int],
    ) -> _Shares:
        """Add releases to the totals; what each total got, for the next time the same sites release the same."""
        shares = []
        kinds = dict.fromkeys(guarantee.kind for guarantee in guarantees)  # a set would give them in any order
        for kind in kinds:
            members: Sequence[int] = range(len(chains))
            if len(kinds) > 1:
                members = [i for i, guarantee in enumerate(guarantees) if guarantee.kind == kind]
            place = (ledger_context.to, ledger_context.what, kind)
            tally = self._tallies.get(place)
            weakest = min([guarantees[i] for i in members], key=_strength)
            if tally is None:
                tally = self._tallies[place] = _Tally(weakest)
            elif weakest.strength < tally.weakest.strength:
                tally.weakest = weakest
            size = sum([sizes[i] for i in members])
            tally.releases += len(members)
            tally.rows_by_site.update([(chains[i].site, rows[i]) for i in members])
            tally.size += size
            shares.append((tally, len(members), size))
        return shares
