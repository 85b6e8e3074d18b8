"""Verify a ledger folder: hash chains, signatures, heads, receipts and the results that are bound to it.

This module shares no code with the writer. It works on the bytes on the disk, so a changed byte, a missing line or a
cut-off end is found wherever it is. A ledger that somebody rewrote as a whole and signed with a fresh key is
consistent; it is sound only if its signer is pinned (`kohort.privacy.ledger.pins`). It cannot find a signer rewriting
everything under the same key; therefore reports print the head, and sites and hub keep each other's signatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import DP, parse_guarantee
from kohort.privacy.ledger.checks import (
    START,
    SignedBy,
    canonical_bytes,
    checked_line,
    ends_digest,
    holds,
    parse_line,
    raw_lines,
    signed_statement,
)
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify_results import verify_results

__all__ = ["Verified", "checked_chain", "checked_receipts", "find_ledger", "read_head", "read_lines", "verify_ledger"]

_FIELDS = {
    "open": {"binding"},
    "release": {"what", "to", "via", "round", "request", "guarantee", "rows", "size", "digest"},
    "refusal": {"what", "to", "via", "round", "request", "guarantee", "reason"},
    "note": {"what", "to", "via", "round", "request", "reason"},
}
_SINCE = {"digest"}
"""What lines without a payload hold, too, since their reasons are not for those who have a head alone to try out."""
_ROUNDING = 1 + 1e-9
_ALWAYS = {"site", "seq", "prev", "receipt", "event"}
_HEADS = {1: {"version", "run", "chains", "order", "receipts", "site_key", "hub_key"}}
_HEADS[2] = _HEADS[1] | {"signer"}
_HEAD_PURPOSE, _RECEIPT_PURPOSE, _HANDOVER_PURPOSE = "ledger head", "receipt", "ledger hand-over"


@dataclass
class Verified:
    """The totals of a ledger that verified."""

    sites: int = 0
    lines: int = 0
    releases: int = 0
    refusals: int = 0
    receipts: int = 0
    head: str = ""
    epsilon: float = 0.0
    """The largest epsilon that any one site spent, by its own lines."""
    delta: float = 0.0
    signer: str = ""
    """Who signed the head, by its own word: an identity's fingerprint or, in older ledgers, a key."""
    signed_by: str = ""
    """Whose signature that is; empty when the signer is not known."""
    site_heads: int = 0
    """In a hub's ledger: how many lines carry the signed head of the site's own ledger."""
    known_sites: list[str] = field(default_factory=list)
    """Whose heads among these were checked against a key that is known here."""
    bound: int = 0
    """How many files the run's result line holds the hashes of, all of which are as they were."""
    uncovered: list[str] = field(default_factory=list)
    """Files of the run folder that the result line does not cover."""
    notes: list[str] = field(default_factory=list)

    @property
    def pinned(self) -> bool:
        """Whether the signer is known. Only then the ledger is sound; otherwise it is consistent."""
        return bool(self.signed_by)


@dataclass
class _End:
    length: int = 0
    hash: str = START
    receipt: str = ""
    policy: dict[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    accounts: dict[str, tuple[float, float]] = field(default_factory=dict)
    answered: dict[str, set[tuple[str, str, int]]] = field(default_factory=dict)
    sender: dict[str, str] = field(default_factory=dict)
    """In a hub's ledger: the identity of the site that the chain is about."""
    said: tuple[int, str] = (0, START)
    """In a hub's ledger: where the site's own chain ended, as the site signed last."""


@dataclass
class _Walk:
    order: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=32))
    ends: dict[str, _End] = field(default_factory=dict)
    by_request: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Line number by line hash."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Length of the line's chain, up to the line, by line hash."""
    handed_over: list[tuple[int, str, str]] = field(default_factory=list)
    """Key rotations of a site: line number, old key, new key."""
    receipts_quoted: list[tuple[str, str]] = field(default_factory=list)

    def take(self, line: dict[str, Any], own: str, number: int, end: _End) -> None:
        """Add a valid line: its hash `own` becomes the end of its chain."""
        site, event = str(line["site"]), line["event"]
        if line["receipt"] != end.receipt:
            self.receipts_quoted.append((site, line["receipt"]))
            end.receipt = line["receipt"]
        end.hash, end.length = own, end.length + 1
        self.order.update(own.encode())
        self.numbers[own], self.lengths[own] = number, end.length
        if event == "note" and line["what"] == "keys":
            self.handed_over += _hand_over(number, str(line["reason"]))
        if event in {"release", "refusal"}:
            self.by_request.setdefault(line["request"], []).append((site, own))


