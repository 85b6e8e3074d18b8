"""`kohort ledger`: show what left the sites, and verify that the record was not changed, and who signed it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import JsonOption, emit, say, stdout

if TYPE_CHECKING:
    from kohort.privacy.ledger.verify import Verified

__all__ = ["register"]

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder, a site's or a hub's folder, or a ledger folder.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    ledger = typer.Typer(
        name="ledger",
        help="Show or verify the ledgers of a run.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    ledger.command("show")(show)
    ledger.command("verify")(verify)
    app.add_typer(ledger)


def show(folder: FolderArgument, json: JsonOption = False) -> None:
    """Show what every site disclosed, by recipient. Verifies the ledger first; exits with 6 when it was changed.

    Example: kohort ledger show out/fedavg
    """
    from kohort.privacy.ledger.summary import summarise
    from kohort.privacy.ledger.verify import verify_ledger
    from kohort.transport.deployment.pins import pins_for

    found = verify_ledger(folder, pins=pins_for(folder))
    rows = summarise(folder)
    if json:
        emit({"disclosed": [row.to_mapping() for row in rows], "signed_by": found.signed_by, "notes": found.notes})
        return
    from rich.table import Table

    table = Table("site", "to", "via", "what", "guarantee", "releases", "refused", "rows", "bytes", "epsilon")
    for row in rows:
        epsilon = "" if row.epsilon is None else f"{row.epsilon:.4g}"
        counts = (str(row.releases), str(row.refusals), str(row.rows), str(row.size), epsilon)
        table.add_row(row.site, row.recipient, row.via, row.what, row.guarantee, *counts)
    stdout().print(table)
    say(f"{_verdict(found)}")
    for note in found.notes:
        say(f"note: {note}")


def verify(
    folder: FolderArgument,
    key: Annotated[str, typer.Option(metavar="FINGERPRINT", help="The key that must have signed it.")] = "",
    roster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A peers.toml with the fingerprints of sites.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Compare a site's ledger with its hub's folder, or with a run of the hub."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 6 when the signer is not known.")] = False,
    json: JsonOption = False,
) -> None:
    """Check chains, signatures, heads, receipts and bound results, and whose signature it is.

    Exits with 6 when anything was changed, moved or removed, or when another key signed it than it must: the site's own
    in a site's folder, the hub's and its registered sites' in a hub's, the one of --key elsewhere. A ledger is called
    sound only if its signer is known here; otherwise it is consistent, signer unknown.

    Example: kohort ledger verify out/fedavg
    """
    from kohort.transport.deployment.pins import is_hub_folder, pins_for

    if is_hub_folder(folder):
        _verify_hub(folder, key=key, roster=roster, against=against, strict=strict, json=json)
        return
    from kohort.errors import IntegrityError
    from kohort.privacy.ledger.verify import verify_ledger
    from kohort.privacy.ledger.verify_receipts import compare_ledgers

    found = verify_ledger(folder, pins=pins_for(folder, key=key, roster=roster))
    if strict and not found.pinned:
        raise IntegrityError(
            f"consistent, signer unknown: {found.signer}", hint="Ask its owner for the fingerprint, then give --key"
        )
    result: dict[str, Any] = {"sound": found.pinned, **vars(found)}
    if against is not None:
        result["against"] = dict(vars(compare_ledgers(folder, against)))
    if json:
        emit(result)
        return
    say(
        f"{_verdict(found)}: {found.sites} sites, {found.lines} lines, {found.releases} releases, "
        f"{found.refusals} refusals, {found.receipts} receipts; head {found.head}"
    )
    for line in _more(found, result.get("against")):
        say(line)


def _verdict(found: Verified) -> str:
    if found.pinned:
        return f"sound, signed by {found.signed_by}"
    return f"consistent, signer unknown ({found.signer})"


def _more(found: Verified, against: dict[str, int] | None) -> list[str]:
    lines = []
    if found.bound:
        lines.append(f"{found.bound} files of the run are as its signed closing line says")
    if found.uncovered:
        lines.append(f"not covered: {', '.join(found.uncovered)}")
    if found.site_heads:
        known = f"; checked against keys known here: {', '.join(found.known_sites)}" if found.known_sites else ""
        lines.append(f"{found.site_heads} lines carry the site's own signed head{known}")
    if against is not None:
        lines.append(
            f"agrees with the hub: {against['heads']} signed heads and {against['releases']} releases compared; "
            f"{against['unacknowledged']} of {against['length']} lines came after the last one the hub holds"
        )
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _verify_hub(folder: Path, *, key: str, roster: Path | None, against: Path | None, strict: bool, json: bool) -> None:
    from kohort.errors import ConfigError, IntegrityError
    from kohort.transport.deployment.pins import verify_hub_folder

    if against is not None:
        raise ConfigError(
            "a hub's folder is not compared with another", hint="Give a site's folder, --against the hub's"
        )
    found = verify_hub_folder(folder, key=key, roster=roster)
    if found.sound:
        verdict = f"sound, signed by {found.signed_by} and by its sites"
    elif found.receipts:
        verdict = f"consistent, signer unknown ({found.signer})"
    else:
        verdict = "nothing is signed here: no registered site has a receipt"
    if strict and not found.sound:
        raise IntegrityError(verdict, hint="Ask the hub's operator for its fingerprint, then give --key")
    if json:
        emit({"sound": found.sound, **vars(found)})
        return
    say(f"{verdict}: {found.sites} sites, {found.receipts} receipts")
    for name, item in found.by_site.items():
        former = f", {item['former']} under former keys" if item["former"] else ""
        say(f"{name}: {item['receipts']} receipts, its ledger is known up to line {item['length']}{former}")
    for note in found.notes:
        say(f"note: {note}")
