"""`kohort explain`: what a model says of every column, and what it says of one row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import ForceOption, JsonOption, checked_model, emit, say, stdout

if TYPE_CHECKING:
    from kohort.models.base import Model

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("explain")(explain)


def explain(
    model: Annotated[Path, typer.Argument(metavar="DIR|MODEL", help="A run folder, or the folder of model.json.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a page with all curves.")] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Rows to explain the model on, with the target.")
    ] = None,
    row: Annotated[
        int | None, typer.Option("--row", min=1, help="One row of the table: what each column adds.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Say how much every column matters and what it adds to the score, bin by bin.

    Additive models are explained by themselves. Others need rows: --table gives permutation importances.

    Example: kohort explain out/additive --out curves.html
    """
    from kohort.errors import ConfigError
    from kohort.files import require_new
    from kohort.tables.datasets.catalogue import open_table

    if out is not None:
        require_new(out, force=force)
    trained = checked_model(model)
    curves = trained.curves()
    rows = None if table is None else open_table(table).frame
    if not curves and rows is None:
        raise ConfigError(
            f"a model of kind {trained.kind!r} is explained on rows", hint="Give --table TABLE with the target column"
        )
    if not curves and rows is not None:
        curves = {name: {"importance": value, **_NO_CURVE} for name, value in trained.explain(rows).items()}
    result: dict[str, Any] = {"model": trained.kind, "target": trained.target, "columns": curves}
    if row is not None:
        result |= {"row": row, "contributions": _of_row(trained, rows, row)}
    if out is not None:
        _write_page(trained, out)
        result["out"] = str(out)
    if json:
        emit(result)
        return
    _show(result)
    if out is not None:
        say(f"Written to {out}")


_NO_CURVE: dict[str, Any] = {"bins": [], "values": [], "counts": []}


def _of_row(trained: Model, rows: Any, row: int) -> dict[str, Any]:
    from kohort.errors import ConfigError, DataError

    if rows is None:
        raise ConfigError("--row needs a table", hint="Give --table TABLE")
    if row > rows.height:
        raise DataError(f"the table has {rows.height} rows, and row {row} was asked for", hint="Give a smaller --row")
    found = trained.row_contributions(rows.slice(row - 1, 1))
    if not found:
        raise ConfigError(f"a model of kind {trained.kind!r} is no sum of columns", hint="Drop --row")
    return found[0]


def _write_page(trained: Model, out: Path) -> None:
    from kohort.errors import ConfigError
    from kohort.files import write_atomic
    from kohort.report.curves import curves_of_model, curves_page

    found = curves_of_model(trained)
    if found is None:
        raise ConfigError(f"a model of kind {trained.kind!r} has no curves to draw", hint="Drop --out")
    title = f"What the model of {trained.target} says"
    page = curves_page(found["columns"], title=title, lead=found["lead"], outputs=found["outputs"])
    write_atomic(out, page.encode())


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table

    shown = Table("column", "importance", "bins", "lowest", "highest")
    for name, curve in result["columns"].items():
        flat = [value for entry in curve["values"] for value in (entry if isinstance(entry, list) else [entry])]
        ends = [f"{min(flat):+.3f}", f"{max(flat):+.3f}"] if flat else ["", ""]
        shown.add_row(name, f"{curve['importance']:.4f}", str(len(curve["bins"]) or ""), *ends)
    stdout().print(shown)
    if "contributions" in result:
        parts = Table("column", f"adds to row {result['row']}")
        for name, value in result["contributions"].items():
            parts.add_row(
                name, ", ".join(f"{number:+.3f}" for number in (value if isinstance(value, list) else [value]))
            )
        stdout().print(parts)
