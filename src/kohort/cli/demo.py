"""`kohort demo`: every method on the embedded table, with a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, emit, say, stdout, today

if TYPE_CHECKING:
    from rich.table import Table

    from kohort.methods.registry import Method
    from kohort.runs.demo import Watch

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")] = Path(
        "out/demo"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training for each method.")] = 60,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time, each in a process of its own. Default: one per core.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Train on the embedded Adult table with every registered method: ten sites, one age interval each.

    Writes a run folder for each method and one page that compares them.

    Example: kohort demo --out out/demo
    """
    from kohort.runs.demo_start import other_processes, prepare_folder

    prepare_folder(out, force=force)
    if not json:
        say("Ten sites, one age interval each. The first run on a machine compiles the training kernel (some seconds)")
    at_a_time = jobs or os.cpu_count() or 1
    with other_processes(at_a_time - 1, loading="kohort.runs.demo") as others:
        from kohort.runs.demo import run_demo

        runs = run_demo(out, rounds=rounds, date=today(), others=others, watching=_bars(quiet=json))
    if json:
        emit({"out": str(out), "report": str(out / "report.html"), "runs": runs})
        return
    stdout().print(_table(runs))
    say("attack: area under the curve of membership inference by the loss; a guess has 0.5. More: kohort audit DIR")
    verified = [run["ledger"] for run in runs if run.get("ledger")]
    lines = sum(found["lines"] for found in verified)
    say(f"Ledgers verified: {len(verified)} runs, {lines:,} lines")
    say(f"To see what each method learned and disclosed, open {out / 'report.html'} in a browser")
    say(f"To see what each site sent: kohort ledger show {out / runs[-1]['method']}")


def _bars(*, quiet: bool) -> Callable[[Method], AbstractContextManager[Watch]]:
    from kohort.cli.progress import round_bar
    from kohort.methods.registry import methods

    order = list(methods())

    def watching(method: Method) -> AbstractContextManager[Watch]:
        return round_bar(f"{order.index(method.name) + 1}/{len(order)} {method.name}", quiet=quiet)

    return watching


def _table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The table of `kohort run`, with the reason in the row of each run that did not finish."""
    from rich.markup import escape

    from kohort.cli.tables import outcome_table

    table = outcome_table([run for run in runs if "error" not in run], attacked=True)
    reason_column = [column.header for column in table.columns].index("what left the sites")
    for run in runs:
        if "error" in run:
            cells = ["-"] * len(table.columns)
            cells[0], cells[reason_column] = run["method"], escape(f"did not finish: {run['error']}")
            table.add_row(*cells)
    return table
