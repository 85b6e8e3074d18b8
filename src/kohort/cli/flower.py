"""`kohort flower`: run somebody else's Flower app behind this site's own policy."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import say, stdout

__all__ = ["register"]

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of settings, keys and ledger.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    flower = typer.Typer(
        name="flower",
        help="Run other people's Flower apps behind this site's policy and ledger.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    flower.command("init")(init)
    flower.command("start")(start)
    app.add_typer(flower)


def init(
    folder: FolderArgument,
    name: Annotated[str, typer.Option(help="Name of this site in its ledger.")],
    rows: Annotated[int | None, typer.Option(min=1, help="How many rows this site has.")] = None,
    app: Annotated[str, typer.Option(help="SHA-256 of the app's bundle (sha256sum APP.fab).")] = "",
) -> None:
    """Create a door: keys, a ledger, a secret for the SuperNode, and door.toml with the policy.

    Example: kohort flower init north --name north --rows 1200
    """
    from kohort.transport.deployment.app_site import SECRET, SETTINGS, AppSiteFolder
    from kohort.transport.flower.app_ledger import AppLedger

    AppSiteFolder.init(folder, name=name, rows=rows, app=app)
    say(f"read {folder / SETTINGS}, then start Flower's SuperNode with --isolation process and")
    say(f"--superexec-auth-secret-file {folder / SECRET}. The ledger is signed by the key with this fingerprint:")
    stdout().print(AppLedger(folder).identity().public.fingerprint)


def start(
    folder: FolderArgument,
    runtime: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The Runtime API of the SuperNode on this machine.")
    ] = "127.0.0.1:9094",
) -> None:
    """Run the approved app for a SuperNode until stopped with Ctrl-C.

    Example: kohort flower start north --runtime 127.0.0.1:9094
    """
    from kohort.transport.deployment.app_site import AppSiteFolder

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    door, policy = AppSiteFolder(folder).settings()
    say(f"{door.name}: waiting for messages of the SuperNode at {runtime}; min_rows = {policy.min_rows}")
    AppSiteFolder(folder).start(runtime=runtime)