def find_ledger(folder: Path) -> Path:
    """Find the ledger folder of a run.

    Args:
        folder: A run folder, or a ledger folder.

    Returns:
        The ledger folder. It counts as one when any of its three files exists, so that a missing file is noticed later.

    Raises:
        ConfigError: There is no ledger.
    """
    for candidate in (folder / "ledger", folder):
        if any((candidate / name).is_file() for name in ("ledger.jsonl", "head.json", "receipts.jsonl")):
            return candidate
    raise ConfigError(f"{folder} holds no ledger", hint="Give the --out folder of a run")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read ledger lines without verifying them, for display.

    Args:
        path: The file `ledger.jsonl`.

    Yields:
        Each line as a mapping.

    Raises:
        IntegrityError: The file is missing, cut off, or holds a line that is not a JSON object.
    """
    for raw in raw_lines(path):
        yield parse_line(raw, path.name)


def verify_ledger(folder: Path, *, pins: Pins | None = None) -> Verified:
    """Verify all chains, claims, signatures and receipts of a ledger, and the results that are bound to it.

    Args:
        folder: A run folder, or a ledger folder.
        pins: Whose signature it must or may carry; without any, every ledger's signer is unknown.

    Returns:
        The ledger's totals, and whose signature was checked.

    Raises:
        ConfigError: There is no ledger.
        IntegrityError: Something does not verify; the message names the file and the line.
    """
    place = find_ledger(folder)
    try:
        return _verify(place, pins or Pins())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Hashes need no secret, so a forger can write lines of any shape that hold by themselves.
        raise IntegrityError("the ledger holds values of the wrong type") from error


def _verify(place: Path, pins: Pins) -> Verified:
    head, signer = read_head(place / "head.json")
    result = Verified(sites=len(head["chains"]), head=_fingerprint(head), signer=signer.shown)
    result.signed_by = pins.whose(signer)
    lines = raw_lines(place / "ledger.jsonl")
    walk = _walk_chains(lines, result)
    pins.check_chains([site for site, end in walk.ends.items() if not end.sender], signer)
    for site, (length, last) in head["chains"].items():
        end = walk.ends.pop(site, _End())
        if end.sender and pins.check_site(site, end.sender["fingerprint"]):
            result.known_sites.append(site)
        if (end.length, end.hash) != (length, last):
            raise IntegrityError(f"the ledger of site {site!r} does not end where its signed head says")
    if walk.ends:
        raise IntegrityError(f"{len(walk.ends)} chains are not covered by the signed head")
    if walk.order.hexdigest() != head["order"]:
        raise IntegrityError("the lines of the ledger are not in the order they were written in")
    _walk_receipts(place / "receipts.jsonl", head, walk, result)
    pins.check_hub(head["hub_key"], receipts=result.receipts)
    bound = verify_results(place, signer=signer, before=head["version"] == 1)
    result.bound, result.uncovered = bound.files, list(bound.uncovered)
    result.notes += bound.notes
    return result


def read_head(path: Path) -> tuple[dict[str, Any], SignedBy]:
    """Read a ledger's head and check its signature.

    Args:
        path: The file `head.json`.

    Returns:
        The head, and who signed it.

    Raises:
        IntegrityError: It is missing, was changed, or is not signed.
    """
    lines = raw_lines(path)
    if len(lines) != 1:
        raise IntegrityError(f"{path.name} must hold exactly one line")
    head = parse_line(lines[0], path.name)
    if canonical_bytes(head) != lines[0]:
        raise IntegrityError(f"{path.name} is not in canonical form: it was rewritten")
    statement = {key: value for key, value in head.items() if key != "signature"}
    version = statement.get("version")
    if type(version) is not int or set(statement) != _HEADS.get(version):
        raise IntegrityError(f"{path.name} is not a ledger head of this version of kohort")
    if version == 2:
        return head, signed_statement(head, purpose=_HEAD_PURPOSE, where="the ledger head")
    signature = head.get("signature")
    if not isinstance(signature, str) or not holds(
        head["site_key"], canonical_bytes(statement), signature, purpose=None
    ):
        raise IntegrityError("the signature of the ledger head is invalid")
    return head, SignedBy(key=head["site_key"])


def _fingerprint(head: dict[str, Any]) -> str:
    return hashlib.blake2b(canonical_bytes(head["chains"]), digest_size=16).hexdigest()


def checked_chain(path: Path) -> list[dict[str, Any]]:
    """Check the hash chains of a ledger file; heads and receipts are not checked.

    Args:
        path: The file `ledger.jsonl`.

    Returns:
        Its lines, in order.

    Raises:
        IntegrityError: A line was changed, removed or moved.
    """
    lines = []
    ends: dict[str, _End] = {}
    for number, raw in enumerate(raw_lines(path), 1):
        line, own = checked_line(raw, path.name, number)
        end = ends.setdefault(str(line["site"]), _End())
        if line["prev"] != end.hash or line["seq"] != end.length:
            raise IntegrityError(f"{path.name}, line {number}: the chain is broken, a line is missing or moved")
        end.hash, end.length = own, end.length + 1
        lines.append(line)
    return lines


def checked_receipts(path: Path) -> list[dict[str, Any]]:
    """Check the hash chain of a receipts file; signatures are not checked.

    Args:
        path: The file `receipts.jsonl`.

    Returns:
        The receipts, in order.

    Raises:
        IntegrityError: A receipt was changed, removed or moved.
    """
    lines, last = [], START
    for number, raw in enumerate(raw_lines(path), 1):
        line, own = checked_line(raw, path.name, number)
        if line["prev"] != last or line["seq"] != number - 1:
            raise IntegrityError(f"{path.name}, line {number}: the chain of receipts is broken")
        last = own
        lines.append(line)
    return lines


def _walk_chains(lines: list[bytes], result: Verified) -> _Walk:
    """Check every line of all chains, and collect what the head and the receipts are compared with."""
    walk = _Walk()
    name = "ledger.jsonl"
    for number, raw in enumerate(lines, 1):
        line, own = checked_line(raw, name, number)
        end = walk.ends.setdefault(str(line.get("site")), _End())
        against = _line_fault(line, end) or _head_fault(line, end, result) or _claim_fault(line, end, result)
        if against:
            raise IntegrityError(f"{name}, line {number}: {against}")
        walk.take(line, own, number, end)
        result.lines += 1
        result.releases += line["event"] == "release"
        result.refusals += line["event"] == "refusal"
    return walk


def _line_fault(line: dict[str, Any], end: _End) -> str:
    """What is wrong with a line's fields or its place in the chain; empty if nothing is."""
    event = line.get("event")
    fields = set(line) - {"hash", "time", "site_head"} - _ALWAYS
    if event not in _FIELDS or fields not in (_FIELDS[event], _FIELDS[event] | _SINCE) or not set(line) >= _ALWAYS:
        return "not a ledger line of this version of kohort"
    if line["prev"] != end.hash or line["seq"] != end.length:
        return "the chain is broken, a line is missing or moved"
    if (event == "open") != (end.length == 0):
        return "a chain must begin with its one opening line"
    return ""


