"""`kohort report`: one self-contained HTML page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("report")(report)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder that holds several.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page; DIR/report.html when unset.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE", help="Show what kohort audit --out FILE found.")
    ] = None,
    external: Annotated[
        bool, typer.Option("--external", help="Leave out what is about single sites and machines, for outsiders.")
    ] = False,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also print it to a PDF beside the page, by an installed Chromium.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write one HTML page about a run, or one that compares several, and its JSON twin.

    Verifies the ledger of every run first; exits with 6 when a run or its ledger was changed.

    Example: kohort report out/fedavg
    """
    from kohort.files import require_new
    from kohort.report.audits import AUDIT_FILE, with_audits
    from kohort.report.curves import read_runs_with_curves
    from kohort.report.page import json_path, write_report
    from kohort.report.printing import find_browser, pdf_path, print_pdf
    from kohort.report.runs import read_shared_plan
    from kohort.report.trade_off import read_settings

    name = "report-external.html" if external else "report.html"
    page = out if out is not None else folder / name
    browser = find_browser() if pdf else None
    for path in (page, json_path(page), *([pdf_path(page)] if pdf else [])):
        require_new(path, force=force)
    runs = read_runs_with_curves(folder)
    beside = audit or (folder / AUDIT_FILE if (folder / AUDIT_FILE).is_file() else None)
    if beside is not None:
        runs = with_audits(runs, beside)
    methods = list(dict.fromkeys(run["method"] for run in runs))
    heading = title or (f"A run of {methods[0]}" if len(runs) == 1 else f"{len(runs)} runs compared")
    twin = write_report(
        page,
        runs,
        title=heading,
        plan=read_shared_plan(folder),
        edition="external" if external else "internal",
        settings=read_settings(folder),
    )
    if browser is not None:
        print_pdf(page, pdf_path(page), browser=browser)
    for run in runs:
        if run.get("ledger"):
            for note in run["ledger"]["notes"]:
                say(f"warning: {run.get('name') or run['method']}: {note}")
    if json:
        emit({"out": str(page), "json": str(twin), "pdf": str(pdf_path(page)) if pdf else None, "runs": len(runs)})
    else:
        say(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, ledgers verified where present. Written to {page}")
