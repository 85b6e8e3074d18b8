"""The rows of a real site: the table that `site.toml` names, with the site's own mapping applied at home.

What had to be left out or could not be read is counted in `log/table.log`, which stays at the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from kohort.crypto.identity.guarded_files import UNCHANGED, read_guarded
from kohort.errors import ConfigError
from kohort.files import write_atomic
from kohort.tables.dialect import ReadingOptions
from kohort.tables.frames import check_finite, read_source
from kohort.tables.item_sets import with_item_sets
from kohort.tables.reading import declare_missing

__all__ = ["read_site_table"]

LOG = Path("log") / "table.log"


def read_site_table(
    folder: Path,
    *,
    name: str,
    table: str,
    query: str = "",
    mapping: str = "",
    target: str | None = None,
    items: Sequence[str] = (),
    reading: ReadingOptions | None = None,
) -> pl.DataFrame:
    """Read the table of a site.

    Args:
        folder: The site's folder, where relative paths start.
        name: The site's name, for the part of the mapping that is for it alone.
        table: A path, the address of a database, or an OMOP folder.
        query: A SELECT statement, for a database.
        mapping: A mapping file, or nothing.
        target: The column to predict, whose gaps are counted.
        items: The columns that hold item sets, as `data.items` names them.
        reading: What is declared about the file, its missing values and its sets.

    Returns:
        The table with the agreed names, types and values; item sets are lists.

    Raises:
        ConfigError: The address or the mapping cannot be read, or a query is given without a database.
        DataError: The table cannot be read.
        RefusedError: Others may change the mapping.
    """
    from kohort.tables.sources.opening import is_source, read_address

    notes: tuple[str, ...] = ()
    if is_source(table):
        source = read_address(table, query=query or None, folder=folder)
        frame, notes = source.frame, source.notes
        frame = frame if reading is None else declare_missing(frame, reading)[0]
    elif query:
        raise ConfigError("site.query needs the address of a database", hint="Set site.table to one, or drop it")
    else:
        frame = read_source(folder / table, reading).frame
    if mapping:
        from kohort.tables.harmonise.mapping import TableMapping

        if (folder / mapping).is_file():  # whoever can change it decides what rows mean
            read_guarded(folder / mapping, forbidden=UNCHANGED)
        frame, lost = TableMapping.load(folder / mapping).apply(frame, site=name)
        notes = (*notes, *lost)
    frame, _ = with_item_sets(frame, items, reading)
    notes = (*notes, *_gaps(frame, target))
    if notes:
        write_atomic(folder / LOG, "".join(f"{note}\n" for note in notes).encode(), private=True)
    return check_finite(frame)


def _gaps(frame: pl.DataFrame, target: str | None) -> list[str]:
    """Rows that plans leave out for a missing value, counted."""
    if target is None or target not in frame.columns:
        return []
    unanswered = frame[target].null_count()
    others = frame.height - frame.drop_nulls().height - unanswered
    said = [f"{unanswered:,} rows have no value of {target} and take no part in runs"] if unanswered else []
    return said + ([f'{others:,} other rows have a gap: plans with missing = "drop" leave them out'] if others else [])
