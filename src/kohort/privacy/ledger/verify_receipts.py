"""Verify a hub's receipts for one site, and compare a site's ledger with what its hub holds of it.

This module shares no code with the writers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.checks import START, canonical_bytes, checked_line, ends_digest, holds, raw_lines
from kohort.privacy.ledger.verify import checked_chain, find_ledger, read_head

__all__ = ["Compared", "SiteReceiptsFound", "compare_ledgers", "verify_site_receipts"]

_HEAD, _RECEIPT, _HANDOVER = "ledger head", "receipt", "ledger hand-over"
_SENT = ("what", "to", "via", "round", "request", "guarantee", "rows", "size")
"""What a site's line of a release and the hub's line of it have in common."""


@dataclass
class SiteReceiptsFound:
    """The receipts of one site at a hub."""

    receipts: int = 0
    length: int = 0
    """How long the site's ledger was at the last one."""
    former: int = 0
    """How many are signed by the site's former keys, or from before signatures had purposes."""


def verify_site_receipts(path: Path, *, site: str, site_key: str, hub_key: str) -> SiteReceiptsFound:
    """Verify the receipts of one site at its hub: the chain, the hub's signatures and the site's.

    Args:
        path: The file `receipts.jsonl`.
        site: The site's name.
        site_key: Its registered signing key.
        hub_key: The hub's own signing key.

    Returns:
        What they show. Receipts from before the site's key was registered are counted as `former`; after the first
        receipt under the registered key there may be none under another.

    Raises:
        IntegrityError: A receipt was changed, removed or moved, is not signed, or goes back.
    """
    found, last, end = SiteReceiptsFound(), START, (0, "")
    for number, raw in enumerate(raw_lines(path), 1):
        line, own = checked_line(raw, path.name, number)
        against = _fault(line, number, last, hub_key) or _of_another_site(line, site)
        if not against and "end" in line:
            now = (line["end"][0], line["end"][1])
            went_back = now[0] < end[0] or (now[0] == end[0] and end[1] != now[1])
            against = "the site's ledger went back" if went_back else ""
            end = now
        if against:
            raise IntegrityError(f"{path.name} of site {site!r}, line {number}: {against}")
        if not _is_of_site(line, site, site_key):
            if found.receipts > found.former:
                raise IntegrityError(f"{path.name} of site {site!r}, line {number}: the site did not sign it")
            found.former += 1
        found.receipts, found.length, last = found.receipts + 1, end[0], own
    return found


def _fault(line: Mapping[str, Any], number: int, last: str, hub_key: str) -> str:
    if line["prev"] != last or line["seq"] != number - 1:
        return "the chain of receipts is broken"
    purpose = None if line.get("version", 1) == 1 else _RECEIPT
    message = canonical_bytes([last, line["request"], line["heads"]])
    return "" if holds(hub_key, message, line["hub_signature"], purpose=purpose) else "the hub did not sign it"


def _of_another_site(line: Mapping[str, Any], site: str) -> str:
    named = "end" not in line or line["heads"] == ends_digest([[site, *line["end"]]])
    return "" if named else "it is about another site or another head"


def _is_of_site(line: Mapping[str, Any], site: str, key: str) -> bool:
    if "end" not in line:
        return holds(key, line["heads"].encode(), line["site_signature"], purpose=None)
    return holds(key, ends_digest([[site, *line["end"]]]).encode(), line["site_signature"], purpose=_HEAD)


@dataclass
class Compared:
    """A site's ledger beside what its hub holds of it."""

    heads: int = 0
    """How many heads that the site signed the hub holds; all are lines of the ledger."""
    furthest: int = 0
    """The length of the site's ledger that the hub knows of."""
    releases: int = 0
    """How many releases the hub wrote down; the site's ledger has them all."""
    length: int = 0
    """How long the site's ledger is."""
    unacknowledged: int = field(default=0)
    """How many of its lines the hub knows nothing of: those after `furthest`."""


