"""`kohort evaluate`: how good a model is on a table whose answers are known, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ClusterOption, JsonOption, SiteOption, as_agreed, checked_model, emit, say, stdout
from kohort.cli.predict import MissingOption, ModelArgument, TableArgument, say_unseen

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    model: ModelArgument,
    table: TableArgument,
    by: Annotated[str | None, typer.Option("--by", metavar="COLUMN", help="Also for each value of a column.")] = None,
    missing: MissingOption = "error",
    site: SiteOption = None,
    cluster: ClusterOption = None,
    resamples: Annotated[int, typer.Option(min=100, max=100_000, help="Resamples behind an interval.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    json: JsonOption = False,
) -> None:
    """Measure a model on a table that holds the target, with 95 % bootstrap intervals.

    Example: kohort evaluate out/fedavg adult:test --missing skip --by sex
    """
    from kohort.evaluate.intervals import LEVEL
    from kohort.evaluate.tables import evaluate_table
    from kohort.tables.datasets.catalogue import open_table

    trained = checked_model(model, cluster, site)
    found = evaluate_table(
        trained,
        as_agreed(open_table(table).frame, model, site),
        by=by,
        missing=missing,  # type: ignore[arg-type] # any other word is refused there
        resamples=resamples,
        seed=seed,
    )
    if json:
        emit(
            {
                "task": trained.task,
                "target": trained.target,
                "rows": found.rows,
                "skipped": found.skipped,
                "unseen": found.unseen,
                "metrics": found.metrics,
                "by": by,
                "groups": found.groups,
                "resamples": resamples,
                "level": LEVEL,
            }
        )
        return
    if found.skipped:
        say(f"note: {found.skipped:,} rows with missing values are left out")
    say_unseen(trained, found.unseen)
    console = stdout()
    console.print(_measures(found.metrics, rows=found.rows))
    if by is not None:
        console.print(_groups(by, found.groups))


def _measures(metrics: Mapping[str, Any], *, rows: int) -> Table:
    from rich.table import Table

    table = Table(title=f"{rows:,} rows")
    table.add_column("measure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    for name, interval in metrics["intervals"].items():
        table.add_row(name, _number(metrics[name]), _range(interval))
    return table


def _groups(by: str, groups: Mapping[str, Mapping[str, Any]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    first = next(iter(groups.values()))
    names = ("accuracy", "f1", "auc") if "accuracy" in first else ("r2", "rmse", "mae")
    table = Table()
    table.add_column(escape(by))
    table.add_column("rows", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for group, measured in groups.items():
        cells = (f"{_number(measured[name])}\n{_range(measured['intervals'][name])}" for name in names)
        table.add_row(escape(group), f"{measured['rows']:,}", *cells)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"


def _range(interval: list[float] | None) -> str:
    return "-" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"