def _head_fault(line: dict[str, Any], end: _End, result: Verified) -> str:
    """What is wrong with the site's own head in a line of a hub's ledger; empty if nothing is."""
    if line["event"] == "open":
        end.sender = line["binding"].get("identity", {})
    if "site_head" not in line:
        return "the head of the site's own ledger is missing" if end.sender and line["event"] == "release" else ""
    length, last, signature = line["site_head"]
    if not end.sender or type(length) is not int:
        return "the head of a site's own ledger is out of place"
    said = ends_digest([[line["site"], length, last]])
    if not holds(end.sender["signing"], said.encode(), signature, purpose=_HEAD_PURPOSE):
        return "the head of the site's own ledger is not signed by the site"
    if length < end.said[0] or (length == end.said[0] and last != end.said[1]):
        return "the site's own ledger went back"
    end.said = (length, last)
    result.site_heads += 1
    return ""


def _claim_fault(line: dict[str, Any], end: _End, result: Verified) -> str:
    """What is wrong with a line's claim; empty if nothing is. Adds what it spends to the totals."""
    if line["event"] == "open" and isinstance(line["binding"].get("policy"), dict):
        end.policy = line["binding"]["policy"]
    if "guarantee" not in line:
        return ""
    parse_guarantee(line["guarantee"])
    if line["event"] != "release" or line["guarantee"]["kind"] != "dp":
        return ""
    return _spend(end, line["guarantee"], (line["to"], line["what"], line["round"]), result)


