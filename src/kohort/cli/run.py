"""`kohort run`: carry out a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan to carry out.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for model, ledger and run.json.")],
    engine: Annotated[str, typer.Option(help="local: every site in this process.")] = "local",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a reproducible run (0 when unset).")] = None,
    secure_random: Annotated[bool, typer.Option(help="Randomness from the operating system; no seed.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Train one model as a plan says, through every site's door.

    Example: kohort run examples/fedavg.toml --out out/fedavg
    """
    from kohort.cli.progress import round_bar
    from kohort.config import read_plan
    from kohort.errors import ConfigError, nearest
    from kohort.experiment import run as carry_out

    if engine != "local":
        raise ConfigError(f"unknown engine {engine!r}", hint=nearest(engine, ["local"]))
    read = read_plan(plan, overrides=set_ or [])
    with round_bar(read.method, quiet=json) as watch:
        outcome = carry_out(read, out=out, seed=seed, secure_random=secure_random, force=force, watch=watch)
    if json:
        emit(outcome.to_mapping())
        return
    from kohort.cli.tables import outcome_table

    stdout().print(outcome_table([outcome.to_mapping()]))
    stdout().print(f"{outcome.rounds} rounds, ended by: {outcome.stopped_by}. Written to {out}", markup=False)
