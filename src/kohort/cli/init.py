"""`kohort init`: a commented first plan for tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("init")(init)


def init(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="One table, or three and more: one per site.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PLAN.toml", help="Where the plan goes.")],
    target: Annotated[str | None, typer.Option("--target", metavar="y", help="The column to predict.")] = None,
    goal: Annotated[
        str, typer.Option("--goal", help="predict: a model, no row leaves. release: train on anonymised rows.")
    ] = "predict",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a commented plan that runs as it is, with suggested roles.

    Example: kohort init patients.csv --target died --out plan.toml
    """
    from kohort.errors import RefusedError
    from kohort.files import require_new, write_atomic
    from kohort.runs.suggest import suggest_plan

    if len(tables) == 2:
        raise RefusedError(
            "a secure sum needs three sites, and two tables are given",
            hint="Give three, or one table that is dealt out to simulated sites",
        )
    require_new(out, force=force)
    made = suggest_plan(tables, target=target, goal=goal)  # type: ignore[arg-type] # any other word is refused there
    write_atomic(out, made.text.encode())
    if json:
        emit(
            {
                "out": str(out),
                "target": made.target,
                "task": {"kind": made.task.task, "why": made.task.why},
                "identifiers": list(made.identifiers),
                "person": made.person,
                "method": made.method,
            }
        )
        return
    for name, why in made.identifiers.items():
        say(f"note: column {name!r} {why}; it is an identifier in the plan")
    say(f"target {made.target}: {made.task.task} ({made.task.why}). Written to {out}")
    say(f"next: kohort run {out} --out out")
