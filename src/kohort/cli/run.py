"""`kohort run`: run a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import (
    DropOption,
    ForceOption,
    IdentifiersOption,
    JsonOption,
    KeepOption,
    NullsOption,
    PersonOption,
    SchemaOption,
    emit,
    names,
    null_values,
    say,
    stdout,
)

if TYPE_CHECKING:
    from kohort.runs.backend import Backend

__all__ = ["register"]

ENGINES = ("local", "flower")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run")(run)


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan to run.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for model, ledger and run.json.")],
    engine: Annotated[
        str, typer.Option(help="local: every site in this process; flower: sites on other machines.")
    ] = "local",
    hub: Annotated[Path | None, typer.Option(metavar="HUB", help="The hub's folder, for --engine flower.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for sites to connect (flower).")] = 60.0,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help="Change a key of the plan.")] = None,
    identifiers: IdentifiersOption = None,
    person: PersonOption = None,
    drop: DropOption = None,
    keep: KeepOption = None,
    null: NullsOption = None,
    schema: SchemaOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a reproducible run (0 when unset).")] = None,
    secure_random: Annotated[bool, typer.Option(help="Randomness from the operating system; no seed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in DIR.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Train one model as a plan says. Everything that leaves a site passes its door and is in its ledger.

    Example: kohort run examples/fedavg.toml --out out/fedavg
    """
    from kohort.cli.progress import between_rounds, round_bar
    from kohort.errors import ConfigError, nearest
    from kohort.runs.config import read_plan
    from kohort.runs.folder import stored_result
    from kohort.runs.plan.data_options import data_of
    from kohort.runs.run import run as run_plan

    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}", hint=nearest(engine, ENGINES))
    roles = {"identifiers": names(identifiers), "drop": names(drop), "keep": names(keep), "person": person}
    data = data_of(roles, null_values(null), schema)
    read = read_plan(plan, overrides=set_ or [], data=data)
    read.require_read(engine)
    result = stored_result(out, read, seed) if resume else None
    if result is None:
        # Sites on other machines draw their own randomness; the hub does so too, unless a test gives a seed.
        secure = secure_random or (engine == "flower" and seed is None)
        with (
            _backend(engine, hub, out, wait) as backend,
            round_bar(read.method, quiet=json) as watch,
            between_rounds(watch) as checked,
        ):
            result = run_plan(
                read,
                out=out,
                seed=seed,
                secure_random=secure,
                resume=resume,
                force=force,
                watch=checked,
                backend=backend,
                baselines=True,
            ).to_mapping()
    if json:
        emit(result)
        return
    if read.ignored_note:
        say(f"note: {read.ignored_note}")
    _show(result, out)


def _show(result: Mapping[str, Any], out: Path) -> None:
    """The result as people read it; warnings go to stderr."""
    from kohort.cli.tables import outcome_table, said_beside
    from kohort.privacy.claim_words import number_of

    stdout().print(outcome_table([result]))
    for line in said_beside(result):
        stdout().print(line, markup=False)
    for warning in result.get("warnings", ()):
        say(f"warning: {warning}")
    rounds = number_of(result["rounds"], "round")
    stdout().print(f"{rounds}, ended by: {result['stopped_by']}. Written to {out}", markup=False)


@contextmanager
def _backend(engine: str, hub: Path | None, out: Path, wait: float) -> Iterator[Backend | None]:
    """What runs the sites: None for this process, or a Flower deployment."""
    if engine == "local":
        yield None
        return
    from kohort.errors import ConfigError
    from kohort.transport.deployment.hub import HubFolder

    if hub is None:
        raise ConfigError("--engine flower needs the hub's folder", hint="Add --hub HUB")
    folder = HubFolder(hub)
    with folder.backend(wait=wait) as backend:
        folder.remember_run(out)
        yield backend
