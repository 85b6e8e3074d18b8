"""Predictions for Parquet tables larger than memory: read, predicted and written one part after the other.

Guarantees: every row gets the prediction that it has in one piece, because a prediction depends on its row alone. The
file is whole or absent; parts lie beside it until it is complete, and go in any case. Memory is bounded by a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kohort.evaluate.tables import MissingCells, predict_table
from kohort.files import disk_errors, scratch_folder
from kohort.models.base import Model
from kohort.tables.parts import part_rows, row_count
from kohort.tables.roles import suspected
from kohort.tables.scanning import readable, scan_parquet

__all__ = ["Predicted", "predict_in_parts"]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What came of a table.

    Attributes:
        rows: Rows that were written.
        skipped: Rows without a prediction, for missing values.
        unknown: By column, rows with a category that the model does not know.
        hidden: Columns that were left out because they look like identifiers.
        parts: In how many parts it was read.
    """

    rows: int
    skipped: int
    unknown: dict[str, int]
    hidden: tuple[str, ...]
    parts: int = 1


def predict_in_parts(
    model: Model, source: str, out: Path, *, used: Collection[str], proba: bool = False, missing: MissingCells = "error"
) -> Predicted:
    """Write a large Parquet table with a column of predictions.

    Args:
        model: The model.
        source: Path of the table.
        out: The Parquet file to write; it is replaced.
        used: Columns that are written although they may look like identifiers. Whether others do is judged by the
            rows of the first part: what names every row of a table names every row of a part.
        proba: As in `predict_table`.
        missing: As in `predict_table`.

    Returns:
        What was written and left out.

    Raises:
        DataError: The table is damaged, or holds what the model does not know.
        ResourceError: The disk is full.
    """
    table = scan_parquet(source)
    with readable(source):
        rows = row_count(table)
    step = part_rows(table, rows)
    skipped, unknown = 0, Counter[str]()
    hidden: tuple[str, ...] = ()
    with disk_errors(out), scratch_folder(out) as folder:
        for number, begin in enumerate(range(0, rows, step)):
            with readable(source):
                part = table.slice(begin, step).collect(engine="streaming")
            if number == 0:
                hidden = tuple(suspected(part, declared=used))
            found, lacking, unseen = predict_table(model, part, proba=proba, missing=missing)
            skipped += lacking
            unknown.update(unseen)
            found.drop(hidden).write_parquet(folder / f"{number:09d}.parquet")
        whole = folder / "whole"
        pl.scan_parquet(sorted(folder.iterdir()), glob=False).sink_parquet(whole)
        whole.chmod(0o644)
        whole.replace(out)
    return Predicted(rows=rows, skipped=skipped, unknown=dict(unknown), hidden=hidden, parts=-(-rows // step))
