"""`kohort lineage`: which releases, rounds and models a site's contribution is in, and what forgetting would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import JsonOption, emit, say, stdout

if TYPE_CHECKING:
    from kohort.runs.lineage import SiteLineage

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("lineage")(lineage)


def lineage(
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")],
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="Run folders, or the folder of a real site.")
    ] = None,
    person: Annotated[
        str | None, typer.Option("--person", metavar="KEY", help="Also the releases that hold this person.")
    ] = None,
    account: Annotated[
        Path | None,
        typer.Option("--account", metavar="FILE", help="The release account; a site's folder has its own."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Trace what a site contributed: releases by recipient and round, models, and what forgetting it would take.

    Every ledger is verified first; exits with 6 when one was changed. A person is looked up in a release account, which
    holds keyed digests only; its file never leaves the site.

    Example: kohort lineage north out/fedavg out/partial
    """
    from kohort.errors import ConfigError
    from kohort.runs.lineage import lineage_of, releases_with_person, sites_of
    from kohort.transport.deployment.pins import pins_for

    if not folders:
        known = f"It has {sites_of(Path(site))}: kohort lineage SITE {site}" if Path(site).is_dir() else ""
        hint = known or f"Add the folders of runs: kohort lineage {site} DIR..."
        raise ConfigError("lineage needs the name of a site and the folder of a run", hint=hint)
    found = [lineage_of(site, folder, pins=pins_for(folder)) for folder in folders]
    result: dict[str, Any] = {"site": site, "runs": [item.to_mapping() for item in found]}
    if person is not None:
        places = [account] if account is not None else [folder / "releases.jsonl" for folder in folders]
        result["person_in"] = [name for place in places for name in releases_with_person(place, person)]
    if json:
        emit(result)
        return
    for item in found:
        _show(item)
    if person is not None:
        names = result["person_in"]
        say(f"the person is in {len(names)} releases{': ' if names else ''}{', '.join(names)}")


def _show(found: SiteLineage) -> None:
    from rich.table import Table

    table = Table("to", "what", "guarantee", "releases", "rounds", "rows", "bytes", title=found.folder)
    for item in found.contributions:
        first, last = item.rounds
        rounds = str(first) if first == last else f"{first}-{last}"
        counts = (str(item.releases), rounds, f"{item.rows:,}", f"{item.size:,}")
        table.add_row(item.recipient, item.what, item.guarantee, *counts)
    stdout().print(table)
    say(f"signed by {found.signed_by}" if found.signed_by else "consistent, signer unknown")
    if found.refusals:
        say(f"{found.refusals} releases were refused by its door")
    for name, digest in found.models.items():
        stdout().print(f"in {name}  sha256 {digest}", markup=False)
    for text in found.forgetting:
        stdout().print(f"to forget: {text}", markup=False)
