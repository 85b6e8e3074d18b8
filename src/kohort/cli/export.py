"""`kohort export`: a finished run in formats that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say

__all__ = ["register"]

FORMATS = ("evidence", "crate", "card", "annex")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("export")(export)


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    as_: Annotated[str, typer.Option("--as", metavar="|".join(FORMATS), help="What to write.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE|DIR", help="A new file; for a crate, a new folder.")],
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE", help="Include what kohort audit --out FILE found.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a run as evidence records (JSON), a Five Safes RO-Crate, a model card or an annex for an assessment.

    Verifies the run and its ledger first; exits with 6 when one was changed. No export reads a table.

    Example: kohort export out/fedavg --as annex --out annex.md
    """
    from kohort.errors import ConfigError, nearest
    from kohort.files import require_new
    from kohort.report.exports.run_exports import export_run

    if as_ not in FORMATS:
        raise ConfigError(f"there is no export {as_!r}", hint=nearest(as_, FORMATS))
    require_new(out, force=force)
    written = export_run(folder, as_=as_, out=out, audit=audit, say=lambda note: say(f"warning: {note}"))
    if json:
        emit({"out": str(out), "files": [str(path) for path in written]})
    else:
        say(f"Written to {out}")
