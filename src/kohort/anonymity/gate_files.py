"""A gate over a whole table on disk, to two files: the rows that may be shared and the rows that are kept.

A Parquet table is read in parts, more than once, so that only the columns the gate looks at are ever held as a whole.

Guarantees: every row that is not left out for missing values is in exactly one of the two files, in table order; the
identifier is never in the shared file; each file is there as a whole or not at all, and existing ones stay unless
`force` is given.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate import Gated, apply_gate, sets_as_text
from kohort.data.datasets import open_table
from kohort.data.table import ENDINGS, UNREADABLE, Missing, from_native, write_table
from kohort.errors import ConfigError, DataError, nearest
from kohort.files import disk_errors, require_new

__all__ = ["GatedTable", "gate_table"]

Mask = NDArray[np.bool_]
PART_ROWS = 1 << 20
# Any two seeds do: the pair of hashes is what tells rows apart.
SEEDS = (0x6B6F686F, 0x72746761)


@dataclass(frozen=True, kw_only=True)
class GatedTable:
    """What was decided. `unique` counts the shared rows that no other shared row equals in `shared_columns`."""

    gated: Gated
    dropped_rows: int
    shared_columns: tuple[str, ...]
    unique: int


def gate_table(
    source: str,
    *,
    quasi: Sequence[str],
    sensitive: str | None = None,
    identifier: str | None = None,
    missing: Missing = "category",
    shared_columns: Sequence[str] = (),
    out_shared: Path | None = None,
    out_kept: Path | None = None,
    force: bool = False,
    **rule: Any,
) -> GatedTable:
    """Apply a gate (`rule` holds the other arguments of `apply_gate`) to a named dataset or file, and write both parts.

    Without `shared_columns` all columns but the identifier are shared.
    """
    if missing not in get_args(Missing):
        raise ConfigError(f"unknown way to handle missing values {missing!r}", hint=nearest(missing, get_args(Missing)))
    _check_outputs(out_shared, out_kept, force=force)
    with _readable(source):
        table = _open(source)
        names = table.collect_schema().names()
        shared = _shared_columns(names, shared_columns, identifier)
        looked_at = [*quasi, *(name for name in (sensitive, identifier) if name is not None)]
        _require(looked_at, names)
        complete = _complete_rows(table) if missing == "drop" else None
        frame = table.select(list(dict.fromkeys(looked_at))).collect()
        if complete is not None:
            frame = frame.filter(pl.Series(complete))
        gated = apply_gate(frame, quasi=quasi, sensitive=sensitive, identifier=identifier, **rule)
        del frame
        passes = gated.mask if complete is None else _spread(gated.mask, complete)
        found = GatedTable(
            gated=gated,
            dropped_rows=0 if complete is None else int((~complete).sum()),
            shared_columns=shared,
            unique=_count_unique(table.select(shared), passes),
        )
        if out_shared is not None:
            _write(table.select(shared), passes, out_shared, force=force)
        if out_kept is not None:
            _write(table, ~passes if complete is None else complete & ~passes, out_kept, force=force)
    return found


@contextmanager
def _readable(source: str) -> Iterator[None]:
    """A damaged Parquet file shows itself only while its parts are read."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        hint = "It is truncated, damaged or of another kind: write or copy it again"
        raise DataError(f"{source!r} is not a readable table", hint=hint) from None


def _open(source: str) -> pl.LazyFrame:
    path = Path(source)
    if ENDINGS.get(path.suffix.lower()) != "parquet" or not path.is_file():
        return open_table(source).frame.lazy()
    try:
        scanned = pl.scan_parquet(path)
        schema = scanned.collect_schema()
        rows = int(scanned.select(pl.len()).collect().item())
        from_native(scanned.head(1).collect())  # refuses the types kohort does not know
    except UNREADABLE:
        hint = "It is truncated, damaged or of another kind: write or copy it again"
        raise DataError(f"{source!r} is not a readable Parquet file", hint=hint) from None
    if rows == 0 or not schema:
        raise DataError(f"{source!r} has a header but no rows", hint="Give a table with at least one row")
    floats = [name for name, dtype in schema.items() if dtype.is_float()]
    if not floats:
        return scanned
    infinite = scanned.select(pl.col(floats).is_infinite().sum()).collect().row(0)
    named = [f"{name} ({count:,})" for name, count in zip(floats, infinite, strict=True) if count]
    if named:
        hint = "Replace them by a finite number or leave the cells empty"
        raise DataError(f"{source!r} has infinite numbers in: {', '.join(named)}", hint=hint)
    return scanned.with_columns(pl.col(floats).fill_nan(None))


