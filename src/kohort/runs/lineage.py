"""Withdrawal lineage: which releases, rounds and models one site's contribution is in, and what forgetting would take.

Everything is read from ledgers that verify, never from what a run says of itself. A ledger shows what left; what its
recipients made of it outside kohort, nobody can read from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.claim_words import claim_in_words
from kohort.privacy.guarantee import Guarantee, parse_guarantee
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.results import hash_of_file
from kohort.privacy.ledger.verify import find_ledger, read_lines, verify_ledger
from kohort.privacy.releases import ReleaseAccount

__all__ = ["Contribution", "SiteLineage", "lineage_of", "releases_with_person"]

ROWS = frozenset({"raw", "k-anonymous", "k-km"})
NUMBERS = frozenset({"aggregate", "domain"})
TOTALS = frozenset({"secure-sum", "encrypted", "cells", "pairs"})


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a site sent to one recipient for one task under one guarantee.

    Attributes:
        recipient: Who got it.
        what: The task that made it.
        kind: The kind of guarantee.
        guarantee: The guarantee of the last of them, in words.
        releases: How often.
        rounds: The first and the last round.
        rows: The largest number of rows behind one release.
        size: Bytes of all of them.
    """

    recipient: str
    what: str
    kind: str
    guarantee: str
    releases: int
    rounds: tuple[int, int]
    rows: int
    size: int


@dataclass(frozen=True, kw_only=True)
class SiteLineage:
    """What one folder's ledger says of a site.

    Attributes:
        folder: The run folder, or the folder of a real site.
        signed_by: Whose signature was checked; empty when the signer is not known here.
        contributions: What the site sent.
        refusals: How many releases its door refused.
        models: The model files of the run and their SHA-256, where the site contributed to it.
        forgetting: What forgetting the site would take, in words.
    """

    folder: str
    signed_by: str
    contributions: tuple[Contribution, ...]
    refusals: int
    models: dict[str, str]
    forgetting: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def lineage_of(site: str, folder: Path, *, pins: Pins | None = None) -> SiteLineage:
    """Trace one site's contribution through a run, or through all runs of a real site.

    Args:
        site: The site's name.
        folder: A run folder, a real site's folder, or a ledger folder.
        pins: Whose signature is known here.

    Returns:
        The lineage; without contributions where the site's door let nothing out.

    Raises:
        ConfigError: The folder holds no ledger, or the ledger knows no such site.
        IntegrityError: The ledger, or a file bound to it, was changed.
    """
    verified = verify_ledger(folder, pins=pins)
    lines = list(read_lines(find_ledger(folder) / "ledger.jsonl"))
    own = [line for line in lines if line.get("site") == site]
    if not own:
        raise ConfigError(f"{folder} knows no site {site!r}", hint=f"It has {sites_of(folder)}")
    try:
        contributions = _contributions(line for line in own if line["event"] == "release")
    except (KeyError, TypeError) as error:
        raise IntegrityError("the ledger holds a malformed line", hint="Check it with: kohort ledger verify") from error
    gave = any(found.kind != "public" for found in contributions)
    models = _models(folder) if gave else {}
    return SiteLineage(
        folder=str(folder),
        signed_by=verified.signed_by,
        contributions=contributions,
        refusals=sum(line["event"] == "refusal" for line in own),
        models=models,
        forgetting=_forgetting(site, contributions, models),
    )


def sites_of(folder: Path) -> str:
    """The sites that a ledger knows, in words.

    Args:
        folder: A run folder, a real site's folder, or a ledger folder.

    Returns:
        Their names, the first ones of many.

    Raises:
        ConfigError: The folder holds no ledger.
    """
    return _listed(sorted({str(line.get("site")) for line in read_lines(find_ledger(folder) / "ledger.jsonl")}))


def releases_with_person(account: Path, person: str) -> tuple[str, ...]:
    """Which releases of anonymised rows hold a person, by the release account of a site.

    Args:
        account: `releases.jsonl` of a real site, or the file of `kohort anonymize --account`.
        person: The person's key, as it stands in the person column.

    Returns:
        Names of the releases, in their order.

    Raises:
        ConfigError: There is no such account.
        IntegrityError: The account was damaged.
    """
    if not account.is_file():
        raise ConfigError(f"there is no release account at {account}", hint="Give --account FILE")
    return ReleaseAccount(account).with_person(person)


def _contributions(lines: Iterable[dict[str, Any]]) -> tuple[Contribution, ...]:
    groups: dict[tuple[str, str, str], list[tuple[dict[str, Any], Guarantee]]] = {}
    for line in lines:
        claim = parse_guarantee(line["guarantee"])
        groups.setdefault((line["to"], line["what"], claim.kind), []).append((line, claim))
    return tuple(_contribution(place, group) for place, group in groups.items())


def _contribution(place: tuple[str, str, str], group: Sequence[tuple[dict[str, Any], Guarantee]]) -> Contribution:
    rounds = [line["round"] for line, _ in group]
    return Contribution(
        recipient=place[0],
        what=place[1],
        kind=place[2],
        guarantee=claim_in_words(group[-1][1], to=place[0]),
        releases=len(group),
        rounds=(min(rounds), max(rounds)),
        rows=max(line["rows"] for line, _ in group),
        size=sum(line["size"] for line, _ in group),
    )


def _models(folder: Path) -> dict[str, str]:
    """Model files of a run folder; `verify_ledger` has compared them with the signed closing line."""
    place = folder / "model"
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else []
    return {str(path.relative_to(folder)): hash_of_file(path) for path in files if path.suffix != ".md"}


def _forgetting(site: str, found: Sequence[Contribution], models: dict[str, str]) -> tuple[str, ...]:
    """What it would take, recipient by recipient, then for the model."""
    texts = []
    for recipient in sorted({item.recipient for item in found}):
        kinds = {item.kind for item in found if item.recipient == recipient}
        if kinds & ROWS:
            command = f"kohort hub forget HUB {site}" if recipient == "hub" else "its operator has to do it"
            texts.append(f"{recipient} holds rows of {site}: delete them there ({command})")
        if kinds & NUMBERS:
            texts.append(f"{recipient} was sent numbers of {site} alone, which cannot be called back")
        if kinds & TOTALS:
            texts.append(f"{recipient} was sent shares of totals; what was opened is over several sites and stays")
        if "dp" in kinds:
            texts.append(
                f"{recipient} was sent noisy results: they would be about as likely without any one unit of {site}, "
                "within the epsilon above, not without all of its rows"
            )
    if any(item.what.startswith("oneshot.") for item in found) and models:
        texts.append("the model: subtract a group of at least three sites (kohort.methods.oneshot.method.leave), exact")
    elif models:
        texts.append(f"the model: train again without {site}; nothing can be taken out of it otherwise")
    return tuple(texts)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
