"""`kohort predict`: a table in, the same table with a column of predictions out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kohort.cli.common import (
    ClusterOption,
    ForceOption,
    JsonOption,
    KeepOption,
    SiteOption,
    as_agreed,
    checked_model,
    emit,
    names,
    say,
)

if TYPE_CHECKING:
    from kohort.evaluate.in_parts import Predicted
    from kohort.models.base import Model

__all__ = ["MissingOption", "ModelArgument", "TableArgument", "UnseenOption", "register", "say_unseen", "with_unseen"]

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder, or the folder of model.json.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="A named dataset, a path, or - for CSV on stdin.")]
MissingOption = Annotated[
    str, typer.Option("--missing", help="Rows with missing values the model does not know: error or skip.")
]


UnseenOption = Annotated[
    str | None,
    typer.Option(
        "--unseen", help="Categories the model does not know: other (counted) or error; by default as trained."
    ),
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
    unseen: UnseenOption = None,
    site: SiteOption = None,
    cluster: ClusterOption = None,
    keep: KeepOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a table with one more column, predicted_TARGET.

    Columns may come in any order; rows keep theirs. Columns that look like identifiers are left out unless
    --keep names them. With --missing skip, rows with missing values get an empty prediction. With --cluster, the
    model is that of a cluster of peers; a run that ended among peers has no other.

    Example: kohort predict out/fedavg adult:test --missing skip --out predicted.parquet
    """
    from time import perf_counter

    from kohort.errors import ConfigError
    from kohort.evaluate.in_parts import predict_in_parts
    from kohort.evaluate.tables import predicted_column
    from kohort.files import require_new
    from kohort.tables.frames import ENDINGS
    from kohort.tables.parts import is_large

    began = perf_counter()
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{str(out)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
    require_new(out, force=force)
    trained = with_unseen(checked_model(model, cluster, site), unseen)
    # The table's own columns, whatever the mapping made of them; identifiers only if somebody names them.
    used = {*trained.encoder.schema.inputs, trained.target, *names(keep)}
    if _row_by_row(trained, model) and is_large(table, out):
        # Any other word than the two known ones is refused by predict_table.
        found = predict_in_parts(trained, table, out, used=used, proba=proba, missing=missing)  # type: ignore[arg-type]
    else:
        found = _at_once(trained, model, table, out, used=used, proba=proba, missing=missing, site=site, force=force)
    if json:
        emit(
            {
                "rows": found.rows,
                "skipped": found.skipped,
                "column": predicted_column(trained),
                "unseen": found.unknown,
                "left_out": _left_out(found),
                "out": str(out),
                "seconds": perf_counter() - began,
            }
        )
        return
    if found.hidden:
        say(f"note: left out, they look like identifiers: {', '.join(found.hidden)}. Add --keep NAME to write them")
    say_unseen(trained, found.unknown)
    left = f", {found.skipped:,} of them without a prediction for missing values" if found.skipped else ""
    parts = f", read in {found.parts:,} parts" if found.parts > 1 else ""
    say(f"{found.rows:,} rows{left}{parts}. Written to {out}, column {predicted_column(trained)}")


def say_unseen(model: Model, unseen: Mapping[str, int]) -> None:
    """Warn of rows with a category that the model does not know, and say how they were read.

    Args:
        model: The model.
        unseen: By column, how many rows have one.
    """
    others = {name for name in unseen if model.encoder.has_other(name)}
    for read_as, columns in (("as other", others), ("as any of its column", {*unseen} - others)):
        listed = ", ".join(f"{name} ({count:,})" for name, count in unseen.items() if name in columns)
        if listed:
            say(f"warning: rows with a category unknown to the model, read {read_as}: {listed}")


def _row_by_row(trained: Model, where: Path) -> bool:
    """Whether a row is read by itself: how item sets and mapped columns are written is found from the whole table."""
    from kohort.models.files import about_model, find_model

    return not trained.encoder.schema.items and not about_model(find_model(where)).get("mapping")


def _at_once(
    trained: Model,
    model: Path,
    table: str,
    out: Path,
    *,
    used: set[str],
    proba: bool,
    missing: str,
    site: str | None,
    force: bool,
) -> Predicted:
    """Read, predict and write a table as a whole."""
    from kohort.evaluate.in_parts import Predicted
    from kohort.evaluate.tables import predict_table
    from kohort.tables.datasets.catalogue import open_table
    from kohort.tables.frames import TEXT_ENDINGS, write_table
    from kohort.tables.item_sets import with_item_sets
    from kohort.tables.reading import ROW, restore_texts
    from kohort.tables.roles import suspected

    opened = open_table(table)
    agreed = as_agreed(opened.frame, model, site)
    frame = with_item_sets(agreed, trained.encoder.schema.items)[0] if trained.encoder.schema.items else agreed
    exact = opened.texts is not None and out.suffix.lower() in TEXT_ENDINGS
    # Any other word than the two known ones is refused by predict_table.
    found, skipped, unknown = predict_table(trained, frame, proba=proba, missing=missing)  # type: ignore[arg-type]
    added = found.select(name for name in found.columns if name not in frame.columns)
    hidden = tuple(suspected(opened.frame, declared=used))
    predicted = opened.frame.drop(hidden).with_columns(added)
    if exact:
        predicted = restore_texts(predicted.with_row_index(ROW), opened.texts, opened.frame)
    write_table(predicted, out, force=force)
    return Predicted(rows=predicted.height, skipped=skipped, unknown=unknown, hidden=hidden)


def _left_out(found: Predicted) -> list[dict[str, object]]:
    gone = [
        {"what": "rows", "why": "a value is missing", "count": found.skipped},
        {"what": "columns", "why": "they look like identifiers", "count": len(found.hidden)},
    ]
    return [entry for entry in gone if entry["count"]]


def with_unseen(model: Model, unseen: str | None) -> Model:
    """A model that treats categories it does not know as asked.

    Raises:
        ConfigError: The word is unknown.
    """
    from dataclasses import replace

    from kohort.errors import ConfigError, nearest

    if unseen is None:
        return model
    if unseen not in {"other", "error"}:
        raise ConfigError(f"unknown --unseen {unseen!r}", hint=nearest(unseen, ("other", "error")))
    object.__setattr__(model, "encoder", replace(model.encoder, unseen=unseen))  # type: ignore[arg-type]
    return model