def _check_outputs(out_shared: Path | None, out_kept: Path | None, *, force: bool) -> None:
    for path in (out_shared, out_kept):
        if path is None:
            continue
        if path.suffix.lower() not in ENDINGS:
            raise ConfigError(f"{str(path)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
        require_new(path, force=force)
    if out_shared is not None and out_kept is not None and out_shared.resolve() == out_kept.resolve():
        raise ConfigError("shared and kept rows go to the same file", hint="Name two files")


def _require(wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, names))


def _shared_columns(names: Sequence[str], wanted: Sequence[str], identifier: str | None) -> tuple[str, ...]:
    _require(wanted, names)
    if identifier is not None and identifier in wanted:
        raise ConfigError(f"the identifier {identifier!r} is among the shared columns", hint="Leave it out")
    return tuple(name for name in names if (name in wanted if wanted else name != identifier))


def _complete_rows(table: pl.LazyFrame) -> Mask:
    complete = table.select(pl.all_horizontal(pl.all().is_not_null())).collect().to_series().to_numpy()
    if not complete.any():
        hint = "Use --missing category, or drop the emptiest columns"
        raise DataError(f"all {len(complete):,} rows have a missing value", hint=hint)
    return complete


def _spread(mask: Mask, complete: Mask) -> Mask:
    passes = np.zeros(len(complete), np.bool_)
    passes[complete] = mask
    return passes


def _count_unique(table: pl.LazyFrame, passes: Mask) -> int:
    """Rows whose 128-bit hash no other passing row has; that two different rows share one is beyond chance."""
    parts = []
    for start in range(0, len(passes), PART_ROWS):
        wanted = pl.Series(passes[start : start + PART_ROWS])
        part, _ = from_native(table.slice(start, PART_ROWS).collect().filter(wanted))
        plain = sets_as_text(part)
        parts.append([plain.hash_rows(seed).to_numpy() for seed in SEEDS])
    first, second = (np.concatenate(hashes) for hashes in zip(*parts, strict=True))
    if len(first) < 2:
        return len(first)
    order = pl.Series(first).arg_sort().to_numpy()
    sorted_first, sorted_second = first[order], second[order]
    same_first = sorted_first[1:] == sorted_first[:-1]
    if (same_first & (sorted_second[1:] != sorted_second[:-1])).any():
        # Some rows share the first hash alone: let the second decide the order among them.
        order = np.lexsort((second, first))
        sorted_first, sorted_second = first[order], second[order]
        same_first = (sorted_first[1:] == sorted_first[:-1]) & (sorted_second[1:] == sorted_second[:-1])
    repeated = np.concatenate((same_first, [False])) | np.concatenate(([False], same_first))
    return int((~repeated).sum())


def _write(table: pl.LazyFrame, wanted: Mask, path: Path, *, force: bool) -> None:
    names = table.collect_schema().names()
    marker = "wanted"
    while marker in names:
        marker += "_"
    picked = pl.concat([table, pl.LazyFrame({marker: wanted})], how="horizontal")
    rows = picked.filter(pl.col(marker)).drop(marker)
    if ENDINGS[path.suffix.lower()] != "parquet":
        write_table(rows.collect(), path, force=force)
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as made:
            temporary = Path(made.name)
        try:
            _sink(rows, temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def _sink(rows: pl.LazyFrame, path: Path) -> None:
    """Write in parts; a full disk is the operating system's error, whatever the writer wraps it in."""
    try:
        rows.sink_parquet(path)
    except pl.exceptions.PolarsError as problem:
        wrapped = re.search(r"\(os error (\d+)\)", str(problem))
        if wrapped is None:
            raise
        raise OSError(int(wrapped.group(1)), "writing failed") from None
