"""`kohort predict`: a table in, the same table with a column of predictions out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kohort.cli.common import ForceOption, JsonOption, checked_model, emit, say

__all__ = ["MissingOption", "ModelArgument", "TableArgument", "register"]

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder, or the folder of model.json.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="A named dataset, a path, or - for CSV on stdin.")]
MissingOption = Annotated[
    str, typer.Option("--missing", help="Rows with missing values the model does not know: error or skip.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict")(predict)


def predict(
    model: ModelArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="CSV, Parquet or Arrow, by ending.")],
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    missing: MissingOption = "error",
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a table with one more column, predicted_TARGET.

    Columns may come in any order. With --missing skip, rows with missing values get an empty prediction.

    Example: kohort predict out/fedavg adult:test --missing skip --out predicted.parquet
    """
    from time import perf_counter

    from kohort.errors import ConfigError
    from kohort.evaluate.tables import predict_table, predicted_column
    from kohort.files import require_new
    from kohort.tables.datasets.catalogue import open_table
    from kohort.tables.frames import ENDINGS, write_table

    began = perf_counter()
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{str(out)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
    require_new(out, force=force)
    trained = checked_model(model)
    # Any other word than the two known ones is refused by predict_table.
    predicted, skipped = predict_table(trained, open_table(table).frame, proba=proba, missing=missing)  # type: ignore[arg-type]
    write_table(predicted, out, force=force)
    if json:
        emit(
            {
                "rows": predicted.height,
                "skipped": skipped,
                "column": predicted_column(trained),
                "out": str(out),
                "seconds": perf_counter() - began,
            }
        )
        return
    left = f", {skipped:,} of them without a prediction for missing values" if skipped else ""
    say(f"{predicted.height:,} rows{left}. Written to {out}, column {predicted_column(trained)}")
