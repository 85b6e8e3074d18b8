"""`kohort report`: one self-contained HTML page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, today

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
    purpose: Annotated[str, typer.Option(help="Purpose of the processing, for page one.")] = "",
    date: Annotated[str, typer.Option(help="The date of the report; today's (UTC) when unset.")] = "",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write one HTML page about a run, or one that compares several, and its JSON twin.

    Verifies the ledger of every run first; exits with 6 when a run or its ledger was changed. With --audit, a report of
    the same runs is replaced; other files need --force.

    Example: kohort report out/fedavg
    """
    from kohort.report.about import About
    from kohort.report.curves import read_runs_with_curves
    from kohort.report.page import json_path, write_report
    from kohort.report.printing import find_browser, pdf_path, print_pdf
    from kohort.report.runs import read_shared_plan
    from kohort.report.trade_off import read_settings

    page = out if out is not None else folder / ("report-external.html" if external else "report.html")
    _keep_audit(json_path(page), audit)
    browser = find_browser() if pdf else None
    written = [page, json_path(page), *([pdf_path(page)] if pdf else [])]
    if audit is None:
        _require_new(written, force=force)
    runs = read_runs_with_curves(folder)
    if audit is not None:
        _require_new(written, force=force or _is_of(json_path(page), runs))
    runs = _with_audit(runs, folder, audit)
    twin = write_report(
        page,
        runs,
        title=title or _heading(runs),
        plan=read_shared_plan(folder),
        edition="external" if external else "internal",
        settings=read_settings(folder),
        about=About(purpose=purpose, date=date or today()),
    )
    if browser is not None:
        print_pdf(page, pdf_path(page), browser=browser)
    _warn(runs)
    if json:
        printed = {"pdf": str(pdf_path(page))} if pdf else {}
        emit({"out": str(page), "json": str(twin), **printed, "runs": len(runs)})
    else:
        say(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, ledgers verified where present. Written to {page}")


def _keep_audit(twin: Path, audit: Path | None) -> None:
    """Refuse a page whose JSON twin would take the place of the audit that it shows."""
    from kohort.errors import ConfigError

    if audit is not None and twin.resolve() == audit.resolve():
        hint = "Give the page or the audit another name"
        raise ConfigError(f"the page's JSON twin {twin.name} would replace the audit", hint=hint)


def _require_new(paths: list[Path], *, force: bool) -> None:
    from kohort.files import require_new

    for path in paths:
        require_new(path, force=force)


def _with_audit(runs: list[dict[str, Any]], folder: Path, audit: Path | None) -> list[dict[str, Any]]:
    """Runs with the findings of the given audit, or of the one beside them."""
    from kohort.report.audits import AUDIT_FILE, with_audits

    beside = audit or (folder / AUDIT_FILE if (folder / AUDIT_FILE).is_file() else None)
    return runs if beside is None else with_audits(runs, beside)


def _heading(runs: list[dict[str, Any]]) -> str:
    return f"A run of {runs[0]['method']}" if len(runs) == 1 else f"{len(runs)} runs compared"


def _warn(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        for note in run["ledger"]["notes"] if run.get("ledger") else ():
            say(f"warning: {run.get('name') or run['method']}: {note}")


def _is_of(twin: Path, runs: list[dict[str, Any]]) -> bool:
    """Whether a report of the same runs is there, which one with an audit says more than."""
    from json import loads

    try:
        known = loads(twin.read_bytes())["runs"]
        return [run.get("ledger_head") for run in known] == [run.get("ledger_head") for run in runs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
