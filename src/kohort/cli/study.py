"""`kohort study`: re-run a paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, stdout

if TYPE_CHECKING:
    from kohort.studies.registry import Say, Study

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("study")(study)


def study(
    name: Annotated[str, typer.Argument(help="Which study; an unknown name lists them.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for study.json and the figures.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version that ends in minutes.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted study in DIR.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Re-run one paper's tables and figures and set the paper's figures beside ours.

    Example: kohort study anonymised --quick --out out/anonymised
    """
    import json as json_module

    from kohort.files import require_new, write_atomic
    from kohort.studies.registry import find_study

    chosen = find_study(name)
    run = chosen.run
    if resume:
        run = _resumed(chosen)
    else:
        require_new(out, force=force)
        out.mkdir(parents=True, exist_ok=True)
    result = run(out, quick, say)
    write_atomic(out / "study.json", (json_module.dumps(result, indent=1) + "\n").encode())
    if json:
        emit(result)
        return
    from rich.table import Table

    for part in result["tables"]:
        table = Table("setting", "paper", "ours", "sd", "difference", title=f"{part['name']} ({part['source']})")
        for row in part["rows"]:
            table.add_row(str(row["setting"]), *(_cell(row.get(key)) for key in ("paper", "ours", "sd", "delta")))
        stdout().print(table)
    for note in result["notes"]:
        stdout().print(f"- {note}", markup=False)
    stdout().print(f"Written to {out}", markup=False)


def _resumed(chosen: Study) -> Callable[[Path, bool, Say], dict[str, Any]]:
    """What goes on with an interrupted study."""
    from kohort.errors import ConfigError

    if chosen.resume is None:
        raise ConfigError(
            f"the study {chosen.name!r} keeps no finished runs", hint="Begin again: leave out --resume, add --force"
        )
    return chosen.resume


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