def _hand_over(number: int, text: str) -> list[tuple[int, str, str]]:
    """The key rotation a note describes, if the old key signed it; otherwise nothing."""
    old, _, rest = text.partition(" ")
    new, _, signature = rest.partition(" ")
    is_signed = holds(old, new.encode(), signature, purpose=_HANDOVER_PURPOSE) or holds(
        old, b"kohort ledger hand-over " + new.encode(), signature, purpose=None
    )
    return [(number, old, new)] if is_signed else []


def _key_at(walk: _Walk, number: int, last: str) -> str:
    """The site's key when line `number` was written: the head's key `last`, undoing every later rotation."""
    for changed, old, new in reversed(walk.handed_over):
        if new == last and number < changed:
            last = old
    return last


def _spend(end: _End, claim: dict[str, Any], question: tuple[str, str, int], result: Verified) -> str:
    """Add up what a private release spent. Returns what is wrong with it; empty if nothing is."""
    charge = claim["epsilon"] if claim.get("charge") is None else claim["charge"]
    part = claim["delta"] if claim.get("delta_charge") is None else claim["delta_charge"]
    if not all(isinstance(value, int | float) and 0 <= value < inf for value in (charge, claim["epsilon"])):
        return "epsilon is not a finite number of at least 0"
    if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in (part, claim["delta"])):
        return "delta is not a number from 0 to 1"
    # A charge of exactly 0 spends nothing; a claim of epsilon 0 without a charge still spends its delta.
    against = _pay(end, claim, charge, 0.0 if claim.get("charge") == 0 else part, question)
    if not against and claim.get("void") and end.policy and not end.policy.get("void_dp"):
        against = "a release had a void claim, which the site's policy forbids"
    if against or claim.get("charge") == 0:
        return against
    read = parse_guarantee(claim)
    if isinstance(read, DP):
        end.budget.charge(read, to=question[0])
    epsilon, delta = end.budget.epsilon, end.budget.delta
    result.epsilon, result.delta = max(result.epsilon, epsilon), max(result.delta, delta)
    return _over_limit(end, epsilon=epsilon, delta=delta)


