"""`kohort init`: a commented first plan for tables."""

from __future__ import annotations

import sys
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
        str | None, typer.Option("--goal", help="predict: a model, no row leaves. release: train on anonymised rows.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", metavar="E", help="A privacy budget, such as 1.0, for --goal predict.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a commented plan that runs as it is, with suggested roles.

    In a terminal, without --target, --goal and --epsilon, three questions choose them.

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
    if target is None and goal is None and epsilon is None and not json and sys.stdin.isatty():
        target, goal, epsilon = _ask(suggest_plan(tables).target)
    # Any other word than the two goals is refused there.
    made = suggest_plan(tables, target=target, goal=goal or "predict", epsilon=epsilon)  # type: ignore[arg-type]
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
                "reading": list(made.reading),
                "null_values": {name: list(codes) for name, codes in made.null_values.items()},
            }
        )
        return
    for said in made.reading:
        say(f"note: {said}")
    for name, codes in made.null_values.items():
        marks = " and ".join(map(str, codes))
        say(f"note: column {name!r} holds {marks}, far from its other numbers; the plan reads it as a missing value")
    for name, why in made.identifiers.items():
        say(f"note: column {name!r} {why}; it is an identifier in the plan")
    say(f"target {made.target}: {made.task.task} ({made.task.why}). Written to {out}")
    say(f"next: kohort run {out} --out out")


def _ask(guessed: str) -> tuple[str, str, float | None]:
    """Three questions: what to predict, whether anonymised rows may be trained on, and how much noise."""
    target = typer.prompt("Which column is to be predicted?", default=guessed, err=True)
    if typer.confirm("Must every site anonymise its rows (k-anonymity) before it trains?", default=False, err=True):
        return target, "release", None
    if not typer.confirm("Must the model hide each person by noise (differential privacy)?", default=False, err=True):
        return target, "predict", None
    return target, "predict", typer.prompt("Epsilon (1 is strong, 4 is mild)", default=1.0, type=float, err=True)
