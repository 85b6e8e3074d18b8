"""`kohort plan explain`: what a plan may ever ask of a site, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import JsonOption, emit

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    plan = typer.Typer(name="plan", help="Read a plan before it runs.", no_args_is_help=True, rich_markup_mode=None)
    plan.callback()(_group)  # a group with one command keeps its command's name
    plan.command("explain")(explain)
    app.add_typer(plan)


def _group() -> None:
    """Read a plan before it runs."""


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=v", help="Overrides that the hub will use.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print everything a plan may ever ask of a site: what, how often, to whom, and how it is protected.

    The table is not read. `kohort site approve` shows the same text. Example: kohort plan explain examples/fedavg.toml
    """
    from kohort.runs.config import read_plan
    from kohort.runs.explain import explain_plan

    found = explain_plan(read_plan(plan, overrides=set_ or []))
    if json:
        emit(found.to_mapping())
    else:
        typer.echo(found.text)
