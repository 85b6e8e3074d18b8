"""`kohort ledger`: show what left the sites, and verify that the record was not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import JsonOption, emit, say, stdout

__all__ = ["register"]

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a site's ledger folder.")]


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
    """Show what every site disclosed, by recipient.

    Example: kohort ledger show out/fedavg
    """
    from kohort.privacy.ledger.summary import summarise

    rows = summarise(folder)
    if json:
        emit({"disclosed": [row.to_mapping() for row in rows]})
        return
    from rich.table import Table

    table = Table("site", "to", "via", "what", "guarantee", "releases", "refused", "rows", "bytes", "epsilon")
    for row in rows:
        epsilon = "" if row.epsilon is None else f"{row.epsilon:.4g}"
        counts = (str(row.releases), str(row.refusals), str(row.rows), str(row.size), epsilon)
        table.add_row(row.site, row.recipient, row.via, row.what, row.guarantee, *counts)
    stdout().print(table)


def verify(folder: FolderArgument, json: JsonOption = False) -> None:
    """Check chains, signatures, heads and receipts; exits with 6 when a line was changed, moved or removed.

    Example: kohort ledger verify out/fedavg
    """
    from kohort.privacy.ledger.verify import verify_ledger

    found = verify_ledger(folder)
    if json:
        emit({"sound": True, **vars(found)})
    else:
        say(
            f"sound: {found.sites} sites, {found.lines} lines, {found.releases} releases, {found.refusals} refusals, "
            f"{found.receipts} receipts; head {found.head}"
        )