def compare_ledgers(folder: Path, against: Path) -> Compared:
    """Compare a site's ledger, which was verified, with the hub's receipts for it or the ledger of a hub's run.

    Args:
        folder: The site's folder, or its ledger folder.
        against: The hub's folder, the folder of the site's receipts there, or the folder of a run of the hub.

    Returns:
        How far they agree.

    Raises:
        ConfigError: `against` holds nothing about this site.
        IntegrityError: The hub holds a head that the site signed, or a release, which the site's ledger lacks.
    """
    place = find_ledger(folder)
    lines = checked_chain(place / "ledger.jsonl")
    head, _ = read_head(place / "head.json")
    if len(head["chains"]) != 1:
        raise ConfigError(f"{folder} is not the ledger of one site", hint="Compare the ledger of a real site")
    site = str(next(iter(head["chains"])))
    keys = {head["site_key"], *_former_keys(lines)}
    result = Compared(length=len(lines))
    ends, sent, issued = _held_by_hub(against, site)
    if issued is not None:
        _check_receipts(place / "receipts.jsonl", issued, site)
    for length, last, signature in ends:
        _check_end(lines, site, keys, (length, last, signature))
        result.heads, result.furthest = result.heads + 1, max(result.furthest, length)
    own = {canonical_bytes([line[key] for key in _SENT]) for line in lines if line["event"] == "release"}
    for line in sent:
        if canonical_bytes([line[key] for key in _SENT]) not in own:
            raise IntegrityError(
                f"the hub received {line['what']!r} of round {line['round']}, and the ledger of site {site!r} lacks it",
                hint="The site's ledger was rewritten, or the hub's was: compare their signed heads",
            )
        result.releases += 1
    result.unacknowledged = result.length - result.furthest
    return result


def _check_end(lines: list[dict[str, Any]], site: str, keys: Collection[str], end: tuple[int, str, str]) -> None:
    length, last, signature = end
    said = ends_digest([[site, length, last]]).encode()
    if not any(holds(key, said, signature, purpose=_HEAD) for key in keys):
        raise IntegrityError(f"the hub holds a head of line {length} that site {site!r} did not sign")
    if not 0 < length <= len(lines) or lines[length - 1]["hash"] != last:
        raise IntegrityError(
            f"the hub holds a head that site {site!r} signed at line {length}, and the ledger lacks that line",
            hint="The ledger was cut, rewritten or restored from an earlier day: put the newest copy back",
        )


def _former_keys(lines: list[dict[str, Any]]) -> list[str]:
    """The keys that the site handed over to new ones, each with the old key's signature."""
    found = []
    for line in lines:
        if line["event"] == "note" and line["what"] == "keys":
            old, _, rest = str(line["reason"]).partition(" ")
            new, _, signature = rest.partition(" ")
            if holds(old, new.encode(), signature, purpose=_HANDOVER) or holds(
                old, b"kohort ledger hand-over " + new.encode(), signature, purpose=None
            ):
                found.append(old)
    return found


def _check_receipts(path: Path, issued: list[str], site: str) -> None:
    """The receipts that the site keeps must be those that the hub has, in their order."""
    kept = [checked_line(raw, path.name, number)[1] for number, raw in enumerate(raw_lines(path), 1)]
    if kept != issued[: len(kept)]:
        raise IntegrityError(
            f"the hub lacks receipts that site {site!r} holds with the hub's signature",
            hint="The hub's receipts were cut, rewritten or restored from an earlier day: put the newest copy back",
        )


def _held_by_hub(against: Path, site: str) -> tuple[list[tuple[int, str, str]], list[dict[str, Any]], list[str] | None]:
    """The heads of a site that a hub's files hold, the hub's lines of the site's releases, and the receipts' hashes."""
    for place in (against / "receipts" / site, against):
        path = place / "receipts.jsonl"
        if path.is_file() and not (place / "ledger.jsonl").is_file():
            receipts = [checked_line(raw, path.name, number) for number, raw in enumerate(raw_lines(path), 1)]
            ends = [(*line["end"], line["site_signature"]) for line, _ in receipts if "end" in line]
            return ends, [], [own for _, own in receipts]
    lines = [line for line in checked_chain(find_ledger(against) / "ledger.jsonl") if line["site"] == site]
    if not lines:
        raise ConfigError(
            f"{against} holds nothing about site {site!r}", hint="Give the hub's folder, or one of its runs"
        )
    return (
        [tuple(line["site_head"]) for line in lines if "site_head" in line],
        [line for line in lines if line["event"] == "release"],
        None,
    )