def _pay(end: _End, claim: dict[str, Any], charge: float, delta: float, question: tuple[str, str, int]) -> str:
    """Record a charge on the claim's account. Returns what is wrong with the payment; empty if nothing is."""
    account = claim.get("account", "")
    before = end.accounts.get(account, (0.0, 0.0)) if account else (0.0, 0.0)
    paid = (before[0] + charge, before[1] + delta)
    if paid[0] * _ROUNDING < claim["epsilon"] or paid[1] * _ROUNDING < claim["delta"]:
        return f"epsilon {claim['epsilon']:g} is claimed, but only {paid[0]:g} was paid for it"
    if account:
        end.accounts[account] = paid
        answered = end.answered.setdefault(account, set())
        if question in answered and claim.get("charge") == 0:
            return "the same round was answered twice for one payment"
        answered.add(question)
    return ""


def _over_limit(end: _End, *, epsilon: float, delta: float) -> str:
    """Which limit of the site's policy is exceeded; empty if none is."""
    for what, spent in (("epsilon", epsilon), ("delta", delta)):
        limit = end.policy.get(what)
        if isinstance(limit, int | float) and spent > limit * _ROUNDING:
            return f"{what} {spent:g} is spent, more than the {limit:g} the site's policy allows"
    return ""


def _walk_receipts(path: Path, head: dict[str, Any], walk: _Walk, result: Verified) -> None:
    last, known = START, set()
    for number, raw in enumerate(raw_lines(path), 1):
        line, own = checked_line(raw, path.name, number)
        against = _receipt_fault(line, number, last, head, walk)
        if against:
            raise IntegrityError(f"{path.name}, line {number}: {against}")
        last = own
        known.add(own)
        result.receipts += 1
    if [result.receipts, last] != head["receipts"]:
        raise IntegrityError(f"{path.name} does not end where the signed head says")
    for site, receipt in walk.receipts_quoted:
        if receipt not in known:
            raise IntegrityError(f"the ledger of site {site!r} quotes a receipt the hub did not issue")


def _receipt_fault(line: dict[str, Any], number: int, last: str, head: dict[str, Any], walk: _Walk) -> str:
    """What is wrong with a receipt; empty if nothing is."""
    if line["prev"] != last or line["seq"] != number - 1:
        return "the chain of receipts is broken"
    ends: dict[str, str] = {}
    for site, line_hash in walk.by_request.get(line["request"], []):
        ends[site] = line_hash
    if "end" in line:
        against = _end_fault(line["end"], ends, walk)
        if against:
            return against
        ends = dict.fromkeys(ends, line["end"][1])
    version = line.get("version", 1)
    heads = _heads(ends, walk, version)
    if heads != line["heads"] or len(ends) != line["sites"]:
        return "the receipt does not match the ledger lines of its request"
    written = max((walk.numbers[line_hash] for line_hash in ends.values()), default=0)
    by_site, by_hub = (None, None) if version == 1 else (_HEAD_PURPOSE, _RECEIPT_PURPOSE)
    site_key = _key_at(walk, written, head["site_key"])
    site_signs = holds(site_key, heads.encode(), line["site_signature"], purpose=by_site)
    message = canonical_bytes([last, line["request"], heads])
    hub_signs = holds(head["hub_key"], message, line["hub_signature"], purpose=by_hub)
    return "" if site_signs and hub_signs else "a signature is invalid"


def _heads(ends: dict[str, str], walk: _Walk, version: int) -> str:
    """What the site signed of the ends of chains; receipts of version 1 were over the hashes alone."""
    if version == 1:
        return hashlib.blake2b("".join(ends[site] for site in sorted(ends)).encode(), digest_size=32).hexdigest()
    return ends_digest([[site, walk.lengths[ends[site]], ends[site]] for site in sorted(ends)])


def _end_fault(end: list[Any], ends: dict[str, str], walk: _Walk) -> str:
    """A real site's receipt names where the chain stood: at the line of its request, or later."""
    length, last = end
    if walk.lengths.get(last) != length:
        return "the hub's receipt is about a line that is not in the ledger"
    if len(ends) != 1 or length < walk.lengths[next(iter(ends.values()))]:
        return "the receipt is older than the ledger line of its request"
    return ""
